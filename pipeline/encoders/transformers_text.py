"""Teachers: frozen Hugging Face encoders, loaded from their folder and run on texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel

from pipeline.encoders.config import TransformersConfig
from pipeline.encoders.encoder import TextEncoder
from pipeline.encoders.frozen_model import FrozenModel
from pipeline.encoders.weights import identity_of, load_exactly, read_state_dict, seeded
from sightline.config_digest import config_sha256
from sightline.errors import SightlineError
from sightline.pooling import Pooling, needs_hidden_states, pool
from sightline.pretrained import Pretrained
from sightline.sentence_transformers_folder import (
    SENTENCE_SETTINGS,
    Recipe,
    check_encoder,
    check_first_token,
    check_room,
    check_vocabulary,
    count_longer,
    fit_pooler,
    lower_case,
    own_max_length,
    positions,
    read_recipe,
    sentence_settings,
    token_ids,
    tokenizer_sha256,
)
from sightline.settings import unknown

FIRST_BUCKET = 16
"""The shortest padded length, in tokens; each further bucket doubles it."""

MASKED_ATTENTION = "sightline_masked_sdpa"


def bucket(tokens: int, max_length: int) -> int:
    """The padded length of a text of `tokens` tokens: 16, 32, 64, …, at most `max_length`."""
    return min(max(FIRST_BUCKET, 1 << (tokens - 1).bit_length()), max_length)


def build_text(config: TransformersConfig, device: torch.device, precision: str) -> TextEncoder:
    """The teacher that `config` names, on `device`, as its sentence-transformers folder says.

    Its rows are those of ``SentenceTransformer.encode`` before any normalisation. A text is padded
    on the right to its own number of tokens, rounded up to a bucket; a decoder does not see what
    comes after its last token, so padding on the left, as its authors have it, gives the same. It
    is truncated to the maximum length, never to the length of its batch.

    Raises:
        SightlineError: see `Pretrained` and `read_recipe`; or weights that do not fit, pooling
            ``pooler`` without a pooler, a tokenizer without padding token, an unknown prompt, or a
            maximum length beyond the model's positions.
    """
    spec = config.weights_spec
    recipe = read_recipe(config.model, bare=config.pooling is not None, revision=spec.revision)
    pooling, prompt = config.pooling or recipe.pooling or "cls", _prompt(config, recipe)
    recipe.check_prompt(config.model, prompt)
    source = Pretrained(config.model, spec.revision, recipe.subfolder).pinned()
    settings, tokenizer = _settings_and_tokenizer(source)
    if recipe.do_lower_case:
        lower_case(tokenizer)
    model = _loaded(config, source, settings, pooling)
    identity = identity_of(
        model, f"transformers/{source.title}", spec, revision=source.revision, source=source
    )
    max_length = _max_length(config, source, tokenizer, settings)
    check_room(config.model, tokenizer, prompt, max_length, setting="max_length")

    def forward(ids: Tensor, mask: Tensor) -> Tensor:
        output = model(
            input_ids=ids,
            attention_mask=mask,
            output_hidden_states=needs_hidden_states(pooling),
            return_dict=True,
        )
        return pool(output, mask, pooling)

    frozen = FrozenModel(
        model, device, precision, forward, compiled=config.compile, cast_buffers=False
    )

    def ids_of(texts: Sequence[str]) -> list[list[int]]:
        return token_ids(tokenizer, [prompt + text for text in texts], max_length)

    def count_cut(texts: Sequence[str]) -> int:
        return count_longer(tokenizer, [prompt + text for text in texts], max_length)

    def lengths(texts: Sequence[str]) -> list[int]:
        return [bucket(len(row), max_length) for row in ids_of(texts)]

    def inputs(texts: Sequence[str], length: int) -> tuple[Tensor, Tensor]:
        ids = ids_of(texts)
        longest = max((len(row) for row in ids), default=0)
        if longest > length:
            raise ValueError(f"a text has {longest} tokens and the batch only {length}")
        batch = tokenizer.pad(
            {"input_ids": ids}, padding="max_length", max_length=length, return_tensors="pt"
        )
        return batch["input_ids"], batch["attention_mask"]

    preprocessing: dict[str, object] = {
        "tokenizer": type(tokenizer).__name__,
        "tokenizer_sha256": tokenizer_sha256(tokenizer),
        "max_length": max_length,
        "buckets": f"{FIRST_BUCKET} doubled, at most max_length",
        "pooling": pooling,
        "config_sha256": config_sha256(source),
    }
    if prompt:
        preprocessing["prompt"] = prompt
    dim = int(settings.hidden_size)
    return frozen.text_encoder(identity, dim, preprocessing, lengths, inputs, count_cut)


def _settings_and_tokenizer(source: Pretrained) -> tuple[Any, Any]:
    """The configuration of an encoder, and its tokenizer, which pads on the right."""
    settings = source.config()
    check_encoder(source.name, settings)
    tokenizer = source.tokenizer()
    check_vocabulary(source.name, tokenizer, settings)
    if tokenizer.pad_token_id is None:
        raise SightlineError(
            f"{source.name}: its tokenizer has no padding token, so texts cannot share a batch; "
            "use an encoder (BERT, RoBERTa, MPNet, …)"
        )
    tokenizer.padding_side = "right"  # [CLS] stays the first token
    settings.use_cache = False  # of a decoder that only reads
    return settings, tokenizer


def _prompt(config: TransformersConfig, recipe: Recipe) -> str:
    """What comes before every text: the user's words, or those that the folder has for a name."""
    name = config.prompt_name
    if name is None:
        own = recipe.prompt if config.pooling is None else ""  # a given pooling is the bare encoder
        return own if config.prompt is None else config.prompt
    if config.prompt is not None:
        raise SightlineError(f"{config.model}: prompt and prompt_name are both given; choose one")
    if name not in recipe.prompts:
        raise SightlineError(f"{config.model}: {unknown(name, recipe.prompts, 'prompt')}")
    return recipe.prompts[name]


