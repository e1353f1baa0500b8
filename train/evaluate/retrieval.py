"""Cross-modal retrieval in the space of a run's own heads: R@1, R@5 and R@10 (METHODS §8).

sightline evaluate retrieval --model RUN --data data/flickr30k
--features data/features/flickr30k
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sightline.cache import CAPTIONS, IMAGES, FeatureSet, keys_of_texts, read_manifest
from sightline.cache.manifest import read_split
from sightline.cache.record import Kind
from sightline.errors import SightlineError
from train.evaluate.pools import (
    ImagePool,
    image_features_below,
    note_of_failed,
    open_features,
)
from train.evaluate.ranking import NotDefinedError, ranks_of_matches
from train.evaluate.results import UNTRAINED, EvaluationSet, TaskResult
from train.evaluate.task import CONTENT, Metric, Task, TaskSettings
from train.records import FeatureUse

if TYPE_CHECKING:
    from train.evaluate.models import EvaluatedModel

KS = (1, 5, 10)
"""The K of published tables."""
METRICS = tuple(f"{direction} R@{k}" for direction in ("I2T", "T2I") for k in KS)
"""I2T: from an image to its captions; T2I: from a caption to its image."""
CHANCE = "chance"
"""The reference row of random rankings."""

Recall = dict[str, float]
"""Metric, such as "I2T R@1" → recall ×100."""


def evaluate_retrieval(
    images: np.ndarray, captions: np.ndarray, image_of: np.ndarray, ks: Sequence[int] = KS
) -> Recall:
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
        NotDefinedError: an embedding is zero or not finite.
    """
    of_texts = image_of.tolist()
    if len(of_texts) != len(captions) or set(of_texts) != set(range(len(images))):
        raise SightlineError(
            f"retrieval needs every one of {len(captions)} captions to name one of {len(images)} "
            "images, and every image to have a caption; check that the captions and the images "
            "are from the same split"
        )
    of_images: list[list[int]] = [[] for _ in images]
    for caption, image in enumerate(of_texts):
        of_images[image].append(caption)
    matches = [[image] for image in of_texts]
    ranks = {
        "I2T": ranks_of_matches(images, captions, of_images, ("image", "caption")),
        "T2I": ranks_of_matches(captions, images, matches, ("caption", "image")),
    }
    return {
        f"{direction} R@{k}": 100.0 * float((rank <= k).mean())
        for direction, rank in ranks.items()
        for k in ks
    }


