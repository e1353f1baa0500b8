"""A Hugging Face encoder as a teacher: the requested weights, and attention masks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel

from pipeline.encoders.own_families import TransformersConfig
from pipeline.encoders.protocols import EncoderIdentity
from pipeline.encoders.weights import (
    describe_source,
    load_exactly,
    read_state_dict,
    seeded,
    state_dict_sha256,
)
from sightline.encoder_folder import fit_pooler, positions
from sightline.errors import SightlineError
from sightline.pooling_names import Pooling
from sightline.pretrained import Pretrained

MASKED_ATTENTION = "sightline_masked_sdpa"
_SENTENCE_CONFIG = "sentence_bert_config.json"


@dataclass(frozen=True)
class TeacherModel:
    """An encoder on the CPU, and its configuration.

    Attributes:
        positions: maximum tokens of its position embeddings; None if unknown.
        sentence_length: evaluation length in tokens from a published sentence encoder's
            ``sentence_bert_config.json``; 0 if it gives none, and not read if the user gives a
            maximum length.
    """

    model: nn.Module
    tokenizer: Any
    identity: EncoderIdentity
    positions: int | None
    sentence_length: int


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
    length = 0
    if config.max_length is None:
        same = source if source.folder else replace(source, revision=commit or spec.revision)
        with same.reading(_SENTENCE_CONFIG):
            found = same.json(_SENTENCE_CONFIG, or_give="max_length") or {}
            length = int(found.get("max_seq_length") or 0)
    return TeacherModel(model, tokenizer, identity, positions(settings), length)


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
