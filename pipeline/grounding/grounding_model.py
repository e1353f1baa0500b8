"""Grounders that run a model of transformers: exactly the requested one, with its weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from pipeline.encoders.config import WeightsSpec, parse_weights
from pipeline.encoders.weights import build_model, identity_of
from pipeline.grounding.settings import ModelSettings
from sightline.devices import check_precision
from sightline.errors import SightlineError
from sightline.models.config_digest import config_sha256, with_effect
from sightline.models.pretrained import Pretrained
from sightline.models.sentence_transformers_folder import tokenizer_sha256

if TYPE_CHECKING:
    import torch

_PROCESSING = ("preprocessor_config.json", "processor_config.json")
_Settings = TypeVar("_Settings", bound=ModelSettings)


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
        self,
        settings: _Settings,
        model: Any,
        processor: Any,
        identity: dict[str, object],
        device: torch.device,
        precision: str,
    ) -> None:
        """
        Args:
            model: in evaluation mode, float32.
            processor: image processor, tokenizer and post-processing from the model's folder.
            identity: name, source, SHA-256 of weights, configuration and tokenizer, and the files
                of its processing as they lie there; JSON values.
        """
        self._settings = settings
        self._model = model.to(device)
        self._processor = processor
        self._identity = identity
        self._device = device
        self._precision = check_precision(precision)

    @classmethod
    def load(cls, settings: _Settings, device: torch.device, precision: str) -> Self:
        """The grounder that ``settings`` describe; never runs code from a repository.

        Raises:
            SightlineError: see `Pretrained`; or a checkpoint of a different model.
        """
        import transformers

        spec = parse_weights(settings.weights)
        source = Pretrained(settings.model, spec.revision)
        config = source.config()
        if config.model_type not in cls.model_types:
            raise SightlineError(
                f"{settings.model}: this is a checkpoint of {config.model_type!r}, expected "
                f"{' or '.join(map(repr, cls.model_types))}; use a model of that family, or change "
                "`family`"
            )
        processor = source.processor()
        model = build_model(source, spec, getattr(transformers, cls.architecture), config)
        identity = {
            **describe_weights(model, source, spec),
            "tokenizer_sha256": tokenizer_sha256(processor.tokenizer),
            "processing": {
                name: with_effect(content) for name in _PROCESSING if (content := source.json(name))
            },
        }
        return cls(settings, model, processor, identity, device, precision)

    def describe(self) -> dict[str, object]:
        """See `Grounder`: the model, and the parameters of its family."""
        parameters = self._settings.model_dump(mode="json", exclude={"model", "weights"})
        # where a name stands twice, this is an error
        return dict(**parameters, **self._identity, precision=self._precision)


def describe_weights(model: Any, source: Pretrained, spec: WeightsSpec) -> dict[str, object]:
    """A model's name, source and SHA-256 of its weights and configuration, as JSON values."""
    identity = identity_of(model, source.title, spec, source=source)
    return {
        "model": identity.name,
        **identity.model_dump(exclude={"name", "revision"}),
        "config_sha256": config_sha256(source, generates=model.can_generate()),
    }
