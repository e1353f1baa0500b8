"""Two workers of one command against two independent commands, each with half of the images.

    python bench/engines.py --images 5000 --rounds 1

The sides: two commands with an image set of their own each; `--devices cpu,cpu`; two tasks of a Ray
cluster on this machine. Each process has one thread. Whole commands are timed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from drawn import photographs
from harness import Report, options_of, take_turns

from sightline.cache import FeatureSet

APART, WORKERS, RAY = "two commands", "two workers", "two workers on Ray"
ENGINES = {WORKERS: ["--devices", "cpu,cpu"], RAY: ["--engine", "ray@local,2"]}


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


def main() -> None:
    """Run the comparison and print its ratios."""
    parser = options_of(__doc__, rounds=3)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--encoder", default="resnet18")
    options = parser.parse_args()
    report = Report(options, f"{options.images:,} images, {options.encoder}, one thread each")
    digests = set()
    with tempfile.TemporaryDirectory() as scratch:
        images, half = Path(scratch) / "images", options.images // 2
        halves = [photographs(images / name, half, n * half) for n, name in enumerate("ab")]
        folders = [paths[0].parent for paths in halves]

        def apart() -> None:
            with tempfile.TemporaryDirectory(dir=scratch) as out:
                sets = [Path(out) / folder.name for folder in folders]
                both = zip(folders, sets, strict=True)
                commands = [start(options.encoder, folder, each) for folder, each in both]
                assert [command.wait() for command in commands] == [0, 0]

        def together(words: list[str]) -> None:
            with tempfile.TemporaryDirectory(dir=scratch) as out:
                assert start(options.encoder, images, Path(out) / "set", *words).wait() == 0
                digests.add(FeatureSet.open(Path(out) / "set").record.content_digest)

        engines = {name: lambda words=words: together(words) for name, words in ENGINES.items()}
        costs = take_turns({APART: apart, **engines}, options.rounds, warm_up=False)
    assert len(digests) == 1
    for name, cost in costs.items():
        report.add(side=name, s=cost.wall)
    report.ratio(f"{APART} / {WORKERS}", costs[APART].wall / costs[WORKERS].wall, at_least=0.9)
    report.ratio(f"{RAY} / {WORKERS}", costs[RAY].wall / costs[WORKERS].wall, at_most=1.1)


if __name__ == "__main__":
    main()
