"""Two workers of one command against two independent commands, each with half of the images.

    python bench/engines.py --images 5000 --rounds 1

The sides take turns: two commands with an image set of their own each; `--devices cpu,cpu`; two
tasks of a Ray cluster on this machine. Each process has one thread. Whole commands are timed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from incremental import draw

from sightline.cache import FeatureSet

ENGINES = {
    "two workers": ["--devices", "cpu,cpu"],
    "two on Ray": ["--engine", "ray@local,2"],
}


def start(encoder: str, images: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
    """An `extract image` of one thread."""
    words = ["extract", "image", "--data", images, "--encoder", encoder, "--out", out]
    words += ["--weights", "random:0", "--batch-size", "16", "--threads", "1", "--workers", "0"]
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.cli", *map(str, words), *more],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"},
    )


def seconds(commands: list[subprocess.Popen[bytes]], begun: float) -> float:
    """Until all of them have ended well."""
    assert [command.wait() for command in commands] == [0] * len(commands)
    return time.perf_counter() - begun


def main() -> None:
    """Run the comparison and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--encoder", default="resnet18")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    took: dict[str, list[float]] = {"apart": [], **{name: [] for name in ENGINES}}
    digests = set()
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch)
        halves = [base / "images" / name for name in ("a", "b")]
        for number, half in enumerate(halves):
            draw(half, number * options.images, options.images // 2)
        for number in range(options.rounds):
            begun = time.perf_counter()
            out = base / f"apart-{number}"
            commands = [start(options.encoder, half, out / half.name) for half in halves]
            took["apart"].append(seconds(commands, begun))
            for name, words in ENGINES.items():
                out, begun = base / f"{name}-{number}", time.perf_counter()
                together = start(options.encoder, base / "images", out, *words)
                took[name].append(seconds([together], begun))
                digests.add(FeatureSet.open(out).record.content_digest)
            print(f"round {number}: " + ", ".join(f"{n} {t[-1]:.1f} s" for n, t in took.items()))
    assert len(digests) == 1
    apart = median(took["apart"])
    print(f"\n{options.images:,} images, {options.encoder}, one thread each\n")
    print("| | s | against apart |\n|---|---:|---:|")
    for name, rounds in took.items():
        print(f"| {name} | {median(rounds):.1f} | {apart / median(rounds):.3f} |")


if __name__ == "__main__":
    main()
