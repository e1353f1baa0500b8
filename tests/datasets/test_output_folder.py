"""The output folder of prepare: the old one or the new one, whatever happens in between."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pipeline.datasets import folder as folders
from pipeline.datasets.base import REPORT, DatasetError
from pipeline.datasets.folder import building


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def write(out, text):
    with building(out) as folder:
        (folder / REPORT).write_text(text, encoding="utf-8")


def test_a_second_run_replaces_the_first_and_leaves_nothing_beside_it(tmp_path):
    write(tmp_path / "out", "old")
    write(tmp_path / "out", "new")
    assert (tmp_path / "out" / REPORT).read_text() == "new"
    assert names_in(tmp_path) == ["out"]


def test_an_error_keeps_the_old_folder(tmp_path):
    write(tmp_path / "out", "old")
    with pytest.raises(UnicodeEncodeError):
        write(tmp_path / "out", "new \ud800")
    assert (tmp_path / "out" / REPORT).read_text() == "old"
    assert names_in(tmp_path) == ["out"]


KILLED = """
import os, signal, sys
from pathlib import Path
from pipeline.datasets.folder import building
with building(Path(sys.argv[1])) as folder:
    (folder / "report.json").write_text("new")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_keeps_the_old_folder_and_the_next_run_clears_up(tmp_path):
    write(tmp_path / "out", "old")
    assert subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "out")]).returncode == -9
    assert (tmp_path / "out" / REPORT).read_text() == "old"
    assert len(names_in(tmp_path)) == 2
    write(tmp_path / "out", "new")
    assert names_in(tmp_path) == ["out"]


def test_a_system_without_exchange_gets_two_renames(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_exchange_at_once", lambda one, other: False)
    test_a_second_run_replaces_the_first_and_leaves_nothing_beside_it(tmp_path)


def test_a_folder_of_somebody_else_is_never_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DatasetError, match="holds files that prepare did not write"):
        write(tmp_path, "new")
    assert (tmp_path / "thesis.tex").exists()
