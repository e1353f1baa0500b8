"""A user's description of an encoder: family, model, weights and family parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, field_validator

from sightline.errors import SightlineError
from sightline.family_settings import FamilySettings
from sightline.registry import Registry

if TYPE_CHECKING:
    import torch

    from pipeline.encoders.protocols import ImageEncoder, TextEncoder

WeightsKind = Literal["pretrained", "file", "random"]

WEIGHTS_FORMS = (
    "pretrained:TAG (published weights), file:PATH (safetensors, or a state dict that "
    "torch.save wrote) or random:SEED"
)


@dataclass(frozen=True)
class WeightsSpec:
    """Parsed ``weights``: `value` is the tag or revision, the path, or the seed."""

    kind: WeightsKind
    value: str

    @property
    def seed(self) -> int:
        """The seed of ``random:SEED``."""
        return int(self.value)

    @property
    def revision(self) -> str:
        """The revision of ``pretrained:REVISION``; empty otherwise."""
        return self.value if self.kind == "pretrained" else ""


def parse_weights(weights: str) -> WeightsSpec:
    """Parse ``weights``; ValueError lists the valid forms.

    A bare ``pretrained`` is allowed here: it suffices for a folder or a hub name.
    """
    kind, _, value = weights.partition(":")
    if kind == "pretrained":
        return WeightsSpec("pretrained", value)
    if kind == "file" and value:
        return WeightsSpec("file", value)
    if kind == "random" and re.fullmatch(r"[0-9]{1,18}", value):
        return WeightsSpec("random", value)
    raise ValueError(f"{weights!r} are not valid weights; write {WEIGHTS_FORMS}")


def require_weights(path: Path) -> None:
    """Refuse a weights file that is not there."""
    if not path.is_file():
        raise SightlineError(f"{path}: no such weights file; check the path after 'file:'")


class EncoderConfig(FamilySettings):
    """One frozen encoder; a family is a subclass with its parameters.

    A subclass overrides `build_image`, `build_text` or both, with heavy imports inside: checking a
    configuration does not need torch.

    Attributes:
        model: name within the family.
        weights: ``pretrained:TAG``, ``file:PATH`` or ``random:SEED``.
    """

    families: ClassVar[Registry] = Registry(
        "encoder family",
        "sightline.encoders",
        {
            "torchvision": "pipeline.encoders.own_families:TorchvisionConfig",
            "open_clip": "pipeline.encoders.own_families:OpenClipConfig",
            "transformers": "pipeline.encoders.own_families:TransformersConfig",
        },
    )

    model: str = Field(min_length=1)
    weights: str

    @field_validator("weights")
    @classmethod
    def _weights_have_a_known_form(cls, weights: str) -> str:
        parse_weights(weights)
        return weights

    @property
    def weights_spec(self) -> WeightsSpec:
        """`weights`, parsed."""
        return parse_weights(self.weights)

    def require_files(self) -> None:
        if self.weights_spec.kind == "file":
            require_weights(Path(self.weights_spec.value))

    def build_image(self, device: torch.device, precision: str) -> ImageEncoder:
        """The frozen image encoder that this describes, ready on `device`.

        Raises:
            SightlineError: it cannot be built; one message gives the reason.
        """
        raise self._does_not_encode("images", "build_image")

    def build_text(self, device: torch.device, precision: str) -> TextEncoder:
        """The frozen text encoder that this describes, ready on `device`.

        Raises:
            SightlineError: it cannot be built; one message gives the reason.
        """
        raise self._does_not_encode("texts", "build_text")

    def _does_not_encode(self, what: str, method: str) -> SightlineError:
        others = [name for name in self.families if _overrides(name, method)]
        return SightlineError(
            f"family {self.family!r} ({self.model}) does not encode {what}; "
            f"families that do: {', '.join(others)}"
        )


def _overrides(family: str, method: str) -> bool:
    """Whether a family overrides a method; one that cannot be imported is not suggested."""
    try:
        chosen = EncoderConfig.of_family(family)
    except SightlineError:
        return False
    return getattr(chosen, method) is not getattr(EncoderConfig, method)
