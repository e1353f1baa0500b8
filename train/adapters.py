"""LoRA: small trained matrices beside frozen weights, on any encoder, through peft."""

from __future__ import annotations

import copy
import sys
from typing import TYPE_CHECKING

from sightline.errors import SightlineError
from sightline.optional_imports import require

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from train.run_spec import StudentConfig


def add_adapters(encoder: PreTrainedModel, config: StudentConfig) -> None:
    """Freeze ``encoder``, and give its linear layers adapters as ``config`` says.

    Raises:
        SightlineError: peft is not installed, or no layer has a name that is given.
    """
    require("peft", "lora_rank")
    from peft import LoraConfig, inject_adapter_in_model
    from torch import nn

    assert config.lora_rank is not None
    layers = encoder.named_modules()
    linear = sorted(
        {name.rpartition(".")[2] for name, each in layers if isinstance(each, nn.Linear)}
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
            parent, _, own = name.rpartition(".")
            setattr(whole.get_submodule(parent), own, module.get_base_layer())
    return whole.requires_grad_(True)
