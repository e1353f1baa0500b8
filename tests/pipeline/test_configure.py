"""`sightline configure`: composition, the complete resulting file, and preserved edits."""

from __future__ import annotations

import functools
import pickle
import shutil
import subprocess
from datetime import date
from itertools import permutations
from pathlib import Path

import pytest
import yaml
from composed import COMPOSED

from pipeline import configure
from pipeline.configure import configuration, configurations, edits, parts
from pipeline.layout import run_spec
from pipeline.params import load_params, read_yaml, validate_params
from sightline.errors import SightlineError
from train.objectives import make_objective

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the configurations, below the current folder."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "configs"


@pytest.fixture
def run(folder, said):
    """Runs `sightline configure WORDS`: its exit code and what it says."""

    def call(*words: str) -> tuple[int, str]:
        code, out, err = said("configure", *words)
        return code, out + err.removeprefix("error: ").rstrip("\n")

    return call


def test_later_layers_win_and_what_is_to_remove_is_gone(folder):
    (folder / "mine.yaml").write_text(
        "# Mine\n"
        "extends: [scenes, mcse-only]\n"
        "remove: [train.max_steps, systems.mcse-clip.runs, evaluation.tasks.sts, report.title]\n"
        "train: {batch_size: 16, epochs: 2}\n"
        "systems:\n"
        "  dalr: {train: {epochs: 9}}\n"
        "  mcse-clip: {parameters: {weight: 0.5}, runs: {mcse-clip: {label: Mine}}}\n"
        "report: {control: null}\n"
    )
    found, scenes = configuration("mine"), configuration("scenes")
    del scenes["train"]["max_steps"]
    assert found["train"] == scenes["train"] | {"batch_size": 16, "epochs": 2}
    clip = found["systems"]["mcse-clip"]
    assert clip["parameters"] == {"image": "clip", "weight": 0.5, "caption": "all"}
    assert clip["runs"] == {"mcse-clip": {"label": "Mine"}}
    assert found["systems"]["dalr"] == {"runs": {}}  # all that dvc.yaml needs
    assert "grounding" not in found
    assert found["encoders"] == scenes["encoders"]
    assert validate_params(found, "mine").report.title == "Comparison of runs"


def test_null_is_a_value_everywhere(folder, run):
    (folder / "mine.yaml").write_text(
        "extends: [scenes]\ngrounding: {rules: {duplicate_iou: null}}\n"
        "report: {control: null}\n"
        "systems: {kdmcse: {parameters: {image_threshold: null}, runs: {open: {parameters: "
        "{teacher_text_threshold: null}}}}}\n"
    )
    assert run("mine") == (0, "params.yaml: mine\n")
    written = load_params("params.yaml")
    system = written.systems["kdmcse"]
    assert system.parameters["image_threshold"] is None
    assert system.runs["open"].parameters == {"teacher_text_threshold": None}
    assert written.grounding.rules.duplicate_iou is None
    assert written.report.control is None
    (folder / "parts/none.yaml").write_text("extends: [without-objects]\ngrounding: null\n")
    assert run("mine", "none", "--overwrite")[0] == 0
    assert "\ngrounding: null\n" in Path("params.yaml").read_text()
    assert load_params("params.yaml").grounding is None


def test_names_are_merged_in_their_order_and_are_the_title(folder, run):
    (folder / "parts/fast.yaml").write_text("extends: [papers]\ntrain: {epochs: 1}\n")
    (folder / "parts/slow.yaml").write_text("train: {epochs: 9}\n")
    assert configuration("flickr30k", "fast", "slow")["train"]["epochs"] == 9
    assert configuration("flickr30k", "slow", "fast")["train"]["epochs"] == 1
    again = configuration("flickr30k-alone", "fast")["systems"]["mcse-clip"]
    assert again["parameters"]["weight"] == 0.05, "what two extend is merged once, before both"
    assert run("flickr30k", "roberta", "fast") == (0, "params.yaml: flickr30k roberta fast\n")
    written = load_params("params.yaml")
    assert (written.student.name, written.train.epochs) == ("roberta-base", 1)
    assert written.report.title == "flickr30k + roberta + fast"
    assert configuration("flickr30k")["report"]["title"] == "Wikipedia and Flickr30k, BERT"
    assert run("flickr30k", "roberta", "fast")[1] == "params.yaml: already flickr30k roberta fast\n"


