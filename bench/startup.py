"""CPU seconds of every stage and of the main commands where there is nothing to compute.

    python bench/startup.py --demo demo

Takes the finished graph of `make demo` (a copy of it, so nothing in it changes) and runs each
stage, and commands with explicit paths: with nothing to do, and with one input missing. CPU seconds
of the processes, beside `import torch`. `sightline` is that of the checkout in which the folder is,
so that an older checkout with its own demo gives the figures before a change; --sightline names
another.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import Report, options_of, take_turns

DATA = "data/datasets/scenes"
CLIP = f"--encoder {DATA}/encoders/clip.json --weights file:{DATA}/encoders/clip.safetensors"
STUDENT = f"--student {DATA}/student"
MISSING = {
    "stage ground scenes": f"{DATA}/phrases.parquet",
    "stage image-features scenes resnet": f"{DATA}/encoders/resnet.safetensors",
    "stage object-features scenes clip": "data/objects/scenes",
    "stage text-features scenes clip": f"{DATA}/captions.parquet",
    "stage teachers scenes similarity": f"{DATA}/encoders/teacher",
    "stage tokens": f"{DATA}/student",
    "stage phrase-tokens scenes": "data/objects/scenes",
    "stage inputs": "params.yaml",
    "stage train simcse 0": "data/tokens/scenes-bert",
    "stage train mcseo 0": "data/features/scenes/object/clip",
    "stage evaluation-data similarity": f"{DATA}/similarity/test.tsv",
    "stage evaluate": "runs/simcse/seed-0/run.json",
    "stage report": "results/simcse",
    f"extract image --data {DATA} {CLIP} --workers 0 "
    "--out data/features/scenes/image/clip": f"{DATA}/images.parquet",
    f"extract text --data {DATA} {CLIP} "
    "--out data/features/scenes/text/clip": f"{DATA}/encoders/clip.json",
    f"tokens --data {DATA} {STUDENT} --out data/tokens/scenes-bert": f"{DATA}/sentences.parquet",
    f"tokens --data {DATA} --phrases data/objects/scenes {STUDENT} "
    "--out data/phrase-tokens/scenes/scenes-bert": f"{DATA}/captions.parquet",
    "compare results/simcse results/mcse-clip": "results/simcse",
    "evaluate --model runs/simcse/seed-0 --card results/simcse/seed-0.json": "runs/simcse/seed-0",
    "cache info data/features/scenes/image/clip": "data/features/scenes/image/clip",
    "doctor --help": "",
    "--help": "",
}
"""Command → the input that is missing the second time; empty: it is run once."""


def run(words: list[str], folder: Path, expected: int) -> None:
    """Run a process, which ends with the exit code ``expected``."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    if ended.returncode != expected:
        sys.exit(f"{' '.join(words)}: exit code {ended.returncode}\n{ended.stderr}")


def without(name: str, words: list[str], folder: Path) -> None:
    """Run a process that lacks an input, which is an error."""
    away = (folder / name).rename(folder / "away")
    run(words, folder, 1)
    away.rename(folder / name)


def main() -> None:
    """Measure, and print a row for each command."""
    parser = options_of(__doc__, rounds=3)
    parser.add_argument("--demo", type=Path, required=True, help="the folder of a finished demo")
    parser.add_argument("--sightline", type=Path, help="default: .venv/bin/sightline beside it")
    parser.add_argument("--only", nargs="+", help="commands that begin so", default=[""])
    options = parser.parse_args()
    demo = options.demo.resolve()
    sightline = (options.sightline or demo.parent / ".venv/bin/sightline").absolute()
    report = Report(options)
    with tempfile.TemporaryDirectory(prefix="study-", dir=demo.parent) as folder:
        copy = Path(shutil.copytree(demo, folder, symlinks=True, dirs_exist_ok=True))
        torch = [str(sightline.parent / "python"), "-c", "import torch"]
        sides: dict[str, Callable[[], None]] = {"import torch": partial(run, torch, copy, 0)}
        for command, missing in MISSING.items():
            if not command.startswith(tuple(options.only)):
                continue
            words = [str(sightline), *command.split()]
            sides[command] = partial(run, words, copy, 0)
            if missing:
                sides[f"{command}, without {missing}"] = partial(without, missing, words, copy)
        for process, cost in take_turns(sides, options.rounds).items():
            report.add(process=process, cpu_s=cost.cpu)


if __name__ == "__main__":
    main()
