"""DALR: images and frozen sentence encoders define how similar a batch's sentences should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from sightline.errors import SightlineError
from sightline.settings import Settings
from train.objectives.parameters import FeatureNeed, GroundedParams

if TYPE_CHECKING:
    from train.objectives.modules.dalr import DALR

NEEDS_IMAGES = ("image", "consistency", "cross_modal")
NEEDS_TEACHERS = ("cross_modal", "ranking", "intra_modal")
NEEDS_MIXED_FEATURES = ("cross_modal", "intra_modal")


class Teacher(Settings):
    """One frozen sentence encoder and its share in the mix; only ratios of weights matter.

    Attributes:
        encoder: its name.
        weight: its share.
        features: `teacher`, or `text` for the text features of a CLIP model.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    encoder: str = Field(min_length=1)
    weight: float = Field(ge=0)
    features: Literal["teacher", "text"] = "teacher"


class DALRParams(GroundedParams):
    """DALR's parameters.

    Attributes:
        image: encoder of the image features.
        teachers: the text teachers, any number. The paper mixes SimCSE and DiffCSE, 0.33 to 0.67.
        image_weight: w of L_info (eq. 14: 1; the released code has 0.1).
        consistency_weight, cross_modal_weight: λ, of the two parts of L_CML.
        ranking_weight, intra_modal_weight: μ, of the two parts of L_IML.
        image_temperature: temperature τ′ of L_info.
        ranking_temperature: divides the ranked similarities.
        target_temperature, student_temperature: τ_t and τ_s of every KL. The equations print
            none; these are the effective values of the released code.
        consistency_margin: cosine that a text and a wrong image may have without a penalty.
    """

    name: ClassVar[str] = "dalr"
    source: ClassVar[str] = "DALR (He et al. 2025)"

    image: str | None = Field(default=None, min_length=1)
    teachers: tuple[Teacher, ...] = ()
    image_weight: float = Field(default=1.0, ge=0)
    consistency_weight: float = Field(default=0.1, ge=0)
    cross_modal_weight: float = Field(default=0.1, ge=0)
    ranking_weight: float = Field(default=0.2, ge=0)
    intra_modal_weight: float = Field(default=0.2, ge=0)
    image_temperature: float = Field(default=0.05, gt=0)
    ranking_temperature: float = Field(default=0.05, gt=0)
    target_temperature: float = Field(default=0.5, gt=0)
    student_temperature: float = Field(default=0.0225, gt=0)
    consistency_margin: float = Field(default=0.2, ge=-1, le=1)

    @model_validator(mode="after")
    def _terms_have_what_they_need(self) -> DALRParams:
        if self.image is None and (terms := self.on(NEEDS_IMAGES)):
            raise ValueError(
                f"image is not given; name the image encoder, or set {_weights_of(terms)} to 0"
            )
        names = [teacher.encoder for teacher in self.teachers]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"teachers: {', '.join(twice)} is listed more than once")
        if not self.mixed and (terms := self.on(NEEDS_TEACHERS)):
            raise ValueError(
                "no teacher has a weight above 0; list teachers as {encoder: NAME, "
                f"weight: NUMBER}}, or set {_weights_of(terms)} to 0"
            )
        return self

    @property
    def weights(self) -> dict[str, float]:
        return {
            "text": self.text_weight,
            "image": self.image_weight,
            "consistency": self.consistency_weight,
            "cross_modal": self.cross_modal_weight,
            "ranking": self.ranking_weight,
            "intra_modal": self.intra_modal_weight,
        }

    @property
    def mixed(self) -> list[Teacher]:
        """The teachers with a weight above 0."""
        return [teacher for teacher in self.teachers if teacher.weight > 0]

    @property
    def features(self) -> list[FeatureNeed]:
        needs = list[FeatureNeed]()
        if self.image is not None and (terms := self.on(NEEDS_IMAGES)):
            needs.append(FeatureNeed("image", self.image, tuple(terms), head="image"))
        if terms := self.on(NEEDS_TEACHERS):
            needs += [FeatureNeed(t.features, t.encoder, tuple(terms)) for t in self.mixed]
        return needs

    def check_widths(self, dims: Mapping[str, int]) -> None:
        teachers = {need.encoder: dims[need.name] for need in self.features if need.head is None}
        terms = self.on(NEEDS_MIXED_FEATURES)
        if len(set(teachers.values())) > 1 and terms:
            widths = ", ".join(f"{encoder} {width}" for encoder, width in teachers.items())
            raise SightlineError(
                "objective dalr adds the features of its teachers, but their widths differ "
                f"({widths}); use teachers of the same width, or set {_weights_of(terms)} to 0"
            )

    def build(self, hidden: int, dims: Mapping[str, int]) -> DALR:
        from train.objectives.modules.dalr import DALR

        return DALR(self, hidden, dims)


def _weights_of(terms: list[str]) -> str:
    return ", ".join(f"{term}_weight" for term in terms)