def test_a_part_follows_the_configuration_that_it_changes(run):
    code, said = run("roberta")
    assert code == 1
    assert "a part, which changes the configuration named before it: `sightline configure" in said
    assert "NAME roberta` (`sightline configure` lists both)" in said
    code, said = run("studies/terms", "coco", "roberta")
    assert "`sightline configure coco studies/terms roberta`" in said
    assert not Path("params.yaml").exists()


def test_parts_are_listed_apart_each_with_its_first_line(folder, run):
    (folder / "parts/draft.yaml").write_bytes(b"# caf\xe9 {broken: [\n")
    whole, changes = run()[1].split("\n\nParts change the configuration before them")
    assert [line.split()[0] for line in whole.splitlines()] == list(configurations())
    listed = changes.partition("\n\n")[2].splitlines()
    assert [line.split()[0] for line in listed] == list(parts())
    assert any("studies/margin" in each and "KDMCSE against the margin" in each for each in listed)
    assert not configurations().keys() & parts().keys()
    for files in (configurations(), parts()):
        assert list(files.values()) == sorted(files.values())
    assert len(list(Path("configs").rglob("*.yaml"))) <= 36  # with the draft


def test_make_runs_a_study_in_a_folder_of_its_own():
    of_scenes = "scenes three-seeds studies"
    names_of = {
        "": "study",
        "margin": f"{of_scenes}/margin",
        "weight": f"{of_scenes}/weight-scenes",
    }
    for study, names in names_of.items():
        words = ["make", "-n", "study", f"STUDY={study}"]
        shown = subprocess.check_output(words, cwd=ROOT, text=True)
        place = f"study-{study}" if study else "study"
        assert f"cd {place} && sightline configure {names}\n" in shown
        assert f"cd {place} && sightline repro report\n" in shown
    assert "/study-*/" in (ROOT / ".gitignore").read_text().splitlines()


def test_make_writes_params_yaml_again_after_an_edit_of_any_configuration():
    words = ["make", "--no-print-directory", "--eval", "shown: ; @echo $(CONFIGURATIONS)", "shown"]
    watched = subprocess.check_output(words, cwd=ROOT, text=True).split()
    files = (ROOT / "configs").rglob("*.yaml")
    assert sorted(watched) == sorted(path.relative_to(ROOT).as_posix() for path in files)


def test_each_study_varies_what_it_is_named_after_and_nothing_else(folder):
    expected = {
        "pairs": ("pairs", [100, 500, 1000, 5000, 10000, None]),  # MCSE figure 3
        "weight": ("weight", [0.001, 0.01, 0.05, 0.1, 0.5]),  # MCSE table 4
        "margin": ("margin", [n / 1000 for n in range(25, 250, 25)]),  # KDMCSE figure 7
        "temperature": ("student_temperature", [0.0225, 0.05, 0.1, 0.2, 0.45, 1.0]),
        "teachers": ("teachers", None),  # DALR table 9: other names on other data
    }
    varied = [name for name in COMPOSED if "studies/" in name]
    assert len(varied) == 17
    for name in varied:
        study = name.partition("studies/")[2].split("-")[0]
        if study == "terms":
            continue
        parameter, values = expected[study]
        for system in configuration(*name.split())["systems"].values():
            runs = [each.get("parameters", {}) for each in system["runs"].values()]
            if len(runs) < 2:
                continue
            assert set().union(*runs) == {parameter}
            if values is None:
                assert len(runs) == 3
                continue
            more = [1.0, 2.0] if name.endswith("weight-scenes") else []
            assert [each.get(parameter) for each in runs] == [*values, *more]


def test_a_study_trains_the_same_runs_on_any_data(folder):
    for study in ("pairs", "weight", "margin", "temperature", "terms"):
        drawn, flickr = (
            configuration(data, f"studies/{study}")["systems"] for data in ("scenes", "flickr30k")
        )
        for name, system in flickr.items():
            assert system["runs"] == drawn[name]["runs"]


def test_no_list_of_images_is_of_two_splits(folder):
    for name in configurations():
        for data in configuration(name)["datasets"].values():
            lists = [*(data.get("splits") or {}).values()]
            assert len(set(lists)) == len(lists), name


def test_own_photographs_need_no_data_of_others(folder):
    params = validate_params(configuration("own"), "own")
    assert {run.objective for run in params.runs.values()} == {"simcse", "mcse"}
    assert params.graph.grounded == params.graph.teachers == params.graph.text_encoders == []
    assert list(params.datasets) == ["own"]
    read = [params.evaluation.dev, *(task.data for task in params.evaluation.tasks.values())]
    for run_name in params.runs:
        spec = run_spec(params, run_name, 0)
        assert (spec.sentences, spec.pairs is None) == (None, False)
        read += spec.features.values()
    assert all(Path("data/raw/own") in path.parents or "own" in path.parts for path in read)


