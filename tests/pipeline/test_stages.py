"""Stages of a graph that has run: what they import and read, and commands on what they made."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from command_line import sightline
from demo_params import demo_params, demo_params_text
from tiny_scenes import TINY

from sightline.cache import CAPTIONS, PhraseTokens, TokenSet, read_manifest
from sightline.cache.manifest import write_manifest
from train.code_digest import code_of

FINISHED = (
    *("prepare scenes", "ground scenes", "image-features scenes clip", "tokens"),
    *("image-features scenes resnet", "object-features scenes clip", "text-features scenes clip"),
    *("teachers scenes similarity", "phrase-tokens scenes", "train simcse 0"),
    *("train mcse-clip 0", "evaluate", "report"),
)

HEAVY = (
    *("torch", "transformers", "torchvision", "open_clip", "sentence_transformers", "accelerate"),
    *("scipy", "sklearn", "matplotlib", "datasets", "mteb", "dvc", "ray", "huggingface_hub"),
)
MODULES = (
    *("pipeline.encoders.open_clip_towers", "pipeline.encoders.transformers_models"),
    *("pipeline.stages", "pipeline.params", "pipeline.extract.runner", "pipeline.extract.inputs"),
    *("pipeline.grounding.ground", "pipeline.tokenize_texts", "pipeline.tokenize_phrases"),
    *("train.train_run", "train.distributed", "train.objectives.dalr"),
    *("train.objectives.kdmcse", "train.objectives.mcseo", "train.evaluate.evaluation"),
    *("train.evaluate.neighbours", "train.evaluate.retrieval", "train.evaluate.transfer"),
    *("train.report.comparison", "sightline.devices", "sightline.models.pretrained"),
    "sightline.models.sentence_transformers_folder",
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
    "stage inputs": set(),
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


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The demo's graph at its smallest with two of its runs, all stages done."""
    folder = tmp_path_factory.mktemp("graph")
    (folder / ".dvc").mkdir()
    params = demo_params()
    params["datasets"]["scenes"] |= TINY
    params["train"] |= {"batch_size": 4, "max_steps": 2, "eval_steps": 1}
    params["systems"] = {name: params["systems"][name] for name in ("simcse", "mcse-clip")}
    params["systems"]["mcse-clip"]["runs"].pop("mcse-shuffled")
    params["report"]["control"] = None
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for stage in FINISHED:
            assert sightline("stage", *stage.split()) == 0, stage
    return folder


@pytest.fixture
def graph(finished, tmp_path, monkeypatch):
    """The current folder is a copy of `finished`."""
    monkeypatch.chdir(shutil.copytree(finished, tmp_path / "graph"))


def test_nothing_heavy_is_imported_before_it_is_needed(finished):
    given = json.dumps([HEAVY, MODULES, MISSING, list(NOTHING_TO_DO)])
    words = [sys.executable, "-c", PROGRAM, given]
    ended = subprocess.run(words, cwd=finished, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    for name in MODULES:
        assert found[name] == [], name
    of_hub = {"huggingface_hub"}  # the missing folder of a model may be a name there
    for command in MISSING:
        assert set(found[f"{command}: 1"]) <= of_hub, command
    for command, allowed in NOTHING_TO_DO.items():
        assert set(found[f"{command}: 0"]) <= allowed | of_hub, command


def test_a_stage_outside_a_dvc_repository(monkeypatch, fails, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "params.yaml: no such file" in fails("stage", "prepare", "scenes")
    (tmp_path / "params.yaml").write_text(demo_params_text())
    err = fails("stage", "prepare", "scenes")
    assert "not a DVC repository" in err
    assert "`sightline init FOLDER` makes" in err


def test_a_run_is_trained_where_only_what_it_needs_was_pulled(graph, says):
    for features in ("image/resnet", "object", "text", "teacher"):
        shutil.rmtree(f"data/features/scenes/{features}")
    for path in ("data/objects", "data/cutouts", "data/phrase-tokens", "runs"):
        shutil.rmtree(path)
    says("stage", "train", "mcse-clip", 0)
    assert Path("runs/mcse-clip/seed-0/model/model.safetensors").exists()


def test_a_run_is_not_trained_if_its_scores_cannot_be_reported(graph, fails, says):
    captions = read_manifest(Path(f"{DATA}/captions.parquet"), CAPTIONS)
    without = pa.array([""] * len(captions))
    column = captions.schema.get_field_index("split")
    write_manifest(
        Path(f"{DATA}/captions.parquet"), captions.set_column(column, "split", without), CAPTIONS
    )
    shutil.rmtree("runs")
    err = fails("stage", "train", "simcse", 0)
    assert f"{DATA}/captions.parquet: no caption in the split 'test'; found ''" in err
    assert "evaluation would fail; simcse is not trained yet" in err
    assert not Path("runs/simcse/seed-0/model").exists()
    params = yaml.safe_load(Path("params.yaml").read_text())
    for task in ("retrieval", "neighbours"):
        params["evaluation"]["tasks"][task]["split"] = ""
    Path("params.yaml").write_text(yaml.safe_dump(params))
    says("stage", "tokens")
    says("stage", "train", "simcse", 0)
    assert Path("runs/simcse/seed-0/model/model.safetensors").exists()


def test_the_stage_truncates_captions_as_their_tokens_are(finished):
    tokens = TokenSet.open(finished / "data/tokens/scenes-bert").header
    spans = PhraseTokens.open(finished / "data/phrase-tokens/scenes/scenes-bert").header
    assert spans.max_length == tokens.max_length
    assert spans.tokenizer_sha256 == tokens.tokenizer_sha256


def test_rows_of_every_kind_are_encoded_again_from_the_inputs_of_the_graph(graph, says, fails):
    for stage in (
        "image-features scenes resnet",
        "object-features scenes clip",
        "text-features scenes clip",
        "teachers scenes similarity",
    ):
        out = says("stage", *stage.split(), "--check", 3)
        assert out.startswith("data/features/scenes/")
        assert f"/{stage.split()[2]}: 3 rows encoded again: 3 with identical bytes" in out
    params = yaml.safe_load(Path("params.yaml").read_text())
    params["extract"]["cutouts"] = {"margin": 0.4}
    Path("params.yaml").write_text(yaml.safe_dump(params))
    err = fails("stage", "object-features", "scenes", "clip", "--check", 3)
    assert "differs from its record" in err
    assert "margin" in err


def test_accept_keeps_the_runs_that_are_named_and_no_others(graph, monkeypatch, says):
    monkeypatch.setattr("train.code_digest.code_of", lambda names: code_of(names) | {"edited": "0"})
    assert says("accept", "simcse") == "runs/simcse/seed-0: accepted\n"
    assert sorted(says("accept").splitlines()) == [
        "runs/mcse-clip/seed-0: accepted",
        "runs/simcse/seed-0: the code that trained it has not changed",
    ]
    shutil.rmtree("runs/simcse")
    assert says("accept", "simcse") == "runs/simcse/seed-0: not trained yet\n"


def test_a_report_refuses_the_scores_of_another_run(graph, fails, says):
    simcse, mcse = (f"results/{run}/seed-0.json" for run in ("simcse", "mcse-clip"))
    shutil.copyfile(simcse, mcse)
    err = fails("stage", "report")
    assert f"{mcse}: found the scores of simcse, seed 0, expected those of mcse-clip" in err
    Path(mcse).unlink()
    for stage in ("evaluate", "report"):
        says("stage", stage)
