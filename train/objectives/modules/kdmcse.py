"""KDMCSE's module."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor

from sightline.cache.record import Kind
from train.batch import Batch
from train.losses import adaptive_margin_nce, cosine_matrix, diagonal, removed_share
from train.objectives.kdmcse import KDMCSEParams, TeacherTerm
from train.objectives.modules.objective import Embeddings, GroundedObjective


class KDMCSE(GroundedObjective[KDMCSEParams]):
    """L_text + λ (L_v + L_t)/2 (Nguyen et al. 2024, eqs. 7–14; METHODS §3).

    Terms: `text` (L_text), `image` (L_v), `teacher_text` (L_t), the last two on paired batches.
    """

    def forward(self, batch: Batch, embeddings: Embeddings) -> dict[str, Tensor]:
        params, sentences = self.params, embeddings["sentences"]
        terms: dict[str, Tensor] = {}
        if params.trains_on_text:
            terms["text"] = self._text(sentences)
        if batch.stream != "pairs" or not params.teacher_terms:
            return terms
        grounded = [self.heads["grounding"](view) for view in sentences]  # (N, 256)
        for name, term in params.teacher_terms.items():
            teacher = self.heads[name](self._rows(batch, term.keys))  # (N, 256)
            labels, scores = self._labels_and_scores(batch, term)
            first, second = (
                adaptive_margin_nce(
                    view,
                    teacher,
                    labels,
                    params.margin,
                    params.teacher_temperature,
                    term.threshold,
                    filter_scores=None if term.products is None else scores,
                    margin_gate=params.variant == "released",
                )
                for view in grounded
            )
            terms[name] = (first + second) / 2
        return terms

    def statistics(self, batch: Batch) -> dict[str, Tensor]:
        """The share of negatives that each threshold removes, 0 to 1."""
        return {
            f"removed_{name}": removed_share(scores, threshold)
            for name, threshold, scores in self._filtered(batch)
        }

    def warnings(self, batches: Iterable[Batch]) -> list[str]:
        """A line for each threshold that removes no negative of the batches, or every one."""
        if all(term.threshold is None for term in self.params.teacher_terms.values()):
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

    def _text(self, sentences: Tensor) -> Tensor:
        params = self.params
        if params.text_margin == 0:
            return self.text_term(sentences)
        first, second = map(self.heads["text"], sentences)
        return adaptive_margin_nce(
            first,
            second,
            first.new_zeros(len(first), len(first)),  # Δ = 1: the same margin for all
            params.text_margin,
            params.temperature,
            margin_gate=params.variant == "released",
        )

    def _rows(self, batch: Batch, kind: Kind) -> Tensor:
        return batch.features_of(kind, self.params.encoders[kind])

    def _labels_and_scores(self, batch: Batch, term: TeacherTerm) -> tuple[Tensor, Tensor]:
        """α of a teacher term, and what its threshold is compared with: [N, N] each."""
        labels = cosine_matrix(*(self._rows(batch, kind) for kind in term.labels))
        if term.products is None:
            return labels, labels
        first, second = (self._rows(batch, kind) for kind in term.products)
        return labels, first @ second.mT

    def _filtered(self, batch: Batch) -> Iterator[tuple[str, float, Tensor]]:
        """Each filtered teacher term of a batch, its threshold, and what it is compared with."""
        for name, term in self.params.teacher_terms.items() if batch.stream == "pairs" else ():
            if term.threshold is not None:
                yield name, term.threshold, self._labels_and_scores(batch, term)[1]
