"""The space that a run's heads project both sentences and images into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from pipeline.cache import FeatureSet
from sightline.errors import SightlineError
from train.evaluate.evaluated_model import EvaluatedModel, NoHeadsError, TrainedHeads, project
from train.feature_use import FeatureUse
from train.objectives.combined import Combined

_SENTENCES = "grounding"  # the head of sentences in every grounded objective


@dataclass(frozen=True)
class GroundedSpace:
    """Two heads of a finished run.

    Attributes:
        sentence_head: embeddings [n, d] → [n, p] (g_s of METHODS).
        image_head: image features [n, f] → [n, p] (g_v).
        features: the feature set that the image head was trained on.
    """

    sentence_head: nn.Module
    image_head: nn.Module
    features: FeatureUse

    @classmethod
    def of(cls, model: EvaluatedModel) -> GroundedSpace:
        """The space of a run that learned from images.

        Raises:
            NoHeadsError: it has no heads, or none that projects images (says why).
            SightlineError: its file of heads is damaged.
        """
        heads = model.heads()
        summary = model.summary
        assert summary is not None, "heads come with a summary"
        for sentences, images, slot in _heads_for_images(heads):
            chosen = heads.modules[sentences], heads.modules[images], summary.features[slot]
            return cls(*chosen)
        raise NoHeadsError("it did not learn from images, and has no head for them")

    def sentences(self, embeddings: np.ndarray) -> np.ndarray:
        """Embeddings float [n, d] in the grounded space: float32 [n, p]."""
        return project(self.sentence_head, embeddings)

    def images(self, rows: np.ndarray) -> np.ndarray:
        """Image features float [n, f] in the grounded space: float32 [n, p]."""
        return project(self.image_head, rows)

    def open_features(self, place: Path) -> FeatureSet:
        """Features that the image head understands.

        Args:
            place: a feature set, of any images, or the folder below which the run's own lies.

        Raises:
            CacheError: no such set, or one of another encoder, preprocessing or precision.
        """
        folder = place if (place / "set.json").is_file() else place / self.features.name
        return FeatureSet.open(folder, self.features.fingerprint)


def _heads_for_images(heads: TrainedHeads) -> Iterator[tuple[str, str, str]]:
    """(head of sentences, head of images, slot of the image features), of those that exist."""
    objective, modules = heads.objective, heads.modules
    parts = [(objective, {name: name for name in modules})]
    if isinstance(objective, Combined):
        parts = [(part, objective._heads[name]) for name, part in objective.parts.items()]
    slots = {
        need.encoder: slot
        for slot, need in objective.features(objective.params).items()
        if need.kind == "image"
    }
    for part, keys in parts:
        needs = part.features(part.params)
        for name, projected in part.projected_slots.items():
            for slot in projected:
                of_images = slot in needs and needs[slot].kind == "image"
                if of_images and name in keys and _SENTENCES in keys:
                    yield keys[_SENTENCES], keys[name], slots[needs[slot].encoder]


def rows_of_images(features: FeatureSet, keys: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
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
