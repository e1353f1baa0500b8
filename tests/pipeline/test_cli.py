"""The command line itself: what it says when it is stopped, of its own bugs, and of progress."""

from __future__ import annotations

import errno
import io
import re
import resource
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import sightline, unboxed
from safetensors import SafetensorError
from safetensors.numpy import save_file

from pipeline.cli import main
from sightline.cache.feature_kind import KINDS
from sightline.errors import message_of
from sightline.files.atomic_files import names_home
from sightline.machine import progress as module
from sightline.machine.progress import phase_progress, progress
from train.objectives import FeatureNeed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_that_an_objective_names_for_missing_features_exists(kind):
    assert FeatureNeed(kind, "clip").command == f"sightline extract {kind}"
    words = ["extract", kind, "--data", "nowhere", "--encoder", "x", "--out", "out"]
    assert sightline(*words, "--weights", "random:0") == 1  # it is about the encoder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_command_with_one_line_on_how_to_resume(monkeypatch, capsys, number):
    monkeypatch.setattr("pipeline.cli.commands.app", lambda: signal.raise_signal(number))
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


@pytest.mark.parametrize(
    "words",
    [
        ["prepare", "pairs", "--images=~/mine/photos"],
        ["prepare", "coco", "--captions", "train=~/train.json"],
        ["prepare", "pairs", "--images", "~/photos"],
        ["extract", "image", "--out=~/o"],
        ["extract", "image", "--out", "~"],
        ["extract", "image", "--weights", "file:~me/x.safetensors"],
        ["evaluate", "--model", "mine=~/run"],
    ],
)
def test_a_path_from_home_that_no_shell_expanded_is_refused(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert sightline(*words) == 2
    assert "~ is not expanded here" in unboxed(capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("word", ["~backup.csv", "a~/b", "x=~", "./~/x", "at ~/x", "ratio: ~1/2"])
def test_another_tilde_is_no_home(word):
    assert not names_home(word)


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
    words = ["prepare", "sentences", "--path", f"{__file__}", "--out", str(tmp_path / "out")]
    found = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, cwd=ROOT
    )
    assert found.returncode == 130, found.stderr
    (line,) = found.stderr.splitlines()
    assert line.startswith("stopped by SIGINT: ")


@pytest.fixture
def broken(monkeypatch, tmp_path):
    """Commands have a bug, whose exception has a character that no encoding has."""

    def command() -> None:
        raise KeyError("nobody foresaw\nthis \ud800")

    monkeypatch.setattr("pipeline.cli.commands.app", command)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_an_unforeseen_exception_is_one_line_that_names_a_file_with_the_traceback(
    broken, tmp_path, monkeypatch, capsys
):
    assert sightline("prepare", "a file") == 1
    (line,) = capsys.readouterr().err.splitlines()
    (file,) = tmp_path.iterdir()
    assert "is a bug in Sightline" in line
    assert f"report it with {file}" in line
    text = file.read_text()
    assert "sightline prepare 'a file'" in text
    assert "Traceback (most recent call last)" in text
    assert "nobody foresaw" in text
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    assert sightline("prepare") == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "`sightline --debug` prints" in line


def test_debug_prints_the_traceback(broken, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["sightline", "--debug", "prepare"])
    with pytest.raises(KeyError, match="nobody foresaw"):
        main()
    assert not list(tmp_path.iterdir())


NO_MAP = ImportError("libtorch_cuda.so: failed to map segment from shared object")
WRAPPED = RuntimeError("Failed to import transformers.models.bert")
WRAPPED.__cause__ = NO_MAP
NUMPY = ImportError("PLEASE READ THIS\nOriginal error was: libopenblas.so: failed to map segment")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), "MemoryError"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "Cannot allocate memory"),
        (OSError("libc10.so: failed to map segment from shared object"), "libc10.so: failed"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "can't allocate"),
        (RuntimeError("std::bad_alloc"), "std::bad_alloc"),
        (WRAPPED, "libtorch_cuda.so: failed to map"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
        (NUMPY, "libopenblas.so: failed"),
    ],
)
@pytest.mark.parametrize("limit", [4_096_000_000, resource.RLIM_INFINITY])
def test_too_little_memory_is_said_with_the_limit(monkeypatch, error, reason, limit):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    message = message_of(error)
    assert message is not None
    assert message.startswith("there is not enough memory (")
    assert reason in message
    assert "\n" not in message
    limited = "may have 4.1 GB of virtual memory" in message
    assert limited == (limit != resource.RLIM_INFINITY) == ("`ulimit -v unlimited`" in message)


