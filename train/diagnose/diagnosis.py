"""The numbers of a diagnosis: one feature set, or images beside their captions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sightline.cache import CAPTIONS, IMAGES, FeatureSet, key_column, keys_of_texts, read_manifest
from sightline.cache.caption_choice import CaptionPolicy
from sightline.cache.feature_kind import is_of_texts
from sightline.cache.keys import Keys
from sightline.cache.manifest import places_of
from sightline.errors import SightlineError
from train.diagnose.settings import DiagnosisSettings, Tell
from train.evaluate.ranking import cosines
from train.pairs import read_pairs, without_images
from train.schedule import Schedule

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
"""Cosines whose share is given unless the user names others."""
RECALLED = (1, 5, 10, 100, 200)
"""Ranks within which a share is given; KDMCSE's text names the last two for its figure 5."""
QUANTILES = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100)
"""In percent; 0 is the smallest value, 100 the largest."""
_CHUNK = 4096  # rows that are read at once
_NAMED = 4  # rows that a result names

Numbers = Mapping[str, Any]
"""What `diagnose` found, plain values as JSON holds them."""


class Pairs(NamedTuple):
    """Training pairs whose rows can be compared, in the manifest's order.

    Attributes:
        pictures: int64 [n], a number for each distinct image: captions of one image share it.
        images: int64 [n], row in the image set; None without one.
        texts: int64 [n], row in the text set.
        lost: pairs left out for lack of a row with a direction: `without_image`, `without_text`, or
            `failed`, if their image could not be extracted; a training leaves out the last too.
    """

    pictures: NDArray[np.int64]
    images: NDArray[np.int64] | None
    texts: NDArray[np.int64]
    lost: dict[str, int]

    def only(self, chosen: NDArray[np.int64]) -> Pairs:
        """Some of the pairs."""
        images = None if self.images is None else self.images[chosen]
        return Pairs(self.pictures[chosen], images, self.texts[chosen], self.lost)


class Usable(NamedTuple):
    """A feature set, and which of its rows have a direction: finite and not zero, bool [n]."""

    features: FeatureSet
    directed: NDArray[np.bool_]

    def rows_of(self, keys: Keys, subject: str) -> NDArray[np.int64]:
        """Row of each key; −1 where there is none with a direction: int64 [n].

        Raises:
            SightlineError: there are not two different ones.
        """
        rows = self.features.find(keys)
        rows = np.where(np.append(self.directed, False)[rows], rows, -1)
        if (count := len(np.unique(rows[rows >= 0]))) < 2:
            raise SightlineError(
                f"{self.features.path}: holds {count or 'none'} of the {len(keys):,} {subject}, "
                "and there is nothing to compare below two; give the manifests that it was "
                "extracted from, or the set that was extracted from these"
            )
        return rows


def diagnose(
    paths: Sequence[Path],
    captions: Path | None,
    images: Path | None,
    settings: DiagnosisSettings,
    tell: Tell = lambda phase, done, total, unit: None,
) -> Numbers:
    """Look at one set, or at an image set and a text set that belong together.

    Args:
        paths: one feature set of any kind, or one of images and one of texts.
        captions, images: manifests that say which caption belongs to which image; needed for two
            sets. A set of texts alone is compared with itself if both are given.
        tell: receives progress.

    Returns:
        `settings`; `sets`: of each, images first, its `path`, `spec`, number of `rows`, rows that
        are `not_finite` or `zero` (`count` and names of the first, `examples`) and the
        `mean_cosine` of two different rows; `pairs`: how many were `compared`, of how many
        `images`, and how many were left out (`Pairs.lost`); `cross`: an image set beside a text
        set: `cosines`, and the ranks of the `best_caption` and the `worst_caption` of an image;
        `captions`: cosines of two captions; `filters`: KDMCSE's filter on these features;
        `manifest`: of the captions. What does not apply is None or empty.

    Raises:
        SightlineError: a set or manifest is missing, damaged or of the wrong kind, or they do not
            belong together.
    """
    sets = sorted(
        map(FeatureSet.open, paths),
        key=lambda feature_set: is_of_texts(feature_set.record.spec.kind),
    )
    _check_kinds(sets, captions, images)
    checked = [
        _check_set(feature_set, _namer(feature_set, captions, images), tell) for feature_set in sets
    ]
    numbers: dict[str, Any] = {
        "settings": settings.model_dump(mode="json"),
        "sets": [checks for checks, _ in checked],
        **dict.fromkeys(("pairs", "cross", "captions")),
        "filters": [],
        "manifest": "",
    }
    if captions is None or images is None or not is_of_texts(sets[-1].record.spec.kind):
        return numbers
    texts, pictures = checked[-1][1], checked[0][1] if len(sets) == 2 else None
    pairs = find_pairs(captions, images, pictures, texts, "all", 0)
    compared, matched = _compare(pairs, pictures, texts, settings, tell)
    trained = find_pairs(captions, images, pictures, texts, settings.caption, settings.data_seed)
    counts = {"compared": len(pairs.texts), "images": len(np.unique(pairs.pictures)), **pairs.lost}
    filters = _try_thresholds(trained, pictures, texts, matched, settings, tell)
    return {
        **numbers,
        **compared,
        "pairs": counts,
        "filters": filters,
        "manifest": captions.as_posix(),
    }


