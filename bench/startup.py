"""CPU seconds of every stage and of the main commands where there is nothing to compute.

    python bench/startup.py --demo demo

Takes the finished graph of `make demo` (a copy of it, so nothing in it changes) and runs each
stage, and commands with explicit paths: with nothing to do, and with one input missing. Prints a
Markdown table: user and system time of the process, the median of rounds that alternate between
all of them after one to warm up, beside `import torch`. `sightline` is that of the checkout in
which the folder is, so that an older checkout with its own demo gives the figures before a change;
--sightline names another.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

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
    "stage code": "params.yaml",
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


def seconds(words: list[str], folder: Path, expected: int) -> float:
    """CPU seconds of a process that ends with the exit code ``expected``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    ended = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode != expected:
        sys.exit(f"{' '.join(words)}: exit code {ended.returncode}\n{ended.stderr}")
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--demo", type=Path, required=True, help="the folder of a finished demo")
    parser.add_argument("--sightline", type=Path, help="default: .venv/bin/sightline beside it")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    demo = options.demo.resolve()
    sightline = (options.sightline or demo.parent / ".venv/bin/sightline").absolute()
    found: dict[tuple[str, bool], list[float]] = {}
    torch = []
    with tempfile.TemporaryDirectory(prefix="study-", dir=demo.parent) as folder:
        copy = Path(shutil.copytree(demo, folder, symlinks=True, dirs_exist_ok=True))
        for number in range(options.rounds + 1):
            taken = seconds([str(sightline.parent / "python"), "-c", "import torch"], copy, 0)
            torch += [taken] * (number > 0)
            for command, missing in MISSING.items():
                words = [str(sightline), *command.split()]
                taken = seconds(words, copy, 0)
                found.setdefault((command, True), []).append(taken)
                if missing:
                    away = (copy / missing).rename(copy / "away")
                    found.setdefault((command, False), []).append(seconds(words, copy, 1))
                    away.rename(copy / missing)
    print(f"`import torch`: {median(torch):.2f} s\n")
    print("| command | nothing to do | input missing |\n| --- | ---: | ---: |")
    for command, missing in MISSING.items():
        shown = [median(found[command, True][1:])]
        shown += [median(found[command, False][1:])] if missing else []
        figures = [f"{each:.2f}" for each in shown] + [""] * (not missing)
        name = command if len(command) < 60 else command.partition(" --")[0]
        print(f"| `{name}` | {' | '.join(figures)} |")


if __name__ == "__main__":
    main()
