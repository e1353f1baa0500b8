"""Shape of an embedding space: mean cosine, singular values, clusters, a map in two dimensions.

Every function divides rows by their norms first, so that all of them describe directions, which
is what cosines compare.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.manifold import TSNE
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score
from threadpoolctl import threadpool_limits

from sightline.errors import SightlineError

_ROUNDING = 6  # decimals of a direction: rows that differ less are one point


@dataclass(frozen=True)
class Spectrum:
    """Singular values of n directions in d dimensions.

    Attributes:
        singular_values: float64 [min(n, d)], descending, of the matrix of directions divided by
            √n: their squares sum to 1.
        effective_rank: exp of the entropy of the singular values divided by their sum, from 1 (a
            line) to min(n, d) (Roy and Vetterli 2007).
    """

    singular_values: np.ndarray
    effective_rank: float


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


def directions(embeddings: np.ndarray) -> np.ndarray:
    """Float64 [n, d] with norm 1.

    Raises:
        SightlineError: an embedding has no direction.
    """
    rows = embeddings.astype(np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    broken = int((~(np.isfinite(norms) & (norms > 0))).sum())
    if broken:
        raise SightlineError(
            f"{broken} of {len(rows)} embeddings are zero or not finite, so they have no "
            "direction; check the encoder"
        )
    return rows / norms


def mean_cosine(embeddings: np.ndarray) -> float:
    """Mean cosine of all pairs of different rows of [n, d], exact: (‖Σx‖² − n) / (n (n − 1)).

    0 for directions that point everywhere; near 1 for an anisotropic space, in which all point one
    way (Ethayarajh 2019).

    Raises:
        SightlineError: fewer than two rows, or one without a direction.
    """
    points = directions(embeddings)
    n = len(points)
    if n < 2:
        raise SightlineError(f"a mean cosine needs two distinct sentences; found {n}")
    total = points.sum(axis=0)
    return float((total @ total - n) / (n * (n - 1)))


def spectrum(embeddings: np.ndarray) -> Spectrum:
    """Singular values of the directions of [n, d], without centring; see `Spectrum`.

    Raises:
        SightlineError: a row without a direction.
    """
    points = directions(embeddings)
    values = np.linalg.svd(points / np.sqrt(len(points)), compute_uv=False)
    shares = values / values.sum()
    shares = shares[shares > 0]
    return Spectrum(values, float(np.exp(-(shares * np.log(shares)).sum())))


def distinct_directions(embeddings: np.ndarray) -> int:
    """How many directions of [n, d] differ by more than rounding."""
    return len(np.unique(np.round(directions(embeddings), _ROUNDING), axis=0))


def cluster(embeddings: np.ndarray, clusters: int, seed: int) -> np.ndarray:
    """k-means over directions, the best of ten starts: labels int64 [n], 0 … ``clusters`` − 1.

    The same input gives the same labels, on one thread.

    Args:
        embeddings: float [n, d], with at least ``clusters`` distinct directions.
    """
    points = directions(embeddings)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)  # fewer distinct points than clusters
        model = KMeans(clusters, n_init=10, random_state=seed)  # pyright: ignore[reportArgumentType]
        found = model.fit(points)
    return np.asarray(found.labels_, dtype=np.int64)


def silhouette(embeddings: np.ndarray, labels: np.ndarray) -> float:
    """Mean silhouette of groups of [n, d] by cosine distance (Rousseeuw 1987).

    −1 to 1; 1 for tight groups far from each other, 0 for groups that overlap.

    Args:
        labels: int [n], at least two groups and fewer than n.
    """
    with threadpool_limits(1):
        return float(silhouette_score(directions(embeddings), labels, metric="cosine"))


def tsne(embeddings: np.ndarray, perplexity: float, seed: int) -> np.ndarray:
    """t-SNE of directions by Euclidean distance, from their first principal components: [n, 2].

    The same input gives the same map, on one thread (van der Maaten and Hinton 2008).

    Args:
        embeddings: float [n, d], with at least three distinct directions.
        perplexity: effective number of neighbours, less than n.
    """
    points = directions(embeddings)
    with threadpool_limits(1):
        model = TSNE(perplexity=perplexity, init="pca", random_state=seed, n_jobs=1)
        return np.asarray(model.fit_transform(points), dtype=np.float64)


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
