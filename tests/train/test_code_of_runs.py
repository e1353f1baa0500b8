"""Code is an input of a run: the effect of an edited loss on finished and on killed runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import KillAfter, Killed, World, silent

from sightline.errors import SightlineError
from train import run_inputs as module
from train.code_digest import code_of
from train.evaluate.evaluation import Evaluation, evaluate_run
from train.loop import Callback
from train.records import RunState, RunSummary
from train.report.table import make_table
from train.run_folder import RunFolder
from train.train_run import train_run

LOSS = "train.losses.info_nce"


def edit(monkeypatch: pytest.MonkeyPatch, module_name: str = LOSS) -> dict[str, str]:
    """Change the source of one module from now on."""
    edited = {**code_of(["simcse"]), module_name: "0" * 64}
    monkeypatch.setattr(module, "code_of", lambda objectives: edited)
    return edited


def test_a_run_knows_the_code_that_trained_it(world: World, tmp_path: Path) -> None:
    found = train_run(world.spec(tmp_path), say=silent)
    assert found.code == code_of(["simcse"])
    assert RunSummary.read(tmp_path).code == found.code


def test_an_edited_loss_trains_a_finished_run_again(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_run(world.spec(tmp_path), say=silent)
    edited = edit(monkeypatch)
    lines: list[str] = []
    found = train_run(world.spec(tmp_path), say=lines.append)
    assert f"replacing the finished run in {tmp_path}: its code changed: {LOSS}" in lines[0]
    assert found.code == edited
    lines.clear()
    train_run(world.spec(tmp_path), say=lines.append)
    assert lines == [f"{found.run}: already trained, nothing to do ({tmp_path})"]


def test_a_killed_run_does_not_resume_under_another_loss(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Killed):
        train_run(world.spec(tmp_path), say=silent, callbacks=[KillAfter(5)])
    steps: list[int] = []

    class Noted(Callback):
        def step(self, state: RunState) -> None:
            steps.append(state.step)

    edit(monkeypatch)
    lines: list[str] = []
    train_run(world.spec(tmp_path), say=lines.append, callbacks=[Noted()])
    assert "the code changed since" in lines[0]
    assert "starting over" in lines[0]
    assert steps[0] == 1


def test_an_accepted_edit_keeps_the_run_and_its_results_say_so(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = world.spec(tmp_path / "run")
    before = train_run(spec, say=silent)
    weights = (tmp_path / "run/model/model.safetensors").read_bytes()
    assert spec.dev is not None
    sets = Evaluation.load({"similarity": {"data": spec.dev}})
    plain, _ = evaluate_run(tmp_path / "run", sets, tmp_path / "a.json", "cpu")
    edited = edit(monkeypatch)
    folder = RunFolder(tmp_path / "run")
    assert folder.accept(edited)
    assert not RunFolder(tmp_path / "run").accept(edited)
    lines: list[str] = []
    after = train_run(spec, say=lines.append)
    assert "already trained" in lines[0]
    assert after.code == before.code
    assert (tmp_path / "run/model/model.safetensors").read_bytes() == weights
    marked, _ = evaluate_run(tmp_path / "run", sets, tmp_path / "b.json", "cpu")
    assert marked.scores == plain.scores
    assert make_table([plain]).rows[0].marks == ()
    assert make_table([marked]).rows[0].marks == ("code edited since, accepted",)
    edit(monkeypatch, "train.loop")  # another edit, which was not accepted
    lines.clear()
    train_run(spec, say=lines.append)
    assert "its code changed: train.loop" in lines[0]


def test_only_a_finished_run_is_accepted(world: World, tmp_path: Path) -> None:
    with pytest.raises(SightlineError, match="no finished run here"):
        RunFolder(tmp_path / "none").accept({})
    assert not (tmp_path / "none").exists()
