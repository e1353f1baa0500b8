"""`sightline init`: a project anywhere, with or without Git, from a clone or a wheel."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from command_line import sightline

from pipeline import layout
from pipeline.configure import configuration, configurations
from pipeline.new_project import _IGNORED, BESIDE_RUNS
from pipeline.shipped import CONFIGURATIONS, GRAPH

ROOT = Path(__file__).parents[2]
FILES = {".dvc/config", ".dvcignore", ".gitignore", "data/README.md", "dvc.yaml", "params.yaml"}


def git(folder: Path, *words: str) -> str:
    told = ["-c", "user.name=a", "-c", "user.email=a@b"]
    command = ["git", "-C", str(folder), *told, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def state(folder: Path) -> dict[str, bytes]:
    """What a folder holds, but for DVC's own scratch and Git's."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not {".git", "tmp"} & {*path.relative_to(folder).parts}
    }


def stages(folder: Path) -> str:
    """What DVC says of the graph there."""
    command = [sys.executable, "-P", "-m", "dvc", "stage", "list"]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


def test_a_new_folder_becomes_a_project(tmp_path, capsys):
    """Also where names have blanks; a second time nothing changes."""
    folder = tmp_path / "my work" / "a project"
    assert sightline("init", folder, "flickr30k", "roberta") == 0
    said = capsys.readouterr().out
    assert "Next: put your data where params.yaml says, then cd '" in said
    assert state(folder).keys() >= FILES
    params = yaml.safe_load((folder / "params.yaml").read_text())
    assert params == configuration("flickr30k", "roberta")
    assert (folder / "dvc.yaml").read_bytes() == (ROOT / "dvc.yaml").read_bytes()
    assert "train-mcse-resnet@mcse-resnet-0" in stages(folder)
    ignored = [(root / ".dvcignore").read_text().splitlines()[-1] for root in (folder, ROOT)]
    assert ignored == [BESIDE_RUNS] * 2
    before = state(folder)
    assert sightline("init", folder) == 0
    assert "made" not in capsys.readouterr().out
    assert state(folder) == before


def test_scenes_depend_on_the_digest_of_what_draws_them():
    for name, source in configuration("scenes")["datasets"].items():
        assert source["source"] == layout.inputs_file(f"datasets/{name}").as_posix()


def test_what_is_there_is_kept(tmp_path, capsys):
    (tmp_path / "params.yaml").write_text("mine: 1\n")
    (tmp_path / ".gitignore").write_text("/secret\n")
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    assert sightline("init", tmp_path, "scenes") == 0
    said = capsys.readouterr().out
    assert "kept .gitignore, dvc.yaml, params.yaml" in said
    assert "dvc.yaml is not that of this version of Sightline" in said
    assert "if it is of another pipeline, make the project in a folder of its own" in said
    assert (tmp_path / "params.yaml").read_text() == "mine: 1\n"
    assert (tmp_path / ".gitignore").read_text() == "/secret\n"


@pytest.mark.parametrize("place", [".", "deep/inside"])
def test_in_a_git_repository_it_is_committed_with_it(tmp_path, place):
    git(tmp_path, "init", "-q")
    folder = tmp_path / place
    assert sightline("init", folder) == 0
    config = (folder / ".dvc/config").read_text()
    assert "no_scm" not in config
    assert "analytics = false" in config
    assert "prepare@scenes" in stages(folder)
    git(tmp_path, "add", ".")
    added = {Path(name) for name in git(tmp_path, "diff", "--cached", "--name-only").split()}
    assert {Path(place) / name for name in FILES} <= added
    assert Path(place, "data/raw") not in added


@pytest.mark.slow
def test_what_dvc_add_writes_of_raw_data_is_committed_and_nothing_else_there(tmp_path):
    git(tmp_path, "init", "-q")
    folder = tmp_path / "mine"
    assert sightline("init", folder) == 0
    for name in ("raw/own/1/1.jpg", "raw/own/captions.csv", "raw/more/1.jpg", "senteval/a.txt"):
        (folder / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "data" / name).write_text(name)
    (folder / "data/features/scenes").mkdir(parents=True)
    (folder / "data/features/scenes/set.json").touch()
    added = ["data/raw/own/captions.csv", "data/raw/own/1", "data/raw/more", "data/senteval"]
    command = [sys.executable, "-P", "-m", "dvc", "add", *added]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    git(tmp_path, "add", ".")
    staged = git(tmp_path, "diff", "--cached", "--name-only").split()
    committed = {name.removeprefix("mine/") for name in staged if name.startswith("mine/data/")}
    assert committed >= {f"{name}.dvc" for name in added}
    rest = committed - {f"{name}.dvc" for name in added} - {"data/README.md"}
    assert all(name.endswith("/.gitignore") for name in rest), rest


def test_a_clone_ignores_in_data_what_a_project_ignores():
    def of_data(text: str) -> list[str]:
        return [line for line in text.splitlines() if line.lstrip("!").startswith("/data/")]

    assert [line for line in of_data(_IGNORED) if "README" not in line] == of_data(
        (ROOT / ".gitignore").read_text()
    )


