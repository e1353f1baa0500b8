"""A full or failing disk ends a run with one message, and published sets stay intact."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from engine_work import StubWork
from interrupted import AFTER, World, boundaries, files

from sightline.progress import SILENT


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_an_error_at_every_write_boundary(world: World, tmp_path: Path, number: int) -> None:
    for point in boundaries(world.unbroken.points):
        if "encode" in point or (number == errno.ENOSPC and "half" not in point):
            continue  # a disk is full in the middle of a write
        if "checked" in point:
            continue  # what is not remembered is read again
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


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    work = StubWork(tmp_path / "set", texts=3000)
    broken = run(work, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, -1)))
    assert broken.returncode == 1
    (line,) = broken.stderr.splitlines()
    assert os.strerror(errno.EFBIG) in line
    assert "of 3,000 texts are done and kept" in line
    assert not (tmp_path / "set" / "set.json").exists()
    assert run(work).returncode == 0
    assert run(StubWork(tmp_path / "whole", texts=3000)).returncode == 0
    assert files(tmp_path / "set") == files(tmp_path / "whole")


def run(
    work: StubWork, begin: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), SILENT: "1"}
    return subprocess.run(
        work.command(), capture_output=True, text=True, env=environment, preexec_fn=begin
    )
