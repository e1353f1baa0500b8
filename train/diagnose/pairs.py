"""The image–caption pairs of a training: cosines of those that belong together, and their ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.cache import FeatureSet
from sightline.cache.caption_choice import CaptionPolicy
from sightline.cache.keys import Keys
from sightline.errors import SightlineError
from train.diagnose.checks import (
    Distribution,
    Scan,
    chunks,
    draw,
    read,
    read_units,
    sample_size,
    separation,
    units,
)
from train.diagnose.settings import Settings, Tell
from train.pairs import read_pairs

SAMPLED_IMAGES = 2000
"""Images whose captions are compared with each other for the mismatched cosines."""

RECALLED = (1, 5, 10, 100, 200)
"""Ranks within which a share is given; KDMCSE's text names the last two for its figure 5."""

_SAME_DIGITS = 6  # cosines that agree to so many are equal: last bits depend on the shape
_SAME = 10.0**-_SAME_DIGITS


@dataclass(frozen=True)
class DiagnosedPairs:
    """Training pairs whose rows can be compared, in the manifest's order.

    Attributes:
        pictures: int64 [n], a number for each distinct image: captions of one image share it.
        image_rows: int64 [n], row in the image set; None without one.
        text_rows: int64 [n], row in the text set.
        lost: field of `PairCounts` → pairs that were left out for it.
    """

    pictures: NDArray[np.int64]
    image_rows: NDArray[np.int64] | None
    text_rows: NDArray[np.int64]
    lost: dict[str, int]

    def __len__(self) -> int:
        return len(self.text_rows)

    def distinct(self) -> DiagnosedPairs:
        """Each pair of an image and a text once, though an image may list a caption twice."""
        rows = np.stack([self.pictures, self.text_rows], axis=1)
        _, first = np.unique(rows, axis=0, return_index=True)
        return self.only(np.sort(first))

    def only(self, chosen: NDArray[np.int64]) -> DiagnosedPairs:
        """Some of the pairs."""
        return replace(
            self,
            pictures=self.pictures[chosen],
            image_rows=None if self.image_rows is None else self.image_rows[chosen],
            text_rows=self.text_rows[chosen],
        )


def find_pairs(
    captions: Path,
    images: Path,
    image_set: Scan | None,
    text_set: Scan,
    policy: CaptionPolicy,
    data_seed: int,
) -> DiagnosedPairs:
    """The pairs that a training with this caption policy reads, without those that lack a row.

    Raises:
        SightlineError: a manifest is missing or of another kind, or the sets hold no row of any of
            its pairs.
    """
    pairs = read_pairs(captions, images, policy, data_seed)
    if image_set is not None:
        listed = len(pairs)
        pairs = pairs.without_images(set(image_set.features.failed))
        if not len(pairs):
            raise SightlineError(
                f"{image_set.features.path}: the images of all {listed:,} training captions of "
                f"{captions} failed; see the failures file beside the set"
            )
    of_these = f"{len(pairs):,} training captions of {captions}"
    text_rows = _rows_of(pairs.caption_keys, text_set, f"the {of_these}")
    image_rows, lost_image = None, np.zeros(len(pairs), dtype=bool)
    if image_set is not None:
        what = f"the images of {of_these} in {images}"
        image_rows = _rows_of(pairs.image_keys, image_set, what)
        lost_image = image_rows < 0
    lost_text = text_rows < 0
    _, pictures = np.unique(pairs.image_keys, axis=0, return_inverse=True)
    lost = {
        "failed": pairs.dropped,
        "without_image": int(lost_image.sum()),
        "without_text": int((lost_text & ~lost_image).sum()),
    }
    every = DiagnosedPairs(pictures.ravel(), image_rows, text_rows, lost)
    kept = every.only(np.flatnonzero(~(lost_text | lost_image)))
    if (count := len(np.unique(kept.pictures))) < 2:
        raise SightlineError(
            f"{captions}: the sets hold the rows of {count} of its images; there is nothing to "
            "compare below two"
        )
    return kept


def _rows_of(keys: Keys, scanned: Scan, what: str) -> NDArray[np.int64]:
    """Row of each key, −1 for what is missing; an error if everything is."""
    rows = scanned.rows_of(keys)
    if (rows < 0).all():
        raise SightlineError(
            f"{scanned.features.path}: holds none of {what}; give the manifests that it was "
            "extracted from, or the set that was extracted from these"
        )
    return rows


