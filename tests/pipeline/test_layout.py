"""dvc.yaml lists exactly what the code reads and writes: nothing hidden, nothing extra."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from composed import COMPOSED, CONFIGS
from demo_params import demo_params, demo_params_text
from dvc.parsing import DataResolver
from dvc.repo import Repo
from made_results import made_result

from pipeline import layout, stages
from pipeline.configure import configuration, to_yaml
from pipeline.inputs import Inputs
from pipeline.params import ParamsError, load_params, validate_params
from train.objectives import make_objective
from train.report.write import write_report

ROOT = Path(__file__).parents[2]
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A DVC repository with our dvc.yaml."""
    folder = tmp_path_factory.mktemp("graph")
    shutil.copytree(ROOT / ".dvc", folder / ".dvc", ignore=shutil.ignore_patterns("cache", "tmp"))
    (folder / ".dvc/config").write_text("[core]\nanalytics = false\nno_scm = true\n")
    shutil.copy(ROOT / "dvc.yaml", folder)
    return folder


@pytest.fixture(scope="module", params=COMPOSED)
def given(request, repository):
    """The parameters of a configuration, and the stages that DVC makes of them."""
    names = request.param.split()
    found = configuration(*names, folder=CONFIGS, graph_file=ROOT / "dvc.yaml")
    if names == ["scenes"]:  # a run is a line and no stage
        lighter = {"lighter": {"parameters": {"weight": 0.5}}}
        found["systems"]["mcse-clip"]["runs"] |= lighter
    (repository / "params.yaml").write_text(to_yaml(found, names))
    resolver = DataResolver(Repo(str(repository)), str(repository), {"stages": STAGES})
    return validate_params(found, request.param), resolver.resolve()["stages"]


def test_dvc_makes_a_train_stage_of_each_run_and_seed(given):
    params, stages = given
    assert {name: stages[name]["cmd"] for name in stages if name.startswith("train-")} == {
        f"train-{config.system}@{run}-{seed}": f"sightline stage train {run} {seed}"
        for run, config in params.runs.items()
        for seed in params.graph.seeds
    }
    assert {"tokens", "evaluate", "report"} <= stages.keys()
    systems = {name.removeprefix("train-") for name in STAGES if name.startswith("train-")}
    assert systems == params.systems.keys()


def test_dvc_reads_every_name_that_is_allowed(repository):
    names = ["é", "A_b-c", "_", "8k", "1-2", "no", "e1"]
    params = demo_params()
    scenes, mcse = params["datasets"]["scenes"], params["systems"]["mcse-clip"]
    params["datasets"] |= dict.fromkeys(names, scenes)
    params["encoders"]["image"] |= dict.fromkeys(names, params["encoders"]["image"]["clip"])
    params["graph"]["image_encoders"] += names
    mcse["runs"] |= {name: {} for name in names}
    (repository / "params.yaml").write_text(to_yaml(params, ["scenes"]))
    stages = DataResolver(Repo(str(repository)), str(repository), {"stages": STAGES}).resolve()
    commands = {stage["cmd"] for stage in stages["stages"].values()}
    assert load_params(repository / "params.yaml").runs.keys() >= set(names)
    for name in names:
        assert f"sightline stage prepare {name}" in commands
        assert f"sightline stage image-features scenes {name}" in commands
        assert f"sightline stage train {name} 0" in commands


