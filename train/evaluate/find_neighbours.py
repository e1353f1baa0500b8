"""Find the captions and images nearest to sentences under one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sightline.cache import IMAGES, read_manifest
from sightline.errors import SightlineError
from train.evaluate.caption_pool import CaptionPool
from train.evaluate.found_neighbours import Found, Neighbour
from train.evaluate.neighbours import Neighbours, cosines, nearest
from train.evaluate.retrieval_data import require_images

if TYPE_CHECKING:
    from sightline.cache import FeatureSet
    from train.evaluate.evaluated_model import EvaluatedModel
    from train.evaluate.image_space import ImageSpace


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
    table = read_manifest(manifest, IMAGES)
    columns = (table[name].to_pylist() for name in ("image_id", "key", "split"))
    every = list(zip(*columns, strict=True))
    rows = [(i, key) for i, key, own in every if split in (None, own)]
    if not rows:
        splits = ", ".join(sorted({repr(own) for *_, own in every})) or "no images"
        raise SightlineError(f"{manifest}: no image is of the split {split!r}, found {splits}")
    return ImagePool(tuple(i for i, _ in rows), tuple(key for _, key in rows))


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
) -> Found:
    """The ``k`` nearest images in the grounded space; a model without heads says why it has none.

    Args:
        own: of each query, the images that it is a caption of.
        features: opens those that the run's head understands.
        encoder: which image features, for a run with heads for several.

    Raises:
        NoDirectionError: an embedding is zero or not finite.
        NoImagesError: all images failed when they were extracted.
        SightlineError: the features are missing, or are others than the run learned from.
    """
    from train.evaluate.evaluated_model import NoHeadsError, project
    from train.evaluate.image_space import image_space, rows_of_images

    try:
        space = image_space(model, encoder)
    except NoHeadsError as error:
        return Found(reason=str(error))
    rows, kept = rows_of_images(features(space), pool.keys)
    sentences = project(space.sentences, model.encode(queries))
    found = nearest(sentences, project(space.images, rows), k)
    return found_images(found, [pool.ids[i] for i in kept], own)


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
    neighbours: Neighbours, image_ids: Sequence[str], own: Sequence[tuple[str, ...]]
) -> Found:
    """Rows of ``image_ids`` as images; ``own`` as for `found_captions`."""
    answers = []
    for images, rows, values in zip(own, neighbours.rows, neighbours.cosines, strict=True):
        nearest = zip((image_ids[int(row)] for row in rows), values, strict=True)
        answers.append(
            tuple(
                Neighbour("", (), (image,), float(cosine), image in images)
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
