"""Trackers: the curves of a run where people watch it, after a resume too, and what fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from installed_package import forget, install
from process_runs import run_processes
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer
from training_world import KillAfter, Killed, assert_equal, curves_of, silent, weights_of

from sightline.errors import SightlineError
from train.train_run import train_run

TENSORBOARD = ("tensorboard",)
# killed at step 6, with step 5 logged and step 4 kept
TRAIN = {"max_steps": 8, "save_steps": 4, "eval_steps": 2, "logging_steps": 1}


@pytest.fixture(autouse=True)
def files_in_order(monkeypatch):
    """TensorBoard reads files by name: second, process, count; ours may have one second."""
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(100))


def shown(out: Path) -> dict[str, list[tuple[int, float]]]:
    """The curves that TensorBoard shows of a run, as `curves_of` has them; 0 points are none."""
    reader = EventAccumulator(f"{out}.run/tensorboard", size_guidance={"scalars": 0})
    reader.Reload()
    points = {
        name: [(point.step, point.value) for point in reader.Scalars(name)]
        for name in reader.Tags()["scalars"]
        if name != "sentences_per_second"
    }
    return {name: curve for name, curve in points.items() if curve}


def in_float32(curves: dict[str, list[tuple[int, float]]]) -> dict[str, Any]:
    return {
        name: [(step, pytest.approx(value, rel=1e-6, abs=1e-12)) for step, value in curve]
        for name, curve in curves.items()
    }


def test_tensorboard_shows_the_log_of_a_run_and_changes_nothing(world, tmp_path, capsys):
    plain = train_run(world.spec(tmp_path / "plain", "mcse", train=TRAIN), say=silent)
    lines: list[str] = []
    spec = world.spec(tmp_path / "run", "mcse", train=TRAIN)
    summary = train_run(spec, say=lines.append, track=TENSORBOARD)
    assert shown(spec.out) == in_float32(curves_of(summary))
    names = {"loss", "loss_text", "loss_image", "learning_rate", "grad_norm", "dev"}
    assert shown(spec.out).keys() >= names
    assert f"mcse: tracked by tensorboard in {spec.out}.run/tensorboard" in lines
    assert curves_of(summary) == curves_of(plain)
    assert (summary.spec_digest, summary.files) == (plain.spec_digest, plain.files)
    assert_equal(weights_of(spec.out), weights_of(tmp_path / "plain"))
    (file,) = Path(f"{spec.out}.run/tensorboard").glob("*/hparams.yml")
    assert "train.max_steps: 8" in file.read_text()
    assert "parameters.weight: 0.5" in file.read_text()
    assert capsys.readouterr().out == ""
    train_run(spec, say=silent, track=("a-name-that-a-finished-run-does-not-look-up",))


def test_the_command_names_trackers_and_prints_nothing_else(world, tmp_path, said):
    words = ["train", "simcse", f"--text={world.root}", f"--tokens={world.root / 'tokens'}"]
    words += [f"--student={world.student}", "--max-length=16", "--batch-size=8", "--max-steps=2"]
    words += ["--logging-steps=1", "--device=cpu", "--json", f"--out={tmp_path / 'run'}"]
    code, _, err = said(*words, "--track", "tensorboard,clearml")
    assert (code, "run: pip install clearml" in err) == (1, True)
    code, out, err = said(*words, "--track", "tensorboard")
    assert code == 0, err
    logged = [(entry["step"], entry["loss"]) for entry in json.loads(out)["log"]]
    assert shown(tmp_path / "run")["loss"] == in_float32({"loss": logged})["loss"]


@pytest.mark.parametrize("before", [TENSORBOARD, ()], ids=["tracked before", "not tracked before"])
def test_a_resumed_run_goes_on_in_its_own_curve(world, tmp_path, before):
    expected = train_run(world.spec(tmp_path / "whole", "mcse", train=TRAIN), say=silent)
    spec = world.spec(tmp_path / "run", "mcse", train=TRAIN)
    with pytest.raises(Killed):
        train_run(spec, say=silent, track=before, callbacks=[KillAfter(6)])
    steps = [step for step, _ in shown(spec.out)["loss"]] if before else []
    assert steps == [1, 2, 3, 4, 5][: len(steps)]
    train_run(spec, say=silent, track=TENSORBOARD)
    assert shown(spec.out) == in_float32(curves_of(expected))
    assert len([*Path(f"{spec.out}.run/tensorboard").glob("*/hparams.yml")]) == 1


def test_a_run_that_starts_over_has_one_curve(world, tmp_path):
    spec = world.spec(tmp_path / "run", train=TRAIN)
    with pytest.raises(Killed):
        train_run(spec, say=silent, track=TENSORBOARD, callbacks=[KillAfter(6)])
    other = world.spec(tmp_path / "run", train={**TRAIN, "max_steps": 4, "learning_rate": 1e-2})
    for _ in range(2):  # and once more, when its folder is gone
        summary = train_run(other, say=silent, track=TENSORBOARD)
        assert shown(spec.out) == in_float32(curves_of(summary))
        (spec.out / "run.json").unlink()
        for part in ("model", "heads.safetensors"):
            (spec.out / part).rename(tmp_path / f"moved-{part}-{_}")


# ---- trackers of other packages, and what fails --------------------------------------------------

PACKAGE = """
from accelerate.tracking import GeneralTracker

told = []
fails = set()


