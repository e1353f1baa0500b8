"""From a name on a command line to the configuration of an encoder."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from pipeline.encoders.encoder_config import EncoderConfig
from sightline.errors import SightlineError
from sightline.extras import require
from sightline.parameter_errors import explain

EncoderKind = Literal["image", "text", "teacher"]
RESNETS = ("resnet18", "resnet50", "resnet101", "resnet152")


def named_encoder(
    name: str,
    weights: str,
    kind: EncoderKind = "image",
    *,
    pooling: str | None = None,
    max_length: int | None = None,
    compile: bool = False,
    channels_last: bool = False,
) -> EncoderConfig:
    """The configuration of an encoder given by `name` on a command line.

    Args:
        name: ``FAMILY:MODEL`` of any family; or, for images, a ResNet, an open_clip model or the
            path of a model config (JSON); for texts the latter two; for a teacher a folder or a hub
            name.
        weights: ``pretrained:TAG``, ``file:PATH`` or ``random:SEED``.
        pooling, max_length: of a teacher.
        compile: run the model with ``torch.compile``.
        channels_last: memory layout of an open_clip image tower.

    Raises:
        SightlineError: unknown name (lists the available ones and suggests the nearest), invalid
            weights, or an option that does not apply to this encoder.
    """
    family, model = _family_and_model(name, kind)
    given = {
        "family": family,
        "model": model,
        "weights": weights,
        "pooling": pooling,
        "max_length": max_length,
        "compile": compile or None,
        "channels_last": channels_last or None,
    }
    try:
        return EncoderConfig.model_validate({k: v for k, v in given.items() if v is not None})
    except ValidationError as error:
        raise SightlineError(f"{name}: {'; '.join(explain(error, EncoderConfig))}") from error


def _family_and_model(name: str, kind: EncoderKind) -> tuple[str, str]:
    family, colon, model = name.partition(":")
    if colon and family in EncoderConfig.families:
        return family, model
    return _family_of(name, kind), name


def _family_of(name: str, kind: EncoderKind) -> str:
    if kind == "teacher":
        return "transformers"
    if name in RESNETS and kind == "image":
        return "torchvision"
    if name.endswith(".json"):
        if not Path(name).is_file():
            raise SightlineError(f"{name}: no such file; expected the JSON of an open_clip model")
        return "open_clip"
    models: list[str] = require("open_clip", "this encoder").list_models()
    if name.replace("/", "-") in models:
        return "open_clip"
    known = [*(RESNETS if kind == "image" else ()), *models]
    lowered = {model.lower(): model for model in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.4)
    guess = f" (did you mean {lowered[near[0]]}?)" if near else ""
    resnets = f"torchvision: {', '.join(RESNETS)}; " if kind == "image" else ""
    raise SightlineError(
        f"unknown {kind} encoder {name!r}{guess}. Available: {resnets}"
        f"open_clip: {', '.join(models)}; or the path of an open_clip model config (JSON), or "
        f"FAMILY:MODEL with a family of {', '.join(EncoderConfig.families)}"
    )
