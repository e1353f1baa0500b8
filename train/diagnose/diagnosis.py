"""Diagnose a feature set, or an image set beside a text set, before training on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field

from sightline import settings
from sightline.cache import CAPTIONS, IMAGES, FeatureSet, key_column, keys_of_texts, read_manifest
from sightline.cache.caption_choice import CaptionPolicy
from sightline.cache.keys import Keys
from sightline.cache.manifest import places_of
from sightline.errors import SightlineError
from train.diagnose.checks import Named, Scan, SetChecks, Tell, check_set, scan
from train.diagnose.pairs import (
    Cosines,
    CrossChecks,
    DiagnosedPairs,
    Scores,
    cosines_of,
    find_pairs,
    image_text_scores,
    rank_captions,
    rank_images,
    text_text_scores,
)
from train.diagnose.thresholds import THRESHOLDS, Filter, Terms, check_filter
from train.objectives.kdmcse import KDMCSEParams
from train.run_spec import RunSpec

SCHEMA = "sightline.diagnosis/2"
NEAR = 0.98
"""Cosine from which two rows count as near-duplicates."""

_TEXTS = ("text", "teacher")


class Settings(settings.Settings):
    """How to look at the sets.

    Attributes:
        batch_size: rows per batch that a threshold is tried on; by default 64, or as configured.
        batches: number of such batches.
        caption: captions of an image that a training would read, random, longest or all; by default
            all, or as configured.
        data_seed: of that choice.
        seed: of the run whose batches are drawn, and of every sample.
        thresholds: to try; by default 0.1, 0.15 … 0.95.
        sample: rows compared with all others, for ranks and neighbours; None: what 5e11
            multiplications allow.
        near: cosine from which two rows are near-duplicates.
        configured: thresholds of the configuration.
        run: the run of params.yaml that batch size, captions and thresholds are from; None:
            defaults.
    """

    batch_size: int = Field(default=64, ge=2)
    batches: int = Field(default=100, ge=1)
    caption: CaptionPolicy = "all"
    data_seed: int = 0
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    thresholds: list[float] = []
    sample: int | None = Field(default=None, ge=2)
    near: float = Field(default=NEAR, ge=0, le=1)
    configured: Terms = Terms()
    run: str | None = None

    @property
    def whose(self) -> str:
        """Of the thresholds in `configured`: a run's, or KDMCSE's own."""
        return "default" if self.run is None else "configured"


def kdmcse_settings(params: KDMCSEParams | None = None) -> Settings:
    """Captions and thresholds as KDMCSE has them, by its defaults or with ``params``."""
    own = params or KDMCSEParams(weight=0)  # reads no encoder, so that none has to be named
    terms = Terms(own.image_threshold, own.teacher_text_threshold, own.variant == "released")
    return Settings(configured=terms, caption=own.caption, data_seed=own.data_seed)


def settings_of_runs(
    sets: Sequence[Path], objectives: Mapping[str, str], spec_of: Callable[[str], RunSpec]
) -> Settings | None:
    """Batch size, captions and thresholds of the first run of KDMCSE that reads ``sets``.

    Args:
        objectives: run → its objective.
        spec_of: run → what it trains; asked only for runs of KDMCSE.

    Returns:
        None if no run does.
    """
    wanted = {path.resolve() for path in sets}
    for run in (name for name, objective in objectives.items() if objective == "kdmcse"):
        spec = spec_of(run)
        if wanted <= {path.resolve() for path in spec.features.values()}:
            own = kdmcse_settings(KDMCSEParams.model_validate(spec.parameters))
            return own.model_copy(update={"batch_size": spec.train.batch_size, "run": run})
    return None


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
    checks = tuple(
        check_set(
            each,
            names[each.features.path],
            sample=settings.sample,
            bound=settings.near,
            seed=settings.seed,
            tell=tell,
        )
        for each in sets
    )
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
    seed, sample = settings.seed, settings.sample
    of_texts = text_text_scores(pairs, texts, seed)
    matched: dict[str, Scores | None] = {"teacher_text": of_texts}
    cross = None
    if image is not None:
        of_both = matched["image"] = image_text_scores(pairs, image.features, texts, seed)
        best, worst = rank_captions(pairs, image.features, texts, sample, seed, tell)
        cross = CrossChecks(
            cosines_of(of_both, pairs),
            best,
            worst,
            rank_images(pairs, image.features, texts, sample, seed, tell),
        )
    filters = check_filter(
        trained,
        image.features if image else None,
        texts,
        matched,
        settings.thresholds or THRESHOLDS,
        settings.configured,
        batch_size=settings.batch_size,
        batches=settings.batches,
        seed=seed,
        tell=tell,
    )
    counts = PairCounts(
        len(pairs),
        len(np.unique(pairs.pictures)),
        pairs.failed,
        pairs.without_image,
        pairs.without_text,
        _repeated(key_column(read_manifest(images, IMAGES)["key"])),
        int((np.unique(pairs.distinct().text_rows, return_counts=True)[1] > 1).sum()),
    )
    return Diagnosis(
        settings,
        of_sets.sets,
        of_sets.manifests,
        counts,
        cross,
        cosines_of(of_texts, pairs) if of_texts else None,
        tuple(filters),
    )


def _repeated(keys: Keys) -> int:
    """How many of ``keys`` equal another."""
    _, counts = np.unique(keys, axis=0, return_counts=True)
    return int(counts[counts > 1].sum())


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
