"""The embedding spaces of several models on the same sentences: cosines, spectrum, clusters, map.

    sightline look space --model MODEL --pairs STSB --data data/datasets/flickr30k --out space

Clusters, silhouettes and maps are of directions (`train.evaluate.vectors.unit_rows`), which is what
cosines compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import binned_statistic
from sklearn.cluster import KMeans
from sklearn.manifold import TSNE
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score
from threadpoolctl import threadpool_limits

from sightline.errors import SightlineError
from train.evaluate.geometry import Geometry, evaluate_geometry
from train.evaluate.pools import read_pool
from train.evaluate.similarity import (
    Correlation,
    Encode,
    GradedPairs,
    correlate,
    pair_cosines,
    read_table,
    squeeze,
)
from train.evaluate.vectors import Spectrum, mean_cosine, spectrum, unit_rows

GOLD = "gold groups"
"""Name of the gold grouping among the models'."""
HEADER = ("group", "sentence")
_ROUNDING = 6  # decimals of a direction: rows that differ less are one point


@dataclass(frozen=True)
class MapSentences:
    """Distinct sentences.

    Attributes:
        name: what they are, for figures.
        texts: n sentences.
        groups: the gold group of each, or None.
        drawn_from: how many there were before some were drawn.
    """

    name: str
    texts: tuple[str, ...]
    groups: tuple[str, ...] | None
    drawn_from: int

    @classmethod
    def draw(
        cls,
        name: str,
        texts: Sequence[str],
        limit: int,
        seed: int,
        groups: Sequence[str] | None = None,
    ) -> MapSentences:
        """At most ``limit`` of the distinct ``texts``, drawn without replacement."""
        group_of = dict(zip(texts, groups or texts, strict=True))
        every = list(group_of)
        rows = np.sort(np.random.default_rng(seed).permutation(len(every))[:limit])
        drawn = tuple(every[row] for row in rows)
        of_drawn = None if groups is None else tuple(group_of[each] for each in drawn)
        return cls(name, drawn, of_drawn, len(every))


def read_map_sentences(path: Path, limit: int, seed: int) -> MapSentences:
    """Captions of a manifest (`.parquet`), or a TSV with the header group<TAB>sentence.

    Raises:
        SightlineError: missing, malformed, empty, or a sentence in two groups.
    """
    if path.suffix == ".parquet":
        return MapSentences.draw(path.name, read_pool(path).texts, limit, seed)
    group_of: dict[str, str] = {}
    instead = ", or give a captions manifest (.parquet)"
    for number, columns in read_table(path, HEADER, "sentences", instead):
        group, sentence = map(squeeze, columns)
        if not sentence or not group:
            raise SightlineError(
                f"{path}, line {number}: the group or the sentence is empty; fix or remove the line"
            )
        if group_of.setdefault(sentence, group) != group:
            raise SightlineError(
                f"{path}, line {number}: this sentence is in group {group!r} and, above, in "
                f"{group_of[sentence]!r}; keep one of the lines"
            )
    return MapSentences.draw(path.name, list(group_of), limit, seed, list(group_of.values()))


@dataclass(frozen=True)
class Agreement:
    """How well two groupings of the same items agree.

    Attributes:
        adjusted_rand: Rand index corrected for chance (Hubert and Arabie 1985): 1 for equal
            groupings, 0 on average for random ones.
        mutual_information: normalised by the mean of the two entropies: 1 for equal groupings, 0
            for independent ones; not corrected for chance, it grows with the number of groups.
    """

    adjusted_rand: float
    mutual_information: float


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
        points: float64 [n, 2], from t-SNE by Euclidean distance (van der Maaten and Hinton 2008).
        labels: int64 [n], clusters of k-means, named as those of the first model that they share
            most sentences with.
        silhouette: mean over the clusters, by cosine distance (Rousseeuw 1987): −1 to 1; 1 for
            tight groups far from each other, 0 for groups that overlap.
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
        embeddings = np.asarray(encode(self.pairs.distinct))
        of_map = np.asarray(encode(list(self.sentences.texts)))
        (cosines,) = pair_cosines(encode, [self.pairs])
        try:
            maps = (each.map for each in self.models if each.map is not None)
            first = next(maps, None)
            drawn, why = map_of(of_map, self.settings, None if first is None else first.labels)
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


def binned_means(
    gold: np.ndarray, cosines: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean cosine in five equal ranges of the gold score.

    Args:
        gold, cosines: float [n].

    Returns:
        Edges [6]; mean cosine of each range, NaN if it is empty; pairs in each. The last range
        includes its upper edge.
    """
    means, edges, _ = binned_statistic(gold, cosines, bins=5)
    return edges, means, np.histogram(gold, edges)[0]


def map_of(
    embeddings: np.ndarray, settings: MapSettings, like: np.ndarray | None = None
) -> tuple[SentenceMap | None, str]:
    """k-means, the best of ten starts, and t-SNE from the first principal components.

    The same input gives the same map, on one thread.

    Args:
        embeddings: float [n, d]; only their directions matter.
        like: another model's labels [n], whose names the clusters get; see `relabel`.

    Returns:
        None, and why, if too few embeddings differ by more than rounding.

    Raises:
        SightlineError: a row without a direction.
    """
    points = unit_rows(embeddings)
    distinct = len(np.unique(np.round(points, _ROUNDING), axis=0))
    if distinct < max(3, settings.clusters):
        return None, (
            f"only {distinct} of {len(points)} embeddings differ, too few for {settings.clusters} "
            "clusters"
        )
    seed, perplexity = settings.seed, settings.perplexity
    with threadpool_limits(1):
        means = KMeans(settings.clusters, n_init=10, random_state=seed)  # pyright: ignore[reportArgumentType]
        labels = np.asarray(means.fit_predict(points), dtype=np.int64)
        shape = float(silhouette_score(points, labels, metric="cosine"))
        tsne = TSNE(perplexity=perplexity, init="pca", random_state=seed, n_jobs=1)
        drawn = np.asarray(tsne.fit_transform(points), dtype=np.float64)
    return SentenceMap(drawn, labels if like is None else relabel(labels, like), shape), ""


def agreement(first: np.ndarray, second: np.ndarray) -> Agreement:
    """Agreement of two groupings, labels [n] each; the labels themselves do not matter."""
    return Agreement(
        float(adjusted_rand_score(first, second)),
        float(normalized_mutual_info_score(first, second)),
    )


def relabel(labels: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """``labels`` renamed, so that groups that share most items have one name in both.

    The pairing of groups with the most shared items in total; both [n], from 0.
    """
    size = int(max(labels.max(), reference.max())) + 1
    shared = np.zeros((size, size), dtype=np.int64)
    np.add.at(shared, (labels, reference), 1)
    rows, columns = linear_sum_assignment(shared, maximize=True)
    names = np.empty(size, dtype=np.int64)
    names[rows] = columns
    return names[labels]