@dataclass(frozen=True)
class Cosines:
    """Cosines of matched and mismatched pairs, as in KDMCSE's figure 6.

    Attributes:
        matched: an image and its own caption, or two captions of one image.
        mismatched: the same of different images.
        separation: probability that a matched cosine exceeds a mismatched one; 0.5 is chance.
        sampled: images that the mismatched pairs (and matched captions) are from.
        images: images to draw from.
    """

    matched: Distribution
    mismatched: Distribution
    separation: float
    sampled: int
    images: int


@dataclass(frozen=True)
class Ranks:
    """Ranks of true matches among everything that was searched; 1 is the best.

    Whatever is as similar as the match ranks before it, so that constant features find nothing.

    Attributes:
        queries: rows that searched, of `of` rows; fewer were drawn by the seed.
        pool: rows searched.
        median: of the ranks.
        within: rank → share of queries whose match ranks there or better.
        curve: (rank, share within it) at about evenly spaced ranks on a logarithmic axis.
        chance: expected share at rank 1 if similarities meant nothing.
    """

    queries: int
    of: int
    pool: int
    median: float
    within: dict[str, float]
    curve: list[tuple[int, float]]
    chance: float


@dataclass(frozen=True)
class CrossChecks:
    """An image set beside a text set.

    Attributes:
        cosines: of image and caption.
        best_caption: rank of the best-placed caption of each image.
        worst_caption: rank of its worst-placed one, as in KDMCSE's figure 5.
        image: rank of the image of each caption.
    """

    cosines: Cosines
    best_caption: Ranks
    worst_caption: Ranks
    image: Ranks


Scores = tuple[NDArray[np.float32], NDArray[np.float32]]
"""Cosines of matched and of mismatched pairs, [n] and [m]."""


def image_text_scores(
    pairs: DiagnosedPairs, images: FeatureSet, texts: FeatureSet, seed: int
) -> Scores:
    """Every pair's cosine; and those of a sample of images with captions of the others."""
    assert pairs.image_rows is not None
    matched = np.empty(len(pairs), np.float32)
    for part in chunks(len(pairs)):
        left = units(read(images, pairs.image_rows[part]))
        matched[part] = (left * units(read(texts, pairs.text_rows[part]))).sum(dim=1).numpy()
    one = _one_caption_each(pairs, seed)
    assert one.image_rows is not None
    products = read_units(images, one.image_rows) @ read_units(texts, one.text_rows).T
    off = ~torch.eye(len(one), dtype=torch.bool)
    return matched, products[off].numpy()


def text_text_scores(pairs: DiagnosedPairs, texts: FeatureSet, seed: int) -> Scores | None:
    """Captions of one image, and captions of different images, of a sample of images.

    None if no image has two different captions.
    """
    pairs = pairs.distinct()
    one = _one_caption_each(pairs, seed)
    rows = read_units(texts, one.text_rows)
    above = torch.triu(torch.ones(len(one), len(one), dtype=torch.bool), diagonal=1)
    mismatched = (rows @ rows.T)[above].numpy()
    matched = []
    for members in _members(pairs, one.pictures):
        rows = read_units(texts, pairs.text_rows[members])
        first, second = np.triu_indices(len(members), k=1)
        matched.append((rows @ rows.T).numpy()[first, second])
    same = np.concatenate(matched)
    return (same, mismatched) if len(same) else None


def cosines_of(scores: Scores, pairs: DiagnosedPairs) -> Cosines:
    """The scores in a few numbers."""
    images = len(np.unique(pairs.pictures))
    matched, mismatched = map(Distribution.of, scores)
    apart = separation(*(np.round(each, _SAME_DIGITS) for each in scores))
    return Cosines(matched, mismatched, apart, min(images, SAMPLED_IMAGES), images)


