"""The image–caption pairs of a training: cosines of those that belong together, and their ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.cache import FeatureSet
from sightline.cache.caption_choice import CaptionPolicy
from sightline.cache.keys import Keys
from sightline.errors import SightlineError
from train.diagnose.checks import Scan
from train.diagnose.settings import DiagnosisSettings, Tell
from train.evaluate.cosines import cosines
from train.pairs import read_pairs, without_images

RECALLED = (1, 5, 10, 100, 200)
"""Ranks within which a share is given; KDMCSE's text names the last two for its figure 5."""

QUANTILES = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100)
"""In percent; 0 is the smallest value, 100 the largest."""


@dataclass(frozen=True)
class DiagnosedPairs:
    """Training pairs whose rows can be compared, in the manifest's order.

    Attributes:
        pictures: int64 [n], a number for each distinct image: captions of one image share it.
        image_rows: int64 [n], row in the image set; None without one.
        text_rows: int64 [n], row in the text set.
        lost: pairs left out for lack of a row with a direction: `without_image`, `without_text`, or
            `failed`, if their image could not be extracted; a training leaves out the last too.
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

    def by_image(self, size: int, seed: int) -> list[NDArray[np.int64]]:
        """Positions of the pairs of each image, of a sample of at most ``size`` images."""
        order = np.argsort(self.pictures, kind="stable")
        pictures, starts = np.unique(self.pictures[order], return_index=True)
        members = np.split(order, starts[1:])
        if size >= len(pictures):
            return members
        chosen = np.random.default_rng([seed, 4]).choice(len(pictures), size, replace=False)
        return [members[number] for number in np.sort(chosen)]


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
    every = read_pairs(captions, images, policy, data_seed)
    pairs = without_images(every, set(image_set.features.failed if image_set else ()))
    assert pairs.images is not None
    text_rows = _rows_of(pairs.keys, text_set, f"training captions of {captions}")
    image_rows, lost_image = None, np.zeros(len(pairs), dtype=bool)
    if image_set is not None:
        subject = f"images of the training captions of {captions} in {images}"
        image_rows = _rows_of(pairs.images, image_set, subject)
        lost_image = image_rows < 0
    lost_text = text_rows < 0
    _, pictures = np.unique(pairs.images, axis=0, return_inverse=True)
    lost = {
        "failed": len(every) - len(pairs),
        "without_image": int(lost_image.sum()),
        "without_text": int((lost_text & ~lost_image).sum()),
    }
    listed = DiagnosedPairs(pictures.ravel(), image_rows, text_rows, lost)
    return listed.only(np.flatnonzero(~(lost_text | lost_image)))


def _rows_of(keys: Keys, scanned: Scan, subject: str) -> NDArray[np.int64]:
    """Row of each key, −1 for what is missing; an error if there are not two different ones."""
    rows = scanned.rows_of(keys)
    if (count := len(np.unique(rows[rows >= 0]))) < 2:
        raise SightlineError(
            f"{scanned.features.path}: holds {count or 'none'} of the {len(keys):,} {subject}, and "
            "there is nothing to compare below two; give the manifests that it was extracted from, "
            "or the set that was extracted from these"
        )
    return rows


@dataclass(frozen=True)
class Distribution:
    """Of finite values.

    Attributes:
        count: number of values.
        sd: sample standard deviation; 0 for one value.
        quantiles: percent, as text, → value.
    """

    count: int
    mean: float
    sd: float
    quantiles: dict[str, float]

    @classmethod
    def of(cls, values: NDArray) -> Distribution:
        """Of ``values`` [n], of which there must be some."""
        flat = np.asarray(values, dtype=np.float64)
        values_at = np.quantile(flat, np.array(QUANTILES) / 100)
        return cls(
            count=flat.size,
            mean=float(flat.mean()),
            sd=float(flat.std(ddof=1)) if flat.size > 1 else 0.0,
            quantiles=dict(zip(map(str, QUANTILES), values_at.tolist(), strict=True)),
        )


@dataclass(frozen=True)
class Cosines:
    """Cosines of matched and mismatched pairs, as in KDMCSE's figure 6.

    Attributes:
        matched: an image and its own caption, or two captions of one image.
        mismatched: the same of different images, one caption each.
        separation: probability that a matched cosine exceeds a mismatched one; 0.5 is chance.
    """

    matched: Distribution
    mismatched: Distribution
    separation: float

    @classmethod
    def of(cls, matched: NDArray, mismatched: NDArray) -> Cosines:
        """Of the cosines themselves, [n] and [m]."""
        apart = separation(matched, mismatched)
        return cls(Distribution.of(matched), Distribution.of(mismatched), apart)


def separation(matched: NDArray, mismatched: NDArray) -> float:
    """The share of pairs in which ``matched`` exceeds ``mismatched`` (the area under ROC)."""
    ordered = np.sort(mismatched)
    below = np.searchsorted(ordered, matched, side="left")
    upto = np.searchsorted(ordered, matched, side="right")
    return float((below + upto).mean() / (2 * len(ordered)))


@dataclass(frozen=True)
class Ranks:
    """Ranks of true matches among everything that was searched; 1 is the best.

    Whatever is as similar as the match ranks before it, so that constant features find nothing.

    Attributes:
        queries: rows that searched.
        pool: rows searched.
        median: of the ranks.
        within: rank → share of queries whose match ranks there or better.
    """

    queries: int
    pool: int
    median: float
    within: dict[str, float]

    @classmethod
    def of(cls, ranks: Sequence[int], pool: int) -> Ranks:
        """Of the rank of each query among ``pool`` rows."""
        within = {str(rank): float(np.mean(np.array(ranks) <= rank)) for rank in RECALLED}
        return cls(len(ranks), pool, float(np.median(ranks)), within)


@dataclass(frozen=True)
class CrossChecks:
    """An image set beside a text set.

    Attributes:
        cosines: of image and caption.
        best_caption: rank of the best-placed caption of each image among all captions.
        worst_caption: rank of its worst-placed one, as in KDMCSE's figure 5.
    """

    cosines: Cosines
    best_caption: Ranks
    worst_caption: Ranks


def compare_with_images(
    pairs: DiagnosedPairs,
    images: FeatureSet,
    texts: FeatureSet,
    settings: DiagnosisSettings,
    tell: Tell,
) -> tuple[CrossChecks, NDArray[np.float64]]:
    """The checks, and the matched cosines [n], of a sample of images among all captions."""
    pairs = pairs.distinct()
    assert pairs.image_rows is not None
    by_image = pairs.by_image(settings.sample, settings.seed)
    chosen = _one_each(by_image, settings.seed)
    matched, mismatched, best, worst = [], [], [], []
    queries, captions = images.gather(pairs.image_rows[chosen]), texts.gather(pairs.text_rows)
    for number, row in enumerate(cosines(queries, captions, ("image", "caption"))):
        of_image = row[by_image[number]]
        matched.append(of_image)
        mismatched.append(np.delete(row[chosen], number))
        best.append(int((row >= of_image.max()).sum()))
        worst.append(int((row >= of_image.min()).sum()))
        tell("ranks of captions", number + 1, len(by_image), "images")
    together = np.concatenate(matched)
    checks = CrossChecks(
        Cosines.of(together, np.concatenate(mismatched)),
        Ranks.of(best, len(pairs)),
        Ranks.of(worst, len(pairs)),
    )
    return checks, together


def compare_captions(
    pairs: DiagnosedPairs, texts: FeatureSet, settings: DiagnosisSettings
) -> tuple[Cosines, NDArray[np.float64]] | None:
    """Captions of one image and of different images, and the matched cosines [n], of a sample.

    None if no image has two different captions.
    """
    pairs = pairs.distinct()
    by_image = pairs.by_image(settings.sample, settings.seed)
    matched = [_among(texts, pairs.text_rows[members]) for members in by_image]
    mismatched = _among(texts, pairs.text_rows[_one_each(by_image, settings.seed)])
    together = np.concatenate(matched)
    return (Cosines.of(together, mismatched), together) if len(together) else None


def _among(features: FeatureSet, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """The cosine of every two of the rows, [k (k − 1) / 2]."""
    values = features.gather(rows)
    table = np.array(list(cosines(values, values)))
    return table[np.triu_indices(len(rows), k=1)]


def _one_each(by_image: Sequence[NDArray[np.int64]], seed: int) -> NDArray[np.int64]:
    """The position of one pair of each image, drawn at random."""
    generator = np.random.default_rng([seed, 5])
    return np.array([generator.choice(members) for members in by_image])
