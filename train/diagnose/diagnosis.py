"""Diagnose a feature set, or an image set beside a text set, before training on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sightline.cache import CAPTIONS, IMAGES, FeatureSet, key_column, keys_of_texts, read_manifest
from sightline.cache.manifest import places_of
from sightline.errors import SightlineError
from train.diagnose.checks import Named, Scan, SetChecks, check_set, scan
from train.diagnose.pairs import (
    Cosines,
    CrossChecks,
    DiagnosedPairs,
    cosines_of,
    find_pairs,
    image_text_scores,
    rank_captions,
    rank_images,
    text_text_scores,
)
from train.diagnose.settings import Settings, Tell
from train.diagnose.thresholds import Filter, check_filter

SCHEMA = "sightline.diagnosis/3"
_TEXTS = ("text", "teacher")


@dataclass(frozen=True)
class PairCounts:
    """The training pairs that were compared.

    Attributes:
        compared: pairs whose rows both sets hold.
        images: distinct images of these.
        failed: pairs whose image could not be extracted; a training leaves them out too.
        without_image, without_text: pairs left out because that set lacks the row, or because it
            is not finite or zero.
        repeated_images: entries of the images manifest whose file has the bytes of another.
        shared_captions: distinct captions that belong to more than one image.
    """

    compared: int
    images: int
    failed: int
    without_image: int
    without_text: int
    repeated_images: int
    shared_captions: int


@dataclass(frozen=True)
class Diagnosis:
    """Everything that a report shows.

    Attributes:
        sets: the checks of each set, images first.
        pairs: None if no set of texts was given with its manifests.
        cross: an image set beside a text set.
        captions: cosines of two captions; None without pairs or if no image has two captions.
        filters: KDMCSE's filter on these features.
        manifests: of images and captions, if known.
    """

    settings: Settings
    sets: tuple[SetChecks, ...]
    manifests: dict[str, str]
    pairs: PairCounts | None = None
    cross: CrossChecks | None = None
    captions: Cosines | None = None
    filters: tuple[Filter, ...] = ()


def diagnose(
    paths: Sequence[Path],
    captions: Path | None,
    images: Path | None,
    settings: Settings,
    tell: Tell = lambda what, done, total, unit: None,
) -> Diagnosis:
    """Look at one set, or at an image set and a text set that belong together.

    Args:
        paths: one feature set of any kind, or one of images and one of texts.
        captions, images: manifests that say which caption belongs to which image; needed for two
            sets. A set of texts alone is compared with itself if both are given.
        tell: receives progress.

    Raises:
        SightlineError: a set or manifest is missing, damaged or of the wrong kind, or they do not
            belong together.
    """
    opened = sorted((FeatureSet.open(path) for path in paths), key=lambda each: _is_text(each))
    _check_kinds(opened, captions, images)
    names = {each.path: _named(each, captions, images) for each in opened}
    sets = [scan(each, tell) for each in opened]
    text = next((each for each in sets if _is_text(each.features)), None)
    image = next((each for each in sets if len(sets) == 2 and each is not text), None)
    pairs = trained = None
    if text is not None and captions is not None and images is not None:
        # before the slow checks, so that manifests of other data fail fast
        pairs = find_pairs(captions, images, image, text, "all", 0)
        trained = find_pairs(captions, images, image, text, settings.caption, settings.data_seed)
    checks = tuple(check_set(each, names[each.features.path]) for each in sets)
    manifests = {"captions": captions, "images": images}
    said = {name: path.as_posix() for name, path in manifests.items() if path is not None}
    if pairs is None or trained is None or text is None:
        return Diagnosis(settings, checks, said)
    assert images is not None
    return _with_pairs(Diagnosis(settings, checks, said), images, image, text, pairs, trained, tell)


def _with_pairs(
    of_sets: Diagnosis,
    images: Path,
    image: Scan | None,
    text: Scan,
    pairs: DiagnosedPairs,
    trained: DiagnosedPairs,
    tell: Tell,
) -> Diagnosis:
    settings, texts = of_sets.settings, text.features
    of_texts = text_text_scores(pairs, texts, settings.seed)
    matched = {} if of_texts is None else {"teacher_text": of_texts[0]}
    cross = None
    if image is not None:
        sets = image.features, texts
        of_both = image_text_scores(pairs, *sets, settings.seed)
        matched["image"] = of_both[0]
        best, worst = rank_captions(pairs, *sets, settings, tell)
        of_images = rank_images(pairs, *sets, settings, tell)
        cross = CrossChecks(cosines_of(of_both, pairs), best, worst, of_images)
    filters = check_filter(
        trained, image.features if image else None, texts, matched, settings, tell
    )
    _, copies = np.unique(
        key_column(read_manifest(images, IMAGES)["key"]), axis=0, return_counts=True
    )
    _, images_of = np.unique(pairs.distinct().text_rows, return_counts=True)
    counts = PairCounts(
        compared=len(pairs),
        images=len(np.unique(pairs.pictures)),
        **pairs.lost,
        repeated_images=int(copies[copies > 1].sum()),
        shared_captions=int((images_of > 1).sum()),
    )
    of_captions = cosines_of(of_texts, pairs) if of_texts else None
    return replace(of_sets, pairs=counts, cross=cross, captions=of_captions, filters=tuple(filters))


def _is_text(features: FeatureSet) -> bool:
    return features.record.spec.kind in _TEXTS


def _check_kinds(opened: Sequence[FeatureSet], captions: Path | None, images: Path | None) -> None:
    if len(opened) == 1:
        return
    expected = "expected one set of kind image and one of kind text, or one set alone"
    if len(opened) != 2:
        raise SightlineError(f"found {len(opened)} feature sets, {expected}")
    kinds = [each.record.spec.kind for each in opened]
    if kinds != ["image", "text"]:
        sets = ", ".join(f"{each.path} ({kind})" for each, kind in zip(opened, kinds, strict=True))
        raise SightlineError(
            f"found {sets}, {expected}; `sightline cache list` shows the kind of every set"
        )
    one, other = opened
    if one.dim != other.dim:
        raise SightlineError(
            f"{one.path} is {one.dim} wide and {other.path} is {other.dim}: their rows cannot be "
            "compared; give the image and the text features of one model, such as CLIP, or "
            "diagnose each set alone"
        )
    if captions is None or images is None:
        raise SightlineError(
            f"{one.path}, {other.path}: which caption belongs to which image is unknown; give "
            "--data, the data set that `sightline prepare` wrote"
        )


def _named(features: FeatureSet, captions: Path | None, images: Path | None) -> Named:
    """Names rows by the manifest of their kind; by their key without one."""
    if _is_text(features) and captions is not None:
        texts = read_manifest(captions, CAPTIONS)["text"].to_pylist()
        rows = features.find(keys_of_texts(texts))
        names = dict(zip(rows.tolist(), texts, strict=True))
    elif features.record.spec.kind == "image" and images is not None:
        table = read_manifest(images, IMAGES)
        places = places_of(images, table)
        rows = features.find(key_column(table["key"]))
        names = {row: str(place) for row, place in zip(rows.tolist(), places, strict=True)}
    else:
        names = {}

    def named(rows: Sequence[int]) -> list[str]:
        return [names.get(row) or f"key {features.keys[row].tobytes().hex()[:16]}" for row in rows]

    return named