def _loaded(config: TransformersConfig, source: Pretrained, settings: Any, pooling: Pooling) -> Any:
    """The encoder on the CPU with the weights that `config` names, and only the pooler in use."""
    spec = config.weights_spec
    if spec.kind == "pretrained":
        model = source.model(AutoModel, settings, unpickle=True)
    else:
        with seeded(spec.seed), source.reading("configuration"):
            model = AutoModel.from_config(settings, dtype=torch.float32)
    fit_pooler(model, config.model, pooling)
    check_first_token(config.model, model, pooling)
    if spec.kind == "file":
        state = _encoder_part(model, read_state_dict(Path(spec.value)), pooling)
        load_exactly(model, state, spec.value, config.model)
    _always_mask(model)
    return model


def _encoder_part(model: Any, state: dict[str, Tensor], pooling: str) -> dict[str, Tensor]:
    """The encoder's tensors from a state dict that may also contain a pooler or a head."""
    prefix = f"{model.base_model_prefix}."
    inside = {
        name.removeprefix(prefix): tensor
        for name, tensor in state.items()
        if name.startswith(prefix)
    }
    return {
        name: tensor
        for name, tensor in (inside or state).items()
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
        kept = {"allow_is_bidirectional_skip": False, "allow_is_causal_skip": False}
        return sdpa_mask(*args, **{**options, **kept})

    AttentionInterface.register(MASKED_ATTENTION, sdpa_attention_forward)
    AttentionMaskInterface.register(MASKED_ATTENTION, masked)
    model.set_attn_implementation(MASKED_ATTENTION)


def _max_length(
    config: TransformersConfig, source: Pretrained, tokenizer: Any, settings: Any
) -> int:
    """The user's value, else that of a published sentence encoder's settings, else its own."""
    if config.max_length is None:
        with source.reading(SENTENCE_SETTINGS[0]):
            published = sentence_settings(source, or_give="max_length").get("max_seq_length")
            published = int(published or 0) or None
        return own_max_length(tokenizer, settings, published)
    most = positions(settings)
    if most is not None and config.max_length > most:
        raise SightlineError(
            f"{config.model}: max_length {config.max_length} is beyond the {most} positions it was "
            f"trained with; use at most {most}"
        )
    return config.max_length
