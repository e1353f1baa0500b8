"""The command line itself: it starts fast, explains itself, and never shows a traceback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from pipeline.cache.record import FEATURE_KINDS
from pipeline.cli import app, main
from train.objectives import FeatureNeed

ROOT = Path(__file__).parents[2]


def sightline(monkeypatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["sightline", *map(str, words)])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


def commands(group=None, path=()):
    """Every command below the app, with the words that call it."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def test_help_loads_nothing_heavy():
    code = (
        "import sys, pipeline.cli\n"
        "heavy = {'numpy', 'pandas', 'pyarrow', 'pydantic', 'torch', 'transformers', 'h5py'}\n"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=[n for n, _ in commands()])
def test_every_command_has_help_with_an_example(name, command):
    assert f"Example: sightline {name}" in (command.help or "")
    for option in command.params:
        if option.param_type_name == "option" and option.name != "help":
            assert option.help, f"{name} {option.name}"


@pytest.mark.parametrize("kind", FEATURE_KINDS)
def test_the_command_that_an_objective_names_for_missing_features_exists(kind):
    command = FeatureNeed(kind, "clip").command
    assert command.removeprefix("sightline ") in dict(commands())


def test_misuse_exits_with_2(monkeypatch):
    assert sightline(monkeypatch, "cache", "info") == 2
    assert sightline(monkeypatch, "no-such-command") == 2


def test_a_stage_outside_a_dvc_repository(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert sightline(monkeypatch, "stage", "prepare", "scenes") == 1
    assert "params.yaml: no such file" in capsys.readouterr().err
    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    assert sightline(monkeypatch, "stage", "prepare", "scenes") == 1
    said = capsys.readouterr().err
    assert "not a DVC repository" in said
    assert "dvc init" in said


def test_cache_commands_on_nothing(monkeypatch, capsys, tmp_path):
    for command in ("list", "verify"):
        assert sightline(monkeypatch, "cache", command, tmp_path) == 1
        assert "no cache set here or below" in capsys.readouterr().err
    assert sightline(monkeypatch, "cache", "info", tmp_path) == 1
    assert "no set here" in capsys.readouterr().err


def test_doctor_reports_the_environment(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert sightline(monkeypatch, "doctor", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["packages"]["torch"] != "not installed"
    assert "cpu" in report["devices"]
    assert report["free disk"].endswith(" GB")
    assert "HF_HUB_OFFLINE" in report["model hub"]
    assert report["dvc remotes"] == "none"


def test_doctor_names_dvcs_remotes_and_a_hub_that_does_not_answer(monkeypatch, capsys, tmp_path):
    from huggingface_hub import constants

    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc" / "config").write_text("['remote \"team\"']\n    url = /shared/sightline\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the port that discards
    assert sightline(monkeypatch, "doctor") == 0
    said = capsys.readouterr().out
    assert "team (/shared/sightline)" in said
    assert "http://127.0.0.1:9 does not answer" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_with_one_line_on_how_to_resume(monkeypatch, capsys, number):
    def signalled() -> None:
        signal.raise_signal(number)

    monkeypatch.setattr("pipeline.cli.app", signalled)
    handlers = {
        each: signal.signal(each, signal.SIG_DFL) for each in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        assert sightline(monkeypatch) == 128 + number
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"stopped by {number.name}: ")
    assert "rerun the same command" in line
