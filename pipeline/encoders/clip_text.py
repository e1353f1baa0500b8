"""The text tower of an open_clip model, with its own tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.encoders.clip_model import ClipModel, load_clip
from pipeline.encoders.frozen_model import FrozenModel
from pipeline.encoders.own_families import OpenClipConfig
from pipeline.encoders.protocols import EncoderIdentity
from pipeline.encoders.tokenizers import tokenizer_sha256
from sightline.devices import check_precision
from sightline.errors import SightlineError
from sightline.extras import require
from sightline.hub import reaching, use_cache_where_silent
from sightline.silenced_libraries import quiet

DEFAULT_CONTEXT_LENGTH = 77
"""Default tokens per text (CLIP's), if a model config gives none."""


class ClipTextEncoder:
    """Texts → projected CLIP features, not normalised. Build it with `build_text`."""

    def __init__(
        self, clip: ClipModel, config: OpenClipConfig, device: torch.device, precision: str
    ) -> None:
        text = clip.architecture["text_cfg"]
        self.dim: int = clip.dim
        self._context_length = int(text.get("context_length", DEFAULT_CONTEXT_LENGTH))
        self._tokenizer = _tokenizer(clip, self._context_length)
        for name in ("visual", "text_decoder"):
            if hasattr(clip.model, name):
                delattr(clip.model, name)
        self._frozen = FrozenModel(clip.model, device, precision, compiled=config.compile)
        self.identity: EncoderIdentity = self._frozen.identity(clip.identity)
        self.preprocessing: dict[str, object] = {
            "tokenizer": type(self._tokenizer).__name__,
            "tokenizer_sha256": _tokenizer_sha256(self._tokenizer),
            "tokenizer_options": dict(text.get("tokenizer_kwargs", {})),
            "context_length": self._context_length,
            "pooling": "the model's own: text projection",
        }

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """The context length for every text: the tower accepts only that length."""
        return [self._context_length] * len(texts)

    def encode(self, texts: Sequence[str], length: int) -> Tensor:
        """float32 [n, dim] on the CPU. Truncates longer texts to the context length, as CLIP does.

        Raises:
            ValueError: `length` is not the context length.
        """
        if length != self._context_length:
            raise ValueError(f"length is {length}; this tower takes {self._context_length} only")
        tokens = self._tokenizer(list(texts))  # int64 [n, context length]
        frozen = self._frozen
        batch = tokens.to(frozen.device, non_blocking=True)
        return frozen(frozen.model.encode_text, batch, normalize=False).float().cpu()


def build_text(config: OpenClipConfig, device: torch.device, precision: str) -> ClipTextEncoder:
    """The text tower that `config` names, on `device`."""
    return ClipTextEncoder(load_clip(config), config, device, check_precision(precision))


def _tokenizer(clip: ClipModel, context_length: int) -> Any:
    """The tokenizer that the model config specifies.

    Raises:
        SightlineError: it is on an unreachable hub, or has more tokens than the tower.
    """
    open_clip: Any = require("open_clip", "this encoder")
    text = clip.architecture["text_cfg"]
    options = dict(text.get("tokenizer_kwargs", {}))
    name = text.get("hf_tokenizer_name")
    if name:
        if clip.folder is not None and (clip.folder / name).is_dir():
            name = str(clip.folder / name)
        else:
            use_cache_where_silent()
        with reaching(clip.identity.name, f"tokenizer {name!r}"), quiet():
            tokenizer = open_clip.tokenizer.HFTokenizer(
                name,
                context_length=context_length,
                tokenizer_mode=text.get("tokenizer_mode"),
                **options,
            )
        size = len(tokenizer.tokenizer)
    else:
        tokenizer = open_clip.SimpleTokenizer(context_length=context_length, **options)
        size = tokenizer.vocab_size
    room = int(text.get("vocab_size", size))
    if not text.get("hf_model_name") and size > room:
        raise SightlineError(
            f"{clip.identity.name}: its tokenizer has {size} tokens and its text tower only "
            f"{room}; set text_cfg.vocab_size to {size}"
        )
    return tokenizer


def _tokenizer_sha256(tokenizer: Any) -> str:
    """Digest (hex) of the vocabulary, merges and rules of either kind of tokenizer."""
    inner = getattr(tokenizer, "tokenizer", None)
    if inner is not None:
        return tokenizer_sha256(inner)
    merges = sorted(tokenizer.bpe_ranks.items(), key=lambda item: item[1])
    rules = [sorted(tokenizer.encoder.items()), merges, tokenizer.pat.pattern]
    return hashlib.sha256(json.dumps(rules, sort_keys=True).encode()).hexdigest()
