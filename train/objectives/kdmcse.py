"""KDMCSE: each caption must find its image and text features, from a frozen CLIP, in the batch.

Negatives that the teacher finds similar are moved less; very similar ones are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from sightline.cache.caption_choice import CaptionPolicy
from sightline.cache.record import Kind
from sightline.errors import SightlineError
from train.batch import Batch
from train.objectives.grounded import GroundedObjective, GroundedParams
from train.objectives.objective import FeatureNeed, Heads, Views
from train.objectives.similarity import cosine_matrix, product_matrix

if TYPE_CHECKING:
    from torch import Tensor, nn

_SLOT = {"image": "image", "teacher_text": "text"}
"""Teacher term → the slot of the features that sentences are compared with."""

_RELEASED_DEFAULTS = {
    "margin": 0.15,
    "text_margin": 0.15,
    "image_threshold": None,
    "teacher_text_threshold": None,
}


class KDMCSEParams(GroundedParams):
    """KDMCSE's parameters. The defaults are the paper's; those of `released` are noted.

    Attributes:
        variant: `released` computes what the authors' code does: Δ of the image term from
            cos(v̂_i, v̂_j), only negatives further away than the margin are moved, L_v + L_t
            instead of their average, and thresholds compared with raw products.
        image, text: the teacher's two encoders, such as CLIP's image and text tower.
        weight: λ of both teacher terms together.
        image_weight, teacher_text_weight: factors of L_v and L_t under λ.
        margin: m of the teacher terms, radians (released: 0.15).
        text_margin: constant margin of the text term's negatives, radians (released: 0.15).
        image_threshold, teacher_text_threshold: negatives that score at least this are removed
            from L_v or L_t; null removes none (released: null). `paper` compares cosines, t̂_i with
            v̂_j for the image term and t̂_i with t̂_j for the other; CLIP's image–text cosines are
            about 0.1 to 0.4, so the default of 0.9 has no effect there, and a run warns about it.
        teacher_temperature: τ′ of both teacher terms.
    """

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
    def _defaults_of_the_variant(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("variant") == "released":
            return {**_RELEASED_DEFAULTS, **given}
        return given

    @model_validator(mode="after")
    def _encoders_are_named(self) -> KDMCSEParams:
        for slot, encoder in self.encoders.items():
            if encoder is None and self.readers(slot):
                raise ValueError(
                    f"{slot} is not given; name the {slot} encoder of the teacher, "
                    "or set weight to 0"
                )
        return self

    @property
    def every_weight(self) -> dict[str, float]:
        share = self.weight / 2 if self.variant == "paper" else self.weight
        return {
            "text": self.text_weight,
            "image": share * self.image_weight,
            "teacher_text": share * self.teacher_text_weight,
        }

    @property
    def terms(self) -> tuple[str, ...]:
        """The teacher terms that are switched on."""
        return tuple(term for term in self.term_weights if term != "text")

    @property
    def encoders(self) -> dict[Kind, str | None]:
        """Slot (also the kind of its features) → encoder."""
        return {"image": self.image, "text": self.text}

    def crossed(self, term: str) -> bool:
        """Whether a teacher term compares the teacher's images with its texts."""
        if self.variant == "paper":
            return term == "image"
        return self.threshold(term) is not None

    def readers(self, slot: str) -> tuple[str, ...]:
        """The teacher terms that are on and read the features of ``slot``."""
        return tuple(term for term in self.terms if self.crossed(term) or _SLOT[term] == slot)

    @property
    def filtered(self) -> list[str]:
        """The teacher terms that are on and have a threshold."""
        return [term for term in self.terms if self.threshold(term) is not None]

    def threshold(self, term: str) -> float | None:
        """Threshold of a teacher term."""
        return self.image_threshold if term == "image" else self.teacher_text_threshold