def test_a_system_of_the_graph_that_a_file_does_not_name_has_no_runs(folder):
    graph = Path("dvc.yaml").read_text()
    Path("dvc.yaml").write_text(graph.replace("stages:", "stages:\n  train-mine: {}", 1))
    assert configuration("scenes")["systems"]["mine"] == {"runs": {}}


MISTAKES = """
extends: [mine] => mine.yaml: extends itself (mine → mine)
extends: [scnes] => mine.yaml: extends: unknown configuration 'scnes'; did you mean 'scenes'
extends: scenes => mine.yaml: extends: found 'scenes', expected a list of names
remove: [sytems.dalr] => mine.yaml: remove: sytems.dalr: unknown key 'sytems'; did you mean
remove: [systems.dalr.rnus] => mine.yaml: remove: systems.dalr.rnus: unknown key 'rnus'; did you
remove: [train.epochs.x] => mine.yaml: remove: train.epochs.x: unknown key 'x'
{extends: [scenes], systems: {mcse-clp: {}}} => mine.yaml: systems: unknown system 'mcse-clp'; did
remove: systems.dalr => mine.yaml: remove: found 'systems.dalr', expected a list of names
{extends: [scenes], systems: null} => mine.yaml: systems: input should be a mapping, NAME: VALUE
{extends: [scenes], systems: {dalr: null}} => mine.yaml: systems.dalr: input should be a
{extends: [scenes], systems: {dalr: {runs: null}}} => systems.dalr.runs: input should be
{extends: [scenes], systems: {dalr: {parms: {}}}} => systems.dalr: unknown key 'parms'
{extends: [scenes], trian: {}} => mine.yaml: unknown key 'trian'
{extends: [scenes], train: {batch_size: 1}} => mine.yaml: train.batch_size
- a => mine.yaml: found list, expected a mapping
a: [ => mine.yaml: not YAML
"""
"""A configuration => a part of the error."""


@pytest.mark.parametrize("mistake", MISTAKES.strip().splitlines())
def test_a_mistake_in_a_configuration_is_named(folder, mistake):
    content, _, message = mistake.partition(" => ")
    (folder / "mine.yaml").write_text(content)
    with pytest.raises(SightlineError) as caught:
        configuration("mine")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("most", "compositions"), [(1, 200), pytest.param(2, 6000, marks=pytest.mark.slow)]
)
def test_what_a_composition_lacks_is_no_typo(folder, monkeypatch, most, compositions):
    """Every configuration with so many parts, in any order."""
    systems = functools.cache(configure.trained_systems)
    read = functools.cache(lambda file: pickle.dumps(read_yaml(file)))
    monkeypatch.setattr(configure, "read_yaml", lambda file: pickle.loads(read(file)))
    monkeypatch.setattr(configure, "trained_systems", systems)
    monkeypatch.setattr(configure, "validate_params", lambda values, *_: values)
    for files in ("configurations", "parts"):
        monkeypatch.setattr(configure, files, functools.cache(getattr(configure, files)))
    names = [
        (name, *chosen)
        for name in configurations()
        for count in range(most + 1)
        for chosen in permutations(parts(), count)
    ]
    composed = [configuration(*each)["systems"] for each in names]
    assert len(composed) > compositions
    assert all(each.keys() == set(systems(Path("dvc.yaml"))) for each in composed)


def test_an_unknown_name_and_a_project_without_configurations_of_its_own(folder, run):
    assert "did you mean 'flickr30k'" in run("flikr30k")[1]
    assert "did you mean 'studies/margin'" in run("flickr30k", "studies/margn")[1]
    shutil.rmtree(folder)
    assert run("scenes") == (0, "params.yaml: scenes\n")


def test_the_file_is_complete_and_edits_are_kept_without_overwrite(run):
    assert run("flickr30k") == (0, "params.yaml: flickr30k\n")
    file = Path("params.yaml")
    assert yaml.safe_load(file.read_text()) == configuration("flickr30k")
    assert run("flickr30k")[1] == "params.yaml: already flickr30k\n"
    assert run("coco-alone") == (0, "params.yaml: coco-alone\n")
    assert load_params("params.yaml").graph.pairs == "coco"
    edited = file.read_text().replace("batch_size: 64", "batch_size: 48")
    file.write_text(edited)
    code, said = run("study")
    assert (code, file.read_text()) == (1, edited)
    assert "params.yaml: is not as `sightline configure` wrote it" in said
    assert run("study", "--overwrite")[0] == 0
    assert load_params("params.yaml").graph.seeds == [0, 1, 2, 3, 4]


