"""However a grounding is killed, the next run leaves the very files of one that nobody touched."""

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
from ground_data import DataSet

from pipeline.cache.tables import read_phrases, read_tables

HERE = Path(__file__).parent
OUTPUTS = ("out", "cut", "out.run", "cut.run")


class World:
    """Published records and cut-outs, and what an unbroken run makes of them."""

    def __init__(self, folder: Path) -> None:
        path = [str(HERE), str(HERE.parent), *sys.path]
        self._server = subprocess.Popen(
            [sys.executable, str(HERE / "ground_server.py")],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
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
        self._server.communicate()

    def run(self, folder: Path, at: str = "") -> dict[str, Any]:
        """Ground and cut out, and be killed at a point."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        outputs = {"out": str(folder / "out"), "cutouts": str(folder / "cut")}
        request = {"data": str(self._data), "at": at, **outputs}
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def copy(self, folder: Path) -> Path:
        """The published outputs once more, to break."""
        shutil.copytree(self.base, folder)
        return folder

    def files(self, folder: Path) -> dict[str, bytes]:
        """Every file of both outputs and their run folders; a lock names a process: left out."""
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for name in OUTPUTS
            for path in sorted((folder / name).rglob("*"))
            if path.is_file() and path.name != "lock"
        }

    def rows(self, folder: Path) -> list[list[str]]:
        """Rows of both outputs, in an order of their own."""
        tables = [
            read_phrases(folder / "out"),
            read_tables(folder / "cut", "cutouts"),
        ]
        return [sorted(map(repr, table.to_pylist())) for table in tables]

    def check_kill(self, folder: Path, point: str) -> None:
        """Killed there, readers find the old or the new rows, and the next run sets it right."""
        folder = self.copy(folder)
        assert self.run(folder, at=point)["code"] == -signal.SIGKILL, point
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
    tables = ("images", "phrases", "drops", "cutouts")
    records = ("record",)
    names = {
        *(f"before rename {what}" for what in (*tables, *records, "block", "failures")),
        *(f"after rename {what}" for what in (*tables, *records, "block", "failures")),
        *(f"half write {what}" for what in (*records, "block", "failures")),
        "before remove block",
    }
    assert names <= by_name.keys()
    for name in sorted(names):
        points = by_name[name]
        world.check_kill(tmp_path / "some", points[len(points) // 2])


@pytest.mark.slow
def test_a_kill_at_every_point_there_is(world, tmp_path):
    for point in world.unbroken["points"]:
        world.check_kill(tmp_path / "some", point)
