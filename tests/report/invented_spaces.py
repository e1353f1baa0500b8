"""Invented embedding spaces, as `sightline look space` measures them."""

from __future__ import annotations

import numpy as np

from train.evaluate.geometry import Geometry
from train.evaluate.similarity import Correlation, GradedPairs
from train.evaluate.space import MapSentences, MapSettings, ModelSpace, SentenceMap, SpaceStudy
from train.evaluate.vectors import Spectrum

RANDOM = np.random.default_rng(2)


def space(name: str, x: float = -2.0, y: float = 0.2, score: float | None = 70.0) -> ModelSpace:
    """A model with its uniformity, its alignment and its Spearman × 100."""
    n, pairs = 50, 60
    return ModelSpace(
        name,
        8,
        Correlation(score, pairs, None if score is not None else "every pair has the same cosine"),
        Geometry(y, x, 10, n),
        np.linspace(-0.2, 1, pairs),
        0.1,
        Spectrum(np.sqrt(np.arange(8, 0, -1) / 36), 6.5),
        SentenceMap(RANDOM.standard_normal((n, 2)), RANDOM.integers(0, 10, n), 0.25),
    )


def study(*models: ModelSpace, pairs: int = 60) -> SpaceStudy:
    texts = tuple(f"s{i}" for i in range(50))
    graded = GradedPairs("toy", ("a",) * pairs, ("b",) * pairs, np.linspace(0, 5, pairs))
    found = SpaceStudy(graded, MapSentences("toy", texts, None, 80), MapSettings())
    found.models.extend(models)
    return found
