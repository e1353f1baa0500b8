"""However a grounding is killed, the next run leaves exactly the files of an uninterrupted one."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flat_tables import rows_with_keys
from ground_data import DataSet

from sightline.cache.groundings import read_phrases

HERE = Path(__file__).parent
OUTPUTS = ("out", "cut", "out.run", "cut.run")


class GroundServer:
    """The test's end of a server: one run at a time."""

    def __init__(self) -> None:
        path = [str(HERE), str(HERE.parent), *sys.path]
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "ground_server.py")],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, request: dict[str, str]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


class World:
    """Published records and cut-outs, and the result of an uninterrupted run on them."""

    def __init__(self, folder: Path) -> None:
        self._servers = [GroundServer(), GroundServer()]
        data = DataSet(folder / "data")
        self._data, self.base = data.folder, folder / "base"
        data.add("0.png", "a red dog", "a b")  # the second one names nothing
        for i in range(1, 5):
            data.add(f"{i}.png")
        data.write()
        assert self.run(self.base)["code"] == 0
        before = self.rows(self.base)
        del data.captions["0.png"]  # a shard is rewritten without it
        for i in range(5, 9):
            data.add(f"{i}.png")
        (data.folder / "images/bad.png").write_bytes(b"no image")
        data.captions["bad.png"] = ["a blue ball"]
        data.write()
        whole = self.copy(folder / "whole")
        self.unbroken = self.run(whole)
        assert self.unbroken["code"] == 0, self.unbroken["said"]
        self.expected = self.files(whole)
        self.states = [before, self.rows(whole)]
        assert before != self.states[1]

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def run(self, folder: Path, at: str = "", workers: int = 0) -> dict[str, Any]:
        """Ground and cut out, and be killed at a point; other workers continue.

        Returns:
            what became of the run, or of the first worker.
        """
        outputs = {"out": str(folder / "out"), "cutouts": str(folder / "cut")}
        request = {"data": str(self._data), "at": at, "worker": "", **outputs}
        used = self._servers[: workers or 1]
        for number, server in enumerate(used):
            worker = f"{number}/{workers}" if workers else ""
            server.begin({**request, "worker": worker, "at": "" if number else at})
        first, *others = [server.end() for server in used]
        assert all(other["code"] == 0 for other in others), others
        return first

    def copy(self, folder: Path) -> Path:
        """A fresh copy of the published outputs, to break."""
        shutil.copytree(self.base, folder)
        return folder

    def files(self, folder: Path) -> dict[str, bytes]:
        """Every file of both outputs and their run folders, except those that name processes."""
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for name in OUTPUTS
            for path in sorted((folder / name).rglob("*"))
            if path.is_file() and path.name not in ("lock", "checked.json")
        }

    def rows(self, folder: Path) -> list[list[str]]:
        """Rows of both outputs, in canonical order."""
        tables = [
            read_phrases(folder / "out"),
            rows_with_keys(folder / "cut", "cutouts"),
        ]
        return [sorted(map(repr, table.to_pylist())) for table in tables]

    def check_kill(self, folder: Path, point: str, workers: int = 0) -> None:
        """After a kill there, readers find the old or the new rows, and the next run fixes it."""
        folder = self.copy(folder)
        killed = self.run(folder, point, workers)
        hit = (-signal.SIGKILL, 0) if workers else (-signal.SIGKILL,)  # the other may be faster
        assert killed["code"] in hit, f"{point}: {killed['said']}"
        for found, *known in zip(self.rows(folder), *self.states, strict=True):
            assert found in known, point
        again = self.run(folder)
        assert again["code"] == 0, f"{point}: {again['said']}"
        assert self.files(folder) == self.expected, point
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"))
    yield world
    world.close()


def test_a_kill_at_every_write_boundary_of_records_and_cutouts(world, tmp_path):
    by_name: dict[str, list[str]] = {}
    for point in world.unbroken["points"]:
        by_name.setdefault(re.sub(r" \d+$", "", point), []).append(point)
    files = ("shard", "index", "record", "part", "plan", "failures")
    names = {
        *(f"before rename {what}" for what in files),
        *(f"after rename {what}" for what in files),
        *(f"half write {what}" for what in files),
        "before remove part",
    }
    assert names <= by_name.keys()
    for name in sorted(names):
        points = by_name[name]
        world.check_kill(tmp_path / "some", points[len(points) // 2])


def test_two_workers_leave_the_files_of_one_run(world, tmp_path):
    for number in range(3):
        folder = world.copy(tmp_path / str(number))
        first = world.run(folder, workers=2)
        assert first["code"] == 0, first["said"]
        assert world.run(folder)["code"] == 0  # the cut-outs, if both left them to the other
        assert world.files(folder) == world.expected


def test_a_worker_killed_while_another_continues(world, tmp_path):
    points = [point for point in world.unbroken["points"] if "before rename" in point]
    for point in points[::3]:
        world.check_kill(tmp_path / "some", point, workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_kill_at_every_point(world, tmp_path, workers):
    for point in world.unbroken["points"]:
        world.check_kill(tmp_path / "some", point, workers)