def _check_kinds(sets: Sequence[FeatureSet], captions: Path | None, images: Path | None) -> None:
    if len(sets) == 1:
        return
    if [features.record.spec.kind for features in sets] != ["image", "text"]:
        names = ", ".join(f"{features.path} ({features.record.spec.kind})" for features in sets)
        raise SightlineError(
            f"found {names}, expected one set of kind image and one of kind text, or one set "
            "alone; `sightline cache list` shows the kind of every set"
        )
    pictures, texts = sets
    if pictures.dim != texts.dim:
        raise SightlineError(
            f"{pictures.path} is {pictures.dim} wide and {texts.path} is {texts.dim}: their rows "
            "cannot be compared; give those of one model, such as CLIP, or diagnose each set alone"
        )
    if captions is None or images is None:
        raise SightlineError(
            f"{pictures.path}, {texts.path}: which caption belongs to which image is unknown; give "
            "--data, the data set that `sightline prepare` wrote"
        )


def _namer(
    features: FeatureSet, captions: Path | None, images: Path | None
) -> Callable[[Sequence[int]], list[str]]:
    """Names rows by the manifest of their kind; by their key without one."""
    if is_of_texts(features.record.spec.kind) and captions is not None:
        texts = read_manifest(captions, CAPTIONS)["text"].to_pylist()
        rows = features.find(keys_of_texts(texts))
        names = dict(zip(rows.tolist(), texts, strict=True))
    elif features.record.spec.kind == "image" and images is not None:
        table = read_manifest(images, IMAGES)
        rows = features.find(key_column(table["key"]))
        names = dict(zip(rows.tolist(), map(str, places_of(images, table)), strict=True))
    else:
        names = {}
    key_of = features.keys
    return lambda rows: [
        names.get(row) or f"key {key_of[row].tobytes().hex()[:16]}" for row in rows
    ]


def _check_set(
    features: FeatureSet, name_rows: Callable[[Sequence[int]], list[str]], tell: Tell
) -> tuple[Numbers, Usable]:
    """The checks of one set, whose rows are read once."""
    count = len(features)
    norms, total = np.empty(count), np.zeros(features.dim)
    for start in range(0, count, _CHUNK):
        numbers = np.arange(start, min(start + _CHUNK, count))
        rows = features.gather(numbers).astype(np.float64)
        norms[numbers] = of_rows = np.linalg.norm(rows, axis=1)
        good = np.isfinite(of_rows) & (of_rows > 0)
        total += (rows[good] / of_rows[good, None]).sum(axis=0)
        tell(f"read {features.path}", start + len(numbers), count, "rows")
    directed = np.isfinite(norms) & (norms > 0)
    mean_cosine, n = None, int(directed.sum())
    if n > 1:  # (‖Σu‖² − n) / n(n − 1), over all ordered pairs of different rows
        mean_cosine = float((total @ total - n) / (n * (n - 1)))

    def rows_that(chosen: NDArray[np.bool_]) -> dict[str, Any]:
        numbers = np.flatnonzero(chosen)
        return {"count": len(numbers), "examples": name_rows(numbers[:_NAMED].tolist())}

    checks = {
        "path": features.path.as_posix(),
        "spec": features.record.spec.model_dump(mode="json"),
        "rows": count,
        "not_finite": rows_that(~np.isfinite(norms)),
        "zero": rows_that(norms == 0),
        "mean_cosine": mean_cosine,
    }
    return checks, Usable(features, directed)


