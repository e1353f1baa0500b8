"""dvc.yaml says exactly what the code reads and writes: nothing hidden, nothing too much."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline import graph
from pipeline.params import Params, load_params
from train.objectives import make_objective

ROOT = Path(__file__).parents[2]
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
LOGGED = {"dev", "learning_rate", "grad_norm", "sentences_per_second"}
"""What every run logs beside its loss terms (tests/train/test_run.py)."""
FILES = [ROOT / "params.yaml", *sorted((ROOT / "configs").glob("*.yaml"))]


def filled(text: str, given: dict, seed: int = 0) -> str:
    """``text`` with its ${…} taken from the parameters, as DVC does."""

    def value(match: re.Match) -> str:
        name = match.group(1)
        if name == "item.seed":
            return str(seed)
        place = given
        for key in re.findall(r"[^.\[\]]+", name):
            place = place[int(key)] if isinstance(place, list) else place[key]
        return str(place)

    return re.sub(r"\$\{([^}]+)\}", value, text)


def of(stage: str, part: str, given: dict) -> set[str]:
    entries = [next(iter(e)) if isinstance(e, dict) else e for e in STAGES[stage][part]]
    return {filled(entry, given) for entry in entries}


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def given(request) -> tuple[dict, Params]:
    return yaml.safe_load(request.param.read_text()), load_params(request.param)


def test_a_train_stage_depends_on_exactly_what_its_run_reads(given):
    raw, params = given
    for run in params.runs:
        spec = graph.run_spec(params, run, 0)
        assert spec.pairs is not None
        assert (spec.text is not None) == spec.train.text_stream
        reads = {spec.pairs.captions, spec.pairs.images, spec.pairs.tokens}
        reads |= {spec.dev, *spec.features.values()}
        # DVC cannot leave a dependency out: of a run without sentences they are one all the same
        reads |= {graph.sentences_manifest(params.graph.text)}
        reads |= {spec.pairs.phrases} - {None}
        stage = f"train-{run}"
        assert of(stage, "deps", raw) == {Path(str(path)).as_posix() for path in reads}
        assert of(stage, "outs", raw) == {spec.out.as_posix()}
        assert f"runs.{run}" in STAGES[stage]["params"]
        assert STAGES[stage]["matrix"] == {"seed": "${graph.seeds}"}


def test_every_run_is_trained_evaluated_and_reported(given):
    raw, params = given
    runs = list(params.runs)
    trained = [name.removeprefix("train-") for name in STAGES if name.startswith("train-")]
    assert trained == runs
    seed = params.graph.demo_seed
    scored: list[str] = []
    for stage in ("evaluate", "evaluate-controls"):
        command = filled(STAGES[stage]["cmd"], raw, seed).split()
        assert command[:5] == ["sightline", "stage", "evaluate", "--seed", str(seed)]
        of_stage = command[5:]
        models = {graph.run_folder(run, seed).as_posix() for run in of_stage}
        sets = {str(params.evaluation.dev), str(params.evaluation.test)}
        assert of(stage, "deps", raw) == models | sets
        files = {graph.result_file(run, seed).as_posix() for run in of_stage}
        assert of(stage, "metrics", raw) == files
        scored += of_stage
    assert scored[: len(params.report.shown)] == params.report.shown
    assert sorted(scored) == sorted(runs)
    results = {graph.result_file(run, seed).as_posix() for run in params.report.shown}
    assert of("report", "deps", raw) == results


def test_every_feature_set_of_a_run_is_made_by_a_stage(given):
    _, params = given
    named = params.graph
    made = {
        graph.features_folder(named.pairs, kind, encoder)
        for kind, encoders in [
            ("image", named.image_encoders),
            ("object", named.object_encoders),
            ("text", named.text_encoders),
            ("teacher", named.teachers),
        ]
        for encoder in encoders
    }
    for run in params.runs:
        assert set(graph.run_spec(params, run, 0).features.values()) <= made


def test_every_stage_is_a_command_that_exists():
    from typer.main import get_command

    from pipeline.cli import app

    known = get_command(app).commands["stage"].commands  # pyright: ignore
    for stage in STAGES.values():
        command = stage.get("do", stage)["cmd"].split()
        assert command[:2] == ["sightline", "stage"]
        assert command[2] in known


def test_dvc_reads_the_graph_with_every_parameter_file(tmp_path):
    dvc = Path(sys.executable).with_name("dvc")
    shutil.copytree(ROOT / ".dvc", tmp_path / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp"))
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for path in FILES:
        shutil.copy(path, tmp_path / "params.yaml")
        found = subprocess.run(
            [dvc, "stage", "list", "--names-only"], cwd=tmp_path, capture_output=True, text=True
        )
        assert found.returncode == 0, found.stderr
        assert "train-mcse-clip@0" in found.stdout.split()


def test_dvc_draws_every_curve_of_the_shown_runs(tmp_path):
    dvc = Path(sys.executable).with_name("dvc")
    shutil.copytree(ROOT / ".dvc", tmp_path / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp"))
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    params = load_params(ROOT / "params.yaml")
    plots = [
        next(iter(each.items()))
        for each in yaml.safe_load((ROOT / "dvc.yaml").read_text())["plots"]
    ]
    assert {"dev score", "text loss", "learning rate", "gradient norm", "speed"} <= {
        title for title, _ in plots
    }
    for title, plot in plots:
        for path, column in plot["y"].items():
            run = path.split("/")[1]
            terms = make_objective(params.run(run).objective, params.run(run).parameters).weights
            logged = {f"loss_{term}" for term in terms} | LOGGED
            assert column in logged, f"{title}: {run} logs {', '.join(sorted(logged))}"
            assert path == f"runs/{run}/seed-0/dvclive/plots/metrics/{column}.tsv"
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"step\t{column}\n1\t0.5\n2\t0.25\n")
        of_title = {path.split("/")[1] for path in plot["y"]}
        assert of_title == set(params.report.shown) or "loss" in title
    drawn = subprocess.run(
        [dvc, "plots", "show", "--out", "drawn"], cwd=tmp_path, capture_output=True, text=True
    )
    assert drawn.returncode == 0, drawn.stderr
    page = (tmp_path / "drawn" / "index.html").read_text()
    for title, plot in plots:
        assert title in page
        assert all(column in page for column in plot["y"].values())
