"""The folder of a run: foreign files are untouched, one run at a time, nothing stale or lost."""

from __future__ import annotations

import json
import resource
import shutil
import signal
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cases import case_of
from flat_tables import rows_with_keys
from safetensors import SafetensorError
from training_world import KillAfter, Killed, assert_equal, silent, weights_of

from sightline.cache import key_column
from sightline.cache.record import read_record
from sightline.cache.table_sets import write_rows
from sightline.errors import BusyError, SightlineError
from sightline.files.output import Output
from train import progress, run_folder
from train.evaluate.models import EvaluatedModel
from train.loop import Callback
from train.objectives.simcse import SimCSE
from train.records import RunState, RunSummary
from train.run_folder import RunFolder
from train.run_inputs import RunInputs
from train.run_spec import OF_THE_MACHINE
from train.train_run import steps_to_do, train_run


@pytest.fixture(scope="module")
def killed_run(world, tmp_path_factory):
    """A run of six steps that was killed in the sixth, with the checkpoint of the fourth."""
    out = tmp_path_factory.mktemp("killed") / "run"
    with pytest.raises(Killed):
        train_run(world.spec(out), say=silent, callbacks=[KillAfter(5)])
    return out


@pytest.fixture
def killed(killed_run, tmp_path):
    """A copy of it."""
    return Path(shutil.copytree(killed_run, tmp_path / "run"))


