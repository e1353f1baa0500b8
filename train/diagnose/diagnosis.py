"""Diagnose a feature set, or an image set beside a text set, before training on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.cache import CAPTIONS, IMAGES, FeatureSet, key_column, keys_of_texts, read_manifest
from sightline.cache.feature_kind import is_of_texts
from sightline.cache.manifest import places_of
from sightline.errors import SightlineError
from train.diagnose.checks import Named, SetChecks, check_set, scan
from train.diagnose.pair_cosines import (
    Cosines,
    CrossChecks,
    compare_captions,
    compare_with_images,
    find_pairs,
)
from train.diagnose.settings import DiagnosisSettings, Tell
from train.diagnose.thresholds import Filter, check_filter

SCHEMA = "sightline.diagnosis/4"


@dataclass(frozen=True)
class Diagnosis:
    """Everything that a report shows.

    Attributes:
        sets: the checks of each set, images first.
        pairs: how many were compared, of how many images, and how many were left out
            (`DiagnosedPairs.lost`); None without a set of texts and its manifests.
        cross: an image set beside a text set.
        captions: cosines of two captions; None without pairs or if no image has two captions.
        filters: KDMCSE's filter on these features.
        manifest: of the captions of these pairs.
    """

    settings: DiagnosisSettings
    sets: tuple[SetChecks, ...]
    pairs: dict[str, int] | None = None
    cross: CrossChecks | None = None
    captions: Cosines | None = None
    filters: tuple[Filter, ...] = ()
    manifest: str = ""


def diagnose(
    paths: Sequence[Path],
    captions: Path | None,
    images: Path | None,
    settings: DiagnosisSettings,
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
    opened = sorted(
        map(FeatureSet.open, paths), key=lambda set_: is_of_texts(set_.record.spec.kind)
    )
    _check_kinds(opened, captions, images)
    scans = [scan(features, tell) for features in opened]
    checks = tuple(check_set(s, _named(s.features, captions, images)) for s in scans)
    diagnosis = Diagnosis(settings, checks)
    if captions is None or images is None or not is_of_texts(opened[-1].record.spec.kind):
        return diagnosis
    text, image = scans[-1], scans[0] if len(scans) == 2 else None
    texts, pictures = text.features, image.features if image else None
    pairs = find_pairs(captions, images, image, text, "all", 0)
    trained = find_pairs(captions, images, image, text, settings.caption, settings.data_seed)
    matched, cross, of_captions = dict[str, NDArray[np.float64]](), None, None
    if pictures is not None:
        cross, matched["image"] = compare_with_images(pairs, pictures, texts, settings, tell)
    if (compared := compare_captions(pairs, texts, settings)) is not None:
        of_captions, matched["teacher_text"] = compared
    return replace(
        diagnosis,
        pairs={"compared": len(pairs), "images": len(np.unique(pairs.pictures)), **pairs.lost},
        cross=cross,
        captions=of_captions,
        filters=tuple(check_filter(trained, pictures, texts, matched, settings, tell)),
        manifest=captions.as_posix(),
    )


def _check_kinds(opened: Sequence[FeatureSet], captions: Path | None, images: Path | None) -> None:
    if len(opened) == 1:
        return
    if [features.record.spec.kind for features in opened] != ["image", "text"]:
        sets = ", ".join(f"{features.path} ({features.record.spec.kind})" for features in opened)
        raise SightlineError(
            f"found {sets}, expected one set of kind image and one of kind text, or one set alone; "
            "`sightline cache list` shows the kind of every set"
        )
    pictures, texts = opened
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


def _named(features: FeatureSet, captions: Path | None, images: Path | None) -> Named:
    """Names rows by the manifest of their kind; by their key without one."""
    if is_of_texts(features.record.spec.kind) and captions is not None:
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
