"""The embedding spaces of several models, measured on the same sentences."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sightline.errors import SightlineError
from train.evaluate.embedding_space import (
    Agreement,
    Spectrum,
    agreement,
    cluster,
    distinct_directions,
    mean_cosine,
    relabel,
    silhouette,
    spectrum,
    tsne,
)
from train.evaluate.geometry import Geometry, evaluate_geometry
from train.evaluate.map_sentences import MapSentences
from train.evaluate.similarity import (
    Correlation,
    Encode,
    GradedPairs,
    correlate,
    encode_distinct,
    pair_cosines,
)

GOLD = "gold groups"
"""Name of the gold grouping among the models'."""


@dataclass(frozen=True)
class MapSettings:
    """Settings of the map: number of clusters of k-means, perplexity of t-SNE, seed of both."""

    clusters: int = 10
    perplexity: float = 30.0
    seed: int = 0


@dataclass(frozen=True)
class SentenceMap:
    """A model's map.

    Attributes:
        points: float64 [n, 2], from t-SNE.
        labels: int64 [n], clusters of k-means, named as those of the first model that they share
            most sentences with.
        silhouette: of the clusters, by cosine distance.
    """

    points: np.ndarray
    labels: np.ndarray
    silhouette: float


@dataclass(frozen=True)
class ModelSpace:
    """What one model's embeddings look like.

    Attributes:
        name: of the model.
        width: d.
        similarity: Spearman of `cosines` with the gold scores.
        geometry: alignment and uniformity.
        cosines: float64 [pairs].
        mean_cosine: of all pairs of distinct sentences.
        spectrum: of the distinct sentences.
        map: None if `no_map` says why there is none.
    """

    name: str
    width: int
    similarity: Correlation
    geometry: Geometry
    cosines: np.ndarray
    mean_cosine: float
    spectrum: Spectrum
    map: SentenceMap | None
    no_map: str = ""


@dataclass
class SpaceStudy:
    """Models measured one after the other.

    Attributes:
        pairs: graded pairs, for everything but the map.
        sentences: of the map.
        settings: of the map.
        models: in the order in which they were added.
    """

    pairs: GradedPairs
    sentences: MapSentences
    settings: MapSettings
    models: list[ModelSpace] = field(default_factory=list)

    def __post_init__(self) -> None:
        n, clusters = len(self.sentences.texts), self.settings.clusters
        if n <= max(clusters, self.settings.perplexity):
            raise SightlineError(
                f"{self.sentences.name}: {n} distinct sentences; {clusters} clusters and a "
                f"perplexity of {self.settings.perplexity:g} need more of them than either: give "
                "more sentences, or lower --clusters and --perplexity"
            )

    def every_sentence(self) -> list[str]:
        """All that `add` encodes, in one list for one call of the encoder."""
        return [*self.pairs.first, *self.pairs.second, *self.sentences.texts]

    def add(self, name: str, encode: Encode) -> ModelSpace:
        """Measure a model.

        Raises:
            SightlineError: an embedding has no direction (names the model).
        """
        embeddings, _ = encode_distinct(encode, [self.pairs])
        of_map = np.asarray(encode(list(self.sentences.texts)))
        (cosines,) = pair_cosines(encode, [self.pairs])
        try:
            drawn, why = self._map(of_map)
            found = ModelSpace(
                name,
                embeddings.shape[1],
                correlate(cosines, self.pairs.gold),
                evaluate_geometry(encode, self.pairs),
                cosines,
                mean_cosine(embeddings),
                spectrum(embeddings),
                drawn,
                why,
            )
        except SightlineError as error:
            raise SightlineError(f"{name}: {error}") from error
        self.models.append(found)
        return found

    @property
    def groupings(self) -> dict[str, np.ndarray]:
        """Name → labels [n]: the gold groups, if there are any, then each model's clusters."""
        found = {}
        if self.sentences.groups is not None:
            found[GOLD] = np.unique(np.array(self.sentences.groups), return_inverse=True)[1]
        found.update((each.name, each.map.labels) for each in self.models if each.map is not None)
        return found

    def agreements(self) -> dict[tuple[str, str], Agreement]:
        """Every two of `groupings`, in their order → how well they agree."""
        every = list(self.groupings.items())
        return {
            (first, second): agreement(one, two)
            for i, (first, one) in enumerate(every)
            for second, two in every[i + 1 :]
        }

    def _map(self, embeddings: np.ndarray) -> tuple[SentenceMap | None, str]:
        settings = self.settings
        distinct = distinct_directions(embeddings)
        if distinct < max(3, settings.clusters):
            return None, (
                f"only {distinct} of {len(embeddings)} embeddings differ, too few for "
                f"{settings.clusters} clusters"
            )
        labels = cluster(embeddings, settings.clusters, settings.seed)
        shape = silhouette(embeddings, labels)
        first = next((each.map.labels for each in self.models if each.map is not None), None)
        if first is not None:
            labels = relabel(labels, first)
        points = tsne(embeddings, settings.perplexity, settings.seed)
        return SentenceMap(points, labels, shape), ""


def binned_means(
    gold: np.ndarray, cosines: np.ndarray, bins: int = 5
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean cosine in equal ranges of the gold score.

    Args:
        gold, cosines: float [n].

    Returns:
        Edges [bins + 1]; mean cosine of each range, NaN if it is empty; pairs in each. The last
        range includes its upper edge.
    """
    edges = np.linspace(gold.min(), gold.max(), bins + 1)
    inside = np.clip(np.searchsorted(edges, gold, side="right") - 1, 0, bins - 1)
    counts = np.bincount(inside, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = np.bincount(inside, weights=cosines, minlength=bins) / counts
    return edges, means, counts