def test_in_a_folder_that_git_ignores_it_works_without(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("/demo/\n")
    assert sightline("init", tmp_path / "demo") == 0
    assert "no_scm" in (tmp_path / "demo/.dvc/config").read_text()
    assert "prepare@scenes" in stages(tmp_path / "demo")


@pytest.mark.slow
def test_what_lies_beside_a_run_is_no_part_of_the_runs_that_are_scored(tmp_path):
    (tmp_path / ".dvcignore").write_text("# mine")
    (tmp_path / "dvc.yaml").write_text("stages: {evaluate: {cmd: echo scored, deps: [runs]}}\n")
    assert sightline("init", tmp_path) == 0
    assert (tmp_path / ".dvcignore").read_text().startswith("# mine\n")
    for name in ("seed-0/run.json", "seed-0.run/tensorboard/events"):
        (tmp_path / "runs/mcse" / name).parent.mkdir(parents=True)
        (tmp_path / "runs/mcse" / name).write_text(name)

    def dvc(*words: str) -> str:
        command = [sys.executable, "-P", "-m", "dvc", *words]
        return subprocess.run(
            command, cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    dvc("repro", "-q")
    (tmp_path / "runs/mcse/seed-0.run/tensorboard/events").write_text("more")
    assert "up to date" in dvc("status")
    (tmp_path / "runs/mcse/seed-0/run.json").write_text("another")
    assert "modified" in dvc("status")
    before = state(tmp_path)
    assert sightline("init", tmp_path) == 0
    assert state(tmp_path) == before


def test_inside_somebodys_dvc_repository(tmp_path):
    git(tmp_path, "init", "-q")
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / "dvc.yaml").write_text("stages: {theirs: {cmd: echo}}\n")
    assert sightline("init", tmp_path / "ours") == 0
    assert "theirs" not in stages(tmp_path / "ours")
    assert "theirs" in stages(tmp_path)


def test_configurations_of_a_project_stand_beside_the_shipped_ones(tmp_path, monkeypatch, capsys):
    assert sightline("init", tmp_path) == 0
    monkeypatch.chdir(tmp_path)
    assert configurations() == configurations(CONFIGURATIONS)
    Path("configs").mkdir()
    Path("configs/mine.yaml").write_text("# Mine.\nextends: [scenes]\ngraph: {seeds: [7]}\n")
    capsys.readouterr()
    assert sightline("configure", "mine") == 0
    assert yaml.safe_load(Path("params.yaml").read_text())["graph"]["seeds"] == [7]
    assert sightline("configure") == 0
    assert "mine" in capsys.readouterr().out


def test_what_cannot_be_a_project_is_one_error(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert sightline("init", tmp_path / "file") == 1
    assert "file: a file; give a folder for the project" in capsys.readouterr().err
    assert sightline("init", tmp_path / "new", "flikr30k") == 1
    assert "did you mean 'flickr30k'" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", [".dvcignore", "dvc.yaml"])
def test_a_file_there_that_cannot_be_read_is_named_before_anything_is_made(tmp_path, fails, name):
    (tmp_path / name).write_bytes(b"caf\xe9\n")
    before = state(tmp_path)
    assert f"{tmp_path / name}: line 1: the byte 0xe9 is not UTF-8" in fails("init", tmp_path)
    assert state(tmp_path) == before


def test_what_dvc_says_against_a_folder_is_told(tmp_path, fails):
    (tmp_path / ".dvc").write_text("")
    err = fails("init", tmp_path)
    assert "DVC cannot be set up here: unexpected error - [Errno" in err, err


@pytest.mark.slow
def test_a_wheel_makes_a_project_that_runs(tmp_path):
    """The wheel alone, its libraries from here; the shipped files are in it."""
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    subprocess.run([uv, "build", "--quiet", "--wheel", "-o", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    shipped = site / "pipeline/shipped_files"
    assert (shipped / "dvc.yaml").read_bytes() == GRAPH.read_bytes()
    assert len(list((shipped / "configs").rglob("*.yaml"))) == len(
        list(CONFIGURATIONS.rglob("*.yaml"))
    )
    program = "from pipeline.cli import main; main()"
    told = {"PYTHONPATH": str(site), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    folder = tmp_path / "a project"

    def run(*words: str, cwd: Path = tmp_path) -> str:
        command = [sys.executable, "-c", program, *words]
        return subprocess.run(
            command, cwd=cwd, env=told, check=True, capture_output=True, text=True
        ).stdout

    run("init", str(folder), "scenes")
    params = (folder / "params.yaml").read_text()
    drawn = yaml.safe_load(params)
    few = {"scenes": 60, "sentences": 60, "train_pairs": 60, "dev_pairs": 60, "test_pairs": 60}
    steps = {"resnet_steps": 5, "clip_steps": 0, "teacher_steps": 0, "student_hidden": 32}
    drawn["datasets"]["scenes"] |= {**few, **steps}
    (folder / "params.yaml").write_text(yaml.safe_dump(drawn))
    run("stage", "inputs", cwd=folder)
    run("stage", "prepare", "scenes", cwd=folder)
    assert (folder / "data/datasets/scenes/dataset.json").is_file()
    assert (folder / "data/inputs/datasets/scenes.json").is_file()