@pytest.fixture
def finished(finished_run, tmp_path):
    """A copy of the finished run."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def content(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# ---- what is not ours, and mistakes -------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("theirs/model/weights.bin", "theirs: contains model, which no"),
        ("theirs/checkpoints/checkpoint-7/model.pt", "theirs: contains checkpoints, which no"),
        ("theirs/run.json", r"theirs/run.json: another file, expected sightline\.run/1"),
        ("theirs", "theirs: is a file, not a folder"),
    ],
)
def test_what_something_else_left_is_not_touched(world, tmp_path, name, message):
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('{"mine": true}')
    with pytest.raises(SightlineError, match=message):
        train_run(world.spec(tmp_path / "theirs"), say=silent)
    assert content(tmp_path) == {name: b'{"mine": true}'}


def test_a_mistake_makes_no_folder(world, tmp_path):
    for changes in ({"objective": "simce"}, {"dev": tmp_path / "nowhere.tsv"}):
        with pytest.raises(SightlineError):
            train_run(world.spec(tmp_path / "a" / "b", **changes), say=silent)
    assert list(tmp_path.iterdir()) == []


def test_a_mistake_does_not_change_a_finished_run(world, tmp_path, finished):
    before = content(finished)
    mute = Path(shutil.copytree(world.student, tmp_path / "mute"))
    for file in (*mute.glob("*tok*"), mute / "vocab.txt"):
        file.unlink()
    cut = Path(shutil.copytree(world.student, tmp_path / "cut"))
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:2000])
    for student in ("nowhere", mute, cut):
        with pytest.raises(SightlineError, match=f"^{student}[: ]"):
            train_run(world.spec(finished, student={"model": str(student)}), say=silent)
    assert content(finished) == before


def test_one_run_at_a_time(world, tmp_path, finished_run):
    refused = []

    class Another(Callback):
        def step(self, state):
            if state.step == 3:
                with pytest.raises(BusyError):
                    train_run(world.spec(tmp_path / "out", seed=1), say=silent)
                refused.append(state.step)

    found = train_run(world.spec(tmp_path / "out"), say=silent, callbacks=[Another()])
    assert refused == [3]
    assert found.dev_history == RunSummary.read(finished_run).dev_history
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # and no lock


# ---- a finished run -----------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 5])
def test_a_finished_run_stays_until_its_successor_is_done(world, finished, steps):
    first, before = RunSummary.read(finished), content(finished)
    spec = world.spec(finished, seed=1)
    with pytest.raises(Killed):
        train_run(spec, say=silent, callbacks=[KillAfter(steps)])
    after = content(finished)
    assert {name: after[name] for name in before} == before
    assert RunSummary.read(finished) == first
    assert (steps_to_do(spec).done > 0) == (steps > 2)
    second = train_run(spec, say=silent)
    assert RunSummary.read(finished) == second != first
    assert content(finished).keys() == before.keys()


def test_a_run_that_is_not_finished_is_no_model_yet(killed):
    with pytest.raises(SightlineError, match="its training is not finished; resume it"):
        EvaluatedModel.load(str(killed), "cls", "cpu")


def test_a_kill_while_a_run_is_replaced_leaves_no_model_under_the_wrong_record(
    world, finished, monkeypatch
):
    spec, real = world.spec(finished, seed=1), Output.move_in

    def killed_while_moving(output, made):
        names = real(output, made)
        if "heads.safetensors" in names:
            raise Killed
        return names

    monkeypatch.setattr(Output, "move_in", killed_while_moving)
    with pytest.raises(Killed):
        train_run(spec, say=silent)
    monkeypatch.undo()
    assert not (finished / "run.json").exists()
    lines = []
    assert train_run(spec, say=lines.append).steps == 6
    assert "resuming after step 6" in lines[0]


def test_a_finished_run_is_not_trained_again_but_a_changed_one_is(world, finished):
    first = RunSummary.read(finished)
    (finished / "notes.txt").write_text("why")
    lines = []
    assert train_run(world.spec(finished), say=lines.append) == first
    assert lines == [f"simcse: already trained, nothing to do ({finished})"]
    other = train_run(world.spec(finished, seed=1), say=lines.append)
    why = "its parameters or inputs changed"
    assert lines[1] == f"simcse: replacing the finished run in {finished}: {why}"
    assert not any("on pairs" in line for line in lines)  # it reads no features
    assert other.spec_digest != first.spec_digest
    assert RunSummary.read(finished) == other
    assert (finished / "notes.txt").read_text() == "why"


def test_settings_of_the_machine_and_places_do_not_change_the_digest(world, tmp_path):
    def digest(**changes):
        return RunInputs.open(world.spec(tmp_path / "run", **changes)).digest

    machine = {"device_cache": 0.1, "eval_batch_size": 7, "logging_steps": 2, "save_steps": 3}
    assert machine.keys() == OF_THE_MACHINE
    moved = shutil.copytree(world.student, tmp_path / "elsewhere" / "student")
    expected = digest()
    for changed in ({"train": machine}, {"student": {"model": str(moved)}}, {"device": "auto"}):
        assert digest(**changed) == expected
    for train in ({"chunk": 4}, {"compile": "on"}, {"precision": "bf16"}):
        assert digest(train=train) != expected
    config = json.loads((moved / "config.json").read_text())
    (moved / "config.json").write_text(json.dumps({**config, "hidden_dropout_prob": 0.5}))
    assert digest(student={"model": str(moved)}) != expected


def test_changed_phrase_tokens_change_the_digest(features, tmp_path):
    folder = Path(shutil.copytree(features.phrases, tmp_path / "phrases"))
    spec = replace(case_of(features, "mcseo"), inputs={"phrases": folder}).spec()
    before = RunInputs.open(spec).digest
    table = rows_with_keys(folder, "phrase-tokens").slice(3)
    spec_of_tokens = read_record(folder).spec
    shutil.rmtree(folder)
    keys = key_column(table.column("key"))
    write_rows(folder, spec_of_tokens, keys, table.drop_columns("key"))
    assert RunInputs.open(spec).digest != before


LOST = [
    *("heads.safetensors", "model/model.safetensors", "model/tokenizer.json"),
    *("model/1_Pooling/config.json", "model/config_sentence_transformers.json"),
]


@pytest.mark.parametrize("name", LOST)
def test_a_run_that_lost_a_file_is_not_evaluated_and_trained_again(world, finished, name):
    first = RunSummary.read(finished)
    before = (finished / name).read_bytes()
    (finished / name).unlink()
    with pytest.raises(SightlineError, match=f"{name} of this run is missing; restore it, or"):
        EvaluatedModel.load(str(finished), device="cpu")
    assert train_run(world.spec(finished), say=silent).dev_history == first.dev_history
    assert (finished / name).read_bytes() == before
    assert EvaluatedModel.load(str(finished), device="cpu").summary is not None


def test_a_card_may_be_another_or_gone(world, finished):
    (finished / "model/README.md").unlink()
    lines = []
    train_run(world.spec(finished), say=lines.append)
    assert "already trained" in lines[0]


def test_a_finished_run_of_another_version(world, finished):
    first = RunSummary.read(finished)
    file = finished / "run.json"
    written = json.loads(file.read_text())
    file.write_text(json.dumps({**written, "precision_probe": None}))  # is no longer written
    assert RunSummary.read(finished) == first
    assert train_run(world.spec(finished), say=silent) == first
    file.write_text(json.dumps({**written, "steps": "many"}))
    expected = rf"{file}: steps: .*; expected a run of this version; train it again"
    with pytest.raises(SightlineError, match=expected):
        RunSummary.read(finished)
    lines = []
    assert train_run(world.spec(finished), say=lines.append).steps == 6
    assert f"replacing the finished run in {finished}: {file}: steps: " in lines[0]


@pytest.mark.parametrize("field", ["best_step", "stopped_early", "seconds", "sentences", "steps"])
def test_a_record_without_what_a_run_did_is_refused(finished, field):
    file = finished / "run.json"
    written = json.loads(file.read_text())
    del written[field]
    file.write_text(json.dumps(written))
    with pytest.raises(SightlineError, match=rf"{field}: is missing"):
        RunSummary.read(finished)


# ---- checkpoints --------------------------------------------------------------------------------


def test_checkpoints_are_as_often_as_told_and_read_once(world, tmp_path, monkeypatch):
    spec = world.spec(tmp_path, train={"save_steps": 3})
    with pytest.raises(Killed):
        train_run(spec, say=silent, callbacks=[KillAfter(5)])
    hashed = []
    real = run_folder.blake3_of_file
    monkeypatch.setattr(
        run_folder, "blake3_of_file", lambda path: hashed.append(path) or real(path)
    )
    lines = []
    train_run(spec, say=lines.append)
    assert "resuming after step 3" in lines[0]
    saved = [path.name for path in hashed if path.is_relative_to(tmp_path / "checkpoints")]
    assert sorted(saved) == ["best-2.safetensors", "loop.pt", "model.safetensors"]


class SaveAt(Callback):
    """Makes a checkpoint due after one step alone."""

    def __init__(self, monkeypatch, at):
        self._patch, self._at = monkeypatch, at

    def step(self, state):
        due = state.step == self._at
        self._patch.setattr("train.loop.SAVE_SECONDS", 0.0 if due else 600.0)


def test_by_default_a_checkpoint_is_due_by_the_clock(world, tmp_path, monkeypatch):
    spec = world.spec(tmp_path / "run", train={"save_steps": None})
    with pytest.raises(Killed):
        train_run(spec, say=silent, callbacks=[SaveAt(monkeypatch, 3), KillAfter(5)])
    state = RunState.model_validate_json((tmp_path / "run/checkpoints/state.json").read_bytes())
    assert (state.step, state.saving_seconds > 0) == (3, True)  # of the best weights of step 2
    lines = []
    resumed = train_run(spec, say=lines.append)
    assert "resuming after step 3" in lines[0]
    assert resumed.saving_seconds > state.saving_seconds
    train_run(world.spec(tmp_path / "whole", train={"save_steps": None}), say=silent)
    assert_equal(weights_of(tmp_path / "run"), weights_of(tmp_path / "whole"))


def test_a_checkpoint_of_other_parameters_is_not_resumed_and_of_another_optimiser_is_kept(
    world, killed
):
    message = (
        "its checkpoint was made with train.optimizer released, but this run has torch; "
        "set released to resume, or delete .*checkpoints to start over"
    )
    before = content(killed)
    with pytest.raises(SightlineError, match=message):
        train_run(world.spec(killed, train={"optimizer": "torch"}), say=silent)
    assert content(killed) == before
    lines = []
    train_run(world.spec(killed, train={"learning_rate": 2e-3}), say=lines.append)
    assert "parameters or inputs changed since the checkpoint of step 4; starting over" in lines[0]


class Copies(Callback):
    """Copies of the encoder's weights, by step."""

    def __init__(self):
        self.of = {}

    def begin(self, state, model):
        self.model = model

    def step(self, state):
        weights = self.model.encoder.state_dict().items()
        self.of[state.step] = {name: value.clone() for name, value in weights}