def find_pairs(
    captions: Path,
    images: Path,
    pictures: Usable | None,
    texts: Usable,
    policy: CaptionPolicy,
    data_seed: int,
) -> Pairs:
    """The pairs that a training with this caption policy reads, without those that lack a row.

    Raises:
        SightlineError: a manifest is missing or of another kind, or the sets hold no row of any of
            its pairs.
    """
    every = read_pairs(captions, images, policy, data_seed)
    pairs = without_images(every, set(pictures.features.failed if pictures else ()))
    assert pairs.images is not None
    text_rows = texts.rows_of(pairs.keys, f"training captions of {captions}")
    image_rows, lost_image = None, np.zeros(len(pairs), dtype=bool)
    if pictures is not None:
        subject = f"images of the training captions of {captions} in {images}"
        image_rows = pictures.rows_of(pairs.images, subject)
        lost_image = image_rows < 0
    lost_text = text_rows < 0
    numbers = np.unique(pairs.images, axis=0, return_inverse=True)[1].ravel()
    lost = {
        "failed": len(every) - len(pairs),
        "without_image": int(lost_image.sum()),
        "without_text": int((lost_text & ~lost_image).sum()),
    }
    kept = np.flatnonzero(~(lost_text | lost_image))
    return Pairs(numbers, image_rows, text_rows, lost).only(kept)


def _compare(
    pairs: Pairs,
    pictures: Usable | None,
    texts: Usable,
    settings: DiagnosisSettings,
    tell: Tell,
) -> tuple[dict[str, Any], dict[str, NDArray[np.float64]]]:
    """Cosines and ranks of a sample of images among all captions.

    Returns:
        `cross` and `captions` of `diagnose`; term of KDMCSE → cosines of its pairs that belong
        together, float64 [n].
    """
    # an image may list a caption twice
    _, once = np.unique(np.stack([pairs.pictures, pairs.texts], axis=1), axis=0, return_index=True)
    pairs = pairs.only(np.sort(once))
    order = np.argsort(pairs.pictures, kind="stable")
    numbers, starts = np.unique(pairs.pictures[order], return_index=True)
    of_image = np.split(order, starts[1:])
    if settings.sample < len(numbers):
        draw = np.random.default_rng([settings.seed, 4])
        sample = draw.choice(len(numbers), settings.sample, replace=False)
        of_image = [of_image[number] for number in np.sort(sample)]
    draw = np.random.default_rng([settings.seed, 5])
    sampled = np.array([draw.choice(members) for members in of_image])  # of each image
    cross, of_captions, matched = None, None, dict[str, NDArray[np.float64]]()
    if pictures is not None and pairs.images is not None:
        own_cosines, other_cosines, best, worst = [], [], [], []
        queries = pictures.features.gather(pairs.images[sampled])
        captions = texts.features.gather(pairs.texts)
        for place, row in enumerate(cosines(queries, captions, ("image", "caption"))):
            mine = row[of_image[place]]
            own_cosines.append(mine)
            other_cosines.append(np.delete(row[sampled], place))
            best.append(int((row >= mine.max()).sum()))
            worst.append(int((row >= mine.min()).sum()))
            tell("ranks of captions", place + 1, len(of_image), "images")
        matched["image"] = np.concatenate(own_cosines)
        cross = {
            "cosines": _apart(matched["image"], np.concatenate(other_cosines)),
            "best_caption": _ranks(best, len(captions)),
            "worst_caption": _ranks(worst, len(captions)),
        }
    together = [_among(texts.features, pairs.texts[members]) for members in of_image]
    if any(map(len, together)):
        matched["teacher_text"] = np.concatenate(together)
        between = _among(texts.features, pairs.texts[sampled])
        of_captions = _apart(matched["teacher_text"], between)
    return {"cross": cross, "captions": of_captions}, matched


