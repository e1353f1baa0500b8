"""Load exactly the requested grounding model, with exactly its weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from pipeline.encoders.config import WeightsSpec, parse_weights
from pipeline.encoders.weights import identity_of, load_exactly, read_state_dict, seeded
from sightline.encoder_folder import tokenizer_sha256
from sightline.errors import SightlineError
from sightline.loading import Pretrained


@dataclass(frozen=True)
class LoadedModel:
    """A model, its processor, and the digests that name them.

    Attributes:
        model: in evaluation mode, float32, on the CPU.
        processor: image processor, tokenizer and post-processing from the model's folder.
        identity: name, source, SHA-256 of weights, tokenizer and image processing; JSON values.
    """

    model: Any
    processor: Any
    identity: dict[str, object]


def load_model(name: str, weights: str, model_type: str, class_name: str) -> LoadedModel:
    """Load a model and its processor; never runs code from a repository.

    Args:
        name: folder or hub name.
        weights: ``pretrained``, ``pretrained:REVISION`` or ``random:SEED``.
        model_type: required `model_type` of its configuration.
        class_name: class in transformers.

    Raises:
        SightlineError: see `Pretrained`; or a checkpoint of a different model.
    """
    spec = parse_weights(weights)
    source = Pretrained(name, spec.revision)
    settings = source.config()
    if settings.model_type != model_type:
        raise SightlineError(
            f"{name}: this is a checkpoint of {settings.model_type!r}, expected "
            f"{model_type!r}; use a model of that family, or change `family`"
        )
    processor = source.processor()
    model, about = build_model(source, spec, getattr(transformers, class_name), settings)
    identity = {
        **about,
        "tokenizer_sha256": tokenizer_sha256(processor.tokenizer),
        "image_processing": _plain(processor.image_processor.to_dict()),
    }
    return LoadedModel(model, processor, identity)


def build_model(
    source: Pretrained, spec: WeightsSpec, architecture: Any, settings: Any
) -> tuple[Any, dict[str, object]]:
    """A model with the weights that ``spec`` names.

    Args:
        architecture: class in transformers.
        settings: its configuration.

    Returns:
        The model as in `LoadedModel`; and its name, source and SHA-256, as JSON values.
    """
    if spec.kind == "pretrained":
        model = source.model(architecture, settings)
    else:
        with seeded(spec.seed), source.reading("configuration"):
            model = architecture(settings).eval()
    if spec.kind == "file":
        load_exactly(model, read_state_dict(Path(spec.value)), spec.value, source.name)
    identity = identity_of(model, source.title, spec, folder=source.folder)
    return model, {"model": identity.name, **identity.model_dump(exclude={"name", "revision"})}


def _plain(settings: dict[str, Any]) -> dict[str, object]:
    """Settings of an image processor that are JSON values."""
    kinds = (str, int, float, bool, list, tuple, dict, type(None))
    return {key: value for key, value in sorted(settings.items()) if isinstance(value, kinds)}