def test_a_train_stage_depends_on_exactly_what_its_runs_read(given):
    params, stages = given
    for run, config in params.runs.items():
        spec = layout.run_spec(params, run, 0)
        pairs, text = map(layout.dataset_folder, (params.graph.pairs, params.graph.text))
        # DVC cannot leave a dependency out: a run without pairs, or without sentences, has them too
        reads = {pairs / "captions.parquet", pairs / "images.parquet", text / "sentences.parquet"}
        reads |= {layout.tokens_folder(params.student.name)}
        if spec.pairs is not None:
            assert {*spec.manifests.values(), spec.tokens} <= reads
            reads |= {spec.phrases} - {None}
        assert (spec.sentences is not None) == spec.train.text_stream
        reads |= {spec.dev, layout.inputs_file(f"systems/{config.system}")}
        reads |= {layout.INPUTS / "student"}
        system = params.systems[config.system]
        needs = make_objective(str(system.objective), system.parameters).features
        of_system = {layout.features_folder(params.graph.pairs, n.kind, n.encoder) for n in needs}
        assert set(spec.features.values()) <= of_system  # a term that is off may leave one unread
        reads |= of_system
        stage = stages[f"train-{config.system}@{run}-{params.graph.seeds[0]}"]
        assert set(stage["deps"]) == {Path(str(path)).as_posix() for path in reads}
        out = layout.run_folder(run, params.graph.seeds[0])
        assert stage["outs"] == [{out.as_posix(): {"persist": True}}]
        parts = ("objective", "parameters", "train", f"runs.{run}")
        tracked = {f"systems.{config.system}.{part}" for part in parts}
        assert set(stage["params"]) == tracked | {"student", "train", "graph.pairs", "graph.text"}


def test_stages_of_tokens_and_objects_depend_on_what_they_read(given):
    params, stages = given
    pairs = params.graph.pairs
    tokenizer = layout.inputs_file("student/tokenizer")
    assert set(map(Path, stages["tokens"]["deps"])) == {*layout.training_texts(params), tokenizer}
    assert stages["tokens"]["params"] == ["student"]
    for name in params.graph.grounded:
        read = {layout.dataset_folder(name) / "captions.parquet", layout.grounding_folder(name)}
        assert set(map(Path, stages[f"phrase-tokens@{name}"]["deps"])) == {*read, tokenizer}
        assert stages[f"phrase-tokens@{name}"]["params"] == ["student"]
    for encoder in params.graph.object_encoders:
        read = {layout.dataset_folder(pairs), layout.grounding_folder(pairs)}
        read.add(layout.inputs_file(f"encoders/image/{encoder}"))
        assert set(map(Path, stages[f"object-features@{pairs}-{encoder}"]["deps"])) == read


def test_the_stages_depend_on_the_files_of_what_they_use_that_the_stage_inputs_writes(given):
    params, stages = given
    used = params.graph
    encoders = {"image": {*used.image_encoders, *used.object_encoders}}
    encoders |= {"text": used.text_encoders, "teacher": used.teachers}
    files = [f"datasets/{name}" for name in params.datasets]
    files += [f"encoders/{kind}/{name}" for kind, names in encoders.items() for name in names]
    files += [f"systems/{run.system}" for run in params.runs.values()]
    files += ["student/tokenizer", *(["grounding"] if used.grounded else [])]
    expected = {*map(layout.inputs_file, files), layout.INPUTS / "student", layout.INPUTS / "tasks"}
    deps = {Path(dep) for stage in stages.values() for dep in stage.get("deps", [])}
    assert {dep for dep in deps if dep.is_relative_to(layout.INPUTS)} == expected
    written = {layout.inputs_file(name) for name in Inputs(params).bodies}
    assert expected <= {*written, *(file.parent for file in written)}


def test_the_stage_inputs_always_runs_and_no_stage_names_a_path_of_our_source():
    assert STAGES["inputs"] == {
        "cmd": "sightline stage inputs",
        "always_changed": True,
        "outs": [{"data/inputs": {"cache": False, "persist": True}}],
    }
    text = (ROOT / "dvc.yaml").read_text()
    for package in ("pipeline", "sightline", "train"):
        assert f"- {package}\n" not in text
        assert f"- {package}/" not in text


def test_a_data_set_without_pairs_trains_on_text_alone(monkeypatch):
    monkeypatch.chdir(ROOT)
    params = validate_params(configuration("wiki"), "wiki")
    assert list(params.runs) == ["simcse"]
    spec = layout.run_spec(params, "simcse", 0)
    assert (spec.pairs is None, spec.sentences is None) == (True, False)


