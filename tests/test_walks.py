"""The two walks of CONTRIBUTING.md: a run and an image enter its functions in the order named."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from cures import EXTRACT, PREPARE, TOKENS, TRAIN, run, write_inputs

ROOT = Path(__file__).parents[1]
STEP = re.compile(r"`([\w/]+\.py)`\s+\(`([\w.]+)`\)")


def walk(subject: str) -> list[tuple[str, str]]:
    """The files of a walk and the function of each; a class stands for making one."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (paragraph,) = [part for part in text.split("\n\n") if part.startswith(f"**{subject} in")]
    steps = STEP.findall(paragraph)
    return [(f, name if "." in name or name.islower() else f"{name}.__init__") for f, name in steps]


def entered(command: str) -> list[tuple[str, str]]:
    """The functions that a command enters, each once, with its file below the repository."""
    seen: dict[tuple[str, str], None] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)):
            file = Path(code.co_filename).relative_to(ROOT).as_posix()
            seen.setdefault((file, code.co_qualname))

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        assert run(command) == 0
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    return list(seen)


def test_the_walks_are_walked(tmp_path, monkeypatch):
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run(PREPARE) == 0
    assert run(TOKENS) == 0
    for subject, command in (("An image", f"{EXTRACT}clip"), ("A run", TRAIN)):
        steps, functions = walk(subject), entered(command)
        assert len(steps) == 7, subject
        assert [step for step in functions if step in steps] == steps
