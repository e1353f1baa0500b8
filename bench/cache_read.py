"""Random reads from a feature set, compared with h5py's fancy indexing and NumPy in memory.

    python bench/cache_read.py

One run writes random features with the shape of ResNet-50 on Flickr30k, 31,783 × 2,048 float16, in
default shards, in one shard and in shards of 1 MiB, and gathers 128 random rows at a time from each
in turn. It opens a set of 1,000,000 keys in a separate process. Ratios compare medians of the same
rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from sightline.cache import EncoderRecord, FeatureSet, FeatureSpec, SetWriter
from sightline.cache.index import read_index

BATCH, ROUNDS, GATHERS = 128, 15, 200


def make_set(folder: Path, rows: int, dim: int, shard_rows: int) -> None:
    """Write ``rows`` random rows under random keys."""
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 256, (rows, 32), dtype=np.uint8)
    encoder = EncoderRecord(name="noise", source="random:0", weights_sha256="0" * 64)
    spec = FeatureSpec(
        kind="image", encoder=encoder, preprocessing={}, precision="fp32", dim=dim, dtype="float16"
    )
    with SetWriter(folder, spec) as writer:
        for batch in writer.plan(keys, batch_size=8192, shard_rows=shard_rows):
            writer.add(batch.keys, rng.standard_normal((len(batch.keys), dim), dtype=np.float32))
        writer.publish()


def seconds(read: Callable[[np.ndarray], object], batches: list[np.ndarray]) -> float:
    start = time.perf_counter()
    for batch in batches:
        read(batch)
    return (time.perf_counter() - start) / len(batches)


def h5py_reader(folder: Path, features: FeatureSet) -> Callable[[np.ndarray], object]:
    """Read rows through h5py: per shard, sorted and distinct as h5py requires, then reordered."""
    shards = [h5py.File(folder / shard.name)["features"] for shard in features.record.shards]
    index, _ = read_index(folder, features.record)
    of_row, within = index.shards, index.numbers

    def read(rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), features.dim), features.dtype)
        for number in np.unique(of_row[rows]):
            mine = np.flatnonzero(of_row[rows] == number)
            distinct, back = np.unique(within[rows[mine]], return_inverse=True)
            out[mine] = shards[number][distinct][back]
        return out

    return read


def compare(folder: Path) -> dict[str, float]:
    """Median microseconds to gather `BATCH` rows, for each way of reading."""
    features = FeatureSet.open(folder)
    memory = features.gather(np.arange(len(features)))
    keys = features.keys
    ways: dict[str, Callable[[np.ndarray], object]] = {
        "NumPy in memory": lambda rows: memory[rows],
        "FeatureSet.gather": features.gather,
        "FeatureSet.take": lambda rows: features.take(keys[rows]),
        "h5py": h5py_reader(folder, features),
    }
    probe = np.arange(0, len(features), len(features) // BATCH)[:BATCH]
    for read in ways.values():
        np.testing.assert_array_equal(read(probe), memory[probe])
    rng = np.random.default_rng(1)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        batches = [rng.integers(0, len(features), BATCH) for _ in range(GATHERS)]
        for name, read in ways.items():
            some = batches[: GATHERS // 20] if name == "h5py" else batches
            times[name].append(seconds(read, some))
    return {name: float(np.median(values)) * 1e6 for name, values in times.items()}


OPEN = """
import json, sys, time
from pathlib import Path
from sightline.cache import FeatureSet
start = time.perf_counter()
features = FeatureSet.open(sys.argv[1])
took = time.perf_counter() - start
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
peak = int(status["VmHWM"].split()[0]) / 1024
print(json.dumps({"keys": len(features), "seconds": took, "megabytes": peak}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=31_783)
    parser.add_argument("--dim", type=int, default=2048)
    parser.add_argument("--keys", type=int, default=1_000_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        for shard_bytes in (64 << 20, 1 << 40, 1 << 20):
            folder = Path(scratch) / str(shard_bytes)
            make_set(folder, options.rows, options.dim, shard_bytes // (2 * options.dim))
            micros = compare(folder)
            count = len(FeatureSet.open(folder).record.shards)
            size = f"{options.rows:,} × {options.dim:,} float16"
            print(f"\n{size} in {count} shard(s), {BATCH} random rows:")
            for way, value in micros.items():
                share = micros["NumPy in memory"] / value
                times = micros["h5py"] / value
                print(
                    f"  {way:18} {value:9.1f} µs  {BATCH / value:6.2f} M rows/s  "
                    f"{share:6.1%} of memory  {times:7.1f} × h5py"
                )
        folder = Path(scratch) / "million"
        make_set(folder, options.keys, 8, 1 << 20)
        found = subprocess.run(
            [sys.executable, "-c", OPEN, str(folder)], check=True, capture_output=True, text=True
        )
        opened = json.loads(found.stdout)
        print(
            f"\nopen {opened['keys']:,} keys: {opened['seconds']:.2f} s, "
            f"{opened['megabytes']:.0f} MB peak resident memory (including imports)"
        )


if __name__ == "__main__":
    main()