def test_an_update_of_the_configurations_is_no_edit_of_the_file(folder, run):
    run("flickr30k", "roberta")
    part = folder / "parts/papers.yaml"
    updated = part.read_text().replace("workers: 4", "workers: 8").replace("3.0e-5", "4.0e-5")
    part.write_text(updated)
    assert run("flickr30k") == (0, "params.yaml: flickr30k\n")
    written = load_params("params.yaml")
    assert (written.machine.workers, written.train.learning_rate) == (8, 4e-5)
    (folder / "flickr30k.yaml").unlink()
    for draft in ("a-draft.yaml", "parts/a-part.yaml"):
        (folder / draft).write_text("extends: [nothing]\n{")
    (folder / ".#scenes.yaml").symlink_to(folder / "nowhere")  # as Emacs locks a file
    assert edits(Path("params.yaml")) == (False, None)
    assert run("coco-alone") == (0, "params.yaml: coco-alone\n")
    assert run()[0] == 0
    code, said = run("a-draft")
    assert (code, "a-draft.yaml: not YAML" in said) == (1, True)


@pytest.mark.parametrize("edit", ["header", "value", "key", "date", "mixed", "removed"])
def test_every_edit_is_known(run, edit):
    run("scenes")
    file = Path("params.yaml")
    values = yaml.safe_load(file.read_text())
    header = file.read_text().partition("\n")[0]
    match edit:
        case "header":
            header = "# as `sightline configure scenes` wrote it"
        case "value":
            values["train"]["batch_size"] = 48
        case "key":
            values["report"]["control"] = None
        case "date":
            values["report"]["title"] = date(2020, 1, 1)
        case "mixed":
            values["systems"] |= {1: {}}
        case "removed":
            del values["systems"]["dalr"]
    file.write_text(f"{header}\n{yaml.safe_dump(values)}")
    assert edits(file)[0]
    assert "is not as `sightline configure` wrote it" in run("coco")[1]


def test_the_edited_machine_is_kept_and_is_no_edit_of_the_rest(run):
    run("scenes")
    file = Path("params.yaml")
    assert run("study")[0] == run("scenes")[0] == 0
    file.write_text(file.read_text().replace("devices: auto", "devices: [0, 1]"))
    assert "devices" not in run("study", "--diff")[1]
    assert run("study") == (0, "params.yaml: study, with the section `machine` it had\n")
    machine = {"devices": [0, 1], "threads": 1, "workers": 0}
    assert yaml.safe_load(file.read_text()) == {**configuration("study"), "machine": machine}
    file.unlink()
    run("flickr30k")
    run("scenes")
    assert yaml.safe_load(file.read_text()) == configuration("scenes")


def test_diff_shows_what_would_change_and_writes_nothing(run):
    file = Path("params.yaml")
    assert "+  seeds: [0]\n" in run("scenes", "--diff")[1]
    assert not file.exists()
    run("scenes")
    before = file.read_bytes()
    code, said = run("study", "--diff")
    lines = said.splitlines()
    assert (code, lines[:2]) == (0, ["--- params.yaml", "+++ study"])
    assert {"-  seeds: [0]", "+  seeds: [0, 1, 2, 3, 4]", "+      dalr-shuffled:"} < set(lines)
    assert file.read_bytes() == before
    assert run("scenes", "--diff")[1] == "params.yaml: already scenes\n"


def test_the_page_on_the_papers_names_every_study():
    page = (ROOT / "docs/papers.md").read_text()
    for name in parts(ROOT / "configs"):
        if name.startswith("studies/") and name != "studies/dalr-only":
            assert f"`{name}`" in page, name


@pytest.mark.parametrize("part", ["dinov3", "siglip2", "sam3", "qwen3"])
def test_models_of_no_paper_say_so_and_are_run_by_the_graph(part, monkeypatch):
    assert parts(ROOT / "configs")[part].read_text().startswith("# From no paper: ")
    monkeypatch.chdir(ROOT)
    params = validate_params(configuration("flickr30k", part), part)
    graph = params.graph
    made = {
        "image": graph.image_encoders,
        "object": graph.object_encoders,
        "text": graph.text_encoders,
        "teacher": graph.teachers,
    }
    for name, run in params.runs.items():
        for need in make_objective(run.objective, run.parameters).features:
            assert need.encoder in made[need.kind], name
