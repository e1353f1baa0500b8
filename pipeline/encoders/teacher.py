"""Any Hugging Face text encoder as a frozen teacher: a folder or a hub name, and a pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pipeline.encoders.frozen_model import FrozenModel
from pipeline.encoders.own_families import TransformersConfig
from pipeline.encoders.protocols import EncoderIdentity
from pipeline.encoders.teacher_model import load_teacher
from pipeline.encoders.tokenizers import tokenizer_sha256
from sightline.devices import check_precision
from sightline.encoder_folder import token_ids
from sightline.errors import SightlineError
from sightline.pooling import needs_hidden_states, pool_output
from sightline.pooling_names import Pooling

FIRST_BUCKET = 16
"""The shortest padded length, in tokens; each further bucket doubles it."""


class TeacherEncoder:
    """Texts → pooled vectors of a BERT-like encoder, not normalised. Build it with `build_text`."""

    def __init__(
        self,
        frozen: FrozenModel,
        tokenizer: Any,
        identity: EncoderIdentity,
        pooling: Pooling,
        max_length: int,
    ) -> None:
        self.identity = frozen.identity(identity)
        self._frozen = frozen
        self.dim = int(frozen.model.config.hidden_size)
        self._tokenizer = tokenizer
        self._pooling: Pooling = pooling
        self._max_length = max_length
        self.preprocessing: dict[str, object] = {
            "tokenizer": type(tokenizer).__name__,
            "tokenizer_sha256": tokenizer_sha256(tokenizer),
            "max_length": max_length,
            "buckets": f"{FIRST_BUCKET} doubled, at most max_length",
            "pooling": pooling,
        }

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Each text's own padded length: its tokens, rounded up to a bucket."""
        return [bucket(len(ids), self._max_length) for ids in self._token_ids(texts)]

    def encode(self, texts: Sequence[str], length: int) -> Tensor:
        """float32 [n, dim] on the CPU, every text padded to `length` tokens.

        Texts are truncated to the maximum length, never to `length`.

        Raises:
            ValueError: a text needs more tokens than `length`.
        """
        ids = self._token_ids(texts)
        longest = max((len(row) for row in ids), default=0)
        if longest > length:
            raise ValueError(f"a text has {longest} tokens and the batch only {length}")
        inputs = self._tokenizer.pad(
            {"input_ids": ids}, padding="max_length", max_length=length, return_tensors="pt"
        )
        ids, mask = (
            inputs[name].to(self._frozen.device, non_blocking=True)
            for name in ("input_ids", "attention_mask")
        )
        return self._frozen(self._pooled, ids, mask).float().cpu()

    def _pooled(self, ids: Tensor, mask: Tensor) -> Tensor:
        output = self._frozen.model(
            input_ids=ids,
            attention_mask=mask,
            output_hidden_states=needs_hidden_states(self._pooling),
            return_dict=True,
        )
        return pool_output(output, mask, self._pooling)

    def _token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        return token_ids(self._tokenizer, texts, self._max_length)


def build_text(config: TransformersConfig, device: torch.device, precision: str) -> TeacherEncoder:
    """The teacher that `config` names, on `device`. Its pooling defaults to ``cls``.

    Raises:
        SightlineError: see `pipeline.encoders.teacher_model.load_teacher`; or a tokenizer without
            padding token, or a maximum length beyond the model's positions.
    """
    check_precision(precision)
    pooling: Pooling = config.pooling or "cls"
    teacher = load_teacher(config, pooling)
    tokenizer = teacher.tokenizer
    if tokenizer.pad_token_id is None:
        raise SightlineError(
            f"{config.model}: its tokenizer has no padding token, so texts cannot share a batch; "
            "use an encoder (BERT, RoBERTa, MPNet, …)"
        )
    tokenizer.padding_side = "right"  # [CLS] stays the first token
    max_length = _max_length(config, teacher.positions, tokenizer, teacher.sentence_length)
    frozen = FrozenModel(
        teacher.model, device, precision, compiled=config.compile, cast_buffers=False
    )
    return TeacherEncoder(frozen, tokenizer, teacher.identity, pooling, max_length)


def bucket(tokens: int, max_length: int) -> int:
    """The padded length of a text of `tokens` tokens: 16, 32, 64, …, at most `max_length`."""
    length = FIRST_BUCKET
    while length < tokens:
        length *= 2
    return min(length, max_length)


def _max_length(config: TransformersConfig, positions: int | None, tokenizer: Any, own: int) -> int:
    """The user's value, else the sentence encoder's, else the number of positions."""
    if config.max_length is not None:
        if positions is not None and config.max_length > positions:
            raise SightlineError(
                f"{config.model}: max_length {config.max_length} is beyond the {positions} "
                f"positions it was trained with; use at most {positions}"
            )
        return config.max_length
    # Tokenizers without a limit report an astronomical number.
    known = [n for n in (own, positions, tokenizer.model_max_length) if n and n < 1 << 20]
    if not known:
        raise SightlineError(f"{config.model}: it has no maximum length; give max_length")
    return int(min(known))