class Book(GeneralTracker):
    name = "book"
    requires_logging_directory = False
    tracker = None

    def __init__(self, run):
        super().__init__()
        self.said("made", run)

    def said(self, *what):
        told.append(what)
        print("said", what[0])
        if what[0] in fails:
            raise OSError("no\\nroute to host")

    def start(self):
        self.said("started")

    def store_init_configuration(self, values):
        self.said("parameters", values)

    def log(self, values, step=None):
        self.said("log", step, dict(values))
        values.clear()

    def finish(self):
        self.said("finished")
"""


@pytest.fixture
def book(tmp_path, monkeypatch) -> Iterator[Any]:
    """An installed package with the trackers `book` and `gone`."""
    from train.tracking import TRACKERS

    site = tmp_path / "site"
    places = {"book": "libr:Book", "gone": "nowhere_at_all:Book", "other": "libr:told"}
    install(site, "libr", {TRACKERS.group: places})
    (site / "libr.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(site)
    forget([TRACKERS])
    yield __import__("libr")
    forget([TRACKERS], "libr")


def entries(book: Any) -> list[tuple[str, int, dict[str, float]]]:
    return [told for told in book.told if told[0] == "log"]


def test_a_tracker_is_told_every_entry_once_and_may_change_nothing(world, tmp_path, book, capsys):
    spec = world.spec(tmp_path / "run", train=TRAIN)
    with pytest.raises(Killed):
        train_run(spec, say=silent, track=("book",), callbacks=[KillAfter(6)])
    summary = train_run(spec, say=silent, track=("book",))
    assert capsys.readouterr().out == ""
    kinds = [what for what, *_ in book.told if what != "log"]
    assert kinds == ["made", "started", "parameters", "finished", "made", "started", "finished"]
    logged = [(step, values) for _, step, values in entries(book)]
    for name, curve in curves_of(summary).items():
        assert [(step, values[name]) for step, values in logged if name in values] == curve
    assert book.told[0] == ("made", "simcse-seed-0")
    ((_, parameters),) = [each for each in book.told if each[0] == "parameters"]
    assert parameters["train.batch_size"] == 8
    assert all(isinstance(value, bool | int | float | str) for value in parameters.values())


@pytest.mark.parametrize("at", ["made", "started", "parameters", "log", "finished"])
def test_a_tracker_that_fails_costs_one_warning(world, tmp_path, book, at):
    book.fails.add(at)
    lines: list[str] = []
    spec = world.spec(tmp_path / "run", train=TRAIN)
    summary = train_run(spec, say=lines.append, track=("book", "tensorboard"))
    (warning,) = [line for line in lines if "warning: the tracker" in line]
    assert "the tracker book of the package 'libr' failed (OSError: no route to host)" in warning
    assert summary.steps == 8
    assert shown(spec.out) == in_float32(curves_of(summary))


def test_a_tracker_that_failed_is_told_what_it_missed_when_the_run_is_resumed(
    world, tmp_path, book
):
    book.fails.add("log")
    spec = world.spec(tmp_path / "run", train=TRAIN)
    with pytest.raises(Killed):
        train_run(spec, say=silent, track=("book",), callbacks=[KillAfter(6)])
    book.fails.clear()
    book.told.clear()
    train_run(spec, say=silent, track=("book",))
    with_scores = [1, 2, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8]
    assert [step for _, step, _ in entries(book)] == with_scores


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tensorbord", "unknown tracker 'tensorbord'; did you mean 'tensorboard'?"),
        ("clearml", "tracker clearml: its package is not installed; run: pip install clearml"),
        ("gone", "nowhere_at_all cannot be imported"),
        ("other", "expected a subclass of accelerate.tracking.GeneralTracker"),
    ],
)
def test_a_tracker_that_is_not_there_is_one_error_before_the_first_step(
    world, tmp_path, book, name, message
):
    with pytest.raises(SightlineError, match="tracker") as caught:
        train_run(world.spec(tmp_path / "run"), say=silent, track=("tensorboard", name))
    assert message in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_damaged_record_is_said_and_the_curve_begins_again(world, tmp_path):
    spec = world.spec(tmp_path / "run", train=TRAIN)
    with pytest.raises(Killed):
        train_run(spec, say=silent, track=TENSORBOARD, callbacks=[KillAfter(6)])
    record = Path(f"{spec.out}.run/trackers.json")
    record.write_text(record.read_text()[:50])
    lines: list[str] = []
    summary = train_run(spec, say=lines.append, track=TENSORBOARD)
    assert f"{record}: damaged, so every tracker begins a new curve" in lines
    assert shown(spec.out) == in_float32(curves_of(summary))


# ---- processes -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_process_0_alone_tracks_also_after_a_kill(world, tmp_path):
    spec = world.spec(tmp_path / "run", "mcse", train=TRAIN)
    (broken,) = run_processes([spec], act="kill", at="terms 5", track=TENSORBOARD)
    assert broken.codes == [-9, 143], broken.said
    assert [step for step, _ in shown(spec.out)["loss"]] == [1, 2, 3, 4, 5]
    (resumed,) = run_processes([spec], track=TENSORBOARD)
    assert resumed.codes == [0, 0], resumed.said
    assert ["tracked by" in said for said in resumed.said] == [True, False]
    body = json.loads((spec.out / "run.json").read_text())
    logged = [(entry["step"], entry["loss"]) for entry in body["log"] if "loss" in entry]
    assert shown(spec.out)["loss"] == in_float32({"loss": logged})["loss"]