def chance(image_of: np.ndarray, ks: Sequence[int] = KS) -> Recall:
    """The expected recall of random rankings, exactly.

    From text to image, K of n images are drawn. From image to text, K of m captions: an image with
    c captions is missed with probability C(m − c, K) / C(m, K).

    Args:
        image_of: int [m], the row of each caption's image; every image has one.
    """
    counts = np.bincount(image_of)
    images, captions = len(counts), len(image_of)

    def found(matches: int, k: int) -> float:
        k = min(k, captions)
        return 1 - math.comb(captions - matches, k) / math.comb(captions, k)

    sized = list(zip(*np.unique(counts, return_counts=True), strict=True))
    to_text = [float(100 * sum(n * found(int(c), k) for c, n in sized) / images) for k in ks]
    to_image = [100 * min(k, images) / images for k in ks]
    names = [f"{direction} R@{k}" for direction in ("I2T", "T2I") for k in ks]
    return dict(zip(names, (*to_text, *to_image), strict=True))


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
    """

    features: Annotated[Path, CONTENT] = Field(
        description="folder with its feature sets, `image/…` and `text/…`"
    )
    split: str = Field(default="test", description="split of the captions")
    captions: int = Field(default=5, ge=1, description="captions of an image, the first ones")
    folds: int = Field(default=1, ge=1, description="parts of consecutive images to average over")
    frozen: str | None = Field(default=None, description="encoder whose own retrieval is shown too")


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
        captions = read_split(settings.data / "captions.parquet", CAPTIONS, settings.split)
        texts, owners = (captions[name].to_pylist() for name in ("text", "image_id"))
        manifest = settings.data / "images.parquet"
        table = read_manifest(manifest, IMAGES)
        self.images = ImagePool.of(table).described(owners, manifest)
        counts: Counter[str] = Counter()
        kept: list[int] = []
        for row, owner in enumerate(owners):
            counts[owner] += 1
            if counts[owner] <= settings.captions:
                kept.append(row)
        row_of = {image: row for row, image in enumerate(self.images.ids)}
        self.captions = tuple(texts[row] for row in kept)
        self.image_of = np.array([row_of[owners[row]] for row in kept], dtype=np.int64)
        images = len(self.images.ids)
        if settings.folds > images:
            raise SightlineError(
                f"retrieval: folds is {settings.folds}, but the split {settings.split!r} of "
                f"{settings.data} has {images} images; use fewer folds"
            )
        self.notes = self._shared_captions()
        without = table["split"].to_pylist().count(settings.split) - images
        twins = self.images.twins(settings.data, settings.split)
        self.warnings = (*self._left_out(without, len(owners) - len(kept)), *twins, *self.notes)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        data = EvaluationSet.of(len(self.captions), self._sha256)
        return tuple(Metric(name, data) for name in METRICS)

    def sentences(self) -> Iterable[str]:
        return self.captions

    def score(self, model: EvaluatedModel) -> TaskResult:
        # checking the data needs no torch
        from train.evaluate.models import image_space, project, rows_of_images

        references, notes = self._frozen
        scores, reasons = dict.fromkeys(METRICS), {}
        kept = np.arange(len(self.images.ids))
        try:
            space = image_space(model)
            features = self._open("image", space.encoder, model.name, space.features)
            rows, present = rows_of_images(features, self.images.keys)
            sentences = project(space.sentences, model.pooled(self.captions))
            scores = self._recall(project(space.images, rows), present, sentences)
        except NotDefinedError as error:
            reasons = dict.fromkeys(METRICS, str(error))
        else:
            kept, notes = present, (*self._failed(features), *notes)
        notes = (*self.notes, *notes)
        by_chance = _mean([chance(image_of) for *_, image_of in self._folds(kept)])
        return TaskResult(
            scores=scores,
            reasons=reasons,
            references={**references, CHANCE: by_chance},
            notes=tuple(dict.fromkeys(notes)),
        )

    def settings_of_result(self) -> dict[str, object]:
        settings: dict[str, object] = {"features": image_features_below(self.settings.features)}
        with contextlib.suppress(SightlineError):  # nothing is scored before they are made
            if towers := self._towers:
                contents = [(t.fingerprint, t.record.content_digest) for t in towers]
                settings["frozen_features"] = [list(content) for content in contents]
        return settings

    @cached_property
    def _towers(self) -> list[FeatureSet]:
        """The image and text features of the frozen encoder, if one is named."""
        name = self.settings.frozen
        return [self._open(kind, name, f"frozen {name}") for kind in ("image", "text") if name]

    @cached_property
    def _frozen(self) -> tuple[dict[str, Recall], Sequence[str]]:
        """Retrieval by the frozen encoder itself, if one is named, with notes about it."""
        from train.evaluate.models import rows_of_images

        if not (towers := self._towers):
            return {}, ()
        images, texts = towers
        _require_one_space(images, texts)
        rows, kept = rows_of_images(images, self.images.keys)
        recall = self._recall(rows, kept, texts.take(keys_of_texts(self.captions)))
        doubts = dict.fromkeys(FeatureUse.of_set(features).doubt for features in (images, texts))
        untrained = [UNTRAINED] if images.record.spec.encoder.untrained else []
        marks = ", ".join(["frozen", *untrained, *filter(None, doubts)])
        return {f"{self.settings.frozen} ({marks})": recall}, self._failed(images)

    @property
    def _sha256(self) -> str:
        """SHA-256 (hex) of the keys of images and captions, and of who belongs to whom."""
        keys, pairs = keys_of_texts(self.captions).tobytes(), self.image_of.astype("<i8").tobytes()
        parts = (b"".join(self.images.keys), keys, pairs)
        digests = b"".join(hashlib.sha256(part).digest() for part in parts)
        return hashlib.sha256(digests).hexdigest()

    @property
    def _where(self) -> str:
        return f"{self.settings.data}, split {self.settings.split!r}"

    def _left_out(self, images: int, captions: int) -> list[str]:
        """What the data set has and retrieval does not read."""
        told = []
        if images > 0:
            told.append(f"{images:,} images without captions are left out of retrieval")
        if captions:
            told.append(
                f"{captions:,} captions beyond the first `captions` of their images are left out "
                "of retrieval"
            )
        return [f"{self._where}: {text}" for text in told]

    def _shared_captions(self) -> tuple[str, ...]:
        """What results note about captions that cannot be told apart."""
        images_of: dict[str, set[int]] = {}
        for text, image in zip(self.captions, self.image_of.tolist(), strict=True):
            images_of.setdefault(text, set()).add(image)
        shared = set[int]().union(*(images for images in images_of.values() if len(images) > 1))
        note = (
            f"{self._where}: {len(shared):,} images share a caption with another image, word for "
            "word; of two equal captions each counts as a miss for the other's image"
        )
        return (note,) if shared else ()

    def _open(
        self, kind: Kind, encoder: str, of_whom: str, use: FeatureUse | None = None
    ) -> FeatureSet:
        chosen = self.settings
        return open_features(chosen.features, kind, encoder, of_whom, chosen.data.name, use)

    def _failed(self, features: FeatureSet) -> list[str]:
        return note_of_failed("retrieval leaves out", self.images, self.settings.data, features)

    def _recall(self, images: NDArray, kept: NDArray[np.int64], captions: NDArray) -> Recall:
        """The mean over the folds.

        Args:
            images: [n', d], of the images ``kept``; captions: [m, d], all of them.

        Raises:
            NotDefinedError: an embedding is zero or not finite, or no image of a fold is kept.
        """
        return _mean(
            [
                evaluate_retrieval(images[rows], captions[columns], image_of)
                for rows, columns, image_of in self._folds(kept)
            ]
        )

    def _folds(
        self, kept: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
        """Of each fold of consecutive images, as far as they are ``kept``.

        Returns:
            Rows of its images among those kept, rows of their captions among all, and the
            number within the fold of each caption's image.

        Raises:
            NotDefinedError: no image of a fold is kept.
        """
        image_of = self.image_of
        for fold in np.array_split(np.arange(len(self.images.ids)), self.settings.folds):
            rows = np.flatnonzero(np.isin(kept, fold))
            if not len(rows):
                raise NotDefinedError("no image of a fold has features")
            columns = np.flatnonzero(np.isin(image_of, kept[rows]))
            yield rows, columns, np.searchsorted(kept[rows], image_of[columns])


def _mean(folds: Sequence[Recall]) -> Recall:
    means = np.mean([list(fold.values()) for fold in folds], axis=0)
    return dict(zip(METRICS, means.tolist(), strict=True))


def _require_one_space(images: FeatureSet, texts: FeatureSet) -> None:
    """Refuse image and text features that were not made by one model."""
    left, right = images.record.spec, texts.record.spec
    if (left.dim, left.encoder.weights_sha256) != (right.dim, right.encoder.weights_sha256):
        raise SightlineError(
            f"{images.path} ({left.encoder.name}, {left.dim} wide) and {texts.path} "
            f"({right.encoder.name}, {right.dim} wide) do not come from one model, so cosines "
            "between them mean nothing; bring both up to date, set `frozen` to an encoder such as "
            "CLIP, or remove it"
        )