def test_a_file_called_out_of_memory_is_no_lack_of_it():
    error = FileNotFoundError(errno.ENOENT, "No such file or directory", "out of memory.png")
    assert (message_of(error) or "").startswith("out of memory.png: No such file")
    assert message_of(KeyError("out of memory")) is None


@pytest.mark.parametrize("megabytes", [60, 200])
def test_a_limit_below_what_libraries_take_is_one_line(tmp_path, megabytes):
    words = ["prepare", "sentences", "--path", __file__, "--out", str(tmp_path / "out")]
    command = shlex.join([sys.executable, "-m", "pipeline.cli", *words])
    shell = f"ulimit -v {megabytes * 1000} && {command}"
    found = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, cwd=ROOT)
    assert found.returncode == 1, found.stderr
    (line,) = found.stderr.splitlines()
    assert line.startswith("error: there is not enough memory (")
    assert f"{megabytes * 1.024:.1f} MB of virtual memory" in line


# -- progress ------------------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test sets."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("total", "given", "pieces", "lines"),
    [
        (
            1_500,
            {"done": 500},
            [(5, 100)] * 4,  # (seconds, images)
            [
                "700 of 1,500 images, 20 images/s, 0:00:40 left",
                "900 of 1,500 images, 20 images/s, 0:00:30 left",
            ],
        ),
        (7_210, {}, [(20, 10)], ["10 of 7,210 images, 0.5 images/s, 4:00:00 left"]),
        (
            1_500,
            {"done": 500, "device": "cpu"},
            [(9, 100)] + [(1, 100)] * 3,  # the first, with the time to start, tells nothing
            ["1,000 images to do on cpu, 100 images/s, 0:00:18 expected"],
        ),
        (
            100,
            {"device": "cuda"},
            [(50, 10)] * 2,  # slow work says so with its first piece
            [
                "100 images to do on cuda, 0.2 images/s, 0:08:20 expected",
                "20 of 100 images, 0.2 images/s, 0:06:40 left",
            ],
        ),
        (100, {"device": "cpu"}, [(0.1, 10)] * 10, []),
    ],
)
def test_a_log_gets_plain_lines_with_rate_and_time(clock, capsys, total, given, pieces, lines):
    with progress("features", total, "images", **given) as advance:
        for seconds, count in pieces:
            clock[0] += seconds
            advance(count)
    assert capsys.readouterr().err.splitlines() == [f"features: {line}" for line in lines]


def test_each_phase_has_a_separate_count(clock, capsys):
    with phase_progress() as tell:
        for what, done in [("drawing", 5), ("drawing", 10), ("training", 3)]:
            clock[0] += 11
            tell(what, done, 10, "scenes")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("drawing: 10 of 10 scenes,")


def test_a_phase_that_fails_leaves_no_bar(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with suppress(ValueError), phase_progress() as tell:
        tell("drawing", 5, 10, "scenes")
        raise ValueError
    shows_the_cursor, hides_it = "\x1b[?25h", "\x1b[?25l"
    assert screen.getvalue().rindex(shows_the_cursor) > screen.getvalue().rindex(hides_it)


def test_a_terminal_gets_the_first_line_above_a_bar_with_rate_and_time_left(monkeypatch, clock):
    screen = io.StringIO()
    screen.isatty = lambda: True
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


def test_what_the_system_says_of_a_file_of_weights_is_no_bug(tmp_path):
    with pytest.raises(SafetensorError) as caught:
        save_file({}, tmp_path / "no folder/model.safetensors")
    message = message_of(caught.value)
    assert message is not None
    assert "No such file or directory" in message
    assert message.endswith("; what was published before is intact")
    assert message_of(SafetensorError("invalid header")) is None
