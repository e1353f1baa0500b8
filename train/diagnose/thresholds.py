"""How many negatives KDMCSE's threshold would remove, on the batches that a training draws."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.cache import FeatureSet
from train.diagnose.pair_cosines import DiagnosedPairs
from train.diagnose.settings import DiagnosisSettings, Tell
from train.losses import cosine_matrix, removed_share
from train.schedule import Schedule

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
"""Cosines whose share is given unless the user names others."""


@dataclass(frozen=True)
class Removal:
    """What one threshold would remove.

    Attributes:
        share: of the negatives, mean over the batches.
        matched: share of the pairs that belong together (`Cosines.matched`) whose cosine is at
            least the threshold.
        configured: it is the threshold of the configuration.
    """

    threshold: float
    share: float
    matched: float
    configured: bool


@dataclass(frozen=True)
class Filter:
    """The negatives of one teacher term.

    Attributes:
        term: `image` (a caption with images) or `teacher_text` (with captions), as in KDMCSE.
        highest: the highest cosine of a negative.
        removals: by threshold, ascending.
    """

    term: str
    highest: float
    removals: list[Removal]


def check_filter(
    pairs: DiagnosedPairs,
    images: FeatureSet | None,
    texts: FeatureSet,
    matched: dict[str, NDArray[np.float64]],
    settings: DiagnosisSettings,
    tell: Tell,
) -> list[Filter]:
    """The filter of every term in ``matched``.

    Args:
        pairs: as the training's caption policy chooses them.
        images: for the term `image`.
        matched: term → cosines of the pairs that belong together.
        settings: batches are those of the first paired steps of a run with its seed.
    """
    schedule = Schedule(len(pairs), 0, settings.batch_size, settings.seed)
    shares, highest = dict[str, dict[float, list[float]]](), dict[str, list[float]]()
    for term in matched:
        thresholds = {*(settings.thresholds or THRESHOLDS), *settings.configured_of(term)}
        shares[term], highest[term] = {threshold: [] for threshold in sorted(thresholds)}, []
    for k in range(settings.batches):
        batch = pairs.only(schedule.rows(schedule.draw(k)))
        off = ~torch.eye(len(batch), dtype=torch.bool)
        for term in matched:
            scores = _cosines(term, batch, images, texts)
            highest[term].append(float(scores[off].max()))
            for threshold, of_batches in shares[term].items():
                of_batches.append(float(removed_share(scores, threshold)))
        tell("batches", k + 1, settings.batches, "batches")
    return [
        Filter(
            term=term,
            highest=max(highest[term]),
            removals=[
                Removal(
                    threshold=threshold,
                    share=float(np.mean(of_batches)),
                    matched=float((cosines >= threshold).mean()),
                    configured=threshold in settings.configured_of(term),
                )
                for threshold, of_batches in shares[term].items()
            ],
        )
        for term, cosines in matched.items()
    ]


def _cosines(
    term: str, batch: DiagnosedPairs, images: FeatureSet | None, texts: FeatureSet
) -> Tensor:
    """The cosines that the term's threshold is compared with, [N, N] (`KDMCSE.statistics`)."""
    captions = _read(texts, batch.text_rows)
    if term == "teacher_text":
        return cosine_matrix(captions, captions)
    assert images is not None
    assert batch.image_rows is not None
    return cosine_matrix(captions, _read(images, batch.image_rows))


def _read(features: FeatureSet, rows: NDArray[np.int64]) -> Tensor:
    """Rows as stored, in float32: [len(rows), d]."""
    return torch.from_numpy(features.gather(rows).astype(np.float32))
