"""Random reads from a feature set, compared with h5py's fancy indexing and NumPy in memory.

    python bench/cache_read.py

Writes random features with the shape of ResNet-50 on Flickr30k, 31,783 × 2,048 float16, in default
shards, in one shard and in shards of 1 MiB, and gathers 128 random rows at a time from each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
from harness import Report, feature_set, options_of, take_turns

from sightline.cache import FeatureSet
from sightline.cache.index import read_index

BATCH, GATHERS, OF_H5PY = 128, 200, 10
MEMORY, H5PY = "NumPy in memory", "h5py"
Reader = Callable[[np.ndarray], np.ndarray]


def h5py_reader(features: FeatureSet) -> Reader:
    """Read rows through h5py: per shard, sorted and distinct as h5py requires, then reordered."""
    shards = [h5py.File(features.path / shard.name)["features"] for shard in features.record.shards]
    index, _ = read_index(features.path, features.record)

    def read(rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), features.dim), features.dtype)
        for number in np.unique(index.shards[rows]):
            mine = np.flatnonzero(index.shards[rows] == number)
            distinct, back = np.unique(index.numbers[rows[mine]], return_inverse=True)
            out[mine] = shards[number][distinct][back]
        return out

    return read


def compare(features: FeatureSet, rounds: int, report: Report) -> None:
    """The rates of all ways to read one set."""
    memory, keys = features.gather(np.arange(len(features))), features.keys
    ways: dict[str, Reader] = {
        MEMORY: lambda rows: memory[rows],
        "FeatureSet.gather": features.gather,
        "FeatureSet.take": lambda rows: features.take(keys[rows]),
        H5PY: h5py_reader(features),
    }
    rng = np.random.default_rng(1)
    batches = [rng.integers(0, len(features), BATCH) for _ in range(GATHERS)]
    count = {way: OF_H5PY if way == H5PY else GATHERS for way in ways}

    def gathers(way: str) -> Callable[[], object]:
        return lambda: [ways[way](rows) for rows in batches[: count[way]]]

    for read in ways.values():
        np.testing.assert_array_equal(read(batches[0]), memory[batches[0]])
    costs = take_turns({way: gathers(way) for way in ways}, rounds)
    micros = {way: cost.wall / count[way] * 1e6 for way, cost in costs.items()}
    shards = len(features.record.shards)
    for way, each in micros.items():
        report.ratio(f"{way}, {shards} shard(s) / h5py", micros[H5PY] / each, µs=each)


def main() -> None:
    """Measure sets of three shapes."""
    parser = options_of(__doc__, rounds=15)
    parser.add_argument("--rows", type=int, default=31_783)
    parser.add_argument("--dim", type=int, default=2048)
    options = parser.parse_args()
    report = Report(options, f"{BATCH} of {options.rows:,} × {options.dim:,} float16")
    keys = np.random.default_rng(0).integers(0, 256, (options.rows, 32), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as scratch:
        for shard_bytes in (64 << 20, 1 << 40, 1 << 20):
            folder = Path(scratch) / str(shard_bytes)
            feature_set(folder, "image", keys, options.dim, shard_bytes // (2 * options.dim))
            compare(FeatureSet.open(folder), options.rounds, report)


if __name__ == "__main__":
    main()
