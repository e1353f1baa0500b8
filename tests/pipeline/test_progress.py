"""Progress: lines with rate and time left in a log, a bar on a terminal."""

from __future__ import annotations

import io
import re

import pytest

from sightline import progress as module
from sightline.progress import PhaseProgress, progress


class Terminal(io.StringIO):
    """A text stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_plain_lines_with_rate_and_time_left(clock, capsys):
    with progress("features", 1_500, "images", done=500) as advance:
        for _ in range(4):
            clock[0] += 5
            advance(100)
    assert capsys.readouterr().err.splitlines() == [
        "features: 700 of 1,500 images, 20 images/s, 0:00:40 left",
        "features: 900 of 1,500 images, 20 images/s, 0:00:30 left",
    ]


def test_a_slow_model_has_a_rate_too(clock, capsys):
    with progress("ground", 7_210, "images") as advance:
        clock[0] += 20
        advance(10)
    said = capsys.readouterr().err
    assert said == "ground: 10 of 7,210 images, 0.5 images/s, 4:00:00 left\n"


def test_each_phase_has_a_separate_count(clock, capsys):
    tell = PhaseProgress()
    for what, done in [("drawing", 5), ("drawing", 10), ("training", 3)]:
        clock[0] += 11
        tell(what, done, 10, "scenes")
    assert [line.partition(",")[0] for line in capsys.readouterr().err.splitlines()] == [
        "drawing: 10 of 10 scenes",
    ]


def test_the_first_line_says_where_and_how_long_without_the_time_to_start(clock, capsys):
    with progress("features", 1_500, "images", done=500, device="cpu") as advance:
        for seconds in (9, 1, 1, 1):
            clock[0] += seconds
            advance(100)
    assert capsys.readouterr().err.splitlines() == [
        # 9 s for the first 100, 1 s for each other
        "features: 1,000 images to do on cpu, 100 images/s, 0:00:18 expected",
    ]


def test_slow_work_says_so_with_its_first_piece(clock, capsys):
    with progress("ground", 100, "images", device="cuda") as advance:
        for _ in range(2):
            clock[0] += 50
            advance(10)
    assert capsys.readouterr().err.splitlines() == [
        "ground: 100 images to do on cuda, 0.2 images/s, 0:08:20 expected",
        "ground: 20 of 100 images, 0.2 images/s, 0:06:40 left",
    ]


def test_a_short_run_has_no_first_line(clock, capsys):
    with progress("features", 100, "images", device="cpu") as advance:
        for _ in range(10):
            clock[0] += 0.1
            advance(10)
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_the_first_line_above_a_bar_with_rate_and_time_left(monkeypatch, clock):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    with progress("[fp16]/features", 40, "images", device="cpu") as advance:
        for _ in range(4):
            clock[0] += 1
            advance(10)
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "[fp16]/features: 40 images to do on cpu, 10 images/s, 0:00:04 expected" in shown
    assert re.search(r"\[fp16\]/features .*40/40 [\d,.]+ images/s \d:\d\d:\d\d", shown)
