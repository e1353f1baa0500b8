"""Processes that end without freeing their libraries end as others do in every other way."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import atexit, sys, threading, time
from pathlib import Path
from sightline.machine.signals import run_then_exit

class Freed:
    def __del__(self):
        print("freed")

kept = Freed()
kept.itself = kept

def late():
    time.sleep(0.2)
    print("thread done")

def command():
    atexit.register(lambda: print("handler ran"))
    threading.Thread(target=late).start()
    print("x" * 200_000)
    {end}

run_then_exit(command)
"""


def run(end: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{end}", end)], capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("sys.exit()", 0), ("sys.exit(3)", 3), ("sys.exit('a reason')", 1), ("1 / 0", 1)],
)
def test_threads_handlers_output_and_exit_code(end, code):
    found = run(end)
    assert found.returncode == code
    assert found.stdout.split() == ["x" * 200_000, "thread", "done", "handler", "ran"]
    assert ("a reason" in found.stderr) == ("reason" in end)
    assert ("ZeroDivisionError" in found.stderr) == ("1 / 0" in end)


def test_a_full_disk_under_stdout_is_an_error():
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with Path("/dev/full").open("w") as full:
        found = subprocess.run([sys.executable, "-c", PROGRAM.replace("{end}", "")], stdout=full)
    assert found.returncode != 0


@pytest.mark.parametrize("closed", ["1>&-", "2>&-", "1>&- 2>&-"])
def test_a_closed_output_is_none(closed):
    program = shlex.join([sys.executable, "-c", PROGRAM.replace("{end}", "sys.exit(3)")])
    found = subprocess.run(["sh", "-c", f"{program} {closed}"], capture_output=True, text=True)
    assert (found.returncode, found.stderr) == (3, "")
