"""However a run ends, the next one leaves exactly the files of an uninterrupted run.

A kill, an error of the disk, or a signal, which says in one line what is kept.
"""

from __future__ import annotations

import errno
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys

import pytest
from engine_work import StubWork
from fault_layer import ends_and_middle_of_each
from interrupted import AFTER, KILLED, boundaries, files, image_words, some_of

from sightline.cache import verify

PROGRESS = (" expected", " left")  # the ends of its lines, which a busy machine has time for


def kill(world, folder, point):
    folder = world.copy(folder)
    broken = world.server.run(folder, texts=AFTER, act="kill", at=point)
    assert broken.code == KILLED, point
    world.check_readers(folder)
    world.go_on(folder, broken)


@pytest.mark.parametrize("some", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_kill_at_every_write_boundary(world, tmp_path, some):
    points = boundaries(world.unbroken.points, "before sync")  # of which no file knows
    assert {
        *("half write part", "before rename part", "before remove part", "before remove plan"),
        *("half write shard", "before rename shard", "half write index", "before rename index"),
        *("half write record", "before rename record", "half write plan", "half write failures"),
    } <= {re.sub(r" \d+$", "", point) for point in points}
    for point in some_of(points) if some else points:
        kill(world, tmp_path / point, point)


@pytest.mark.slow
def test_kills_at_every_kind_of_point_and_up_to_three_in_a_row_at_random(world, tmp_path):
    """At the first, the middle and the last point of every name, and 40 times at random."""
    points = [point for point in world.unbroken.points if "encode" not in point]
    for point in ends_and_middle_of_each(points):
        kill(world, tmp_path / point, point)
        shutil.rmtree(tmp_path / point)
    rng, hits = random.Random(1), 0
    for i in range(40):
        folder = world.copy(tmp_path / str(i))
        for _ in range(rng.randint(1, 3)):
            delay = rng.uniform(0, 1.2 * world.unbroken.seconds)
            broken = world.server.run(folder, texts=AFTER, kill_after=delay)
            assert broken.code in (KILLED, 0)
            world.check_readers(folder)
            hits += broken.code == KILLED
        outcome = world.server.run(folder, texts=AFTER)
        assert outcome.code == 0, outcome.said
        assert files(folder) == world.expected
        shutil.rmtree(tmp_path / str(i))
    assert hits >= 13


@pytest.mark.slow
def test_seven_kills_of_a_real_encoder_with_decode_workers(real, tmp_path):
    words = image_words(tmp_path, count=60)
    whole = real.run(tmp_path, words=[*words, str(tmp_path / "whole")])
    assert whole.code == 0, whole.said
    rng = random.Random(0)
    hits = 0
    for i in range(20):  # a kill may come too late where other work ran beside the whole run
        if hits == 7:
            break
        out = tmp_path / f"out {i}"
        delay = rng.uniform(0, 0.9 * whole.seconds)
        hits += real.run(out, words=[*words, str(out)], kill_after=delay).code == KILLED
        if (out / "set.json").exists():
            assert verify(out) == []
        # decode workers of the killed run may still be there
        again = real.run(out, words=[*words, str(out)])
        assert again.code == 0, again.said
        assert files(out) == files(tmp_path / "whole")
    assert hits == 7


# --- a full or failing disk


@pytest.mark.parametrize("some", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_an_error_at_every_write_boundary(world, tmp_path, number, some):
    # what could not be remembered as checked is read again
    points = boundaries(world.unbroken.points, "encode")
    for point in some_of(points) if some else points:
        if "checked" in point or (number == errno.ENOSPC and "half" not in point):
            continue  # a disk is full in the middle of a write
        folder = world.copy(tmp_path / point)
        broken = world.server.run(folder, texts=AFTER, act="raise", at=point, number=number)
        assert broken.code == 1, f"{point}: {broken.said}"
        (line,) = broken.said.splitlines()
        assert line.startswith("error: "), point
        assert os.strerror(number) in line
        assert ("free some space" if number == errno.ENOSPC else "fix this") in line
        assert "rerun the same command to resume" in line
        assert not [path for path in folder.iterdir() if path.name.endswith(".tmp")]
        world.check_readers(folder)
        world.go_on(folder, broken)


def test_a_limit_on_the_size_of_files(tmp_path):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, -1))

    work, whole = (StubWork(tmp_path / name, texts=3000) for name in ("set", "whole"))
    broken = work.process(preexec_fn=limit)
    _, said = broken.communicate()
    assert broken.returncode == 1
    (line,) = [each for each in said.splitlines() if not each.endswith(PROGRESS)]
    assert os.strerror(errno.EFBIG) in line
    assert "of 3,000 texts are done and kept" in line
    assert not (tmp_path / "set" / "set.json").exists()
    for each in (work, whole):
        each()
    assert files(work.out) == files(whole.out)


# --- SIGINT and SIGTERM


def check_line(outcome, number):
    """The one line that the user sees, beside those of progress."""
    assert outcome.code == 128 + number, outcome.said
    (line,) = [each for each in outcome.said.splitlines() if not each.endswith(PROGRESS)]
    assert line.startswith(f"stopped by {number.name}: ")
    assert "the same command" in line
    return line


@pytest.mark.parametrize(
    ("number", "point"),
    [
        (signal.SIGINT, "encode 9"),
        (signal.SIGTERM, "half write part 3"),
        (signal.SIGINT, "before rename shard 1"),
        (signal.SIGTERM, "half write record 1"),
    ],
)
def test_a_signal_keeps_the_blocks(world, tmp_path, number, point):
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
def images(real, tmp_path_factory):
    """The words of an extraction, and its output when uninterrupted."""
    folder = tmp_path_factory.mktemp("images")
    words = image_words(folder, count=40)
    whole = real.run(folder, words=[*words, str(folder / "whole")])
    assert whole.code == 0, whole.said
    return words, folder / "whole"


@pytest.mark.parametrize(
    ("number", "point", "group"),
    [
        (signal.SIGINT, "encode 3", True),
        (signal.SIGTERM, "decode 2", False),
        pytest.param(signal.SIGTERM, "decode 2", True, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "half write part 1", False, marks=pytest.mark.slow),
    ],
)
def test_a_signal_to_a_process_or_its_group_while_workers_decode(
    real, images, tmp_path, number, group, point
):
    words, whole = images
    out = tmp_path / "set"
    stopped = real.run(
        out, words=[*words, str(out)], act="signal", at=point, number=number, group=group
    )
    assert "of 40 images are done and kept" in check_line(stopped, number)
    again = real.run(out, words=[*words, str(out)])
    assert again.code == 0, again.said
    assert files(out) == files(whole)


def test_prepare_leaves_existing_files(real, tmp_path):
    def prepare(text, **broken):
        (tmp_path / "a.txt").write_text(text)
        words = ["prepare", "sentences", f"--path={tmp_path}/a.txt", f"--out={out}"]
        return real.run(out, words=words, **broken)

    out = tmp_path / "data"
    assert prepare("one\ntwo\n").code == 0
    before = files(out)
    stopped = prepare("three\n", act="signal", at="before sync folder 1", number=signal.SIGTERM)
    assert "what was published before is intact" in check_line(stopped, signal.SIGTERM)
    assert files(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "data"]


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.5, 1.5, 3.0, 6.0])
def test_timeout_ends_a_command_whatever_it_does(tmp_path, wait):
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


def test_a_signal_is_not_lost_where_python_drops_exceptions():
    code = """
import signal, time, weakref
from sightline.machine.signals import Stopped, stop_on_signals

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
