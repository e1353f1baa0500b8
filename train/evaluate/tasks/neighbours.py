"""The task of nearest neighbours: examples for a page, and how often they share an image."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from sightline.errors import SightlineError
from train.evaluate.caption_pool import read_pool, read_queries
from train.evaluate.evaluation_set import EvaluationSet
from train.evaluate.find_neighbours import (
    find_captions,
    find_images,
    read_images,
    recall_of_captions,
)
from train.evaluate.found_neighbours import Found, ModelNeighbours, Photographs
from train.evaluate.neighbours import NoDirectionError
from train.evaluate.retrieval_data import open_below
from train.evaluate.task import Metric, Task, TaskScores, TaskSettings

if TYPE_CHECKING:
    from pipeline.cache import FeatureSet
    from train.evaluate.evaluated_model import EvaluatedModel
    from train.evaluate.image_space import ImageSpace

METRIC = "T2T R@1"
"""Text to text: from a caption to another one of its image."""


class NeighboursSettings(TaskSettings):
    """
    Attributes:
        features: contains `image/ENCODER`, feature sets over the data set; None: no images.
        split: as the captions have it.
        queries: file with a sentence on each line.
        sample: how many captions are drawn as queries.
        seed: of the drawing.
        k: neighbours of each query.
        encoder: which image features, for runs with heads for several.
        photographs: base folder of the images' paths, for pages; None: pages without photographs.
    """

    features: Path | None = Field(
        default=None, description="folder with its feature sets; with it also the nearest images"
    )
    split: str = Field(default="test", description="split of the captions and images")
    queries: Path | None = Field(default=None, description="file with a sentence on each line")
    sample: int = Field(default=6, ge=0, description="captions to start from too, drawn at random")
    seed: int = Field(default=0, ge=0, description="of the drawing")
    k: int = Field(default=5, ge=1, description="neighbours of each sentence")
    encoder: str | None = Field(
        default=None, description="image encoder, if a run has heads for several"
    )
    photographs: Path | None = Field(
        default=None, description="base folder of its photographs, which pages then show"
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
        self.images = read_images(settings.data / "images.parquet", settings.split)
        given = read_queries([], settings.queries)
        drawn = self.pool.sample(settings.sample, settings.seed)
        if settings.photographs is not None and not settings.photographs.is_dir():
            self.warnings = (
                f"neighbours: photographs: {settings.photographs} is not a folder here; pages "
                "made on this machine will have no photographs",
            )
        self.queries = tuple(dict.fromkeys([*given, *drawn]))
        if not self.queries:
            raise SightlineError(
                "neighbours: nothing to start from: sample is 0 and there is no file of queries; "
                "set one of them"
            )

    @property
    def metrics(self) -> tuple[Metric, ...]:
        measured_on = _sha256(self.pool.texts, self.pool.images)
        return (Metric(METRIC, EvaluationSet.of(len(self.pool), measured_on)),)

    def sentences(self) -> Iterable[str]:
        return (*self.pool.texts, *self.queries)

    def score(self, model: EvaluatedModel) -> TaskScores:
        given, reason = self.settings, None
        own = tuple(self.pool.images_of(each) for each in self.queries)
        recall = pictures = None
        try:
            captions = find_captions(model, self.queries, self.pool, given.k)
            recall = recall_of_captions(model, self.pool)
        except NoDirectionError as error:
            captions, reason = Found(reason=str(error)), str(error)
        if given.features is not None:
            try:
                features = partial(self._features, model.name, given.features)
                pictures = find_images(
                    model, self.queries, own, self.images, features, given.k, given.encoder
                )
            except NoDirectionError as error:
                pictures = Found(reason=str(error))
        found = ModelNeighbours(
            self.queries,
            own,
            f"{len(self.pool):,} distinct captions of {given.data.name}, split {given.split!r}",
            given.k,
            captions,
            pictures,
            None
            if given.photographs is None
            else Photographs(given.data / "images.parquet", given.photographs),
        )
        why = reason or "no image has two different captions in this split"
        return TaskScores(
            {METRIC: recall}, reasons={} if recall is not None else {METRIC: why}, neighbours=found
        )

    def _features(self, of_whom: str, folder: Path, space: ImageSpace) -> FeatureSet:
        name = self.settings.data.name
        return open_below(folder, "image", space.encoder, of_whom, name, space.fingerprint)

    def settings_of_result(self) -> dict[str, object]:
        """Settings, and digests of what the neighbours depend on and the score does not."""
        given = self.settings.model_dump(mode="json", exclude={"features", "queries"})
        keys = [key.hex() for key in self.images.keys]
        images = None if self.settings.features is None else _sha256(self.images.ids, keys)
        return {**given, "queries": _sha256(self.queries), "searched_images": images}


def _sha256(*content: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
