"""The task of cross-modal retrieval, in the space of a run's own heads (METHODS §8)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sightline.cache import FeatureSet, keys_of_texts
from sightline.cache.record import Kind
from sightline.errors import SightlineError
from train.evaluate.evaluation_set import EvaluationSet
from train.evaluate.retrieval import KS, Retrieval, UndefinedRecall, chance, evaluate_retrieval
from train.evaluate.retrieval_data import load_retrieval, note_of_failed, open_below
from train.evaluate.task import Metric, Task, TaskScores, TaskSettings
from train.records import FeatureUse

if TYPE_CHECKING:
    from train.evaluate.evaluated_model import EvaluatedModel

METRICS = tuple(f"{direction} R@{k}" for direction in ("I2T", "T2I") for k in KS)
"""I2T: from an image to its captions; T2I: from a caption to its image."""

CHANCE = "chance"
"""The reference row of random rankings."""


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

    def score(self, model: EvaluatedModel) -> TaskScores:
        # checking the data needs no torch
        from train.evaluate.evaluated_model import NoHeadsError, project
        from train.evaluate.image_space import image_space

        references, notes = self._references
        try:
            space = image_space(model, self.settings.encoder)
            features = self._open("image", space.encoder, model.name, space.fingerprint)
            rows, present = self._image_rows(features)
            found = self._recalls(
                project(space.images, rows),
                present,
                project(space.sentences, model.encode(self.data.captions)),
            )
        except (NoHeadsError, UndefinedRecall) as error:
            reasons = dict.fromkeys(METRICS, str(error))
            return TaskScores(dict.fromkeys(METRICS), {}, reasons, references, notes)
        notes = tuple(dict.fromkeys((*self._left_out(features, present), *notes)))
        return TaskScores(dict(found), references=references, notes=notes)

    def settings_of_result(self) -> dict[str, object]:
        return self.settings.model_dump(mode="json", exclude={"data", "features"})

    @cached_property
    def _references(self) -> tuple[dict[str, dict[str, float]], tuple[str, ...]]:
        """Chance, and retrieval by the frozen encoder itself, with notes about it."""
        folds = self.data.folds(self.settings.folds)
        parts = [chance(self.data.image_of[captions] - images[0]) for images, captions in folds]
        of_chance = {CHANCE: _means(parts)}
        name = self.settings.frozen
        if name is None:
            return of_chance, ()
        images, texts = (self._open(kind, name, f"frozen {name}") for kind in ("image", "text"))
        _require_one_space(images, texts)
        rows, present = self._image_rows(images)
        found = self._recalls(rows, present, texts.take(keys_of_texts(self.data.captions)))
        mark = ", untrained weights" if images.record.spec.encoder.untrained else ""
        doubts = dict.fromkeys(FeatureUse.of_set(each).doubt for each in (images, texts))
        mark += "".join(f", {doubt}" for doubt in doubts if doubt)
        row = f"{name} (frozen{mark})"
        return {row: found, **of_chance}, tuple(self._left_out(images, present))

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
            UndefinedRecall: an embedding is zero or not finite, or no image of a fold is present.
        """
        new_row = np.cumsum(present) - 1
        image_of = self.data.image_of
        parts = []
        for of_fold, texts in self.data.folds(self.settings.folds):
            kept, own = of_fold[present[of_fold]], texts[present[image_of[texts]]]
            if not len(kept):
                raise UndefinedRecall("no image of a fold has features")
            rows = new_row[kept]
            parts.append(
                evaluate_retrieval(images[rows], captions[own], new_row[image_of[own]] - rows[0])
            )
        return _means(parts)


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
