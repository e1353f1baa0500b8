"""The space that a run's heads project sentences and images into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sightline.cache import FeatureSet
from sightline.errors import SightlineError
from train.evaluate.evaluated_model import EvaluatedModel, NoHeadsError

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ImageSpace:
    """Two trained heads with one output space.

    Attributes:
        sentences: projects embeddings: [n, hidden] → [n, d].
        images: projects image features: [n, dim] → [n, d].
        encoder: the encoder of those features, as in the run's parameters.
        fingerprint: of the feature set that the run learned from.
    """

    sentences: nn.Module
    images: nn.Module
    encoder: str
    fingerprint: str


def image_space(model: EvaluatedModel, encoder: str | None = None) -> ImageSpace:
    """The space of sentences and images of a training run.

    It is found through the objective (`features`, `parts`, `sentence_head`), so any
    objective that projects image features has one. Of several heads for images of one encoder, as a
    combination may have, it is the first.

    Args:
        encoder: which image encoder, for a run with heads for several.

    Raises:
        NoHeadsError: the run has no such space, or several (says what there is).
        SightlineError: see `EvaluatedModel.heads`.
    """
    trained = model.heads()
    assert model.summary is not None  # it has heads
    spaces: dict[str, ImageSpace] = {}
    for part, heads in trained.objective.parts(trained.modules):
        for need in part.features:
            if need.kind == "image" and need.head is not None:
                fingerprint = model.summary.features[need.name].fingerprint
                sentences, images = heads[part.sentence_head], heads[need.head]
                space = ImageSpace(sentences, images, need.encoder, fingerprint)
                spaces.setdefault(need.encoder, space)
    if not spaces:
        raise NoHeadsError(
            f"its objective, {trained.objective.name}, projects no image features; runs that "
            "learned from images, such as those of mcse, kdmcse or dalr, have heads for them"
        )
    if encoder is None and len(spaces) == 1:
        return next(iter(spaces.values()))
    if encoder in spaces:
        return spaces[encoder]
    raise NoHeadsError(
        f"it has heads for images of {', '.join(spaces)}"
        + ("; choose one with `encoder`" if encoder is None else f", not of {encoder}")
    )


class NoImagesError(SightlineError):
    """None of the images has features."""


def open_features(space: ImageSpace, model: EvaluatedModel, place: Path) -> FeatureSet:
    """Features that the head of images understands.

    Args:
        model: the run that ``space`` belongs to.
        place: a feature set, of any images, or the folder below which the run's own lies.

    Raises:
        CacheError: no such set, or one of another encoder, preprocessing or precision.
    """
    folder = place
    if not (place / "set.json").is_file() and model.summary is not None:
        uses = model.summary.features.values()
        names = [use.name for use in uses if use.fingerprint == space.fingerprint]
        folder = place / names[0]
    return FeatureSet.open(folder, space.fingerprint)


def rows_of_images(features: FeatureSet, keys: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Feature rows of images, without those that failed when they were extracted.

    Args:
        keys: SHA-256 of each image's bytes.

    Returns:
        float [m, f] and the m positions in ``keys``, int64.

    Raises:
        NoImagesError: all of them failed.
        SightlineError: the set lacks an image that did not fail.
    """
    kept = np.array([i for i, key in enumerate(keys) if key not in features.failed], dtype=np.int64)
    if not len(kept):
        raise NoImagesError(
            f"{features.path}: all {len(keys)} images failed when they were extracted; see its "
            "failures, and extract them again"
        )
    return features.gather(features.rows([keys[i] for i in kept])), kept
