"""What a user writes to name an encoder: family, model, weights and the few things to override."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Family = Literal["torchvision", "open_clip", "transformers"]
WeightsKind = Literal["pretrained", "file", "random"]

WEIGHTS_FORMS = (
    "pretrained:TAG (published weights), file:PATH (safetensors, or a state dict that "
    "torch.save wrote) or random:SEED"
)
_Pixels = Annotated[int, Field(ge=1, le=4096)]
_Triple = tuple[float, float, float]

_FIELDS: dict[str, tuple[str, ...]] = {
    "torchvision": ("resize", "crop", "interpolation", "mean", "std"),
    "open_clip": ("interpolation", "mean", "std"),
    "transformers": ("pooling", "max_length"),
}
"""The optional fields that mean something to each family."""


@dataclass(frozen=True)
class WeightsSpec:
    """``weights`` taken apart: `value` is the tag or revision, the path, or the seed."""

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
    """Take ``weights`` apart; ValueError says which forms there are.

    A bare ``pretrained`` is allowed here: for a folder or a hub name it is all there is to say.
    """
    kind, _, value = weights.partition(":")
    if kind == "pretrained":
        return WeightsSpec("pretrained", value)
    if kind == "file" and value:
        return WeightsSpec("file", value)
    if kind == "random" and re.fullmatch(r"[0-9]{1,18}", value):
        return WeightsSpec("random", value)
    raise ValueError(f"{weights!r} are no weights; write {WEIGHTS_FORMS}")


class EncoderConfig(BaseModel):
    """One frozen encoder.

    Attributes:
        family: ``torchvision`` (ResNets, images), ``open_clip`` (images and texts) or
            ``transformers`` (texts: a teacher).
        model: name within the family; for open_clip also the path of a model config (JSON); for
            transformers a folder or a hub name.
        weights: ``pretrained:TAG``, ``file:PATH`` or ``random:SEED``. For transformers
            ``pretrained`` alone means what the folder or the hub's main branch holds, and
            ``pretrained:REVISION`` one revision of a hub name.
        pooling: transformers only. ``cls`` is the raw last layer at [CLS].
        max_length: transformers only, in tokens; default: the encoder's own.
        resize, crop: torchvision only, in pixels: shorter side, and side of the centre crop.
        interpolation, mean, std: in place of those the model was published with.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    family: Family
    model: str = Field(min_length=1)
    weights: str
    pooling: Literal["cls", "pooler", "mean", "first_last_mean"] | None = None
    max_length: Annotated[int, Field(ge=2)] | None = None
    resize: _Pixels | None = None
    crop: _Pixels | None = None
    interpolation: Literal["bilinear", "bicubic"] | None = None
    mean: _Triple | None = None
    std: _Triple | None = None

    @field_validator("weights")
    @classmethod
    def _weights_have_a_known_form(cls, weights: str) -> str:
        parse_weights(weights)
        return weights

    @model_validator(mode="after")
    def _fields_belong_to_the_family(self) -> EncoderConfig:
        optional = {name for names in _FIELDS.values() for name in names}
        given = {name for name in optional if getattr(self, name) is not None}
        foreign = sorted(given - set(_FIELDS[self.family]))
        if foreign:
            allowed = ", ".join(_FIELDS[self.family])
            raise ValueError(
                f"{', '.join(foreign)} mean nothing to family {self.family!r}; "
                f"besides model and weights it takes {allowed}"
            )
        return self

    @property
    def weights_spec(self) -> WeightsSpec:
        """`weights`, taken apart."""
        return parse_weights(self.weights)
