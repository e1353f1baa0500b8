"""From a configuration or a name to an encoder: the one list of families there are."""

from __future__ import annotations

import difflib
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from pipeline.encoders.encoder_config import EncoderConfig
from pipeline.encoders.libraries import require
from pipeline.encoders.protocols import ImageEncoder, TextEncoder
from sightline.errors import SightlineError
from sightline.parameter_errors import explain

if TYPE_CHECKING:
    import torch

EncoderKind = Literal["image", "text", "teacher"]
RESNETS = ("resnet18", "resnet50", "resnet101", "resnet152")

# A new family is one module with `build_image` or `build_text`, and one line here.
IMAGE_FAMILIES = {
    "torchvision": "pipeline.encoders.torchvision_resnet",
    "open_clip": "pipeline.encoders.clip_image",
}
TEXT_FAMILIES = {
    "open_clip": "pipeline.encoders.clip_text",
    "transformers": "pipeline.encoders.teacher",
}


def build_image_encoder(
    config: EncoderConfig, device: torch.device, precision: str
) -> ImageEncoder:
    """The frozen image encoder that `config` describes, ready on `device`.

    Raises:
        SightlineError: whatever keeps it from being built, in one message.
    """
    return _family(config, IMAGE_FAMILIES, "images").build_image(config, device, precision)


def build_text_encoder(config: EncoderConfig, device: torch.device, precision: str) -> TextEncoder:
    """The frozen text encoder that `config` describes, ready on `device`.

    Raises:
        SightlineError: whatever keeps it from being built, in one message.
    """
    return _family(config, TEXT_FAMILIES, "texts").build_text(config, device, precision)


def _family(config: EncoderConfig, families: dict[str, str], what: str) -> Any:
    if config.family not in families:
        raise SightlineError(
            f"family {config.family!r} ({config.model}) does not encode {what}; "
            f"families that do: {', '.join(families)}"
        )
    return importlib.import_module(families[config.family])


def named_encoder(
    name: str,
    weights: str,
    kind: EncoderKind = "image",
    *,
    pooling: str | None = None,
    max_length: int | None = None,
) -> EncoderConfig:
    """The configuration of an encoder that a command line calls by `name`.

    Args:
        name: for images a ResNet, an open_clip model or the path of a model config (JSON); for
            texts the latter two; for a teacher a folder or a hub name.
        weights: ``pretrained:TAG``, ``file:PATH`` or ``random:SEED``.
        pooling, max_length: of a teacher.

    Raises:
        SightlineError: unknown name (lists what there is and names the nearest), unknown form of
            weights, or an option that means nothing to this encoder.
    """
    try:
        return EncoderConfig.model_validate(
            {
                "family": _family_of(name, kind),
                "model": name,
                "weights": weights,
                "pooling": pooling,
                "max_length": max_length,
            }
        )
    except ValidationError as error:
        raise SightlineError(f"{name}: {'; '.join(explain(error, EncoderConfig))}") from error


def _family_of(name: str, kind: EncoderKind) -> str:
    if kind == "teacher":
        return "transformers"
    if name in RESNETS and kind == "image":
        return "torchvision"
    if name.endswith(".json"):
        if not Path(name).is_file():
            raise SightlineError(f"{name}: no such file; expected the JSON of an open_clip model")
        return "open_clip"
    models: list[str] = require("open_clip").list_models()
    if name.replace("/", "-") in models:
        return "open_clip"
    known = [*(RESNETS if kind == "image" else ()), *models]
    lowered = {model.lower(): model for model in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.4)
    guess = f" (did you mean {lowered[near[0]]}?)" if near else ""
    resnets = f"torchvision: {', '.join(RESNETS)}; " if kind == "image" else ""
    raise SightlineError(
        f"unknown {kind} encoder {name!r}{guess}. There are {resnets}"
        f"open_clip: {', '.join(models)}; or the path of an open_clip model config (JSON)"
    )
