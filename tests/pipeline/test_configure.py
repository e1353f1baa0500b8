"""`sightline configure`: extension, the complete resulting file, and preserved edits."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from pipeline.cli.commands import app
from pipeline.configure import configuration, configurations, differences
from pipeline.params import ParamsError, load_params
from sightline.errors import SightlineError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the configurations, below the current folder."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "configs"


def run(*words: str) -> tuple[int, str]:
    ended = CliRunner().invoke(app, ["configure", *words])
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        return 1, str(ended.exception)
    return ended.exit_code, ended.output


def test_later_layers_win_and_null_removes_a_key(folder: Path) -> None:
    (folder / "mine.yaml").write_text(
        "# Mine\n"
        "extends: [scenes, parts/mcse-only]\n"
        "train: {batch_size: 16, max_steps: null, epochs: 2}\n"
        "systems: {mcse-clip: {parameters: {weight: 0.5}, runs: {mcse-shuffled: null}}}\n"
        "report: {control: null}\n"
    )
    found, scenes = configuration("mine"), configuration("scenes")
    assert found["train"] == {
        **{name: value for name, value in scenes["train"].items() if name != "max_steps"},
        "batch_size": 16,
        "epochs": 2,
    }
    clip = found["systems"]["mcse-clip"]
    assert clip["parameters"] == {"image": "clip", "weight": 0.5, "caption": "all"}
    assert list(clip["runs"]) == ["mcse-clip"]
    assert found["systems"]["dalr"] == {"runs": {}}
    assert "grounding" not in found
    assert found["encoders"] == scenes["encoders"]
    assert configurations()["mine"] == "Mine"


def test_null_is_a_value_of_a_parameter(folder: Path) -> None:
    (folder / "mine.yaml").write_text(
        "extends: [scenes]\n"
        "systems: {kdmcse: {parameters: {image_threshold: null}, runs: {open: {parameters: "
        "{teacher_text_threshold: null}}}}}\n"
    )
    system = configuration("mine")["systems"]["kdmcse"]
    assert system["parameters"]["image_threshold"] is None
    assert system["runs"]["open"]["parameters"] == {"teacher_text_threshold": None}


def test_a_configuration_in_a_folder_has_its_path_as_name_and_parts_have_none(folder: Path) -> None:
    found = configurations()
    assert found["studies/margin"].startswith("Study on scenes: KDMCSE against its margin")
    assert not any(name.startswith("parts") for name in found)
    assert run("studies/margin") == (0, "params.yaml: studies/margin\n")
    assert "studies/margin" in run()[1]
    assert "did you mean 'studies/margin'" in run("studies/margn")[1]


def test_make_runs_a_study_in_a_folder_of_its_own() -> None:
    shown = subprocess.run(
        ["make", "-n", "study", "STUDY=margin"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "cd study-margin && sightline configure studies/margin\n" in shown
    assert "cd study-margin && sightline repro report\n" in shown
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    assert "/study-*/" in ignored


def test_each_study_varies_what_it_is_named_after_and_nothing_else(folder: Path) -> None:
    expected = {
        "pairs": ("pairs", [100, 500, 1000, 5000, 10000, None]),  # MCSE figure 3
        "weight": ("weight", [0.001, 0.01, 0.05, 0.1, 0.5]),  # MCSE table 4
        "margin": ("margin", [n / 1000 for n in range(25, 250, 25)]),  # KDMCSE figure 7
        "temperature": ("student_temperature", [0.0225, 0.05, 0.1, 0.2, 0.45, 1.0]),
        "teachers": ("teachers", None),  # DALR table 9: other names on other data
    }
    varied = [name for name in configurations() if name.startswith("studies/")]
    assert len(varied) == 17
    for name in varied:
        study = name.removeprefix("studies/").split("-")[0]
        if study == "terms":
            continue
        parameter, values = expected[study]
        for system in configuration(name)["systems"].values():
            runs = [each.get("parameters", {}) for each in system["runs"].values()]
            if len(runs) < 2:
                continue
            assert set().union(*runs) == {parameter}
            found = [each.get(parameter) for each in runs]
            if values is None:
                assert len(runs) == 3
            else:
                assert [*values, *([1.0, 2.0] if name == "studies/weight" else [])] == found


def test_a_study_on_the_papers_data_trains_the_runs_of_the_one_on_scenes(folder: Path) -> None:
    for study in ("pairs", "weight", "margin", "temperature", "terms"):
        drawn = configuration(f"studies/{study}")["systems"]
        flickr = configuration(f"studies/{study}-flickr30k")["systems"]
        for more in ("weight-1", "weight-2"):  # up to the demo's λ
            drawn["mcse-resnet"]["runs"].pop(more, None)
        for name, system in flickr.items():
            if name != "simcse" or study == "pairs":
                assert system["runs"] == drawn[name]["runs"]


def test_a_system_of_the_graph_that_a_file_does_not_name_has_no_runs(folder: Path) -> None:
    graph = yaml.safe_load(Path("dvc.yaml").read_text())
    graph["stages"]["train-mine"] = graph["stages"]["train-simcse"]
    Path("dvc.yaml").write_text(yaml.safe_dump(graph))
    assert configuration("scenes")["systems"]["mine"] == {"runs": {}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("extends: [mine]", r"mine\.yaml: extends itself \(mine → mine\)"),
        ("extends: [scnes]", r"mine\.yaml: extends 'scnes', but .*scnes\.yaml does not exist"),
        ("extends: scenes", r"mine\.yaml: extends: found 'scenes', expected a list of names"),
        ("- a", r"mine\.yaml: found list, expected a mapping"),
        ("a: [", r"mine\.yaml: not YAML"),
        ("extends: [scenes]\ntrian: {}", r"mine\.yaml: unknown key 'trian'|section"),
        ("extends: [scenes]\ntrain: {batch_size: 1}", r"mine\.yaml: train\.batch_size"),
    ],
)
def test_a_mistake_in_a_configuration_is_named(folder: Path, content: str, message: str) -> None:
    (folder / "mine.yaml").write_text(content)
    with pytest.raises(SightlineError, match=message):
        configuration("mine")


def test_an_unknown_name_and_a_missing_folder(folder: Path) -> None:
    assert "did you mean 'flickr30k'" in run("flikr30k")[1]
    shutil.rmtree(folder)
    assert "configs: no such folder; run this in the root of a clone" in run("scenes")[1]


def test_the_file_is_complete_and_another_configuration_replaces_it(folder: Path) -> None:
    assert run("flickr30k") == (0, "params.yaml: flickr30k\n")
    written = load_params("params.yaml")
    assert written.graph.pairs == "flickr30k"
    assert yaml.safe_load(Path("params.yaml").read_text()) == configuration("flickr30k")
    assert run("flickr30k")[1] == "params.yaml: already flickr30k\n"
    assert run("coco-alone") == (0, "params.yaml: coco-alone\n")
    assert load_params("params.yaml").graph.pairs == "coco"


def test_edits_are_kept_without_overwrite(folder: Path) -> None:
    run("scenes")
    file = Path("params.yaml")
    edited = file.read_text().replace("batch_size: 64", "batch_size: 48")
    file.write_text(edited)
    code, said = run("study")
    assert (code, file.read_text()) == (1, edited)
    assert "params.yaml: you have edited this file" in said
    assert run("study", "--overwrite")[0] == 0
    assert load_params("params.yaml").graph.seeds == [0, 1, 2, 3, 4]


def test_the_engine_of_this_machine_is_kept(folder: Path) -> None:
    run("scenes")
    file = Path("params.yaml")
    file.write_text(file.read_text() + "\nengine: {devices: [0, 1]}\n")
    assert run("scenes") == (0, "params.yaml: already scenes\n")
    assert not any("engine" in line for line in run("study", "--diff")[1].splitlines())
    assert run("study") == (0, "params.yaml: study, with the engine it had\n")
    written = yaml.safe_load(file.read_text())
    assert written == {**configuration("study"), "engine": {"devices": [0, 1]}}


def test_diff_shows_what_would_change_and_writes_nothing(folder: Path) -> None:
    run("scenes")
    before = Path("params.yaml").read_bytes()
    code, said = run("study", "--diff")
    assert code == 0
    assert "~ graph.seeds: [0] → [0, 1, 2, 3, 4]" in said.splitlines()
    assert any(
        line.startswith("+ systems.dalr.runs.dalr-shuffled: {label:") for line in said.split("\n")
    )
    assert Path("params.yaml").read_bytes() == before
    assert run("scenes", "--diff")[1] == "params.yaml: nothing differs from scenes\n"


def test_differences_list_added_removed_and_changed_keys() -> None:
    old, new = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 4, "e": 5}}
    assert differences(old, new) == ["- a: 1", "~ b.c: 2 → 4", "- b.d: 3", "+ b.e: 5"]


def test_a_run_has_a_name_that_dvc_can_follow(folder: Path) -> None:
    (folder / "mine.yaml").write_text(
        "extends: [scenes]\nsystems: {kdmcse: {runs: {margin-0.1: {parameters: {margin: 0.1}}}}}\n"
    )
    with pytest.raises(ParamsError, match=r"the name 'margin-0\.1', expected letters, digits"):
        configuration("mine")


def test_the_page_on_studies_names_every_study() -> None:
    page = (ROOT / "docs/studies.md").read_text()
    for name in configurations(ROOT / "configs"):
        if name.startswith("studies/"):
            assert f"`{name.removeprefix('studies/')}`" in page, name
