"""The task of nearest neighbours: examples for a page, and how often they share an image."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field

from sightline.errors import SightlineError
from train.evaluate.caption_pool import read_pool, read_queries
from train.evaluate.evaluation_set import EvaluationSet
from train.evaluate.find_neighbours import (
    find_captions,
    find_images,
    images_of,
    recall_of_captions,
)
from train.evaluate.found_neighbours import Found, ModelNeighbours
from train.evaluate.neighbours import NoDirectionError
from train.evaluate.retrieval_data import note_of_failed, open_below
from train.evaluate.task import Metric, Task, TaskScores, TaskSettings

if TYPE_CHECKING:
    from sightline.cache import FeatureSet
    from train.evaluate.evaluated_model import EvaluatedModel
    from train.evaluate.image_space import ImageSpace

METRIC = "T2T R@1"
"""Text to text: from a caption to another one of its image."""


def _one_or_several(given: object) -> object:
    return (given,) if isinstance(given, str) else given


class NeighboursSettings(TaskSettings):
    """
    Attributes:
        features: contains `image/ENCODER`, feature sets over the data set; None: no images.
        split: as the captions have it.
        sentences: to start from, before those that are drawn.
        sample: how many captions are drawn as queries.
        seed: of the drawing.
        k: neighbours of each query.
        encoder: which image features, for runs with heads for several.
    """

    features: Path | None = Field(
        default=None, description="folder with its feature sets; with it also the nearest images"
    )
    split: str = Field(default="test", description="split of the captions and images")
    sentences: Annotated[tuple[str, ...], BeforeValidator(_one_or_several)] = Field(
        default=(), description="sentence to start from; in params.yaml a list of them"
    )
    sample: int = Field(default=6, ge=0, description="captions to start from too, drawn at random")
    seed: int = Field(default=0, ge=0, description="of the drawing")
    k: int = Field(default=5, ge=1, description="neighbours of each sentence")
    encoder: str | None = Field(
        default=None, description="image encoder, if a run has heads for several"
    )


class NeighboursTask(Task[NeighboursSettings]):
    """The captions and images nearest to some sentences (MCSE table 8, DALR table 10).

    Its score needs no sample: over all distinct captions of the split, how often the nearest other
    one is of the same image (`train.evaluate.find_neighbours.recall_of_captions`).
    """

    about = "captions and images nearest to sentences, for pages; recall of an image's captions"
    needs = "a data set's folder, with images.parquet and captions.parquet (`sightline prepare`)"
    title = "Neighbours: recall ×100, from a caption to another one of its image (T2T)"
    Settings = NeighboursSettings

    def __init__(self, settings: NeighboursSettings) -> None:
        self.settings = settings
        self.pool = read_pool(settings.data / "captions.parquet", settings.split)
        self.images = images_of(self.pool, settings.data / "images.parquet")
        given = read_queries(settings.sentences, None)
        drawn = self.pool.sample(settings.sample, settings.seed)
        self.queries = tuple(dict.fromkeys([*given, *drawn]))
        if not self.queries:
            raise SightlineError(
                "neighbours: nothing to start from: sample is 0 and there are no sentences; set "
                "one of them"
            )
        keys = self.images.keys
        if twins := len(keys) - len(set(keys)):
            self.warnings = (
                f"{settings.data}, split {settings.split!r}: {twins:,} images have the same bytes "
                "as another image; neighbours cannot tell them apart",
            )

    @property
    def metrics(self) -> tuple[Metric, ...]:
        measured_on = _sha256(self.pool.texts, self.pool.images)
        return (Metric(METRIC, EvaluationSet.of(len(self.pool), measured_on)),)

    def sentences(self) -> Iterable[str]:
        return (*self.pool.texts, *self.queries)

    def score(self, model: EvaluatedModel) -> TaskScores:
        given, recall = self.settings, None
        own = tuple(self.pool.images_of(each) for each in self.queries)
        why = "no image has two different captions in this split"
        try:
            recall = recall_of_captions(model, self.pool)
        except NoDirectionError as error:
            why = str(error)
        try:
            captions = find_captions(model, self.queries, self.pool, given.k)
        except NoDirectionError as error:
            captions = Found(reason=str(error))
        pictures, notes = self._pictures(model, own) if given.features else (None, ())
        within = f"{len(self.pool):,} distinct captions of {given.data.name}, split {given.split!r}"
        found = ModelNeighbours(self.queries, own, within, given.k, captions, pictures)
        reasons = {} if recall is not None else {METRIC: why}
        named = replace(found, keys=self._keys(found))
        return TaskScores({METRIC: recall}, reasons=reasons, notes=notes, neighbours=named)

    def _pictures(
        self, model: EvaluatedModel, own: Sequence[tuple[str, ...]]
    ) -> tuple[Found, tuple[str, ...]]:
        """The nearest images, and what to know about them."""
        from train.evaluate.image_space import NoImagesError

        given, notes = self.settings, []

        def opened(space: ImageSpace) -> FeatureSet:
            assert given.features is not None
            dataset, fingerprint = given.data.name, space.fingerprint
            features = open_below(
                given.features, "image", space.encoder, model.name, dataset, fingerprint
            )
            if lost := sum(key in features.failed for key in self.images.keys):
                note = note_of_failed(lost, len(self.images.keys), given.data, features)
                notes.append(f"neighbours leave out {note}")
            return features

        try:
            found = find_images(
                model, self.queries, own, self.images, opened, given.k, given.encoder
            )
        except (NoDirectionError, NoImagesError) as error:
            found = Found(reason=str(error))
        return found, tuple(notes)

    def _keys(self, found: ModelNeighbours) -> dict[str, str]:
        key_of = dict(zip(self.images.ids, self.images.keys, strict=True))
        return {image: key_of[image].hex() for image in found.named_images}

    def settings_of_result(self) -> dict[str, object]:
        """Settings, and a digest of the images, which the neighbours depend on."""
        given = self.settings.model_dump(mode="json", exclude={"data", "features"})
        images = _sha256(self.images.ids, [key.hex() for key in self.images.keys])
        return {**given, "images": images, "nearest_images": self.settings.features is not None}


def _sha256(*content: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
