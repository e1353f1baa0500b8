"""Batches to test the losses on: random ones, and ones that break careless arithmetic."""

import numpy as np
import torch

DIM = 8


def _rows(rng, count):
    return rng.normal(size=(count, DIM))


def _unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _random(rng, count):
    return _rows(rng, count), _rows(rng, count)


def _repeated(rng, count, factor):
    row = np.repeat(_rows(rng, 1), count, 0)
    return row, factor * row


def _nearly(rng, count, sign):
    row = _rows(rng, 1)
    queries, keys = (row + 1e-3 * _rows(rng, count) for _ in range(2))
    return queries, sign * keys


def _paired(rng, count, key_of):
    """Random queries, and the keys that are made of them."""
    queries = _rows(rng, count)
    return queries, key_of(queries)


def _of_norm(rng, count, norm):
    queries, keys = _random(rng, count)
    return norm * _unit(queries), norm * _unit(keys)


def _mixed_norms(rng, count):
    queries, keys = _random(rng, count)
    return 10.0 ** rng.uniform(-4, 4, (count, 1)) * queries, 1e-4 * _unit(keys)


SHAPES = {
    "random": (_random, 7),
    "one row": (_random, 1),
    "two rows": (_random, 2),
    "identical rows": (lambda rng, n: _repeated(rng, n, 1.0), 5),
    "opposite rows": (lambda rng, n: _repeated(rng, n, -1.7), 5),
    "opposite pairs": (lambda rng, n: _paired(rng, n, np.negative), 5),
    "nearly identical": (lambda rng, n: _nearly(rng, n, 1), 5),
    "nearly opposite": (lambda rng, n: _nearly(rng, n, -1), 5),
    "matched": (lambda rng, n: _paired(rng, n, lambda q: q + 0.05 * _rows(rng, n)), 6),
    "positive is worst": (lambda rng, n: _paired(rng, n, lambda q: np.roll(q, 1, axis=0) - q), 6),
    "norm 1e-4": (lambda rng, n: _of_norm(rng, n, 1e-4), 6),
    "norm 1e4": (lambda rng, n: _of_norm(rng, n, 1e4), 6),
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
