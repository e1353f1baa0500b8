"""What a large extraction would take, from rates that you give: time, bytes, files and memory.

    python bench/projected.py --rows 12000000 --rate 1500
    python bench/projected.py --rows 400000000 --rate 1500 --gpus 64

``--rate`` is what one device computes from end to end; measure it with `sightline extract` on a few
thousand images. Planning, publishing and memory are lines through what `bench/scale.py` measured;
give your own with ``--plan`` and ``--publish``.
"""

from __future__ import annotations

import argparse

BLOCK_ROWS, SHARD_BYTES = 512, 64 << 20
KEY_BYTES, INDEX_BYTES, RECORD_BYTES = 32, 34, 300
PLAN_MEMORY, FILL_MEMORY = 114, 320
"""Bytes a row of a worker that plans, and of the one that publishes; bench/scale.py."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=12_000_000)
    parser.add_argument("--rate", type=float, default=1500, help="rows a second of one device")
    parser.add_argument("--gpus", default="1,8,64", help="numbers of devices")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--image-bytes", type=int, default=100_000)
    parser.add_argument("--plan", type=float, default=1.0, help="µs a row of planning")
    parser.add_argument("--publish", type=float, default=4.3, help="µs a row of publishing")
    options = parser.parse_args()
    rows, row = options.rows, 2 * options.dim
    print(f"{rows:,} rows of {options.dim} float16, {options.rate:,.0f} a second and device\n")
    print("| devices | computing | planning and publishing | images read |\n|---:|---:|---:|---:|")
    fixed = rows * (options.plan + options.publish) / 1e6 / 3600
    for count in map(int, options.gpus.split(",")):
        hours = rows / options.rate / count / 3600
        read = options.rate * count * options.image_bytes / 1e6
        print(f"| {count} | {hours:,.2f} h | {fixed:.2f} h | {read:,.0f} MB/s |")
    shards = -(-rows * row // SHARD_BYTES)
    print(f"\nfeatures {rows * row / 1e9:,.1f} GB, twice that until the set is published")
    print(f"blocks {-(-rows // BLOCK_ROWS):,} files, {BLOCK_ROWS * (row + KEY_BYTES) / 1e6:.2f} MB")
    print(f"shards {shards:,} files, record {shards * RECORD_BYTES / 1e6:.2f} MB (limit 8.39)")
    print(f"index {rows * INDEX_BYTES / 1e9:,.2f} GB")
    print(
        f"memory {rows * PLAN_MEMORY / 1e9:,.1f} GB in every worker, "
        f"{rows * FILL_MEMORY / 1e9:,.1f} GB in the one that publishes"
    )


if __name__ == "__main__":
    main()
