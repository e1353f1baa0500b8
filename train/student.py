"""The encoder that a run begins with: loaded, cut to its first layers, given adapters, checked."""

from __future__ import annotations

import copy
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sightline.errors import SightlineError
from sightline.models.sentence_transformers_folder import (
    Recipe,
    check_room,
    fit_pooler,
    positions,
    read_recipe,
    token_ids,
    tokenizer_sha256,
)
from sightline.optional_imports import require

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn
    from transformers import PreTrainedModel

    from sightline.cache import TokenSet
    from train.embed import Embedder
    from train.evaluate.similarity import GradedPairs
    from train.run_spec import StudentConfig


_MOST_UNKNOWN = 0.5
"""The largest share of a dev set's tokens that the student's tokenizer may not know."""


def recipe_of(config: StudentConfig) -> tuple[Recipe, Recipe]:
    """How a run uses its student, and how the student's folder or hub model says to.

    With another pooling than the folder's, the run trains the encoder without the modules after it.
    """
    try:
        folder_recipe = read_recipe(config.source)
    except SightlineError:
        if config.pooling is None:
            raise
        folder_recipe = read_recipe(config.source, bare=True)
    prompt = folder_recipe.prompt if config.prompt is None else config.prompt
    if config.pooling in (None, folder_recipe.pooling):
        used = replace(folder_recipe, pooling=folder_recipe.pooling or "cls", prompt=prompt)
    else:
        bare = {"normalize": False, "pools_prompt": True, "modules": ()}
        used = replace(folder_recipe, pooling=config.pooling, prompt=prompt, **bare)
    used.check_prompt(config.model, prompt)
    return used, folder_recipe


def load_student(config: StudentConfig) -> tuple[Embedder, nn.Module | None]:
    """The encoder that a run begins with, in float32 on the CPU.

    Its maximum length is its own, for dev scores and the export, never that of training.

    Returns:
        It, and its pooler, if it has one: that is set aside for the export, as it would not be
        trained.
    """
    from train.embed import Embedder

    recipe, _ = recipe_of(config)
    embedder = Embedder.by_recipe(config.source, recipe, device="cpu")
    check_room(config.model, embedder.tokenizer, recipe.prompt, config.max_length)
    pooler: Any = getattr(embedder.model, "pooler", None)
    fit_pooler(embedder.model, config.model, embedder.pooling)
    if config.layers is not None:
        _keep_first_layers(embedder.model, config, config.layers)
    if config.lora_rank is not None:
        add_adapters(embedder.model, config)
    return embedder, pooler


def _keep_first_layers(encoder: PreTrainedModel, config: StudentConfig, count: int) -> None:
    """Drop the layers above ``count``, as if the encoder never had them."""
    from torch import nn

    stack: Any = getattr(encoder, "encoder", None)
    layers = getattr(stack, "layer", None)
    if not isinstance(layers, nn.ModuleList):
        raise SightlineError(
            f"{config.model}: `layers` works for BERT and RoBERTa encoders, not for "
            f"{encoder.config.model_type}; remove it"
        )
    if count > len(layers):
        raise SightlineError(
            f"{config.model}: layers is {count}, but the encoder has {len(layers)}"
        )
    stack.layer = layers[:count]
    encoder.config.num_hidden_layers = count


def add_adapters(encoder: PreTrainedModel, config: StudentConfig) -> None:
    """Freeze ``encoder``, and give its linear layers adapters as ``config`` says."""
    require("peft", "lora_rank")
    from peft import LoraConfig, inject_adapter_in_model
    from torch import nn

    assert config.lora_rank is not None
    layers = encoder.named_modules()
    linear = sorted(
        {name.rpartition(".")[2] for name, layer in layers if isinstance(layer, nn.Linear)}
    )
    if unknown := [name for name in config.lora_modules if name not in linear]:
        raise SightlineError(
            f"{config.model}: lora_modules names {', '.join(unknown)}, but the linear layers of "
            f"this {encoder.config.model_type} are called {', '.join(linear)}"
        )
    encoder.requires_grad_(False)
    adapters = LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,  # pyright: ignore[reportArgumentType]
        lora_dropout=config.lora_dropout,
        target_modules=list(config.lora_modules) or linear,
    )
    inject_adapter_in_model(adapters, encoder)


def merged(encoder: PreTrainedModel) -> PreTrainedModel:
    """``encoder``, or a copy with its adapters added to the weights that they stand beside."""
    if "peft" not in sys.modules:
        return encoder
    from peft.tuners.lora import LoraLayer

    if not any(isinstance(module, LoraLayer) for module in encoder.modules()):
        return encoder
    whole = copy.deepcopy(encoder)
    for name, module in [*whole.named_modules()]:
        if isinstance(module, LoraLayer):
            module.merge(safe_merge=True)
            parent, _, child = name.rpartition(".")
            setattr(whole.get_submodule(parent), child, module.get_base_layer())
    return whole.requires_grad_(True)


def check_tokens(student: Embedder, config: StudentConfig, tokens: TokenSet) -> None:
    """Refuse tokens of another tokenizer, and a length beyond the student's positions."""
    limit = positions(student.model.config)
    if limit is not None and config.max_length > limit:
        raise SightlineError(
            f"max_length is {config.max_length}, but the student has positions for {limit} tokens; "
            f"run `sightline tokens` and train with `--max-length {limit}` or less"
        )
    if tokens.header.tokenizer_sha256 != tokenizer_sha256(student.tokenizer):
        raise SightlineError(
            f"{tokens.path}: made with another tokenizer than "
            f"that of {config.model}; make them again with `sightline tokens --student "
            f"{shlex.quote(config.source)}`, or leave out `--tokens`; in a graph: `sightline "
            "repro --force tokens`"
        )


def check_dev(student: Embedder, dev: GradedPairs, source: Path) -> None:
    """Refuse a dev set of words that the student does not know, or of pairs alike to it."""
    tokenizer: Any = student.tokenizer
    first, second = (
        token_ids(tokenizer, [student.prompt + text for text in texts], student.max_length)
        for texts in (dev.first, dev.second)
    )
    special_ids = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    words = [token for row in (*first, *second) for token in row if token not in special_ids]
    unknown = words.count(tokenizer.unk_token_id) / max(1, len(words))
    if unknown > _MOST_UNKNOWN:
        raise SightlineError(
            f"{source}: {100 * unknown:.0f} % of its tokens are {tokenizer.unk_token}, words that "
            "the student's tokenizer does not know, so its scores would mean nothing; give a dev "
            "set in the student's language, or another student"
        )
    # the cosine of equal rows is 1, whatever they are
    cosines = {frozenset(map(tuple, pair)) for pair in zip(first, second, strict=True)}
    if len({pair if len(pair) > 1 else None for pair in cosines}) < 2:
        raise SightlineError(
            f"{source}: all its pairs are alike to the student, which reads {student.max_length} "
            "tokens of a text, so their correlation is not defined; give pairs that differ"
        )
