"""Captions and images nearest to sentences, and how often they share an image (T2T R@1).

sightline evaluate neighbours --model RUN --set data=data/flickr30k
--set features=data/features/flickr30k
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import BeforeValidator, Field

from sightline.cache import IMAGES
from sightline.cache.manifest import read_split
from sightline.errors import SightlineError
from train.evaluate.caption_pool import CaptionPool, read_pool, read_queries
from train.evaluate.results import EvaluationSet, Found, ModelNeighbours, Neighbour, TaskResult
from train.evaluate.retrieval import note_of_failed, open_below, require_images
from train.evaluate.task import Metric, Task, TaskSettings
from train.evaluate.vectors import Neighbours, NoDirectionError, cosines, nearest

if TYPE_CHECKING:
    from sightline.cache import FeatureSet
    from train.evaluate.models import EvaluatedModel, ImageSpace

METRIC = "T2T R@1"
"""Text to text: from a caption to another one of its image."""


@dataclass(frozen=True)
class ImagePool:
    """The images among which neighbours are found.

    Attributes:
        ids: of n images.
        keys: SHA-256 of the bytes of each.
    """

    ids: tuple[str, ...]
    keys: tuple[bytes, ...]


def read_images(manifest: Path, split: str | None = None) -> ImagePool:
    """The images of a manifest.

    Args:
        split: those of one split only; None for all.

    Raises:
        SightlineError: no such manifest or a malformed one, or no image of the split.
    """
    table = read_split(manifest, IMAGES, split)
    return ImagePool(tuple(table["image_id"].to_pylist()), tuple(table["key"].to_pylist()))


def images_of(captions: CaptionPool, manifest: Path) -> ImagePool:
    """The images that captions describe, in the order of their manifest.

    Raises:
        SightlineError: no such manifest, a malformed one, or one that lacks an image.
    """
    every = read_images(manifest)
    described = dict.fromkeys(image for images in captions.images for image in images)
    require_images(manifest, sorted(described.keys() - set(every.ids)))
    rows = [row for row in zip(every.ids, every.keys, strict=True) if row[0] in described]
    return ImagePool(tuple(i for i, _ in rows), tuple(key for _, key in rows))


def find_captions(
    model: EvaluatedModel, queries: Sequence[str], pool: CaptionPool, k: int
) -> Found:
    """The ``k`` nearest captions of each query, which is never its own neighbour.

    Raises:
        NoDirectionError: an embedding is zero or not finite.
    """
    model.encode_once([*pool.texts, *queries])
    itself = {row: pool.row_of[each] for row, each in enumerate(queries) if each in pool.row_of}
    found = nearest(model.encode(queries), model.encode(pool.texts), k, itself)
    return found_captions(found, pool, [pool.images_of(each) for each in queries])


def find_images(
    model: EvaluatedModel,
    queries: Sequence[str],
    own: Sequence[tuple[str, ...]],
    pool: ImagePool,
    features: Callable[[ImageSpace], FeatureSet],
    k: int,
    encoder: str | None = None,
    captions: Mapping[str, str] | None = None,
) -> Found:
    """The ``k`` nearest images in the grounded space; a model without heads says why it has none.

    Args:
        own: of each query, the images that it is a caption of.
        features: opens those that the run's head understands.
        encoder: which image features, for a run with heads for several.
        captions: as for `found_images`.

    Raises:
        NoDirectionError: an embedding is zero or not finite.
        NoImagesError: all images failed when they were extracted.
        SightlineError: the features are missing, or are others than the run learned from.
    """
    from train.evaluate.models import NoHeadsError, image_space, project, rows_of_images

    try:
        space = image_space(model, encoder)
    except NoHeadsError as error:
        return Found(reason=str(error))
    rows, kept = rows_of_images(features(space), pool.keys)
    sentences = project(space.sentences, model.encode(queries))
    found = nearest(sentences, project(space.images, rows), k)
    return found_images(found, [pool.ids[i] for i in kept], own, captions)


def find_images_of_encoder(
    queries: np.ndarray,
    own: Sequence[tuple[str, ...]],
    pool: ImagePool,
    features: FeatureSet,
    k: int,
    captions: Mapping[str, str] | None = None,
) -> Found:
    """The ``k`` nearest images in the space of a frozen encoder with two towers, such as CLIP.

    Args:
        queries: float [q, d], by its text tower.
        own, captions: as for `found_images`.
        features: of the images, by its image tower: d wide.

    Raises:
        As `find_images`.
    """
    from train.evaluate.models import rows_of_images

    rows, kept = rows_of_images(features, pool.keys)
    return found_images(nearest(queries, rows, k), [pool.ids[i] for i in kept], own, captions)


def recall_of_captions(model: EvaluatedModel, pool: CaptionPool) -> float | None:
    """Share ×100 of captions whose nearest other caption is of an image of theirs (T2T R@1).

    Text-to-text retrieval as in Crisscrossed Captions (Parekh et al., EACL 2021), over distinct
    texts. A caption of another image with the same cosine comes first: a tie is a miss. Captions
    of images that have no other caption are not queries; None if that leaves none.

    Raises:
        NoDirectionError: an embedding is zero or not finite.
    """
    texts_of: dict[str, list[int]] = {}
    for row, images in enumerate(pool.images):
        for image in images:
            texts_of.setdefault(image, []).append(row)
    embedded = model.encode(pool.texts)
    hits = []
    for row, found in enumerate(cosines(embedded, embedded)):
        own = {text for image in pool.images[row] for text in texts_of[image]} - {row}
        if own:
            best = found[list(own)].max()
            found[[row, *own]] = -np.inf
            hits.append(bool(best > found.max()))
    return 100 * sum(hits) / len(hits) if hits else None


def found_captions(
    neighbours: Neighbours, pool: CaptionPool, own: Sequence[tuple[str, ...]]
) -> Found:
    """Rows of ``pool`` as captions.

    Args:
        own: of each query, the images that it is a caption of.
    """
    answers = []
    for query, (rows, values) in enumerate(zip(neighbours.rows, neighbours.cosines, strict=True)):
        mine = set(own[query])
        answers.append(
            tuple(
                Neighbour(
                    pool.texts[row],
                    pool.ids[row],
                    _own_first(pool.images[row], mine),
                    float(cosine),
                    not mine.isdisjoint(pool.images[row]),
                )
                for row, cosine in zip(rows, values, strict=True)
            )
        )
    return Found(tuple(answers), warning=_warning(neighbours))


def found_images(
    neighbours: Neighbours,
    image_ids: Sequence[str],
    own: Sequence[tuple[str, ...]],
    captions: Mapping[str, str] | None = None,
) -> Found:
    """Rows of ``image_ids`` as images.

    Args:
        own: as for `found_captions`.
        captions: image id → the caption to show with it; None shows none.
    """
    captions, answers = captions or {}, []
    for images, rows, values in zip(own, neighbours.rows, neighbours.cosines, strict=True):
        nearest = zip((image_ids[int(row)] for row in rows), values, strict=True)
        answers.append(
            tuple(
                Neighbour(captions.get(image, ""), (), (image,), float(cosine), image in images)
                for image, cosine in nearest
            )
        )
    return Found(tuple(answers), warning=_warning(neighbours))


def _own_first(images: tuple[str, ...], mine: set[str]) -> tuple[str, ...]:
    """The images of the query first: a page shows only one."""
    return (*(i for i in images if i in mine), *(i for i in images if i not in mine))


def _warning(neighbours: Neighbours) -> str | None:
    if not neighbours.constant:
        return None
    return "every cosine is the same (constant embeddings), so the order says nothing"


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
    one is of the same image (`recall_of_captions`).
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

    def score(self, model: EvaluatedModel) -> TaskResult:
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
        scores = {METRIC: recall}
        return TaskResult(scores=scores, reasons=reasons, notes=notes, neighbours=named)

    def _pictures(
        self, model: EvaluatedModel, own: Sequence[tuple[str, ...]]
    ) -> tuple[Found, tuple[str, ...]]:
        """The nearest images, and what to know about them."""
        from train.evaluate.models import NoImagesError

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
