"""The folder of a run: foreign files are untouched, one run at a time, nothing stale or lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import World, silent
from feature_sets import Features
from flat_tables import rows_with_keys
from kills import Killed
from phrase_world import Objects

from sightline.cache import key_column
from sightline.cache.record import read_record
from sightline.cache.sets import write_rows
from sightline.errors import BusyError, SightlineError
from train.checkpoints import Progress
from train.loop import Callback, LoopState, NonFiniteLoss
from train.run_folder import RunFolder
from train.run_summary import RunSummary
from train.train_run import train_run


class At(Callback):
    """Does something at the end of a step."""

    def __init__(self, at: int, act: Any) -> None:
        self.at, self.act = at, act

    def step(self, state: LoopState) -> None:
        if state.step == self.at:
            self.act()


def kill() -> None:
    raise Killed


def broken_off(world: World, out: Path) -> Path:
    """A run of six steps that was killed in the sixth; its checkpoint of the fourth."""
    with pytest.raises(Killed):
        train_run(world.spec(out), say=silent, callbacks=[At(5, kill)])
    return out / "checkpoints" / "checkpoint-4"


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
    [
        "model.safetensors",
        "optimizer.pt",
        "state.json",
        "sightline.json",
    ],
)
def test_a_damaged_checkpoint_is_named_and_left_alone(
    world: World, tmp_path: Path, name: str, damage: str
) -> None:
    file = broken_off(world, tmp_path) / name
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


def test_the_best_weights_belong_to_a_checkpoint(world: World, tmp_path: Path) -> None:
    broken_off(world, tmp_path)
    best = tmp_path / "best.safetensors"
    best.write_bytes(best.read_bytes()[:100])
    with pytest.raises(SightlineError, match=f"{best}: missing or damaged, and checkpoint-4"):
        train_run(world.spec(tmp_path), say=silent)


def killed_while_clearing(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that publishes a checkpoint and is killed as it takes its files away again."""
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path.name == "optimizer.pt":
            raise Killed
        real(path, missing_ok)

    with folder.claimed():
        checkpoints = folder.checkpoints
        checkpoints.begin()
        for name in ("model.safetensors", "optimizer.pt"):
            (checkpoints.part / "checkpoint-2").mkdir(parents=True, exist_ok=True)
            (checkpoints.part / "checkpoint-2" / name).write_bytes(b"x")
        checkpoints.publish(2, Progress("digest"))
        assert checkpoints.newest() is not None
        monkeypatch.setattr(Path, "unlink", unlink)
        checkpoints.clear()


def test_checkpoints_are_removed_all_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(Killed):
        killed_while_clearing(RunFolder(tmp_path / "run"), patch)
    assert list((tmp_path / "run").rglob("optimizer.pt"))
    again = RunFolder(tmp_path / "run")
    with again.claimed():
        assert again.checkpoints.newest() is None
        assert not again.checkpoints.begun
        again.begin()
        assert not list((tmp_path / "run").rglob("optimizer.pt"))


def test_a_learning_rate_that_is_far_too_high_stops_the_run(world: World, tmp_path: Path) -> None:
    spec = world.spec(tmp_path, dev=None, train={"learning_rate": 1e38, "save_steps": 1})
    with pytest.raises(NonFiniteLoss) as caught:
        train_run(spec, say=silent)
    found = RunFolder(tmp_path).checkpoints.newest()
    said = str(caught.value)
    assert "Nothing is saved after it" in said
    assert found is not None
    assert f"the last checkpoint is {found}. " in said
    assert json.loads((tmp_path / "failure.json").read_text())["keys"]


def test_a_finished_run_with_a_field_that_is_no_longer_written_is_read(
    world: World, tmp_path: Path
) -> None:
    spec = world.spec(tmp_path, train={"max_steps": 1})
    finished = train_run(spec, say=silent)
    file = tmp_path / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "precision_probe": None}))
    assert RunSummary.read(tmp_path) == finished
    assert train_run(spec, say=silent) == finished


def test_changed_phrase_tokens_make_a_new_run(world: World, tmp_path: Path) -> None:
    features = Features(world, tmp_path)
    features.add("clip", "image", dim=7)
    objects = Objects(world, features, "clip-objects", dim=7)
    spec = world.spec(
        tmp_path / "out",
        "mcseo",
        parameters={"image": "clip"},
        features={"image-clip": tmp_path / "clip", "object-clip": tmp_path / "clip-objects"},
        pairs={
            "captions": world.root / "captions.parquet",
            "images": world.root / "images.parquet",
            "tokens": world.root / "tokens",
            "phrases": objects.path,
        },
    )
    first = train_run(spec, say=silent)
    table = rows_with_keys(objects.path, "phrase-tokens").slice(3)
    spec_of_tokens = read_record(objects.path).spec
    shutil.rmtree(objects.path)
    keys = key_column(table.column("key"))
    write_rows(objects.path, spec_of_tokens, keys, table.drop_columns("key"))
    second = train_run(spec, say=silent)
    assert first.spec_digest != second.spec_digest
    assert RunSummary.load(tmp_path / "out") == second


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
