"""A signal ends training after the step in which it arrives, and nothing of that step is lost."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import World, assert_equal, silent, weights_of

from train import progress as stopping
from train.objectives.mcse import MCSE
from train.records import RunSummary
from train.train_run import train_run


class Ended(BaseException):
    """How the caller of the training handles a signal."""


def signal_in(monkeypatch: pytest.MonkeyPatch, number: int, step: int, times: int = 1) -> None:
    """Signal this process in the middle of the step after ``step`` ones, as often as told."""
    terms = MCSE.terms

    def signalling(self: Any, batch: Any, views: Any, heads: Any) -> Any:
        if batch.k == step:
            for _ in range(times):
                signal.raise_signal(number)
        return terms(self, batch, views, heads)

    monkeypatch.setattr(MCSE, "terms", signalling)


@pytest.fixture
def ending() -> Iterator[None]:
    """Handlers that end the training, like those of the command line."""

    def end(number: int, frame: object) -> None:
        raise Ended(number)

    before = {number: signal.signal(number, end) for number in stopping.SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def whole(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run of six steps."""
    out = tmp_path_factory.mktemp("whole") / "run"
    assert train_run(world.spec(out, "mcse"), say=silent).steps == 6
    return out


@pytest.mark.parametrize(
    ("number", "step"),
    # between two checkpoints, with one, and the last
    [(signal.SIGINT, 2), (signal.SIGTERM, 2), (signal.SIGINT, 3), (signal.SIGTERM, 5)],
)
def test_a_signal_keeps_the_step_and_the_weights_come_out_the_same(
    world: World,
    tmp_path: Path,
    whole: Path,
    ending: None,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    step: int,
) -> None:
    broken = tmp_path / "broken"
    spec = world.spec(broken, "mcse")
    signal_in(monkeypatch, number, step, times=2)
    with pytest.raises(Ended) as ended:
        train_run(spec, say=silent)
    monkeypatch.undo()
    assert ended.value.args == (number,)
    (note,) = ended.value.__notes__
    assert f"step {step + 1} of 6 is kept" in note
    state = json.loads((broken / "checkpoints/state.json").read_text())
    assert state["step"] == step + 1
    assert train_run(spec, say=silent).dev_history == RunSummary.read(whole).dev_history
    assert_equal(weights_of(broken), weights_of(whole))


def test_a_later_second_signal_does_not_wait_for_the_step(
    world: World, tmp_path: Path, ending: None, monkeypatch
) -> None:
    monkeypatch.setattr(stopping, "PATIENCE", 0.0)
    signal_in(monkeypatch, signal.SIGTERM, 5, times=2)
    with pytest.raises(Ended) as ended:
        train_run(world.spec(tmp_path, "mcse"), say=silent)
    (note,) = ended.value.__notes__
    assert "step 4 of 6 is kept" in note


def test_a_signal_that_is_ignored_stays_so(ending: None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a background job
    with stopping.StopAtStep() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.asked is None


def test_handlers_are_restored(world: World, tmp_path: Path, ending: None) -> None:
    before = [signal.getsignal(number) for number in stopping.SIGNALS]
    train_run(world.spec(tmp_path, "mcse"), say=silent)
    assert [signal.getsignal(number) for number in stopping.SIGNALS] == before


def test_what_a_kill_left_unfinished_does_not_stay_in_the_output(
    world: World, tmp_path: Path
) -> None:
    token, theirs = "0123456789abcdef", ".mine.0123456789abcdef.tmp"
    out, beside = tmp_path / "run", tmp_path / "run.run"
    ours = beside / f"scratch-{token}"
    for folder in (out, beside, ours):
        folder.mkdir()
    (beside / "lock").write_text(f"process 1 on host\n{token}\n")
    for path in (out / theirs, ours / ".best.safetensors.tmp", ours / "model.safetensors"):
        path.write_bytes(b"half of it")
    train_run(world.spec(out, train={"max_steps": 1}), say=silent)
    assert [path.name for path in out.glob(".*")] == [theirs]
    assert not beside.exists()
