"""Speed of verifying a feature set, compared with plain reading and SHA-256 of the same files.

    python bench/verify.py

One run writes a set of 400,000 × 512 float16 (423 MB) and then alternates: reading every file,
hashing every file with `hashlib` and with the command `sha256sum`, and `verify`; once from disk
(after asking the system to drop the files from its cache) and once from memory. `verify` hashes
every file with BLAKE3, and every row once more for the content digest, on all cores.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from cache_read import make_set

from sightline.cache import verify

BLOCK = 1 << 20


def read(folder: Path, take: Callable[[memoryview], object] = lambda block: None) -> None:
    """Read every file once, block by block."""
    buffer = memoryview(bytearray(BLOCK))
    for path in sorted(folder.iterdir()):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                take(buffer[:count])


def sha256sum(folder: Path) -> None:
    subprocess.run(["sha256sum", *sorted(folder.iterdir())], check=True, stdout=subprocess.DEVNULL)


def sound(folder: Path) -> None:
    faults = verify(folder)
    assert not faults, faults


WAYS: dict[str, Callable[[Path], None]] = {
    "reading alone": read,
    "hashlib, SHA-256": lambda folder: read(folder, hashlib.sha256().update),
    "sha256sum": sha256sum,
    "verify": sound,
}


def forget(folder: Path) -> None:
    """Ask the system to drop the files from its page cache."""
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "set"
        make_set(folder, options.rows, 512, 64 << 20)
        size = sum(path.stat().st_size for path in folder.iterdir())
        times: dict[tuple[str, bool], list[float]] = {}
        for _ in range(options.rounds):
            for name, way in WAYS.items():
                for cold in (True, False):
                    if cold:
                        forget(folder)
                    start = time.perf_counter()
                    way(folder)
                    times.setdefault((name, cold), []).append(time.perf_counter() - start)
    cores = len(os.sched_getaffinity(0))
    print(f"{size / 1e6:.0f} MB, {cores} core(s), medians of {options.rounds} rounds, MB/s\n")
    print("| | from disk | from memory |\n|---|---:|---:|")
    for name in WAYS:
        disk, memory = (size / median(times[name, cold]) / 1e6 for cold in (True, False))
        print(f"| {name} | {disk:,.0f} | {memory:,.0f} |")


if __name__ == "__main__":
    main()
