"""Captions and images nearest to sentences, and how often they share an image (T2T R@1).

sightline evaluate neighbours --model RUN --data data/flickr30k
--features data/features/flickr30k
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field

from sightline.errors import SightlineError
from train.evaluate.pools import (
    CaptionPool,
    ImagePool,
    image_features_below,
    note_of_failed,
    open_features,
    read_images,
    read_pool,
    read_queries,
)
from train.evaluate.ranking import NearestRows, NotDefinedError, nearest, ranks_of_matches
from train.evaluate.results import EvaluationSet, Hits, ModelNeighbours, Neighbour, TaskResult
from train.evaluate.task import CONTENT, Metric, Task, TaskSettings

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from sightline.cache import FeatureSet
    from train.evaluate.models import EvaluatedModel

METRIC = "T2T R@1"
"""Text to text: from a caption to another one of its image."""


def find_captions(model: EvaluatedModel, queries: Sequence[str], pool: CaptionPool, k: int) -> Hits:
    """The ``k`` nearest captions of each query, which is never its own neighbour.

    Raises:
        NotDefinedError: an embedding is zero or not finite.
    """
    model.encode_once([*pool.texts, *queries])
    itself = {row: pool.row_of[query] for row, query in enumerate(queries) if query in pool.row_of}
    nearby = nearest(model.encode(queries), model.encode(pool.texts), k, itself)
    candidates = list(zip(pool.texts, pool.ids, pool.images, strict=True))
    return _found(nearby, candidates, [pool.images_of(query) for query in queries])


def find_images(
    model: EvaluatedModel,
    queries: Sequence[str],
    own_images: Sequence[tuple[str, ...]],
    pool: ImagePool,
    features: Path,
    data: Path,
    k: int,
    *,
    captions: Mapping[str, str] | None = None,
) -> tuple[Hits, list[str]]:
    """The ``k`` nearest images in the space of a run's heads, and what they leave out.

    A model that cannot find any, as without heads, says why.

    Args:
        own_images: of each query, the images that it is a caption of.
        features: the folder of the image features, see `open_features`.
        data: the folder of the data set.
        captions: image id → the caption to show with it; None shows none.
    """
    from train.evaluate.models import image_space, project

    try:
        space = image_space(model)
        opened = open_features(
            features, "image", space.encoder, model.name, data.name, space.features
        )
        rows = project(space.sentences, model.pooled(queries))
        hits = find_images_by_rows(rows, own_images, pool, opened, k, captions, space.images)
    except NotDefinedError as error:
        return Hits(reason=str(error)), []
    return hits, note_of_failed("neighbours leave out", pool, data, opened)


def find_images_by_rows(
    queries: np.ndarray,
    own_images: Sequence[tuple[str, ...]],
    pool: ImagePool,
    features: FeatureSet,
    k: int,
    captions: Mapping[str, str] | None = None,
    head: nn.Module | None = None,
) -> Hits:
    """The ``k`` nearest images in the space of ``queries``.

    Args:
        queries: float [q, d]; such as by the text tower of a frozen encoder like CLIP.
        own_images, captions: as for `find_images`.
        features: of the images.
        head: projects them to d dimensions; None: they have that width, as by CLIP's image tower.

    Raises:
        NotDefinedError: an embedding is zero or not finite, or all images failed when they were
            extracted.
    """
    from train.evaluate.models import project, rows_of_images

    rows, kept = rows_of_images(features, pool.keys)
    nearby = nearest(queries, rows if head is None else project(head, rows), k)
    ids, texts = [pool.ids[row] for row in kept], captions or {}
    return _found(nearby, [(texts.get(image, ""), (), (image,)) for image in ids], own_images)


def _found(
    nearby: NearestRows,
    candidates: Sequence[tuple[str, tuple[str, ...], tuple[str, ...]]],
    own_images: Sequence[tuple[str, ...]],
) -> Hits:
    """Rows of candidates as neighbours.

    Args:
        candidates: of each row, its text, ids of its captions and ids of its images.
        own_images: of each query, those that it is a caption of. They are a neighbour's first: a
            page shows only one.
    """
    answers = []
    for of_query, rows, cosines in zip(own_images, nearby.rows, nearby.cosines, strict=True):
        neighbours = []
        for row, cosine in zip(rows.tolist(), cosines.tolist(), strict=True):
            text, captions, images = candidates[row]
            images = tuple(sorted(images, key=lambda image: image not in of_query))
            neighbours.append(Neighbour(text, captions, images, cosine, images[0] in of_query))
        answers.append(tuple(neighbours))
    warning = "every cosine is the same (constant embeddings), so the order says nothing"
    return Hits(tuple(answers), warning=warning if nearby.constant else None)


def recall_of_captions(model: EvaluatedModel, pool: CaptionPool) -> float | None:
    """Share ×100 of captions whose nearest other caption is of an image of theirs (T2T R@1).

    Text-to-text retrieval as in Crisscrossed Captions (Parekh et al., EACL 2021), over distinct
    texts. A caption of another image with the same cosine comes first: a tie is a miss. Captions
    of images that have no other caption are not queries; None if that leaves none.

    Raises:
        NotDefinedError: an embedding is zero or not finite.
    """
    texts_of: dict[str, list[int]] = {}
    for row, images in enumerate(pool.images):
        for image in images:
            texts_of.setdefault(image, []).append(row)
    matches = [
        sorted({text for image in images for text in texts_of[image]} - {row})
        for row, images in enumerate(pool.images)
    ]
    embedded = model.encode(pool.texts)
    itself = {row: row for row in range(len(pool))}
    ranks = ranks_of_matches(embedded, embedded, matches, left_out=itself)
    return 100 * int((ranks == 1).sum()) / count if (count := int((ranks > 0).sum())) else None


def _one_or_several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


class NeighboursSettings(TaskSettings):
    """
    Attributes:
        features: contains `image/ENCODER`, feature sets over the data set; None: no images.
        split: as the captions have it.
        sentences: to start from, before those that are drawn.
        sample: how many captions are drawn as queries.
        seed: of the drawing.
        k: neighbours of each query.
    """

    features: Annotated[Path | None, CONTENT] = Field(
        default=None, description="folder with its feature sets; with it also the nearest images"
    )
    split: str = Field(default="test", description="split of the captions and images")
    sentences: Annotated[tuple[str, ...], BeforeValidator(_one_or_several)] = Field(
        default=(), description="sentence to start from; in params.yaml a list of them"
    )
    sample: int = Field(default=6, ge=0, description="captions to start from too, drawn at random")
    seed: int = Field(default=0, ge=0, description="of the drawing")
    k: int = Field(default=5, ge=1, description="neighbours of each sentence")


class NeighboursTask(Task[NeighboursSettings]):
    """The captions and images nearest to some sentences (MCSE table 8, DALR table 10).

    Its score needs no sample: over all distinct captions of the split, how often the nearest other
    one is of the same image (`recall_of_captions`).
    """

    about = "captions and images nearest to sentences, for pages; recall of an image's captions"
    needs = "a data set's folder, with images.parquet and captions.parquet (`sightline prepare`)"
    title = "Neighbours: recall ×100, from a caption to another one of its image (T2T)"
    Settings = NeighboursSettings

    def __init__(self, settings: NeighboursSettings) -> None:
        if "seed" in settings.model_fields_set and not settings.sample:
            raise SightlineError(
                "neighbours: seed is of the captions that are drawn, and sample is 0; leave it out"
            )
        self.settings = settings
        self.pool = read_pool(settings.data / "captions.parquet", settings.split)
        manifest, owners = settings.data / "images.parquet", chain(*self.pool.images)
        self.images = read_images(manifest).described(set(owners), manifest)
        sentences = read_queries(settings.sentences, None)
        sample = self.pool.sample(settings.sample, settings.seed)
        self.queries = tuple(dict.fromkeys([*sentences, *sample]))
        if not self.queries:
            raise SightlineError(
                "neighbours: nothing to start from: sample is 0 and there are no sentences; set "
                "one of them"
            )
        self.warnings = self.images.twins(settings.data, settings.split)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        measured_on = _sha256(self.pool.texts, self.pool.images)
        return (Metric(METRIC, EvaluationSet.of(len(self.pool), measured_on)),)

    def sentences(self) -> Iterable[str]:
        return (*self.pool.texts, *self.queries)

    def score(self, model: EvaluatedModel) -> TaskResult:
        settings, recall = self.settings, None
        own_images = tuple(map(self.pool.images_of, self.queries))
        why = "no image has two different captions in this split"
        try:
            recall = recall_of_captions(model, self.pool)
        except NotDefinedError as error:
            why = str(error)
        try:
            captions = find_captions(model, self.queries, self.pool, settings.k)
        except NotDefinedError as error:
            captions = Hits(reason=str(error))
        pictures, notes = None, list[str]()
        if settings.features is not None:
            images = self.queries, own_images, self.images, settings.features, settings.data
            pictures, notes = find_images(model, *images, settings.k)
        of_split = f"{settings.data.name}, split {settings.split!r}"
        within = f"{len(self.pool):,} distinct captions of {of_split}"
        answer = ModelNeighbours(self.queries, own_images, within, settings.k, captions, pictures)
        key_of = dict(zip(self.images.ids, self.images.keys, strict=True))
        keys = {image: key_of[image].hex() for image in answer.named_images}
        return TaskResult(
            scores={METRIC: recall},
            reasons={METRIC: why} if recall is None else {},
            notes=tuple(notes),
            neighbours=replace(answer, keys=keys),
        )

    def settings_of_result(self) -> dict[str, object]:
        """Digests of the images and their features, which the neighbours depend on."""
        folder = self.settings.features
        return {
            "images": _sha256(self.images.ids, [key.hex() for key in self.images.keys]),
            "features": None if folder is None else image_features_below(folder),
        }


def _sha256(*content: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