def test_a_resumed_run_exports_the_weights_that_it_records(world, tmp_path, monkeypatch):
    # the best of a time line that a kill ended is forgotten, as another GPU may score differently
    copies, scores = Copies(), iter([10.0, 20.0, 5.0, 5.0])
    monkeypatch.setattr("train.train_run.dev_score", lambda *_: next(scores))
    spec = world.spec(tmp_path / "run", train={"save_steps": 3})
    with pytest.raises(Killed):
        train_run(spec, say=silent, callbacks=[copies, KillAfter(5)])
    kept = {path.name for path in (tmp_path / "run/checkpoints").glob("best-*")}
    assert kept == {"best-2.safetensors", "best-4.safetensors"}
    found = train_run(spec, say=silent)
    assert (found.best_step, found.best_dev) == (2, 10.0)
    exported = weights_of(tmp_path / "run")
    assert_equal({name: exported[name] for name in copies.of[2]}, copies.of[2])
    assert not (tmp_path / "run/checkpoints").exists()


def test_superseded_best_weights_go_with_the_checkpoint_that_named_them(
    world, tmp_path, monkeypatch
):
    seen, scores = {}, iter([10.0, 20.0, 30.0])
    monkeypatch.setattr("train.train_run.dev_score", lambda *_: next(scores))

    class Look(Callback):
        def step(self, state):
            names = (tmp_path / "run/checkpoints").glob("best-*")
            seen[state.step] = sorted(path.name for path in names)

    train_run(world.spec(tmp_path / "run", train={"save_steps": 5}), say=silent, callbacks=[Look()])
    assert seen[3] == ["best-2.safetensors"]
    assert seen[5] == ["best-4.safetensors"]  # no checkpoint names the one before


