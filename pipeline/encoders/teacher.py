"""Teachers: frozen Hugging Face encoders, loaded from their folder and run on texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel

from pipeline.encoders.config import TransformersConfig
from pipeline.encoders.frozen_model import FrozenModel
from pipeline.encoders.protocols import EncoderIdentity
from pipeline.encoders.tokenizers import tokenizer_sha256
from pipeline.encoders.weights import (
    describe_source,
    load_exactly,
    read_state_dict,
    seeded,
    state_dict_sha256,
)
from sightline.devices import check_precision
from sightline.encoder_folder import fit_pooler, own_max_length, positions, token_ids
from sightline.errors import SightlineError
from sightline.loading import Pretrained
from sightline.pooling import Pooling, needs_hidden_states, pool_output

MASKED_ATTENTION = "sightline_masked_sdpa"
_SENTENCE_CONFIG = "sentence_bert_config.json"


@dataclass(frozen=True)
class TeacherModel:
    """An encoder on the CPU, and its configuration.

    Attributes:
        sentence_length: evaluation length in tokens from a published sentence encoder's
            ``sentence_bert_config.json``; None if it gives none, and not read if the user gives a
            maximum length.
    """

    model: Any
    tokenizer: Any
    identity: EncoderIdentity
    sentence_length: int | None


def load_teacher(config: TransformersConfig, pooling: Pooling) -> TeacherModel:
    """Load configuration, tokenizer and weights; never runs code from a repository.

    Raises:
        SightlineError: see `Pretrained`; or not an encoder, weights of the wrong shape, or
            pooling ``pooler`` without a pooler.
    """
    spec = config.weights_spec
    source = Pretrained(config.model, spec.revision)
    settings = source.config()
    if getattr(settings, "is_encoder_decoder", False) or not hasattr(settings, "hidden_size"):
        raise SightlineError(
            f"{config.model}: a {settings.model_type!r} model is not a text encoder; "
            "use an encoder (BERT, RoBERTa, MPNet, …)"
        )
    tokenizer = source.tokenizer()
    if spec.kind == "pretrained":
        model = source.model(AutoModel, settings, unpickle=True)
    else:
        with seeded(spec.seed if spec.kind == "random" else 0), source.reading("configuration"):
            model = AutoModel.from_config(settings, dtype=torch.float32)
    fit_pooler(model, config.model, pooling)
    if spec.kind == "file":
        path = Path(spec.value)
        state = _encoder_part(model, read_state_dict(path), pooling)
        load_exactly(model, state, str(path), config.model)
    _always_mask(model)

    commit = str(getattr(settings, "_commit_hash", None) or "")
    pretrained = spec.kind == "pretrained"
    identity = EncoderIdentity(
        name=f"transformers/{source.title}",
        source=describe_source(spec, folder=source.folder if pretrained else None),
        revision=commit if pretrained else "",
        weights_sha256=state_dict_sha256(model.state_dict()),
        untrained=spec.kind == "random",
    )
    length = None
    if config.max_length is None:
        same = source if source.folder else replace(source, revision=commit or spec.revision)
        with same.reading(_SENTENCE_CONFIG):
            found = same.json(_SENTENCE_CONFIG, or_give="max_length") or {}
            length = int(found.get("max_seq_length") or 0) or None
    return TeacherModel(model, tokenizer, identity, length)


def _encoder_part(model: Any, state: dict[str, Tensor], pooling: str) -> dict[str, Tensor]:
    """The encoder's tensors from a state dict that may also contain a pooler or a head."""
    prefix = f"{model.base_model_prefix}."
    if any(name.startswith(prefix) for name in state):
        state = {
            name.removeprefix(prefix): tensor
            for name, tensor in state.items()
            if name.startswith(prefix)
        }
    return {
        name: tensor
        for name, tensor in state.items()
        if (pooling == "pooler" or not name.startswith("pooler."))
        # A buffer saved by early versions of transformers; not learned.
        and not name.endswith("embeddings.position_ids")
    }


def _always_mask(model: Any) -> None:
    """Pass the attention mask even for a batch without padding.

    transformers omits the mask if no text in a batch is padded, which selects a different kernel:
    on a GPU, a text's row would depend on the other texts in its batch.
    """
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask

    if model.config._attn_implementation != "sdpa":
        return

    def masked(*args: Any, **options: Any) -> Tensor | None:
        return sdpa_mask(*args, **{**options, "allow_is_bidirectional_skip": False})

    AttentionInterface.register(MASKED_ATTENTION, sdpa_attention_forward)
    AttentionMaskInterface.register(MASKED_ATTENTION, masked)
    model.set_attn_implementation(MASKED_ATTENTION)


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
        SightlineError: see `pipeline.encoders.teacher.load_teacher`; or a tokenizer without
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
    max_length = _max_length(config, teacher)
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


def _max_length(config: TransformersConfig, teacher: TeacherModel) -> int:
    """The user's value, else the sentence encoder's own."""
    settings = teacher.model.config
    if config.max_length is None:
        return own_max_length(teacher.tokenizer, settings, teacher.sentence_length)
    most = positions(settings)
    if most is not None and config.max_length > most:
        raise SightlineError(
            f"{config.model}: max_length {config.max_length} is beyond the {most} positions it was "
            f"trained with; use at most {most}"
        )
    return config.max_length
