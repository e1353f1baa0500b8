"""KDMCSE: each caption must find its image and text features, from a frozen CLIP, in the batch.

Negatives that the teacher finds similar are moved less; very similar ones are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from sightline.cache.caption_choice import CaptionPolicy
from sightline.cache.record import Kind
from sightline.errors import SightlineError
from train.objectives.needs import FeatureNeed
from train.objectives.objective import GroundedObjective

if TYPE_CHECKING:
    from torch import Tensor, nn

    from train.batch import Batch, Embeddings

_RELEASED_DEFAULTS = {
    "margin": 0.15,
    "text_margin": 0.15,
    "image_threshold": None,
    "teacher_text_threshold": None,
}


@dataclass(frozen=True)
class TeacherTerm:
    """What a teacher term reads, by kind of features: `image` or `text`.

    Attributes:
        keys: projected; sentences are compared with them.
        labels: the soft labels are the cosines of one with the other.
        threshold: negatives that score at least this are removed; None removes none.
        products: the scores are the raw products of one with the other; None: the soft labels.
    """

    keys: Kind
    labels: tuple[Kind, Kind]
    threshold: float | None
    products: tuple[Kind, Kind] | None = None

    @property
    def compared(self) -> list[tuple[Kind, Kind]]:
        """The features that are compared with each other; both must be of one model."""
        return [self.labels] if self.products is None else [self.labels, self.products]

    def reads(self, kind: Kind) -> bool:
        """Whether it reads features of ``kind``."""
        return kind == self.keys or any(kind in pair for pair in self.compared)


class KDMCSE(GroundedObjective):
    """L_text + λ (L_v + L_t)/2 (Nguyen et al. 2024, eqs. 7–14; METHODS §3).

    Terms: `text` (L_text), `image` (L_v), `teacher_text` (L_t), the last two on paired batches. The
    defaults are the paper's; those of `released` are noted.

    Attributes:
        variant: `released` computes what the authors' code does: Δ of the image term from
            cos(v̂_i, v̂_j), only negatives further away than the margin are moved, L_v + L_t
            instead of their average, and thresholds compared with raw products.
        image, text: the teacher's two encoders, such as CLIP's image and text tower.
        weight: weight λ of both teacher terms together.
        image_weight, teacher_text_weight: weights of L_v and of L_t, under λ.
        margin: margin m of the teacher terms, radians (released: 0.15).
        text_margin: constant margin of the text term's negatives, radians (released: 0.15).
        image_threshold, teacher_text_threshold: negatives that score at least this are removed
            from L_v or L_t; null removes none (released: null). `paper` compares cosines, t̂_i with
            v̂_j for the image term and t̂_i with t̂_j for the other; CLIP's image–text cosines are
            about 0.1 to 0.4, so the default of 0.9 has no effect there, and a run warns about it.
        teacher_temperature: temperature τ′ of both teacher terms.
    """

    name: ClassVar[str] = "kdmcse"
    source: ClassVar[str] = "KDMCSE (Nguyen et al., NAACL 2024, arXiv 2403.17486)"

    caption: CaptionPolicy = "all"
    variant: Literal["paper", "released"] = "paper"
    image: str | None = Field(default=None, min_length=1)
    text: str | None = Field(default=None, min_length=1)
    weight: float = Field(default=0.01, ge=0)
    image_weight: float = Field(default=1.0, ge=0)
    teacher_text_weight: float = Field(default=1.0, ge=0)
    margin: float = Field(default=0.125, ge=0, le=math.pi)
    text_margin: float = Field(default=0.0, ge=0, le=math.pi)
    image_threshold: float | None = 0.9
    teacher_text_threshold: float | None = 0.9
    teacher_temperature: float = Field(default=0.05, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_variant(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("variant") == "released":
            return {**_RELEASED_DEFAULTS, **values}
        return values

    @model_validator(mode="after")
    def _encoders_are_named(self) -> KDMCSE:
        for kind, encoder in self.encoders.items():
            if encoder is None and any(term.reads(kind) for term in self.teacher_terms.values()):
                raise ValueError(
                    f"{kind} is not given; name the {kind} encoder of the teacher, "
                    "or set weight to 0"
                )
        return self

    @property
    def weights(self) -> dict[str, float]:
        share = self.weight / 2 if self.variant == "paper" else self.weight
        return {
            "text": self.text_weight,
            "image": share * self.image_weight,
            "teacher_text": share * self.teacher_text_weight,
        }

    @property
    def encoders(self) -> dict[Kind, str | None]:
        """Kind of features → encoder."""
        return {"image": self.image, "text": self.text}

    @property
    def teacher_terms(self) -> dict[str, TeacherTerm]:
        """The teacher terms that are on."""
        for_images, for_texts = self.image_threshold, self.teacher_text_threshold
        if self.variant == "paper":
            image = TeacherTerm("image", ("text", "image"), for_images)
            text = TeacherTerm("text", ("text", "text"), for_texts)
        else:
            products = None if for_images is None else ("text", "image")
            image = TeacherTerm("image", ("image", "image"), for_images, products)
            products = None if for_texts is None else ("image", "text")
            text = TeacherTerm("text", ("text", "text"), for_texts, products)
        terms = {"image": image, "teacher_text": text}
        return {name: term for name, term in terms.items() if self.on([name])}

    @property
    def features(self) -> list[FeatureNeed]:
        terms, needs = self.teacher_terms, []
        for kind, encoder in self.encoders.items():
            readers = tuple(name for name, term in terms.items() if term.reads(kind))
            heads = [name for name, term in terms.items() if term.keys == kind]
            if encoder is not None and readers:
                needs.append(FeatureNeed(kind, encoder, readers, head=heads[0] if heads else None))
        return needs

    def check_widths(self, dims: Mapping[str, int]) -> None:
        widths = {need.kind: dims[need.name] for need in self.features}
        pairs = [pair for term in self.teacher_terms.values() for pair in term.compared]
        if any(widths[first] != widths[second] for first, second in pairs):
            raise SightlineError(
                f"objective kdmcse compares image features of {self.image} with text "
                f"features of {self.text}, but they are {widths['image']} and "
                f"{widths['text']} wide; both must come from one model, such as CLIP"
            )

    def terms(
        self, heads: nn.ModuleDict, batch: Batch, embeddings: Embeddings
    ) -> dict[str, Tensor]:
        from train.losses import adaptive_margin_nce

        terms = self.text_term(heads, embeddings)
        if batch.stream != "pairs" or not self.teacher_terms:
            return terms
        grounded = [heads["grounding"](view) for view in embeddings["sentences"]]  # (N, 256)
        for name, term in self.teacher_terms.items():
            teacher = heads[name](self._rows(batch, term.keys))  # (N, 256)
            labels, scores = self._labels_and_scores(batch, term)
            first, second = (
                adaptive_margin_nce(
                    view,
                    teacher,
                    labels,
                    self.margin,
                    self.teacher_temperature,
                    term.threshold,
                    filter_scores=None if term.products is None else scores,
                    margin_gate=self.variant == "released",
                )
                for view in grounded
            )
            terms[name] = (first + second) / 2
        return terms

    def statistics(self, batch: Batch) -> dict[str, Tensor]:
        """The share of negatives that each threshold removes, 0 to 1."""
        from train.losses import removed_share

        return {
            f"removed_{name}": removed_share(scores, threshold)
            for name, threshold, scores in self._filtered(batch)
        }

    def warnings(self, batches: Iterable[Batch]) -> list[str]:
        """A line for each threshold that removes no negative of the batches, or every one."""
        from train.losses import diagonal

        if all(term.threshold is None for term in self.teacher_terms.values()):
            return []
        count, extremes = 0, dict[str, Any]()  # of each term: lowest, highest and its threshold
        for batch in batches:
            count += 1
            for name, threshold, scores in self._filtered(batch):
                itself = diagonal(scores)
                low = scores.masked_fill(itself, math.inf).min()
                high = scores.masked_fill(itself, -math.inf).max()
                lowest, highest, _ = extremes.get(name, (low, high, threshold))
                extremes[name] = min(low, lowest), max(high, highest), threshold
        lines = []
        for name, (low, high, threshold) in extremes.items():
            about = f"{name}_threshold {threshold} removes"
            where = f"in the first {count} paired steps"
            if high < threshold:  # as tensors, with the rounding of the filter
                lines.append(
                    f"{about} no negative {where}: the highest score is {float(high):.3f}. Lower "
                    "it to filter, or set it to null"
                )
            elif low >= threshold:
                lines.append(
                    f"{about} every negative {where}, so the term learns nothing: the lowest score "
                    f"is {float(low):.3f}. Raise it, or set it to null"
                )
        return lines

    def text_term(self, heads: nn.ModuleDict, embeddings: Embeddings) -> dict[str, Tensor]:
        """L_text; with a margin, Δ = 1 makes it the same for all negatives."""
        from train.losses import adaptive_margin_nce

        if self.text_margin == 0 or not self.trains_on_text:
            return super().text_term(heads, embeddings)
        first, second = map(heads["text"], embeddings["sentences"])
        labels, gate = first.new_zeros(len(first), len(first)), self.variant == "released"
        margins = self.text_margin, self.temperature
        return {"text": adaptive_margin_nce(first, second, labels, *margins, margin_gate=gate)}

    def _rows(self, batch: Batch, kind: Kind) -> Tensor:
        return batch.features_of(kind, self.encoders[kind])

    def _labels_and_scores(self, batch: Batch, term: TeacherTerm) -> tuple[Tensor, Tensor]:
        """α of a teacher term, and what its threshold is compared with: [N, N] each."""
        from train.losses import cosine_matrix

        labels = cosine_matrix(*(self._rows(batch, kind) for kind in term.labels))
        if term.products is None:
            return labels, labels
        first, second = (self._rows(batch, kind) for kind in term.products)
        return labels, first @ second.mT

    def _filtered(self, batch: Batch) -> Iterator[tuple[str, float, Tensor]]:
        """Each filtered teacher term of a batch, its threshold, and what it is compared with."""
        for name, term in self.teacher_terms.items() if batch.stream == "pairs" else ():
            if term.threshold is not None:
                yield name, term.threshold, self._labels_and_scores(batch, term)[1]