def test_a_run_reads_the_features_of_its_system_and_no_others():
    found = demo_params()
    found["systems"]["mcse-clip"]["runs"]["other"] = {"parameters": {"image": "resnet"}}
    params = validate_params(found, "params.yaml")
    fault = r"systems\.mcse-clip\.runs\.other reads image/resnet(?s:.*) are another system"
    with pytest.raises(ParamsError, match=fault):
        layout.run_spec(params, "other", 0)


def test_params_yaml_is_the_configuration_of_the_demo():
    written = (ROOT / "params.yaml").read_text()
    if "sightline configure scenes" not in written:
        pytest.skip("params.yaml of this clone is another configuration")
    assert written == demo_params_text()


def test_features_are_made_by_a_stage_and_read_by_a_run_before_a_task(given):
    params, stages = given
    outs = [out for stage in stages.values() for out in stage["outs"]]
    made = {Path(name) for out in outs if isinstance(out, dict) for name in out}
    specs = [layout.run_spec(params, run, 0) for run in params.runs]
    read = {folder for spec in specs for folder in spec.features.values()}
    assert read <= made
    for name, task in params.evaluation.tasks.items():
        if {"retrieval", "neighbours"} & {task.task, name}:
            settings = task.settings
            assert Path(settings["features"]) == layout.FEATURES / params.graph.pairs
            if frozen := settings.get("frozen"):  # so `evaluate`, after the runs, has both
                towers = {Path(settings["features"], kind, frozen) for kind in ("image", "text")}
                assert towers <= read


def test_every_stage_is_one_that_exists():
    for stage in STAGES.values():
        command = stage.get("do", stage)["cmd"].split()
        assert command[:2] == ["sightline", "stage"]
        assert command[2] in stages.STAGES


def test_a_stage_depends_on_no_more_of_extract_than_changes_its_rows():
    of_rows = {f"extract.{name}" for name in ("precision", "dtype", "batch_size", "max_failed")}
    expected = {
        "ground": {"extract.precision", "extract.max_failed"},
        "image-features": of_rows,
        "object-features": of_rows | {"extract.cutouts"},
        "text-features": of_rows,
        "teachers": of_rows,
    }
    for name, stage in STAGES.items():
        body = stage.get("do", stage)
        read = {each for each in body.get("params", []) if each.partition(".")[0] == "extract"}
        assert read == expected.get(name, set()), name


def test_the_graph_is_short():
    assert len(STAGES) < 25
    assert len((ROOT / "dvc.yaml").read_text().splitlines()) <= 300


def test_dvc_draws_every_curve_in_one_plot_coloured_by_run(repository):
    (repository / "params.yaml").write_text(demo_params_text())
    log = ({"loss_text": 1.5, "step": 25}, {"dev": 40.0, "step": 50})
    runs = [(run, seed) for run in ("SimCSE", "MCSE (CLIP)") for seed in (0, 1)]
    results = [
        made_result(*run, scores={"similarity": 1.0 + run[1]}, training={"log": log})
        for run in runs
    ]
    write_report(results, repository / "report", "Two runs")
    words = [sys.executable, "-m", "dvc", "plots", "show", "--show-vega", "report/curves.json"]
    plot = json.loads(subprocess.check_output(words, cwd=repository))
    assert plot["facet"]["field"] == "metric"
    encoding = plot["spec"]["encoding"]
    fields = [encoding[channel]["field"] for channel in ("x", "y", "color")]
    assert fields == ["step", "value", "run"]
    kept = ("run", "seed", "step", "metric", "value")
    rows = [tuple(row[name] for name in kept) for row in plot["data"]["values"]]
    assert len(rows) == 8
    assert ("MCSE (CLIP)", 1, 25, "loss text", 1.5) in rows
    assert ("SimCSE", 0, 50, "dev score", 40.0) in rows
    means = json.loads((repository / "report/metrics.json").read_text())
    assert means == {"SimCSE": {"similarity": 1.5}, "MCSE (CLIP)": {"similarity": 1.5}}
