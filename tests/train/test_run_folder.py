"""The folder of a run: foreign files are untouched, one run at a time, nothing stale or lost."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cases import Features, case_of
from conftest import Killed, World, silent
from flat_tables import rows_with_keys

from sightline.cache import key_column
from sightline.cache.record import read_record
from sightline.cache.sets import write_rows
from sightline.errors import BusyError, SightlineError
from train.loop import Callback
from train.records import RunState, RunSummary
from train.run_folder import RunFolder
from train.train_run import train_run


class At(Callback):
    """Does something at the end of a step."""

    def __init__(self, at: int, act: Any) -> None:
        self.at, self.act = at, act

    def step(self, state: RunState) -> None:
        if state.step == self.at:
            self.act()


def kill() -> None:
    raise Killed


def broken_off(world: World, out: Path) -> RunFolder:
    """A run of six steps that was killed in the sixth, with the checkpoint of the fourth."""
    with pytest.raises(Killed):
        train_run(world.spec(out), say=silent, callbacks=[At(5, kill)])
    return RunFolder(out)


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize(
    "name",
    ["model/weights.bin", "checkpoints/checkpoint-7/model.pt", "run.json"],
)
def test_a_folder_of_something_else_is_not_touched(world: World, tmp_path: Path, name: str) -> None:
    file = tmp_path / "theirs" / name
    file.parent.mkdir(parents=True)
    file.write_text('{"mine": true}')
    said = rf"theirs: contains {Path(name).parts[0]}, which no"
    if name == "run.json":
        said = r"theirs/run.json: another file, expected sightline\.run/1"
    with pytest.raises(SightlineError, match=said):
        train_run(world.spec(tmp_path / "theirs"), say=silent)
    assert content(tmp_path) == {f"theirs/{name}": b'{"mine": true}'}


def test_notes_beside_a_run_stay(world: World, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("why")
    for seed in (0, 1):
        train_run(world.spec(tmp_path, seed=seed, train={"max_steps": 1}), say=silent)
    assert (tmp_path / "notes.txt").read_text() == "why"


def test_a_file_cannot_be_the_folder(world: World, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(SightlineError, match="out: is a file, not a folder"):
        train_run(world.spec(tmp_path / "out"), say=silent)


def test_a_mistake_makes_no_folder(world: World, tmp_path: Path) -> None:
    for changes in ({"objective": "simce"}, {"dev": tmp_path / "nowhere.tsv"}):
        with pytest.raises(SightlineError):
            train_run(world.spec(tmp_path / "a" / "b", **changes), say=silent)
    assert list(tmp_path.iterdir()) == []


def test_one_run_at_a_time(world: World, tmp_path: Path) -> None:
    refused: list[str] = []

    def another() -> None:
        with pytest.raises(BusyError) as caught:
            train_run(world.spec(tmp_path / "out", seed=1), say=silent)
        refused.append(str(caught.value))

    expected = train_run(world.spec(tmp_path / "alone"), say=silent)
    found = train_run(world.spec(tmp_path / "out"), say=silent, callbacks=[At(3, another)])
    assert len(refused) == 1
    assert found.dev_history == expected.dev_history
    assert {path.name for path in tmp_path.iterdir()} == {"alone", "out"}  # and no lock


def test_a_mistake_does_not_change_a_finished_run(world: World, tmp_path: Path) -> None:
    train_run(world.spec(tmp_path / "out"), say=silent)
    before = content(tmp_path)
    shutil.copytree(world.student, tmp_path / "mute")
    for file in (tmp_path / "mute").glob("*tok*"):
        file.unlink()
    (tmp_path / "mute" / "vocab.txt").unlink(missing_ok=True)
    for student in ("nowhere", str(tmp_path / "mute")):
        with pytest.raises(SightlineError):
            train_run(world.spec(tmp_path / "out", student={"model": student}), say=silent)
    shutil.rmtree(tmp_path / "mute")
    assert content(tmp_path) == before


def test_replacing_a_finished_run_is_reported(world: World, tmp_path: Path) -> None:
    train_run(world.spec(tmp_path), say=silent)
    lines: list[str] = []
    train_run(world.spec(tmp_path, seed=1), say=lines.append)
    assert f"replacing the finished run in {tmp_path}: its parameters or inputs changed" in lines[0]


@pytest.mark.parametrize("name", ["model/model.safetensors", "heads.safetensors"])
def test_a_run_that_lost_its_weights_is_not_finished(
    world: World, tmp_path: Path, name: str
) -> None:
    first = train_run(world.spec(tmp_path), say=silent)
    before = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    assert train_run(world.spec(tmp_path), say=silent).dev_history == first.dev_history
    assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize("damage", ["cut", "gone"])
@pytest.mark.parametrize(
    "name",
    ["b/model.safetensors", "b/loop.pt", "state.json", "../best.safetensors"],
)
def test_a_damaged_checkpoint_is_named_and_left_alone(
    world: World, tmp_path: Path, name: str, damage: str
) -> None:
    file = broken_off(world, tmp_path).path / "checkpoints" / name
    if name.startswith(".."):
        file = tmp_path / "best.safetensors"
    data = file.read_bytes()
    file.unlink()
    if damage == "cut":
        file.write_bytes(data[: len(data) // 2])
    before = content(tmp_path)
    with pytest.raises(SightlineError, match=f"{file}: missing or changed"):
        train_run(world.spec(tmp_path), say=silent)
    assert content(tmp_path) == before
    file.write_bytes(data)
    assert train_run(world.spec(tmp_path), say=silent).steps == 6


def killed_while_clearing(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that saves a checkpoint and is killed as the next one takes its files away."""
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name == "loop.pt":
            raise Killed
        real(path, missing_ok)

    with folder.claimed():
        folder.begin(RunState())
        with folder.checkpoint(RunState(step=2)) as tensors:
            for name in ("model.safetensors", "loop.pt"):
                (tensors / name).write_bytes(b"x")
        assert folder.state() is not None
        monkeypatch.setattr(Path, "unlink", unlink)
        folder.begin(RunState())


