"""Sentences and images of a run in the space that its heads share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipeline.cache import FeatureSet
from sightline.errors import SightlineError
from train.evaluate.evaluated_model import EvaluatedModel
from train.evaluate.image_space import ImageSpace


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
        SightlineError: the set lacks an image that did not fail, or has none of them.
    """
    kept = np.array([i for i, key in enumerate(keys) if key not in features.failed], dtype=np.int64)
    if not len(kept):
        raise SightlineError(
            f"{features.path}: all {len(keys)} images failed when they were extracted; see its "
            "failures, and extract them again"
        )
    return features.gather(features.rows([keys[i] for i in kept])), kept
