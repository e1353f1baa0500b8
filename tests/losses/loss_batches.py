"""Batches to test the losses on: random ones, and ones that break careless arithmetic."""

import numpy as np
import torch

DIM = 8


def _random(rng, rows):
    return rng.normal(size=(rows, DIM)), rng.normal(size=(rows, DIM))


def _identical_rows(rng, rows):
    row = rng.normal(size=(1, DIM))
    return np.repeat(row, rows, 0), np.repeat(row, rows, 0)


def _opposite_rows(rng, rows):
    row = rng.normal(size=(1, DIM))
    return np.repeat(row, rows, 0), -1.7 * np.repeat(row, rows, 0)


def _opposite_pairs(rng, rows):
    queries = rng.normal(size=(rows, DIM))
    return queries, -queries


def _nearly_identical(rng, rows):
    row = rng.normal(size=(1, DIM))
    return tuple(row + 1e-3 * rng.normal(size=(rows, DIM)) for _ in range(2))


def _nearly_opposite(rng, rows):
    queries, keys = _nearly_identical(rng, rows)
    return queries, -keys


def _matched(rng, rows):
    queries = rng.normal(size=(rows, DIM))
    return queries, queries + 0.05 * rng.normal(size=(rows, DIM))


def _positive_is_worst(rng, rows):
    queries = rng.normal(size=(rows, DIM))
    return queries, np.roll(queries, 1, axis=0) - queries


def _tiny(rng, rows):
    queries, keys = _random(rng, rows)
    return 1e-4 * _unit(queries), 1e-4 * _unit(keys)


def _huge(rng, rows):
    queries, keys = _random(rng, rows)
    return 1e4 * _unit(queries), 1e4 * _unit(keys)


def _mixed_norms(rng, rows):
    queries, keys = _random(rng, rows)
    return 10.0 ** rng.uniform(-4, 4, (rows, 1)) * queries, 1e-4 * _unit(keys)


def _unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


SHAPES = {
    "random": (_random, 7),
    "one row": (_random, 1),
    "two rows": (_random, 2),
    "identical rows": (_identical_rows, 5),
    "opposite rows": (_opposite_rows, 5),
    "opposite pairs": (_opposite_pairs, 5),
    "nearly identical": (_nearly_identical, 5),
    "nearly opposite": (_nearly_opposite, 5),
    "matched": (_matched, 6),
    "positive is worst": (_positive_is_worst, 6),
    "norm 1e-4": (_tiny, 6),
    "norm 1e4": (_huge, 6),
    "mixed norms": (_mixed_norms, 6),
}


def pair(shape, seed=0):
    """Queries and keys of a named shape, as float64 arrays that float32 holds exactly."""
    make, rows = SHAPES[shape]
    return [exact(array) for array in make(np.random.default_rng(seed), rows)]


def soft_labels(rows, seed=0):
    """A teacher's cosines, [rows, rows]; some above 1, as rounded features make them."""
    return exact(np.random.default_rng([seed, 1]).uniform(-1, 1.1, (rows, rows)))


def owners_of(rows):
    """Captions of 3, 1, 2, 0, and then 3 pairs each, in mixed order: as many as there are rows."""
    captions = [0, 2, 0, 1, 2, 0] + [4 + k // 3 for k in range(rows)]
    return captions[:rows]


def exact(array):
    """The nearest float32 values, in float64, so that both precisions see the same input."""
    return np.asarray(array, dtype=np.float32).astype(np.float64)


def tensors(dtype, *arrays):
    return [torch.tensor(array, dtype=dtype) for array in arrays]
