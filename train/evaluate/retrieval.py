"""Cross-modal retrieval in the space of a run's own heads: R@1, R@5 and R@10 (METHODS §8).

sightline evaluate retrieval --model RUN --set data=data/flickr30k
--set features=data/features/flickr30k
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sightline.cache import (
    CAPTIONS,
    IMAGES,
    CacheError,
    FeatureSet,
    key_column,
    keys_of_texts,
    read_manifest,
)
from sightline.cache.manifest import read_split
from sightline.cache.record import Kind
from sightline.errors import SightlineError
from train.evaluate.results import EvaluationSet, TaskResult
from train.evaluate.task import Metric, Task, TaskSettings
from train.evaluate.vectors import NoDirectionError, ranks_of_matches, unit_rows
from train.records import FeatureUse

if TYPE_CHECKING:
    from train.evaluate.models import EvaluatedModel

KS = (1, 5, 10)
"""The K of published tables."""
METRICS = tuple(f"{direction} R@{k}" for direction in ("I2T", "T2I") for k in KS)
"""I2T: from an image to its captions; T2I: from a caption to its image."""
CHANCE = "chance"
"""The reference row of random rankings."""


@dataclass(frozen=True)
class Retrieval:
    """Recall ×100 by K in each direction."""

    image_to_text: dict[int, float]
    text_to_image: dict[int, float]


def evaluate_retrieval(
    images: np.ndarray, captions: np.ndarray, image_of: np.ndarray, ks: Sequence[int] = KS
) -> Retrieval:
    """Recall of the matching image among all images, and of any matching caption among all.

    An image counts as found at K if any of its captions is among the K nearest (as in the papers).
    A tie is a miss: anything that scores as high as the match is ranked before it, so that
    constant embeddings recall nothing.

    Args:
        images: float [n, d], in the grounded space; any norm.
        captions: float [m, d], in the same space.
        image_of: int [m], the row of each caption's image.

    Raises:
        SightlineError: mismatched sizes, or an image without a caption.
        NoDirectionError: an embedding is zero or not finite.
    """
    if images.ndim != 2 or captions.ndim != 2 or images.shape[1] != captions.shape[1]:
        raise SightlineError(
            f"retrieval needs images [n, d] and captions [m, d] in one space; found "
            f"{images.shape} and {captions.shape}"
        )
    if image_of.shape != (len(captions),) or set(image_of.tolist()) != set(range(len(images))):
        raise SightlineError(
            f"retrieval needs every one of {len(captions)} captions to name one of {len(images)} "
            "images, and every image to have a caption; check that the captions and the images "
            "are from the same split"
        )
    numbers = np.arange(len(images))
    pictures, texts = unit_rows(images, "image"), unit_rows(captions, "caption")
    of_texts = ranks_of_matches(texts, pictures, image_of, numbers)
    of_images = ranks_of_matches(pictures, texts, numbers, image_of)
    return Retrieval(
        {k: 100.0 * float((of_images <= k).mean()) for k in ks},
        {k: 100.0 * float((of_texts <= k).mean()) for k in ks},
    )


def chance(image_of: np.ndarray, ks: Sequence[int] = KS) -> Retrieval:
    """The expected recall of random rankings, exactly.

    From text to image, K of n images are drawn. From image to text, K of m captions: an image with
    c captions is missed with probability C(m − c, K) / C(m, K).

    Args:
        image_of: int [m], the row of each caption's image; every image has one.
    """
    counts = np.bincount(image_of)
    images, captions = len(counts), len(image_of)

    def found(own: int, k: int) -> float:
        k = min(k, captions)
        return 1 - math.comb(captions - own, k) / math.comb(captions, k)

    sized = list(zip(*np.unique(counts, return_counts=True), strict=True))
    return Retrieval(
        {k: float(100 * sum(n * found(int(c), k) for c, n in sized) / images) for k in ks},
        {k: 100 * min(k, images) / images for k in ks},
    )


@dataclass(frozen=True)
class RetrievalData:
    """Images in the order of their manifest, each with at least one caption.

    Attributes:
        image_keys: uint8 [n, 32].
        captions: [m], in the order of their manifest.
        image_of: int64 [m], the row of each caption's image.
        warnings: what was left out of the split, and what cannot be told apart.
    """

    image_keys: NDArray[np.uint8]
    captions: tuple[str, ...]
    image_of: NDArray[np.int64]
    warnings: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of the keys of images and captions, and of who belongs to whom."""
        parts = (self.image_keys, keys_of_texts(self.captions), self.image_of.astype("<i8"))
        content = hashlib.sha256()
        for part in parts:
            content.update(hashlib.sha256(np.ascontiguousarray(part).tobytes()).digest())
        return content.hexdigest()

    def folds(self, count: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Rows of the images and of the captions of each fold of consecutive images."""
        for images in np.array_split(np.arange(len(self.image_keys)), count):
            inside = (self.image_of >= images[0]) & (self.image_of <= images[-1])
            yield images, np.flatnonzero(inside)


def load_retrieval(folder: Path, split: str, captions_per_image: int) -> RetrievalData:
    """Read the split of a data set that `sightline prepare` wrote.

    Args:
        folder: contains images.parquet and captions.parquet.
        split: as the captions have it; "" for a data set without splits.
        captions_per_image: the first so many of each image are read.

    Raises:
        SightlineError: a manifest is missing or damaged, the split has no captions, or the two
            manifests do not belong together.
    """
    captions_file, images_file = folder / "captions.parquet", folder / "images.parquet"
    captions = read_split(captions_file, CAPTIONS, split)
    images = read_manifest(images_file, IMAGES)
    texts, owners = (captions[name].to_pylist() for name in ("text", "image_id"))
    row_of = {name: row for row, name in enumerate(images.column("image_id").to_pylist())}
    require_images(images_file, [name for name in dict.fromkeys(owners) if name not in row_of])
    seen: Counter[str] = Counter()
    kept: list[int] = []
    for row, owner in enumerate(owners):
        seen[owner] += 1
        if seen[owner] <= captions_per_image:
            kept.append(row)
    of_manifest = np.array([row_of[owners[row]] for row in kept], dtype=np.int64)
    image_rows, image_of = np.unique(of_manifest, return_inverse=True)
    keys = key_column(images.column("key"))[image_rows]
    uncaptioned = images.column("split").to_pylist().count(split) - len(image_rows)
    return RetrievalData(
        keys,
        tuple(texts[row] for row in kept),
        image_of.ravel().astype(np.int64),
        tuple(_warnings(folder, split, uncaptioned, len(owners) - len(kept), keys)),
    )


def open_below(
    folder: Path,
    kind: Kind,
    encoder: str,
    of_whom: str,
    dataset: str,
    fingerprint: str | None = None,
) -> FeatureSet:
    """The features of an encoder in the ``folder`` of a data set's features.

    Args:
        of_whom: the model that needs it, for the error.

    Raises:
        SightlineError: no such set, or another fingerprint (says how to make it).
    """
    try:
        return FeatureSet.open(folder / kind / encoder, fingerprint)
    except CacheError as error:
        raise SightlineError(
            f"{error}\n  {of_whom} needs it: `sightline stage {kind}-features {dataset} {encoder}` "
            f"(or `sightline extract {kind}`) makes it."
        ) from error


def note_of_failed(failed: int, of: int, data: Path, features: FeatureSet) -> str:
    """Which images of the data set ``data`` are left out, and why."""
    return f"{failed:,} of {of:,} images of {data}: {features.path} has only an error for them"


def require_images(manifest: Path, absent: Sequence[str]) -> None:
    """Refuse captions of images that their images manifest lacks.

    Raises:
        SightlineError: there are some.
    """
    if absent:
        raise SightlineError(
            f"{manifest}: {len(absent):,} images of the captions are not in it, such as "
            f"{absent[0]!r}; the two manifests must come from one `sightline prepare`"
        )


class RetrievalSettings(TaskSettings):
    """
    Attributes:
        features: contains `image/ENCODER` and `text/ENCODER`, feature sets over the data set.
        split: as the captions have it.
        captions: how many of each image, the first ones; published figures use five.
        folds: the split is cut into so many parts of consecutive images, and scores are means over
            them; 5 for the "1k" figures of COCO, whose test split has 5,000 images.
        frozen: an encoder with image and text features, such as CLIP: its own retrieval is a
            reference.
        encoder: which image features, for runs with heads for several.
    """

    features: Path = Field(description="folder with its feature sets, `image/…` and `text/…`")
    split: str = Field(default="test", description="split of the captions")
    captions: int = Field(default=5, ge=1, description="captions of an image, the first ones")
    folds: int = Field(default=1, ge=1, description="parts of consecutive images to average over")
    frozen: str | None = Field(default=None, description="encoder whose own retrieval is shown too")
    encoder: str | None = Field(
        default=None, description="image encoder, if a run has heads for several"
    )


class RetrievalTask(Task[RetrievalSettings]):
    """Recall × 100 of images by captions and of captions by images.

    Embeddings go through the head that projects sentences, cached image features through the one
    that projects images; the objective says which those are.
    """

    about = "image-text retrieval with a run's own heads: R@1, R@5 and R@10 both ways, ×100"
    needs = "a data set's folder, with images.parquet and captions.parquet (`sightline prepare`)"
    title = "Retrieval: recall ×100, image to text (I2T) and text to image (T2I)"
    Settings = RetrievalSettings

    def __init__(self, settings: RetrievalSettings) -> None:
        self.settings = settings
        self.data = load_retrieval(settings.data, settings.split, settings.captions)
        self.warnings = self.data.warnings
        images = len(self.data.image_keys)
        if settings.folds > images:
            raise SightlineError(
                f"retrieval: folds is {settings.folds}, but the split {settings.split!r} of "
                f"{settings.data} has {images} images; use fewer folds"
            )

    @property
    def metrics(self) -> tuple[Metric, ...]:
        data = EvaluationSet.of(len(self.data.captions), self.data.sha256)
        return tuple(Metric(name, data) for name in METRICS)

    def sentences(self) -> Iterable[str]:
        return self.data.captions

    def score(self, model: EvaluatedModel) -> TaskResult:
        # checking the data needs no torch
        from train.evaluate.models import NoHeadsError, image_space, project

        frozen, notes = self._frozen
        everything = np.ones(len(self.data.image_keys), dtype=bool)
        try:
            space = image_space(model, self.settings.encoder)
            features = self._open("image", space.encoder, model.name, space.fingerprint)
            rows, present = self._image_rows(features)
            found = self._recalls(
                project(space.images, rows),
                present,
                project(space.sentences, model.encode(self.data.captions)),
            )
        except (NoHeadsError, NoDirectionError) as error:
            found, reasons = dict.fromkeys(METRICS), dict.fromkeys(METRICS, str(error))
            present = everything
        else:
            reasons = {}
            notes = tuple(dict.fromkeys((*self._left_out(features, present), *notes)))
        references = {**frozen, CHANCE: self._chance(present)}
        return TaskResult(scores=found, reasons=reasons, references=references, notes=notes)

    def settings_of_result(self) -> dict[str, object]:
        return self.settings.model_dump(mode="json", exclude={"data", "features"})

    @cached_property
    def _frozen(self) -> tuple[dict[str, dict[str, float]], tuple[str, ...]]:
        """Retrieval by the frozen encoder itself, if one is named, with notes about it."""
        name = self.settings.frozen
        if name is None:
            return {}, ()
        images, texts = (self._open(kind, name, f"frozen {name}") for kind in ("image", "text"))
        _require_one_space(images, texts)
        rows, present = self._image_rows(images)
        found = self._recalls(rows, present, texts.take(keys_of_texts(self.data.captions)))
        mark = ", untrained weights" if images.record.spec.encoder.untrained else ""
        doubts = dict.fromkeys(FeatureUse.of_set(each).doubt for each in (images, texts))
        mark += "".join(f", {doubt}" for doubt in doubts if doubt)
        row = f"{name} (frozen{mark})"
        return {row: found}, tuple(self._left_out(images, present))

    def _open(
        self, kind: Kind, encoder: str, of_whom: str, fingerprint: str | None = None
    ) -> FeatureSet:
        given = self.settings
        return open_below(given.features, kind, encoder, of_whom, given.data.name, fingerprint)

    def _image_rows(self, features: FeatureSet) -> tuple[NDArray, NDArray[np.bool_]]:
        """Features of the images that have some: [n', dim]; and which do: bool [n].

        Raises:
            MissingKeys: images that were never extracted.
        """
        failed = features.failed
        present = np.array([key.tobytes() not in failed for key in self.data.image_keys])
        return features.take(self.data.image_keys[present]), present

    def _left_out(self, features: FeatureSet, present: NDArray[np.bool_]) -> Iterable[str]:
        if not present.all():
            failed, data = int((~present).sum()), self.settings.data
            yield f"retrieval leaves out {note_of_failed(failed, len(present), data, features)}"

    def _recalls(
        self, images: NDArray, present: NDArray[np.bool_], captions: NDArray
    ) -> dict[str, float]:
        """Metric → mean over the folds.

        Args:
            images: [n', d], of the images that are ``present``; captions: [m, d], all of them.

        Raises:
            NoDirectionError: an embedding is zero or not finite, or no image of a fold is present.
        """
        return _means(
            [
                evaluate_retrieval(images[rows], captions[own], image_of)
                for rows, own, image_of in self._folds(present)
            ]
        )

    def _chance(self, present: NDArray[np.bool_]) -> dict[str, float]:
        """Metric → mean of `chance` over the folds, of the images that are ``present``."""
        return _means([chance(image_of) for *_, image_of in self._folds(present)])

    def _folds(
        self, present: NDArray[np.bool_]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        """Of each fold, as far as its images are ``present``.

        Returns:
            Rows of its images among those present, rows of their captions among all, and the
            number within the fold of each caption's image.

        Raises:
            NoDirectionError: no image of a fold is present.
        """
        row_of, image_of = np.cumsum(present) - 1, self.data.image_of
        for images, captions in self.data.folds(self.settings.folds):
            rows = row_of[images[present[images]]]
            own = captions[present[image_of[captions]]]
            if not len(rows):
                raise NoDirectionError("no image of a fold has features")
            yield rows, own, row_of[image_of[own]] - rows[0]


def _means(parts: list[Retrieval]) -> dict[str, float]:
    """Metric → mean over the folds."""
    both = [(*part.image_to_text.values(), *part.text_to_image.values()) for part in parts]
    return dict(zip(METRICS, np.mean(both, axis=0).tolist(), strict=True))


def _require_one_space(images: FeatureSet, texts: FeatureSet) -> None:
    """Refuse image and text features that were not made by one model.

    Raises:
        SightlineError: their widths or weights differ.
    """
    one, other = images.record.spec, texts.record.spec
    if (one.dim, one.encoder.weights_sha256) != (other.dim, other.encoder.weights_sha256):
        raise SightlineError(
            f"{images.path} ({one.encoder.name}, {one.dim} wide) and {texts.path} "
            f"({other.encoder.name}, {other.dim} wide) do not come from one model, so cosines "
            "between them mean nothing; set `frozen` to an encoder such as CLIP, or remove it"
        )


def _warnings(
    folder: Path, split: str, uncaptioned: int, surplus: int, keys: NDArray[np.uint8]
) -> Iterator[str]:
    where = f"{folder}, split {split!r}"
    if uncaptioned > 0:
        yield f"{where}: {uncaptioned:,} images without captions are left out of retrieval"
    if surplus:
        yield (
            f"{where}: {surplus:,} captions beyond the first `captions` of their images are left "
            "out of retrieval"
        )
    if twins := len(keys) - len(np.unique(keys, axis=0)):
        yield (
            f"{where}: {twins:,} images have the same bytes as another image; they cannot be told "
            "apart, so their captions miss at rank 1"
        )