def test_a_damaged_checkpoint_is_named_and_left_alone(world, killed):
    checkpoint = killed / "checkpoints"
    files = [checkpoint / name for name in ("b/model.safetensors", "b/loop.pt", "state.json")]
    for file in (*files, *checkpoint.glob("best-*.safetensors")):
        data = file.read_bytes()
        for damaged in (data[: len(data) // 2], None):
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
            before = content(killed)
            with pytest.raises(SightlineError, match=f"{file}: missing or changed"):
                train_run(world.spec(killed), say=silent)
            assert content(killed) == before
            file.write_bytes(data)
    assert train_run(world.spec(killed), say=silent).steps == 6


def save(folder, step, older=None):
    """A checkpoint with other tensors for each step."""
    with folder.checkpoint(RunState(step=step, tensors=older or {})) as tensors:
        for name in ("model.safetensors", "loop.pt"):
            (tensors / name).write_bytes(b"%d" % step)


def test_checkpoints_are_removed_all_at_once(tmp_path, monkeypatch):
    real = Path.unlink

    def unlink(path, missing_ok=False):
        if path.name == "loop.pt":
            raise Killed
        real(path, missing_ok)

    folder = RunFolder(tmp_path / "run")
    with folder.claimed():
        folder.begin(RunState())
        save(folder, 2)
        assert folder.state().step == 2
    with monkeypatch.context() as patch, folder.claimed():
        patch.setattr(Path, "unlink", unlink)
        with pytest.raises(Killed):
            folder.begin(RunState())
    assert list(folder.path.rglob("loop.pt"))
    with folder.claimed():
        assert folder.state() == RunState()
        folder.begin(RunState())
        assert not list(folder.path.rglob("loop.pt"))


def test_a_checkpoint_replaces_the_last_one_whole_or_not_at_all(tmp_path, monkeypatch):
    real = Path.replace

    def replace(path, target):
        if path.name == "model.safetensors":  # the second of both
            raise Killed
        return real(path, target)

    folder = RunFolder(tmp_path / "run")
    with folder.claimed():
        folder.begin(RunState())
        save(folder, 2)
        before = folder.state()
        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", replace)
            with pytest.raises(Killed):
                save(folder, 4, before.tensors)
        assert folder.state() == before
        folder.check(before)
        save(folder, 4, before.tensors)
        folder.check(folder.state())
        assert folder.state().step == 4
        assert {path.parent.name for path in folder.path.rglob("loop.pt")} == {"b"}


@pytest.mark.parametrize("file", ["model.safetensors", "loop.pt"])
def test_a_full_disk_at_a_checkpoint_is_named_and_the_one_before_stays(
    world, killed, finished_run, file
):
    before = RunFolder(killed).state()
    sizes = {path.name: path.stat().st_size for path in killed.rglob("checkpoints/*/*")}
    with no_file_above(sizes[file] - 1), pytest.raises(SightlineError) as error:
        train_run(world.spec(killed), say=silent)
    told = f"{killed}: no room to write the checkpoint (File too large); what was written before"
    assert str(error.value).startswith(told)
    assert RunFolder(killed).state() == before
    RunFolder(killed).check(before)
    assert train_run(world.spec(killed), say=silent).steps == 6
    assert_equal(weights_of(killed), weights_of(finished_run))


def test_a_full_disk_at_the_export_is_named_and_the_same_command_goes_on(
    world, killed, monkeypatch
):
    with monkeypatch.context() as patch:
        patch.setattr("train.train_run.export_heads", lambda path, heads: full(path))
        with pytest.raises(
            SightlineError, match=r"run: no room to write the model \(No space left"
        ):
            train_run(world.spec(killed), say=silent)
    assert RunFolder(killed).state().step == 6
    assert train_run(world.spec(killed), say=silent).steps == 6


@contextmanager
def no_file_above(size):
    """The system refuses to let a file grow beyond ``size``, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def full(path):
    raise SafetensorError(f"Error while serializing {path}: No space left on device (os error 28)")


# ---- `sightline train --dry-run` ----------------------------------------------------------------


def test_a_dry_run_counts_the_steps_that_are_left_and_writes_nothing(
    world, tmp_path, killed, finished_run
):
    random = torch.random.get_rng_state()
    before = content(tmp_path) | content(finished_run)
    new = steps_to_do(world.spec(tmp_path / "new", train={"max_steps": 40, "eval_steps": 16}))
    assert str(new) == f"{tmp_path.as_posix()}/new: 0 steps there, 40 to do"
    for out, changes, expected in (
        (killed, {}, (4, 2)),
        (finished_run, {}, (6, 0)),
        (finished_run, {"learning_rate": 0.5}, (0, 6)),
    ):
        left = steps_to_do(world.spec(out, train=changes))
        assert (left.done, left.to_do) == expected
    assert content(tmp_path) | content(finished_run) == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert torch.equal(torch.random.get_rng_state(), random)


# ---- signals ------------------------------------------------------------------------------------


class Ended(BaseException):
    """How the caller of the training handles a signal."""


@pytest.fixture
def ending():
    """Handlers that end the training, like those of the command line."""

    def end(number, frame):
        raise Ended(number)

    before = {number: signal.signal(number, end) for number in progress.SIGNALS}
    yield end
    for number, handler in before.items():
        signal.signal(number, handler)


def signal_twice(monkeypatch, number, step):
    """Signal this process in the middle of the step after ``step`` ones."""
    terms = SimCSE.terms

    def signalling(self, heads, batch, embeddings):
        if batch.k == step:
            signal.raise_signal(number)
            signal.raise_signal(number)
        return terms(self, heads, batch, embeddings)

    monkeypatch.setattr(SimCSE, "terms", signalling)


@pytest.mark.parametrize(
    ("number", "step"),
    # between two checkpoints, with one, and the last
    [(signal.SIGINT, 2), (signal.SIGTERM, 3), (signal.SIGTERM, 5)],
)
def test_a_signal_keeps_the_step_and_the_weights_come_out_the_same(
    world, tmp_path, finished_run, ending, monkeypatch, number, step
):
    spec = world.spec(tmp_path)
    with monkeypatch.context() as patch:
        signal_twice(patch, number, step)
        with pytest.raises(Ended) as ended:
            train_run(spec, say=silent)
    assert ended.value.args == (number,)
    (note,) = ended.value.__notes__
    assert f"step {step + 1} of 6 is kept" in note
    assert json.loads((tmp_path / "checkpoints/state.json").read_text())["step"] == step + 1
    assert train_run(spec, say=silent).dev_history == RunSummary.read(finished_run).dev_history
    assert_equal(weights_of(tmp_path), weights_of(finished_run))
    assert [signal.getsignal(each) for each in progress.SIGNALS] == [ending, ending]


def test_a_later_second_signal_does_not_wait_for_the_step(world, tmp_path, ending, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    signal_twice(monkeypatch, signal.SIGTERM, 5)
    with pytest.raises(Ended) as ended:
        train_run(world.spec(tmp_path), say=silent)
    (note,) = ended.value.__notes__
    assert "step 4 of 6 is kept" in note


def test_a_signal_that_is_ignored_stays_so(ending):
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a background job
    with progress.StopAtStep() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.received is None


def test_what_a_kill_left_unfinished_does_not_stay_in_the_output(world, tmp_path):
    token, theirs = "0123456789abcdef", ".mine.0123456789abcdef.tmp"
    out, beside = tmp_path / "run", tmp_path / "run.run"
    ours = beside / f"scratch-{token}"
    for folder in (out, beside, ours):
        folder.mkdir()
    (beside / "lock").write_text(f"process 1 on host\n{token}\n")
    for path in (out / theirs, ours / ".best-4.safetensors.tmp", ours / "model.safetensors"):
        path.write_bytes(b"half of it")
    train_run(world.spec(out, train={"max_steps": 1}), say=silent)
    assert [path.name for path in out.glob(".*")] == [theirs]
    assert not beside.exists()


def test_a_log_without_the_best_step_is_an_error_of_the_record(finished_run, tmp_path):
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    record = json.loads((run / "run.json").read_text())
    record["log"] = [entry for entry in record["log"] if entry["step"] != record["best_step"]]
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(SightlineError, match=r"run\.json: .*best_step is \d+, of which the log"):
        RunSummary.read(run)


@pytest.mark.parametrize("name", ["name", "model", "pooling"])
def test_a_record_says_which_student_it_trained(finished_run, tmp_path, name):
    run = Path(shutil.copytree(finished_run, tmp_path / "run"))
    record = json.loads((run / "run.json").read_text())
    del record["student"][name]
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(SightlineError, match=rf"run\.json: .*student has no {name}"):
        RunSummary.read(run)