class KDMCSE(GroundedObjective[KDMCSEParams]):
    """L_text + λ (L_v + L_t)/2 (Nguyen et al. 2024, eqs. 7–14; METHODS §3).

    Terms: `text` (L_text), `image` (L_v), `teacher_text` (L_t), the last two on paired batches.
    """

    name = "kdmcse"
    Params = KDMCSEParams
    source = "KDMCSE (Nguyen et al., NAACL 2024, arXiv 2403.17486)"

    @classmethod
    def features(cls, params: KDMCSEParams) -> dict[str, FeatureNeed]:
        return {
            slot: FeatureNeed(slot, str(encoder), readers)
            for slot, encoder in params.encoders.items()
            if (readers := params.readers(slot))
        }

    def check_widths(self, dims: Mapping[str, int]) -> None:
        crossed = any(map(self.params.crossed, self.params.terms))
        if crossed and dims["image"] != dims["text"]:
            raise SightlineError(
                f"objective kdmcse compares image features of {self.params.image} with text "
                f"features of {self.params.text}, but they are {dims['image']} and {dims['text']} "
                "wide; both must come from one model, such as CLIP"
            )

    @property
    def projected_slots(self) -> dict[str, tuple[str, ...]]:
        return {term: (slot,) for term, slot in _SLOT.items()}

    def heads(self, hidden: int, dims: Mapping[str, int]) -> nn.ModuleDict:
        projected = {term: dims[_SLOT[term]] for term in self.params.terms}
        return self.make_heads(hidden, projected, text="text" in self.weights)

    def terms(self, batch: Batch, views: Views, heads: Heads) -> dict[str, Tensor]:
        from train.losses import adaptive_margin_nce

        terms: dict[str, Tensor] = {}
        if "text" in self.weights:
            text = heads["text"]
            terms["text"] = self._text(text(views.first), text(views.second))
        if batch.stream != "pairs" or not self.params.terms:
            return terms
        grounded = [heads["grounding"](view) for view in (views.first, views.second)]  # (N, 256)
        for term in self.params.terms:
            teacher = heads[term](batch.features[_SLOT[term]])  # (N, 256)
            labels, scores = self._soft_labels(term, batch), self._filter_scores(term, batch)
            of_views = [
                adaptive_margin_nce(
                    view,
                    teacher,
                    labels,
                    self.params.margin,
                    self.params.teacher_temperature,
                    self.params.threshold(term),
                    filter_scores=scores,
                    margin_gate=self.params.variant == "released",
                )
                for view in grounded
            ]
            terms[term] = (of_views[0] + of_views[1]) / 2
        return terms

    def statistics(self, batch: Batch) -> dict[str, Tensor]:
        """The share of negatives that each threshold removes, 0 to 1."""
        from train.losses import removed_share

        return {
            f"removed_{term}": removed_share(scores, self.params.threshold(term))
            for term, scores in self._compared(batch).items()
        }

    def warnings(self, batches: Iterable[Batch]) -> list[str]:
        """One line for each threshold that removes nothing from any of the batches."""
        if not self.params.filtered:
            return []
        import torch

        from train.losses import removed_share

        removed: dict[str, float] = {}
        highest: dict[str, float] = {}
        count = 0
        for batch in batches:
            count += 1
            for term, scores in self._compared(batch).items():
                threshold = self.params.threshold(term)
                removed[term] = removed.get(term, 0.0) + float(removed_share(scores, threshold))
                own = torch.eye(len(scores), dtype=torch.bool, device=scores.device)
                best = float(scores.masked_fill(own, -math.inf).max())
                highest[term] = max(highest.get(term, -math.inf), best)
        return [
            f"{term}_threshold {self.params.threshold(term)} removes no negative in the first "
            f"{count} paired steps: the highest score is {highest[term]:.3f}. Lower it to filter, "
            "or set it to null"
            for term, share in removed.items()
            if share == 0
        ]

    def _text(self, first: Tensor, second: Tensor) -> Tensor:
        from train.losses import adaptive_margin_nce, info_nce

        params = self.params
        if params.text_margin == 0:
            return info_nce(first, second, params.temperature)
        return adaptive_margin_nce(
            first,
            second,
            first.new_zeros(len(first), len(first)),  # Δ = 1: the same margin for all
            params.text_margin,
            params.temperature,
            margin_gate=params.variant == "released",
        )

    def _soft_labels(self, term: str, batch: Batch) -> Tensor:
        """α of a teacher term, [N, N]."""
        if term == "teacher_text":
            texts = batch.features["text"]
            return cosine_matrix(texts, texts)
        images = batch.features["image"]
        paper = self.params.variant == "paper"
        return cosine_matrix(batch.features["text"] if paper else images, images)

    def _filter_scores(self, term: str, batch: Batch) -> Tensor | None:
        """Scores to compare with the threshold, [N, N], if they are not the soft labels."""
        if self.params.variant == "paper" or self.params.threshold(term) is None:
            return None
        images, texts = batch.features["image"], batch.features["text"]
        if term == "image":
            return product_matrix(texts, images)
        return product_matrix(images, texts)

    def _compared(self, batch: Batch) -> dict[str, Tensor]:
        """Filtered teacher term → the scores that its threshold is compared with, [N, N]."""
        if batch.stream != "pairs":
            return {}
        compared = {}
        for term in self.params.filtered:
            scores = self._filter_scores(term, batch)
            compared[term] = self._soft_labels(term, batch) if scores is None else scores
        return compared