def test_checkpoints_are_removed_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_while_clearing(RunFolder(tmp_path / "run"), patch)
    assert list((tmp_path / "run").rglob("loop.pt"))
    again = RunFolder(tmp_path / "run")
    with again.claimed():
        assert again.state() == RunState()
        again.begin(RunState())
        assert not list((tmp_path / "run").rglob("loop.pt"))


def test_a_checkpoint_replaces_the_last_one_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real = RunFolder(tmp_path / "run"), Path.replace

    def save(step: int) -> None:
        with folder.checkpoint(RunState(step=step, tensors=tensors)) as part:
            for name in ("model.safetensors", "loop.pt"):
                (part / name).write_bytes(b"%d" % step)

    def replace(path: Path, target: Path) -> Path:
        if path.name == "model.safetensors":  # the second of both
            raise Killed
        return real(path, target)

    tensors: dict[str, str] = {}
    with folder.claimed():
        folder.begin(RunState())
        save(2)
        before = folder.state()
        assert before is not None
        tensors = before.tensors
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            with pytest.raises(Killed):
                save(4)
        state = folder.state()
        assert state == before
        folder.check(state)
        save(4)
        state = folder.state()
        assert state is not None
        folder.check(state)
        assert {path.parent.name for path in folder.path.rglob("loop.pt")} == {"b"}


def test_a_finished_run_with_a_field_that_is_no_longer_written_is_read(
    world: World, tmp_path: Path
) -> None:
    spec = world.spec(tmp_path, train={"max_steps": 1})
    finished = train_run(spec, say=silent)
    file = tmp_path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "precision_probe": None}))
    assert RunSummary.read(tmp_path) == finished
    assert train_run(spec, say=silent) == finished


def test_a_finished_run_of_another_version_is_not_called_missing(
    world: World, tmp_path: Path
) -> None:
    spec = world.spec(tmp_path, train={"max_steps": 1})
    train_run(spec, say=silent)
    file = tmp_path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "steps": "many"}))
    expected = rf"{file}: this version cannot read it \(steps: .*\); train the run again"
    with pytest.raises(SightlineError, match=expected):
        RunSummary.read(tmp_path)
    lines: list[str] = []
    assert train_run(spec, say=lines.append).steps == 1
    assert f"replacing the finished run in {tmp_path}: {file}: this version cannot" in lines[0]


def test_changed_phrase_tokens_make_a_new_run(features: Features, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(features.phrases, tmp_path / "phrases"))
    case = replace(case_of(features, "mcseo"), pairs={"phrases": folder})
    spec = case.spec(tmp_path / "out", max_steps=2)
    first = train_run(spec, say=silent)
    table = rows_with_keys(folder, "phrase-tokens").slice(3)
    spec_of_tokens = read_record(folder).spec
    shutil.rmtree(folder)
    keys = key_column(table.column("key"))
    write_rows(folder, spec_of_tokens, keys, table.drop_columns("key"))
    second = train_run(spec, say=silent)
    assert first.spec_digest != second.spec_digest
    assert RunSummary.read(tmp_path / "out") == second


def test_a_changed_configuration_of_the_student_makes_a_new_run(
    world: World, tmp_path: Path
) -> None:
    student = Path(shutil.copytree(world.student, tmp_path / "student"))
    spec = world.spec(tmp_path / "out", student={"model": str(student)})
    first = train_run(spec, say=silent)
    config = json.loads((student / "config.json").read_text())
    (student / "config.json").write_text(json.dumps({**config, "hidden_dropout_prob": 0.5}))
    assert train_run(spec, say=silent).spec_digest != first.spec_digest


def test_truncated_weights_of_the_student_are_named(world: World, tmp_path: Path) -> None:
    student = Path(shutil.copytree(world.student, tmp_path / "student"))
    weights = student / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(SightlineError, match=f"{student}: "):
        train_run(world.spec(tmp_path / "out", student={"model": str(student)}), say=silent)
