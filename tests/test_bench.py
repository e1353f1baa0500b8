"""Every benchmark runs with tiny shapes, so that a machine lent for one is not wasted."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from demo_params import demo_params
from small_senteval import write_senteval
from tiny_encoder import make_encoder
from tiny_scenes import TINY

BENCH = Path(__file__).parents[1] / "bench"
QUICK = ["--device", "cpu", "--quick", "--rounds", "1"]
SECONDS = {
    "cache_read": ["--rows", "300", "--dim", "8", "--rounds", "1"],
    "incremental": ["--files", "100", "--images", "100", "--rounds", "1", "--workers", "0"],
    "scale": ["--rows", "2000", "--steps", "plan", "fill", "open", "take"],
    "training": [*QUICK, "--only", "plain"],
}
"""Those that take seconds, with their tiny shapes."""
LONGER = {
    "elsewhere": ["--images", "16", "--rounds", "1"],
    "evaluate_sts": ["--data", "senteval", "--model", "student", "--tasks", "STS-B"],
    "extract --engines": ["--images", "8", "--rounds", "1"],
    "extract": [*QUICK, "--models", "resnet50", "--precisions", "fp32"],
    "gpu": ["--device", "cpu", "--quick", "--out", "figures"],
    "grounding": QUICK,
    "same": ["other", "--keep"],
    "startup": ["--demo", "demo", "--rounds", "1", "--only", "stage t", "stage report", "cache"],
    "transfer": ["--dim", "4", "--tasks", "TREC", "--steps", "1"],
}
"""The others, by script and mode."""


def run(script: Path, *words: str) -> str:
    """What a benchmark prints, which succeeds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(script), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_benchmark_has_tiny_shapes():
    scripts = {file.stem for file in BENCH.glob("*.py") if "__main__" in file.read_text()}
    assert scripts == {name.split()[0] for name in [*SECONDS, *LONGER]}


@pytest.mark.slow
@pytest.mark.parametrize("name", SECONDS)
def test_a_benchmark_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(BENCH / f"{name}.py", *SECONDS[name], "--json", "figures.json")
    assert json.loads(Path("figures.json").read_text())["rows"]


def test_every_system_of_the_benchmark_reads_what_it_is_given(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    from training import SYSTEMS, World

    world = World(tmp_path, 40, 20, 50)
    for system in SYSTEMS:
        for streams in (["pairs"], ["pairs", "text"]):
            assert len(world.data(world.spec(system, 4, streams)))


def write_sentence_transformer(folder: Path) -> None:
    from sentence_transformers import SentenceTransformer, models

    for part in make_encoder():
        part.save_pretrained(folder / "encoder")
    encoder = models.Transformer(str(folder / "encoder"))
    pooling = models.Pooling(encoder.get_word_embedding_dimension(), "mean")
    SentenceTransformer(modules=[encoder, pooling], device="cpu").save(str(folder))


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A finished demo at its smallest, all systems of it."""
    folder = tmp_path_factory.mktemp("checkout") / "demo"
    sightline = [sys.executable, "-m", "pipeline.cli"]
    subprocess.run([*sightline, "init", str(folder), "scenes"], check=True)
    params = demo_params()
    params["datasets"]["scenes"] |= TINY
    params["train"] |= {"batch_size": 4, "max_steps": 2, "eval_steps": 1}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    subprocess.run([*sightline, "repro", "report"], cwd=folder, env=environment, check=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LONGER))
def test_a_longer_benchmark_runs(name, request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stem, *mode = name.split()
    words, script = [*mode, *LONGER[name]], BENCH / f"{stem}.py"
    if name == "evaluate_sts":
        write_senteval(Path("senteval"))
        write_sentence_transformer(Path("student"))
    if name in ("same", "startup"):
        shutil.copytree(request.getfixturevalue("demo"), "demo", symlinks=True)
    if name == "startup":
        words = [*words, "--sightline", str(Path(sys.executable).parent / "sightline")]
    if name == "same":  # two checkouts, as far as it looks into them
        for checkout in ("here", "other"):
            shutil.copytree("demo", f"{checkout}/demo", symlinks=True)
            Path(checkout, ".venv").symlink_to(sys.prefix)
            Path(checkout, "bench").mkdir()
            shutil.copy(script, f"{checkout}/bench")
        assert "nothing differs" in run(Path("here/bench/same.py").absolute(), *words)
        return
    figures = [] if name == "gpu" else ["--json", "figures.json"]
    said = run(script, *words, *figures)
    if name == "gpu":
        parts = json.loads(Path("figures/figures.json").read_text())
        assert {part["status"] for part in parts.values()} == {"done"}, said
    else:
        assert json.loads(Path("figures.json").read_text())["rows"]