def rank_captions(
    pairs: DiagnosedPairs,
    images: FeatureSet,
    texts: FeatureSet,
    settings: Settings,
    tell: Tell,
) -> tuple[Ranks, Ranks]:
    """Ranks of each image's best-placed and worst-placed caption among all captions."""
    pairs = pairs.distinct()
    assert pairs.image_rows is not None
    pictures, first, sizes = np.unique(pairs.pictures, return_index=True, return_counts=True)
    size = sample_size(settings.sample, len(pictures), len(pairs), images.dim)
    chosen = draw(len(pictures), size, settings.seed, 2)
    queries = read_units(images, pairs.image_rows[first[chosen]])  # (q, d)
    own = _members(pairs, pictures[chosen])
    references = torch.empty(len(chosen), 2)
    for number, members in enumerate(own):
        scores = read_units(texts, pairs.text_rows[members]) @ queries[number]
        references[number] = torch.stack([scores.max(), scores.min()])
    what = f"rank of the true captions of {len(chosen):,} images"
    ranks = _ranks(queries, references, texts, pairs.text_rows, partial(tell, what))
    # by chance an image's best of k captions is first with k/n, its worst is first with k = 1 only
    chance = float(sizes.mean()) / len(pairs)
    alone = float((sizes == 1).mean()) / len(pairs)
    counts = len(chosen), len(pictures), len(pairs)
    return _summary(ranks[:, 0], *counts, chance), _summary(ranks[:, 1], *counts, alone)


def rank_images(
    pairs: DiagnosedPairs,
    images: FeatureSet,
    texts: FeatureSet,
    settings: Settings,
    tell: Tell,
) -> Ranks:
    """Rank of the image of each caption among all images."""
    pairs = pairs.distinct()
    assert pairs.image_rows is not None
    pool_rows = np.unique(pairs.image_rows)
    size = sample_size(settings.sample, len(pairs), len(pool_rows), images.dim)
    some = pairs.only(draw(len(pairs), size, settings.seed, 3))
    assert some.image_rows is not None
    queries = read_units(texts, some.text_rows)
    references = (queries * read_units(images, some.image_rows)).sum(dim=1, keepdim=True)
    what = f"rank of the true image of {len(some):,} captions"
    ranks = _ranks(queries, references, images, pool_rows, partial(tell, what))
    return _summary(ranks[:, 0], len(some), len(pairs), len(pool_rows), 1 / len(pool_rows))


def _ranks(
    queries: Tensor,
    references: Tensor,
    features: FeatureSet,
    pool: NDArray[np.int64],
    tell: Callable[[int, int, str], None],
) -> NDArray[np.int64]:
    """How many rows of the pool are at least as similar as each reference: int64 [q, r].

    Args:
        queries: [q, d].
        references: [q, r], cosines of matches, which are in the pool and count themselves.
        pool: rows of ``features``, int64 [n].
    """
    counts = torch.zeros(references.shape, dtype=torch.int64)
    for some in chunks(len(pool)):
        rows = read_units(features, pool[some])
        for part in chunks(len(queries)):
            scores = queries[part] @ rows.T  # (≤ q, m)
            for number in range(references.shape[1]):
                least = references[part, number, None] - _SAME
                counts[part, number] += (scores >= least).sum(dim=1)
        tell(some.stop, len(pool), "rows")
    return counts.clamp_min(1).numpy()


def _summary(ranks: NDArray[np.int64], queries: int, of: int, pool: int, chance: float) -> Ranks:
    ordered = np.sort(ranks)
    at = np.unique(np.geomspace(1, pool, 60).round().astype(int))

    def within(rank: int) -> float:
        return float(np.searchsorted(ordered, rank, side="right") / len(ordered))

    return Ranks(
        queries=queries,
        of=of,
        pool=pool,
        median=float(np.median(ordered)),
        within={str(rank): within(rank) for rank in RECALLED},
        curve=[(int(rank), within(rank)) for rank in at],
        chance=chance,
    )


def _one_caption_each(pairs: DiagnosedPairs, seed: int) -> DiagnosedPairs:
    """One caption, drawn at random, of each of up to `SAMPLED_IMAGES` images."""
    pictures = np.unique(pairs.pictures)
    chosen = pictures[draw(len(pictures), SAMPLED_IMAGES, seed, 4)]
    generator = np.random.default_rng([seed, 5])
    return pairs.only(np.array([generator.choice(rows) for rows in _members(pairs, chosen)]))


def _members(pairs: DiagnosedPairs, pictures: NDArray[np.int64]) -> Sequence[NDArray[np.int64]]:
    """For each image its pairs, by position."""
    order = np.argsort(pairs.pictures, kind="stable")
    ordered = pairs.pictures[order]
    starts = np.searchsorted(ordered, pictures, side="left")
    ends = np.searchsorted(ordered, pictures, side="right")
    return [order[start:end] for start, end in zip(starts, ends, strict=True)]
