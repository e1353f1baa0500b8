"""Grounders that run a model of transformers: exactly the requested one, with its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
import transformers

from pipeline.encoders.config import WeightsSpec, parse_weights
from pipeline.encoders.weights import build_model, identity_of
from pipeline.grounding.settings import ModelSettings
from sightline.config_digest import config_sha256, with_effect
from sightline.devices import check_precision
from sightline.errors import SightlineError
from sightline.pretrained import Pretrained
from sightline.sentence_transformers_folder import tokenizer_sha256

_PROCESSING = ("preprocessor_config.json", "processor_config.json")
_Settings = TypeVar("_Settings", bound=ModelSettings)


@dataclass(frozen=True)
class LoadedModel:
    """A model, its processor, and the digests that name them.

    Attributes:
        model: in evaluation mode, float32, on the CPU.
        processor: image processor, tokenizer and post-processing from the model's folder.
        identity: name, source, SHA-256 of weights, configuration and tokenizer, and the files of
            its processing as they lie there; JSON values.
    """

    model: Any
    processor: Any
    identity: dict[str, object]


class ModelGrounder(Generic[_Settings]):
    """A grounder around a model; a subclass writes its queries and reads its answers.

    Attributes:
        name: the family.
        model_types: of configurations that it takes, as `model_type` there.
        architecture: class in transformers.
    """

    name: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]]
    architecture: ClassVar[str]

    def __init__(
        self, settings: _Settings, loaded: LoadedModel, device: torch.device, precision: str
    ) -> None:
        self._settings = settings
        self._model = loaded.model.to(device)
        self._processor = loaded.processor
        self._identity = loaded.identity
        self._device = device
        self._precision = check_precision(precision)

    @classmethod
    def load(cls, settings: _Settings, device: torch.device, precision: str) -> Self:
        """The grounder that ``settings`` describe.

        Raises:
            SightlineError: see `load_model`.
        """
        loaded = load_model(settings.model, settings.weights, cls.model_types, cls.architecture)
        return cls(settings, loaded, device, precision)

    def describe(self) -> dict[str, object]:
        """See `Grounder`: the model, and the parameters of its family."""
        parameters = self._settings.model_dump(mode="json", exclude={"model", "weights"})
        return {**parameters, **self._identity, "precision": self._precision}


def load_model(name: str, weights: str, model_types: Sequence[str], class_name: str) -> LoadedModel:
    """Load a model and its processor; never runs code from a repository.

    Args:
        name: folder or hub name.
        weights: ``pretrained``, ``pretrained:REVISION`` or ``random:SEED``.
        model_types: that its configuration may have.
        class_name: class in transformers.

    Raises:
        SightlineError: see `Pretrained`; or a checkpoint of a different model.
    """
    spec = parse_weights(weights)
    source = Pretrained(name, spec.revision)
    settings = source.config()
    if settings.model_type not in model_types:
        raise SightlineError(
            f"{name}: this is a checkpoint of {settings.model_type!r}, expected "
            f"{' or '.join(map(repr, model_types))}; use a model of that family, or change `family`"
        )
    processor = source.processor()
    model = build_model(source, spec, getattr(transformers, class_name), settings)
    identity = {
        **describe_weights(model, source, spec),
        "tokenizer_sha256": tokenizer_sha256(processor.tokenizer),
        "processing": {
            name: with_effect(content) for name in _PROCESSING if (content := source.json(name))
        },
    }
    return LoadedModel(model, processor, identity)


def describe_weights(model: Any, source: Pretrained, spec: WeightsSpec) -> dict[str, object]:
    """A model's name, source and SHA-256 of its weights and configuration, as JSON values."""
    identity = identity_of(model, source.title, spec, source=source)
    return {
        "model": identity.name,
        **identity.model_dump(exclude={"name", "revision"}),
        "config_sha256": config_sha256(source, generates=model.can_generate()),
    }