def _among(features: FeatureSet, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """The cosine of every two of the rows, [k (k − 1) / 2]."""
    values = features.gather(rows)
    table = np.array(list(cosines(values, values)))
    return table[np.triu_indices(len(rows), k=1)]


def _apart(matched: NDArray[np.float64], mismatched: NDArray[np.float64]) -> dict[str, Any]:
    """Cosines of pairs that belong together and of others, as in KDMCSE's figure 6.

    `separation` is the probability that the former exceed the latter; 0.5 is chance.
    """
    from sklearn.metrics import roc_auc_score  # takes a second

    labels = np.repeat([1, 0], [len(matched), len(mismatched)])
    separation = float(roc_auc_score(labels, np.concatenate([matched, mismatched])))
    cosines_of = {"matched": _distribution(matched), "mismatched": _distribution(mismatched)}
    return {**cosines_of, "separation": separation}


def _distribution(values: NDArray[np.float64]) -> dict[str, Any]:
    """Of finite values [n]: their number, mean, sample deviation (0 for one) and quantiles."""
    at = np.quantile(values, np.array(QUANTILES) / 100).tolist()
    return {
        "count": len(values),
        "mean": float(values.mean()),
        "sd": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        "quantiles": dict(zip(map(str, QUANTILES), at, strict=True)),
    }


def _ranks(ranks: Sequence[int], pool: int) -> dict[str, Any]:
    """Ranks of true matches, one a query, among everything that was searched; 1 is the best.

    Whatever is as similar as the match ranks before it, so that constant features find nothing.
    """
    return {
        "queries": len(ranks),
        "pool": pool,
        "median": float(np.median(ranks)),
        "within": {str(k): float(np.mean(np.array(ranks) <= k)) for k in RECALLED},
    }


def _try_thresholds(
    pairs: Pairs,
    pictures: Usable | None,
    texts: Usable,
    matched: Mapping[str, NDArray[np.float64]],
    settings: DiagnosisSettings,
    tell: Tell,
) -> list[dict[str, Any]]:
    """The shares of negatives that thresholds remove in the first paired batches of a training.

    Args:
        pairs: as the training's caption policy chooses them.
        matched: term → cosines of the pairs that belong together.
    """
    import torch

    from train.losses import cosine_matrix, removed_share

    def read(used: Usable, rows: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(used.features.gather(rows).astype(np.float32))

    configured = {term: settings.configured_of(term) for term in matched}
    thresholds = {
        term: sorted({*(settings.thresholds or THRESHOLDS), *configured[term]}) for term in matched
    }
    shares = {term: np.empty((settings.batches, len(of))) for term, of in thresholds.items()}
    highest = dict.fromkeys(matched, -np.inf)
    schedule = Schedule(len(pairs.texts), 0, settings.batch_size, settings.seed)
    for k in range(settings.batches):
        batch = pairs.only(schedule.rows(schedule.draw(k)))
        captions = read(texts, batch.texts)
        off = ~torch.eye(len(captions), dtype=torch.bool)
        for term in matched:
            keys = captions
            if term == "image" and pictures is not None and batch.images is not None:
                keys = read(pictures, batch.images)
            scores = cosine_matrix(captions, keys)  # as `KDMCSE.statistics`
            highest[term] = max(highest[term], float(scores[off].max()))
            shares[term][k] = [
                float(removed_share(scores, threshold)) for threshold in thresholds[term]
            ]
        tell("batches", k + 1, settings.batches, "batches")
    return [
        {
            "term": term,
            "highest": highest[term],
            "removals": [
                {
                    "threshold": threshold,
                    "share": float(of_batches.mean()),
                    "matched": float((values >= threshold).mean()),
                    "configured": threshold in configured[term],
                }
                for threshold, of_batches in zip(thresholds[term], shares[term].T, strict=True)
            ],
        }
        for term, values in matched.items()
    ]
