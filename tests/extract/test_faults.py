"""A full or failing disk ends a run with one message, and published sets stay intact."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from interrupted import AFTER, World, boundaries, files


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
    code = STAGE + "resource.setrlimit(resource.RLIMIT_FSIZE, (120_000, -1)); stage()"
    broken = run(code, tmp_path / "set")
    assert broken.returncode == 1
    (line,) = broken.stderr.splitlines()
    assert os.strerror(errno.EFBIG) in line
    assert "of 3,000 texts are done and kept" in line
    assert not (tmp_path / "set" / "set.json").exists()
    assert run(STAGE + "stage()", tmp_path / "set").returncode == 0
    assert run(STAGE + "stage()", tmp_path / "whole").returncode == 0
    assert files(tmp_path / "set") == files(tmp_path / "whole")


def test_a_disk_of_two_megabytes_that_fills_up(tmp_path: Path) -> None:
    inside = tmp_path / "disk"
    inside.mkdir()
    mounted = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=2m none "$0" && exec "$@"']
    probe = [*mounted, str(inside), "true"]
    if not shutil.which("unshare") or subprocess.run(probe, capture_output=True).returncode:
        pytest.skip("this system lets nobody mount a file system")
    code = STAGE + "full_disk_and_then_room(Path(sys.argv[1]).parent)"
    found = run(code, inside / "set", *mounted, str(inside))
    assert found.returncode == 0, found.stderr
    first, second = found.stderr.splitlines()
    assert os.strerror(errno.ENOSPC) in first
    assert "free some space and rerun the same command" in first
    assert second == "sound, and grown"


STAGE = """
import os, resource, sys
from pathlib import Path
from pipeline import cli
from pipeline.cli import commands
from sightline.cache import FeatureSet, verify, writer
from pipeline.extract.settings import RunSettings
from pipeline.extract import encode_missing as run
from pipeline.extract.inputs import FeatureInputs
from stage_server import stub_encoder, stub_rows, without_torch

writer.BLOCK_ROWS = dict.fromkeys(writer.BLOCK_ROWS, 256)
without_torch()

def stage(count=3000, encode=stub_rows):
    encoder = stub_encoder(encode)
    texts = FeatureInputs("text", [f"text {i}" for i in range(count)])
    settings = RunSettings(max_failed=0.2)
    out = Path(sys.argv[1])
    commands.app = lambda: run.encode(texts, encoder, out, settings)
    cli.main()

def full_disk_and_then_room(disk):
    stage(1000)
    before, calls = FeatureSet.open(disk / "set").record, []
    def fill(texts, length):
        calls.append(1)
        if len(calls) == 12:
            with open(disk / "hog", "wb", buffering=0) as hog:
                try:
                    while hog.write(b"x" * 4096):
                        pass
                except OSError:
                    pass
        return stub_rows(texts, length)
    try:
        stage(3000, fill)
    except SystemExit as end:
        assert end.code == 1
    assert verify(disk / "set") == []
    assert FeatureSet.open(disk / "set").record == before
    (disk / "hog").unlink()
    stage(3000)
    assert verify(disk / "set") == []
    assert len(FeatureSet.open(disk / "set")) > 2900
    print("sound, and grown", file=sys.stderr)
"""


def run(code: str, out: Path, *before: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[1]}:{Path.cwd()}"}
    command = [*before, sys.executable, "-c", code, str(out)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)
