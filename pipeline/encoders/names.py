"""Encoders as they are named on a command line."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.encoders.config import EncoderConfig
from pipeline.encoders.open_clip_towers import OPEN_CLIP_FILE
from pipeline.encoders.torchvision_resnet import RESNETS
from sightline.cache.feature_kind import Encoders
from sightline.errors import SightlineError
from sightline.optional_imports import require
from sightline.settings import explain, nearest_choices


def encoder_class(name: str, kind: Encoders = "image") -> type[EncoderConfig]:
    """The configuration's class of the encoder called ``name``, as for `named_encoder`."""
    return EncoderConfig.families.subclass(_family_and_model(name, kind)[0], EncoderConfig)


def named_encoder(
    name: str, weights: str, kind: Encoders = "image", **parameters: Any
) -> EncoderConfig:
    """The configuration of an encoder given by `name` on a command line.

    Args:
        name: ``FAMILY:MODEL`` of any family; or, for images, a ResNet, an open_clip model or the
            path of a model config (JSON) or a folder of open_clip; for texts all but a ResNet; for
            a teacher a folder or a hub name.
        weights: ``pretrained:TAG``, ``file:PATH`` or ``random:SEED``.
        parameters: of its family, such as ``pooling`` and ``max_length`` of a teacher, or
            ``compile``.

    Raises:
        SightlineError: unknown name (lists the available ones and suggests the nearest), invalid
            weights, or an option that does not apply to this encoder.
    """
    family, model = _family_and_model(name, kind)
    if clashes := [key for key in ("family", "model") if key in parameters]:
        raise SightlineError(f"{name}: its name says {' and '.join(clashes)} already; leave it out")
    try:
        return EncoderConfig.model_validate(
            {"family": family, "model": model, "weights": weights, **parameters}
        )
    except ValidationError as error:
        raise SightlineError(f"{name}: {'; '.join(explain(error))}") from error


def _family_and_model(name: str, kind: Encoders) -> tuple[str, str]:
    family, colon, model = name.partition(":")
    if colon and family in EncoderConfig.families:
        return family, model
    if kind == "teacher":
        return "transformers", name
    if name in RESNETS and kind == "image":
        return "torchvision", name
    if name.endswith(".json") or name.startswith("hf-hub:"):
        return "open_clip", name
    if Path(name.removeprefix("local-dir:"), OPEN_CLIP_FILE).is_file():
        return "open_clip", name
    models: list[str] = require("open_clip", "this encoder").list_models()
    if name.replace("/", "-") in models:
        return "open_clip", name
    names = [*(RESNETS if kind == "image" else ()), *models]
    lowered = {model.lower(): model for model in names}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.4)
    guess = f" (did you mean {lowered[near[0]]}?)" if near else ""
    resnets = f"torchvision: {', '.join(RESNETS)}; " if kind == "image" else ""
    of_open_clip = nearest_choices(name, models, "open_clip.list_models() in Python")
    raise SightlineError(
        f"unknown {kind} encoder {name!r}{guess}. Available: {resnets}"
        f"open_clip: {of_open_clip}; or the path of an open_clip model config (JSON) or of "
        f"a folder with {OPEN_CLIP_FILE}, or FAMILY:MODEL with a family of "
        f"{', '.join(EncoderConfig.families)}"
    )
