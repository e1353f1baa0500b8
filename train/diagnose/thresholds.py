"""How many negatives KDMCSE's threshold would remove, on the batches that a training draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.cache import FeatureSet
from train.diagnose.checks import read
from train.diagnose.pairs import DiagnosedPairs
from train.diagnose.settings import Settings, Tell
from train.losses import cosine_matrix, product_matrix, removed_share
from train.schedule import Schedule

SHARES = (0.001, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Shares of the negatives for which the threshold is given."""

THRESHOLDS = tuple(round(0.05 * step, 2) for step in range(2, 20))
"""Cosines whose share is given unless the user names others: 0.1, 0.15 … 0.95."""

_KEPT = 200_000  # scores of a batch that quantiles are computed from: all, up to 447 rows


@dataclass(frozen=True)
class Removal:
    """What one threshold would remove.

    Attributes:
        share: of the negatives, mean over the batches.
        sd: sample standard deviation of a batch's share.
        least, greatest: shares of the batches that lose fewest and most.
        matched: share of the matched pairs (`Cosines.matched`) that score at least the threshold:
            how many pairs that do belong together it would have recognised. None for products.
        configured: it is the threshold of the configuration.
    """

    threshold: float
    share: float
    sd: float
    least: float
    greatest: float
    matched: float | None
    configured: bool


@dataclass(frozen=True)
class Filter:
    """The negatives of one teacher term.

    Attributes:
        term: `image` or `teacher_text`, as KDMCSE names its terms; `released` for the products
            that the released code compares in both.
        score: what is compared with the threshold.
        batches, batch_size: drawn in the order of a training with this seed.
        negatives: scores compared, over all batches.
        highest: the highest score of a negative.
        same_image: share of the negatives that are captions of the query's own image.
        removals: by threshold, ascending.
        at_share: share of the negatives → the threshold that removes it (a quantile).
    """

    term: str
    score: str
    batches: int
    batch_size: int
    negatives: int
    highest: float
    same_image: float
    removals: list[Removal]
    at_share: dict[str, float]


def check_filter(
    pairs: DiagnosedPairs,
    images: FeatureSet | None,
    texts: FeatureSet,
    matched: dict[str, NDArray[np.float32]],
    settings: Settings,
    tell: Tell,
) -> list[Filter]:
    """The filter of every term that these sets have.

    Args:
        pairs: as the training's caption policy chooses them.
        images: None leaves only the term that compares texts with texts.
        matched: term → cosines of the pairs that belong together.
        settings: its thresholds are of cosines; products have a scale of their own, so for them
            only configured thresholds and quantiles are given. Batches are those of the first
            paired steps of a run with its seed.
    """
    batches, batch_size, configured = settings.batches, settings.batch_size, settings.configured
    schedule = Schedule(len(pairs), 0, batch_size, settings.seed)
    cosines = settings.thresholds or THRESHOLDS
    wanted = {
        term: sorted({*(() if term == "released" else cosines), *configured.of(term)})
        for term in (("image", "teacher_text", "released") if images else ("teacher_text",))
    }
    negatives: dict[str, list[Tensor]] = {term: [] for term in wanted}
    shares: dict[str, list[list[float]]] = {term: [] for term in wanted}
    highest = dict.fromkeys(wanted, -math.inf)
    same, count = 0, 0
    for k in range(batches):
        batch = pairs.only(schedule.rows(schedule.draw(k)))
        off = ~torch.eye(len(batch), dtype=torch.bool)
        for term, scores in _scores(batch, images, texts).items():
            highest[term] = max(highest[term], float(scores[off].max()))
            negatives[term].append(_thinned(scores[off]))
            shares[term].append([float(removed_share(scores, t)) for t in wanted[term]])
        own = batch.pictures[:, None] == batch.pictures[None, :]
        same, count = same + int(own.sum()) - len(batch), count + int(off.sum())
        tell("batches", k + 1, batches, "batches")
    return [
        Filter(
            term=term,
            score=_SCORES[term],
            batches=batches,
            batch_size=batch_size,
            negatives=count,
            highest=highest[term],
            same_image=same / count,
            removals=_removals(
                wanted[term], np.array(shares[term]), matched.get(term), configured.of(term)
            ),
            at_share=_quantiles(torch.cat(negatives[term])),
        )
        for term in wanted
    ]


_SCORES = {
    "image": "cosine of caption and image",
    "teacher_text": "cosine of two captions",
    "released": "product of caption and image, not normalised",
}


def _scores(
    batch: DiagnosedPairs, images: FeatureSet | None, texts: FeatureSet
) -> dict[str, Tensor]:
    """Term → the scores that its threshold is compared with, [N, N] (`KDMCSE.statistics`)."""
    captions = read(texts, batch.text_rows)
    scores = {"teacher_text": cosine_matrix(captions, captions)}
    if images is not None:
        assert batch.image_rows is not None
        pictures = read(images, batch.image_rows)
        scores["image"] = cosine_matrix(captions, pictures)
        scores["released"] = product_matrix(captions, pictures)  # its transpose has the same share
    return scores


def _removals(
    thresholds: Sequence[float],
    shares: np.ndarray,
    matched: NDArray[np.float32] | None,
    configured: Sequence[float],
) -> list[Removal]:
    """Args: shares: [batches, thresholds]."""
    return [
        Removal(
            threshold=threshold,
            share=float(column.mean()),
            sd=float(column.std(ddof=1)) if len(column) > 1 else 0.0,
            least=float(column.min()),
            greatest=float(column.max()),
            matched=None if matched is None else float((matched >= threshold).mean()),
            configured=threshold in configured,
        )
        for threshold, column in zip(thresholds, shares.T, strict=True)
    ]


def _thinned(scores: Tensor) -> Tensor:
    """At most about `_KEPT` of a batch's scores, evenly spaced."""
    return scores[:: -(-len(scores) // _KEPT)]


def _quantiles(scores: Tensor) -> dict[str, float]:
    thresholds = np.quantile(scores.numpy(), [1 - share for share in SHARES])
    return {str(share): float(value) for share, value in zip(SHARES, thresholds, strict=True)}
