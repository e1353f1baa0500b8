"""`train.compile: on`: the same steps within rounding, and the same resume."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import KillAfter, Killed, World, assert_alike, assert_equal, silent, weights_of
from transformers import BertModel

from sightline.errors import SightlineError
from train.train_run import train_run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ on a CPU"),
]


def without_dropout(world: World, folder: Path) -> dict[str, Any]:
    student = BertModel.from_pretrained(world.student)
    student.config.hidden_dropout_prob = student.config.attention_probs_dropout_prob = 0.0
    shutil.copytree(world.student, folder)
    student.save_pretrained(folder)
    return {"model": str(folder)}


@pytest.mark.parametrize("more", [{}, {"chunk": 3}, {"precision": "bf16"}], ids=str)
def test_compiled_steps_are_the_eager_ones_within_rounding(
    world: World, tmp_path: Path, more: dict[str, Any]
) -> None:
    student = without_dropout(world, tmp_path / "student")
    train = {"max_steps": 5, "eval_steps": 5, **more}
    for name in ("off", "on"):
        spec = world.spec(
            tmp_path / name, "mcse", student=student, train={**train, "compile": name}
        )
        train_run(spec, say=silent)
    eager, compiled = weights_of(tmp_path / "off"), weights_of(tmp_path / "on")
    assert_alike(eager, compiled, 1e-4 if "precision" not in more else 1e-2)


def test_a_resumed_compiled_run_has_the_weights_of_an_uninterrupted_one(
    world: World, tmp_path: Path
) -> None:
    train = {"max_steps": 6, "eval_steps": 2, "compile": "on"}
    train_run(world.spec(tmp_path / "whole", "mcse", train=train), say=silent)
    broken = world.spec(tmp_path / "broken", "mcse", train=train)
    with pytest.raises(Killed):
        train_run(broken, say=silent, callbacks=[KillAfter(4)])
    torch.compiler.reset()  # another process compiles again
    train_run(broken, say=silent)
    assert_equal(weights_of(tmp_path / "whole"), weights_of(tmp_path / "broken"))


def test_a_machine_that_cannot_compile_gets_one_error(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/compiler")
    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("/nowhere/compiler",))
    torch.compiler.reset()
    spec = world.spec(tmp_path, train={"compile": "on"})
    with pytest.raises(SightlineError, match=r"compile is on, but torch\.compile fails here"):
        train_run(spec, say=silent)
