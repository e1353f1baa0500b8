"""DALR: images and frozen sentence encoders define how similar a batch's sentences should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from sightline.errors import SightlineError
from sightline.settings import Settings
from train.objectives.needs import FeatureNeed
from train.objectives.objective import GroundedObjective

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from train.batch import Batch, Embeddings

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


class DALR(GroundedObjective):
    """L_text + w L_info + λ (L_cons + L_CMA) + μ (L_rank + L_IMA) (He et al. 2025; METHODS §4).

    All but `text` exist on paired batches. `image` is the mean over both views; the equations of
    `consistency` and `cross_modal` have one sentence embedding, which is the first view (as in the
    released code). `ranking` and `intra_modal` compare the first view with the second.

    Attributes:
        image: encoder of the image features.
        teachers: the text teachers, any number. The paper mixes SimCSE and DiffCSE, 0.33 to 0.67.
        image_weight: w of L_info (eq. 14: 1; the released code has 0.1).
        consistency_weight, cross_modal_weight: weight λ of this part of L_CML.
        ranking_weight, intra_modal_weight: weight μ of this part of L_IML.
        image_temperature: temperature τ′ of L_info.
        ranking_temperature: divides the ranked similarities.
        target_temperature, student_temperature: τ_t and τ_s of every KL. The equations print
            none; these are the effective values of the released code.
        consistency_margin: cosine that a text and a wrong image may have without a penalty.
    """

    name: ClassVar[str] = "dalr"
    source: ClassVar[str] = "DALR (He et al. 2025)"
    terms_of_text_head: ClassVar[tuple[str, ...]] = ("text", "ranking", "intra_modal")

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
    def _terms_have_what_they_need(self) -> DALR:
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

    def terms(
        self, heads: nn.ModuleDict, batch: Batch, embeddings: Embeddings
    ) -> dict[str, Tensor]:
        terms: dict[str, Tensor] = {}
        if batch.stream == "pairs":
            if self.on(NEEDS_IMAGES):
                terms |= self._with_images(heads, batch, embeddings)
            if self.on(("ranking", "intra_modal")):
                terms |= self._of_texts(heads, batch, embeddings)
        # last: gradients of one tensor are added in the reverse order of what used it
        return self.text_term(heads, embeddings) | terms

    def _with_images(
        self, heads: nn.ModuleDict, batch: Batch, embeddings: Embeddings
    ) -> dict[str, Tensor]:
        """The terms in the grounded space."""
        from sightline.devices import to_device
        from train.losses import consistency_loss, cross_modal_alignment, image_term

        terms: dict[str, Tensor] = {}
        raw = batch.features_of("image", self.image)
        images = heads["image"](raw)  # (N, 256)
        first = heads["grounding"](embeddings["sentences"][0])  # (N, 256)
        if self.image_weight > 0:
            second = heads["grounding"](embeddings["sentences"][1])
            terms["image"] = image_term(first, second, images, self.image_temperature)
        if self.consistency_weight > 0:
            order = to_device(derangement(len(batch), batch.generator()), images.device)
            wrong, margin = images[order], self.consistency_margin
            terms["consistency"] = consistency_loss(first, images, wrong, margin)
        if self.cross_modal_weight > 0:
            temperatures = self.target_temperature, self.student_temperature
            mixed = self._mixed_features(batch)
            terms["cross_modal"] = cross_modal_alignment(first, images, mixed, raw, *temperatures)
        return terms

    def _of_texts(
        self, heads: nn.ModuleDict, batch: Batch, embeddings: Embeddings
    ) -> dict[str, Tensor]:
        """The terms on the text head's views: h_i against h′_j."""
        from train.losses import cosine_matrix, kl_alignment, list_mle

        terms: dict[str, Tensor] = {}
        student = cosine_matrix(*map(heads["text"], embeddings["sentences"]))  # (N, N)
        if self.ranking_weight > 0:
            # a separate generator, so that ties do not depend on which other terms are on
            ranked, teachers = student / self.ranking_temperature, self._mixed_cosines(batch)
            terms["ranking"] = list_mle(ranked, teachers, batch.generator())
        if self.intra_modal_weight > 0:
            mixed = self._mixed_features(batch)
            temperatures = self.target_temperature, self.student_temperature
            terms["intra_modal"] = kl_alignment(cosine_matrix(mixed, mixed), student, *temperatures)
        return terms

    def _mixed_features(self, batch: Batch) -> Tensor:
        """Σ weight × features of the teachers, [N, D]."""
        shares = [
            teacher.weight * batch.features_of(teacher.features, teacher.encoder)
            for teacher in self.mixed
        ]
        return sum(shares[1:], start=shares[0])

    def _mixed_cosines(self, batch: Batch) -> Tensor:
        """Σ weight × in-batch cosines of the teachers, [N, N]; their widths may differ."""
        from train.losses import cosine_matrix

        shares = []
        for teacher in self.mixed:
            rows = batch.features_of(teacher.features, teacher.encoder)
            shares.append(teacher.weight * cosine_matrix(rows, rows))
        return sum(shares[1:], start=shares[0])


def _weights_of(terms: list[str]) -> str:
    return ", ".join(f"{term}_weight" for term in terms)


def derangement(rows: int, generator: torch.Generator) -> Tensor:
    """A random order in which no row keeps its place, for the mismatched images of DALR eq. 5.

    Every derangement is equally likely. A plain permutation leaves one row in place on average,
    and would treat that text's own image as a mismatch.

    Args:
        rows: N, at least 2.
        generator: The source of randomness; its state determines the result.

    Returns:
        [N] int64 on the generator's device: index the images with it.
    """
    import torch

    from train.losses import LossError

    if rows < 2:
        raise LossError(
            f"derangement: {rows} row(s) cannot all change places; "
            "omit the consistency term for a batch of one row"
        )
    places = torch.arange(rows, device=generator.device)
    while True:  # a permutation is a derangement with probability 1/e, at least 1/3
        order = torch.randperm(rows, generator=generator, device=generator.device)
        if not bool((order == places).any()):
            return order
