"""The command line itself: what it says when it is stopped, and of its own bugs."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from command_line import sightline
from demo_params import demo_params_text

from pipeline.cli import main
from pipeline.cli.extract import extract
from sightline.cache.record import FEATURE_KINDS
from train.objectives import FeatureNeed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", FEATURE_KINDS)
def test_the_command_that_an_objective_names_for_missing_features_exists(kind):
    assert FeatureNeed(kind, "clip").command == f"sightline extract {kind}"
    kinds, *_ = get_args(extract.__annotations__["kind"])
    assert kind in get_args(kinds)


def test_a_stage_outside_a_dvc_repository(monkeypatch, fails, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert "params.yaml: no such file" in fails("stage", "prepare", "scenes")
    (tmp_path / "params.yaml").write_text(demo_params_text())
    err = fails("stage", "prepare", "scenes")
    assert "not a DVC repository" in err
    assert "dvc init" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_with_one_line_on_how_to_resume(monkeypatch, capsys, number):
    def signalled() -> None:
        signal.raise_signal(number)

    monkeypatch.setattr("pipeline.cli.commands.app", signalled)
    handlers = {
        each: signal.signal(each, signal.SIG_DFL) for each in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        assert sightline() == 128 + number
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"stopped by {number.name}: ")
    assert "rerun the same command" in line


INTERRUPTED = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)"
SWALLOWED = f"""
try:
    {INTERRUPTED}
except BaseException:
    raise RuntimeError("cannot load module more than once per process")
"""


@pytest.mark.parametrize("module", ["typer", "pyarrow"])
@pytest.mark.parametrize("code", [INTERRUPTED, SWALLOWED], ids=["raised", "swallowed"])
def test_ctrl_c_while_libraries_are_imported_is_one_line(tmp_path, module, code):
    """The command line imports typer; `prepare` imports pyarrow."""
    (tmp_path / f"{module}.py").write_text(code)
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pipeline.cli import console\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "console()"
    )
    words = ["prepare", "sentences", "--set", f"path={__file__}", "--out", str(tmp_path / "out")]
    found = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, cwd=ROOT
    )
    assert found.returncode == 130, found.stderr
    (line,) = found.stderr.splitlines()
    assert line.startswith("stopped by SIGINT: ")


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """A command with a bug; its exception has a character that no encoding has."""

    def command() -> None:
        raise KeyError("nobody foresaw\nthis \ud800")

    monkeypatch.setattr("pipeline.cli.commands.app", command)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_an_unforeseen_exception_is_one_line_that_names_a_file_with_the_traceback(broken, capsys):
    assert sightline("prepare", "a file") == 1
    (line,) = capsys.readouterr().err.splitlines()
    (file,) = broken.iterdir()
    assert "is a bug in Sightline" in line
    assert f"report it with {file}" in line
    text = file.read_text()
    assert "sightline prepare 'a file'" in text
    assert "Traceback (most recent call last)" in text
    assert "nobody foresaw" in text


def test_debug_prints_the_traceback(broken, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["sightline", "--debug", "prepare"])
    with pytest.raises(KeyError, match="nobody foresaw"):
        main()
    assert not list(broken.iterdir())


def test_without_a_place_for_the_file_the_line_names_the_option(broken, monkeypatch, capsys):
    monkeypatch.setattr("tempfile.tempdir", str(broken / "absent"))
    assert sightline("prepare") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "`sightline --debug` prints" in line


def test_accept_keeps_the_runs_that_are_named_and_no_others(finished, tmp_path, monkeypatch, says):
    from train.code_digest import code_of

    monkeypatch.chdir(shutil.copytree(finished, tmp_path / "graph"))
    monkeypatch.setattr("train.code_digest.code_of", lambda names: code_of(names) | {"edited": "0"})
    assert says("accept", "simcse") == "runs/simcse/seed-0: accepted\n"
    assert sorted(says("accept").splitlines()) == [
        "runs/mcse-clip/seed-0: accepted",
        "runs/simcse/seed-0: the code that trained it has not changed",
    ]
    shutil.rmtree("runs/simcse")
    assert says("accept", "simcse") == "runs/simcse/seed-0: not trained yet\n"
