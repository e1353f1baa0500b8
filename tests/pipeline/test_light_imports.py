"""What each stage and command may import before it has something to compute."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = (
    *("torch", "transformers", "torchvision", "open_clip", "sentence_transformers", "accelerate"),
    *("scipy", "sklearn", "matplotlib", "datasets", "mteb", "dvc", "ray"),
)
MODULES = (
    *("pipeline.stages", "pipeline.params", "pipeline.extract.runner"),
    "pipeline.extract.inputs",
    *("pipeline.grounding.ground", "pipeline.tokenize_texts", "pipeline.tokenize_phrases"),
    *("train.train_run", "train.distributed", "train.objectives.combined", "train.objectives.dalr"),
    *("train.objectives.kdmcse", "train.objectives.mcseo", "train.evaluate.evaluation"),
    *("train.evaluate.neighbours", "train.evaluate.retrieval"),
    *("train.evaluate.transfer", "train.report.comparison"),
    *("sightline.encoder_folder", "sightline.loading", "sightline.devices"),
)
"""Nothing heavy is imported with these."""

DATA = "data/datasets/scenes"
TOKENS = f"tokens --student {DATA}/student --out data/new --data"
EXTRACT = f"extract text --encoder {DATA}/encoders/clip.json --data"
TEACHER = "extract teacher --out data/new --encoder"
FILE = f"--weights file:{DATA}/encoders/clip.safetensors --out data/new"
MISSING = {
    "stage ground scenes": f"{DATA}/phrases.parquet",
    "stage image-features scenes resnet": f"{DATA}/encoders/resnet.safetensors",
    "stage image-features scenes clip": f"{DATA}/images.parquet",
    "stage object-features scenes clip": "data/objects/scenes",
    "stage text-features scenes clip": f"{DATA}/encoders/clip.json",
    "stage teachers scenes similarity": f"{DATA}/encoders/teacher",
    "stage tokens": f"{DATA}/student",
    "stage phrase-tokens scenes": "data/objects/scenes",
    "stage train simcse 0": "data/tokens/scenes-bert",
    "stage train mcse-clip 0": "data/features/scenes/image/clip/set.json",
    "stage evaluation-data similarity": f"{DATA}/similarity/test.tsv",
    "stage evaluate": "runs/simcse/seed-0/run.json",
    "stage report": "results/simcse",
    f"{EXTRACT} {DATA} {FILE}": f"{DATA}/encoders/clip.safetensors",
    f"{EXTRACT} {DATA}/sentences.parquet {FILE}": f"{DATA}/sentences.parquet",
    f"{TEACHER} {DATA}/encoders/teacher --data {DATA}": f"{DATA}/encoders",
    f"{TOKENS} {DATA}": f"{DATA}/captions.parquet",
    f"{TOKENS} {DATA} --phrases data/objects/scenes": f"{DATA}/captions.parquet",
    "compare results/simcse results/mcse-clip": "results/simcse",
    "cache info data/features/scenes/image/clip": "data/features/scenes/image/clip",
}
"""Command → an input; it imports nothing heavy before it says that the input is missing."""

DRAWING = {"matplotlib"}
TOKENISING = {*DRAWING, "torch", "transformers", "accelerate", "scipy", "sklearn"}
"""What transformers imports for a tokenizer, its oldest supported version included."""
NOTHING_TO_DO = {
    "stage code": set(),
    "stage train simcse 0": set(),
    "stage train mcse-clip 0": set(),
    "stage evaluation-data similarity": set(),
    "stage evaluation-data retrieval": set(),
    "stage evaluate": set(),
    "compare results/simcse results/mcse-clip": set(),
    "cache info data/features/scenes/image/clip": set(),
    "cache verify data": set(),
    "accept": set(),
    "doctor --help": set(),
    "stage report": DRAWING,
    "stage tokens": TOKENISING,
    "stage phrase-tokens scenes": TOKENISING,
}
"""Command → what it may import; what the ones before it may is allowed too."""

PROGRAM = """
import importlib, json, os, sys
from pipeline.cli import main

def loaded():
    return [name for name in heavy if name in sys.modules]

def run(command, expected):
    sys.argv = ["sightline", *command.split()]
    try:
        main()
    except SystemExit as end:
        code = end.code or 0
    if code != expected:
        sys.exit(f"{command}: exit code {code}")
    found[f"{command}: {expected}"] = loaded()

heavy, modules, missing, nothing_to_do = json.loads(sys.argv[1])
found = {}
for name in modules:
    importlib.import_module(name)
    found[name] = loaded()
for command, path in missing.items():
    os.rename(path, "away")
    run(command, 1)
    os.rename("away", path)
for command in nothing_to_do:
    run(command, 0)
print(json.dumps(found))
"""


def test_nothing_heavy_is_imported_before_it_is_needed(finished):
    given = json.dumps([HEAVY, MODULES, MISSING, list(NOTHING_TO_DO)])
    words = [sys.executable, "-c", PROGRAM, given]
    ended = subprocess.run(words, cwd=finished, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    for name in (*MODULES, *(f"{command}: 1" for command in MISSING)):
        assert found[name] == [], name
    for command, allowed in NOTHING_TO_DO.items():
        assert set(found[f"{command}: 0"]) <= allowed, command
