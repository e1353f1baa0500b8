"""Which frozen model, from params.yaml or a command: its family, architecture and weights."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from pipeline.encoders.preprocessing import Deviation, Interpolation, Mean
from sightline.errors import SightlineError
from sightline.identity import Elsewhere, MayBePath, Outside
from sightline.settings import FamilySettings, Registry

if TYPE_CHECKING:
    import torch

    from pipeline.encoders.encoder import ImageEncoder, ImageFileEncoder, TextEncoder


WEIGHTS_FILE = "safetensors, or a state dict that torch.save wrote"
WEIGHTS_FORMS = f"pretrained:TAG (published weights), file:PATH ({WEIGHTS_FILE}) or random:SEED"


@dataclass(frozen=True)
class WeightsSpec:
    """Parsed ``weights``: `value` is the tag or revision, the path, or the seed."""

    kind: Literal["pretrained", "file", "random"]
    value: str

    @property
    def seed(self) -> int:
        """The seed of ``random:SEED``; 0 where weights are loaded over those drawn."""
        return int(self.value) if self.kind == "random" else 0

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


def _known_form(weights: str) -> str:
    parse_weights(weights)
    return weights


Weights = Annotated[str, AfterValidator(_known_form)]
"""``pretrained:TAG``, ``file:PATH`` or ``random:SEED``, as a user writes it."""


def require_weights(path: Path) -> None:
    """Refuse a weights file that is not there."""
    if not path.is_file():
        raise SightlineError(f"{path}: no such weights file; check the path after 'file:'")


class EncoderConfig(FamilySettings):
    """One frozen encoder; a family is a subclass with its parameters.

    A subclass overrides `build_image`, `build_text` or both, with heavy imports inside: checking a
    configuration does not need torch.

    Attributes:
        needs_device: whether it computes on a device of this machine.
        family: name in the registry.
        model: name within the family.
        weights: ``pretrained:TAG``, ``file:PATH`` or ``random:SEED``.
    """

    needs_device: ClassVar[bool] = True
    families: ClassVar[Registry] = Registry(
        "encoder family",
        "sightline.encoders",
        {
            "torchvision": "pipeline.encoders.torchvision_resnet:TorchvisionConfig",
            "open_clip": "pipeline.encoders.open_clip_towers:OpenClipConfig",
            "transformers": "pipeline.encoders.transformers_models:TransformersConfig",
            "timm": "pipeline.encoders.timm_backbones:TimmConfig",
        },
    )

    family: str
    model: Annotated[str, MayBePath()] = Field(min_length=1)
    weights: Annotated[Weights, MayBePath("file:")]

    @property
    def weights_spec(self) -> WeightsSpec:
        """`weights`, parsed."""
        return parse_weights(self.weights)

    def require_files(self) -> None:
        if self.weights_spec.kind == "file":
            require_weights(Path(self.weights_spec.value))

    def build_image(self, device: torch.device, precision: str) -> ImageEncoder | ImageFileEncoder:
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

    def _does_not_encode(self, inputs: str, method: str) -> SightlineError:
        families: list[str] = []
        for name in self.families:
            with suppress(SightlineError):  # one that cannot be imported is not suggested
                family = self.families.subclass(name, EncoderConfig)
                if getattr(family, method) is not getattr(EncoderConfig, method):
                    families.append(name)
        return SightlineError(
            f"family {self.family!r} ({self.model}) does not encode {inputs}; "
            f"families that do: {', '.join(families)}"
        )


_OF_MODEL = Elsewhere("the name of the model, and the digest of its weights")
OF_INPUT = Elsewhere("the preprocessing")
COMPUTED = Outside("how the model is run: part of the plan, and recorded with each shard")


class OwnConfig(EncoderConfig):
    """Of the families of Sightline, whose models say in their records what they are."""

    model: Annotated[str, _OF_MODEL] = Field(min_length=1)
    weights: Annotated[Weights, _OF_MODEL]


class ImageConfig(OwnConfig):
    """What models of images share.

    Attributes:
        interpolation, mean, std: override the published values.
        compile: run the model with ``torch.compile``.
    """

    interpolation: Annotated[Interpolation | None, OF_INPUT] = None
    mean: Annotated[Mean | None, OF_INPUT] = None
    std: Annotated[Deviation | None, OF_INPUT] = None
    compile: Annotated[bool, COMPUTED] = False
