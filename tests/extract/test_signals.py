"""SIGINT and SIGTERM end a stage with one line, keep its blocks, and leave nothing broken."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from interrupted import AFTER, World, files, image_words
from stage_server import Outcome, StageServer

SIGNALS = [signal.SIGINT, signal.SIGTERM]
PROGRESS = (" expected", " left")  # the ends of its lines, which a busy machine has time for


def check_line(outcome: Outcome, number: signal.Signals) -> str:
    """The one line that the user sees, beside those of progress."""
    assert outcome.code == 128 + number, outcome.said
    (line,) = [each for each in outcome.said.splitlines() if not each.endswith(PROGRESS)]
    assert line.startswith(f"stopped by {number.name}: ")
    assert "the same command" in line
    return line


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize(
    "point",
    ["encode 9", "half write part 3", "before rename shard 1", "half write record 1"],
)
def test_a_signal_keeps_the_blocks(
    world: World, tmp_path: Path, number: signal.Signals, point: str
) -> None:
    folder = world.copy(tmp_path)
    stopped = world.server.run(folder, texts=AFTER, act="signal", at=point, number=number)
    line = check_line(stopped, number)
    kept = int(line.partition("set: ")[2].split(" of ")[0])
    assert f"of {AFTER - 100} texts are done and kept" in line
    world.check_readers(folder)
    again = world.server.run(folder, texts=AFTER)
    assert again.code == 0, again.said
    # rows encoded and written before the signal are not re-encoded
    assert again.encoded == world.unbroken.encoded - kept
    assert files(folder) == world.expected


@pytest.fixture(scope="module")
def images(real: StageServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[str], Path]:
    """The words of an extraction, and its output when uninterrupted."""
    folder = tmp_path_factory.mktemp("images")
    words = image_words(folder, count=40)
    whole = real.run(folder, words=[*words, str(folder / "whole")])
    assert whole.code == 0, whole.said
    return words, folder / "whole"


@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize(
    ("number", "point"),
    [
        (signal.SIGINT, "encode 3"),
        (signal.SIGTERM, "decode 2"),
        (signal.SIGTERM, "half write part 1"),
    ],
)
def test_a_signal_to_a_process_or_its_group_while_workers_decode(
    real: StageServer,
    images: tuple[list[str], Path],
    tmp_path: Path,
    number: signal.Signals,
    group: bool,
    point: str,
) -> None:
    words, whole = images
    out = tmp_path / "set"
    stopped = real.run(
        out, words=[*words, str(out)], act="signal", at=point, number=number, group=group
    )
    assert "of 40 images are done and kept" in check_line(stopped, number)
    again = real.run(out, words=[*words, str(out)])
    assert again.code == 0, again.said
    assert files(out) == files(whole)


@pytest.mark.parametrize("number", SIGNALS)
def test_prepare_leaves_existing_files(
    real: StageServer, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    words = ["prepare", "sentences", "--set", f"path={tmp_path / 'a.txt'}", "--out"]
    out = tmp_path / "data"
    assert real.run(out, words=[*words, str(out)]).code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    (tmp_path / "a.txt").write_text("three\n")
    stopped = real.run(
        out, words=[*words, str(out)], act="signal", at="before sync folder 1", number=number
    )
    assert "what was published before is intact" in check_line(stopped, number)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "data"]


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0])
def test_timeout_ends_a_command_whatever_it_does(tmp_path: Path, wait: float) -> None:
    """From loading libraries to publishing; `timeout` signals the process, then its group."""
    words = [*image_words(tmp_path, count=200), str(tmp_path / "set")]
    python = [sys.executable, "-c", "from pipeline.cli import main; main()"]
    command = ["timeout", "--kill-after=30", str(wait), *python, *words]
    found = subprocess.run(command, capture_output=True, text=True)
    assert "Traceback" not in found.stderr
    if found.returncode == 0:
        assert wait > 2, "the libraries alone take longer"
        return
    assert found.returncode == 124, found.stderr
    if not found.stderr:  # Python itself was not there yet, or its work was done and said
        assert wait <= 1 or "200 rows" in found.stdout
        return
    (line,) = found.stderr.splitlines()
    assert line.startswith("stopped by SIGTERM: ")
    assert "the same command" in line


def test_a_signal_is_not_lost_where_python_drops_exceptions() -> None:
    code = """
import signal, time, weakref
from sightline.signals import Stopped, stop_on_signals

class Thing:
    pass

stop_on_signals()
thing = Thing()
reference = weakref.ref(thing, lambda gone: signal.raise_signal(signal.SIGTERM))
try:
    del thing
    time.sleep(20)
except Stopped as stop:
    print(stop)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.startswith("stopped by SIGTERM: ")
    assert found.stderr == ""
