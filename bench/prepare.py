"""Time and memory of `prepare` on half a million captions: `python bench/prepare.py`.

Creates 100,000 tiny images with five captions each in a temporary folder, prepares them as a set of
pairs in a separate process, and prints seconds and peak resident memory. `--captions N` changes
the size.
"""

from __future__ import annotations

import argparse
import json
import resource
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

PER_IMAGE = 5
MOST_SECONDS, MOST_MEGABYTES = 30.0, 1024.0
WORDS = [
    "a",
    "man",
    "in",
    "the",
    "red",
    "shirt",
    "walks",
    "along",
    "an",
    "old",
    "street",
    "with",
    "two",
    "dogs",
    "and",
    "some",
    "people",
]


def png(number: int) -> bytes:
    """A PNG of 1 × 1 pixel; every number below 2**24 gives different bytes."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        check = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"\0" + number.to_bytes(3, "big"), 1)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def make(folder: Path, captions: int) -> None:
    """Write images in folders of 1,000 and ``captions.token`` beside them."""
    lines = []
    for i in range(captions // PER_IMAGE):
        place = folder / "images" / f"{i // 1000:04d}"
        if i % 1000 == 0:
            place.mkdir(parents=True)
        (place / f"{i:08d}.png").write_bytes(png(i))
        for k in range(PER_IMAGE):
            start = (i * 7 + k) % len(WORDS)
            text = " ".join((WORDS * 2)[start : start + 12])
            lines.append(f"{i:08d}.png#{k}\t{text} number {i} {k}.\n")
    (folder / "captions.token").write_text("".join(lines), encoding="utf-8")


def measure(folder: Path) -> None:
    """Prepare ``folder`` and print the measurements as JSON (runs in the child process)."""
    from pipeline.datasets.kinds import prepare, source_type

    source = source_type("pairs")(
        **{"images": folder / "images", "captions": folder / "captions.token"}
    )
    start = time.perf_counter()
    report = prepare("pairs", source, folder / "out")
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    megabytes = peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
    print(json.dumps({"seconds": seconds, "megabytes": megabytes, **report.counts}))


def main() -> int:
    """Create the data, measure in a child process, compare with the budget."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--captions", type=int, default=500_000)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.measure)
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, arguments.captions)
        command = [sys.executable, __file__, "--measure", str(folder)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    print(
        f"{found['captions']:,} captions of {found['images']:,} images: "
        f"{found['seconds']:.1f} s (at most {MOST_SECONDS:.0f}), "
        f"peak memory {found['megabytes']:.0f} MB (at most {MOST_MEGABYTES:.0f})"
    )
    return 0 if found["seconds"] < MOST_SECONDS and found["megabytes"] < MOST_MEGABYTES else 1


if __name__ == "__main__":
    sys.exit(main())
