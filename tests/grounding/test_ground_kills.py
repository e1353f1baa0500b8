"""However a grounding is killed, the next run leaves exactly the files of an uninterrupted one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import set_words
from flat_tables import rows_with_keys
from ground_data import DataSet, run_ground
from stage_server import Outcome, StageServer

from sightline.cache import PHRASES, write_manifest
from sightline.cache.groundings import read_phrases

KILLED = -9
OUTPUTS = ("out", "cut", "out.run", "cut.run")
SETTINGS = {
    "captions": "all",
    "segmenter": {"family": "box"},
    "rules": {"duplicate_iou": None},
    "batch_size": 4,
    "block_images": 3,
}


class World:
    """Published records and cut-outs, and the result of an uninterrupted run on them."""

    def __init__(self, folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(Path(__file__).parent))
            self._servers = [StageServer("--import=small_blocks") for _ in range(2)]
        data = DataSet(folder / "data")
        self._data, self.base = data.folder, folder / "base"
        for i in range(9):
            data.add(f"{i}.png")
        everything = {**data.captions, "0.png": ["a red dog", "a b"]}  # "a b" names nothing
        data.captions = everything
        run_ground(data, folder / "drawn")
        drawn = read_phrases(folder / "drawn")
        write_manifest(folder / "phrases.parquet", drawn, PHRASES)
        grounder = {"family": "annotations", "path": folder / "phrases.parquet"}
        self._words = list(set_words({**SETTINGS, "grounder": grounder}))
        data.captions = {f"{i}.png": everything[f"{i}.png"] for i in range(5)}
        data.write()
        first = self.run(self.base)
        assert first.code == 0, first.said
        before = self.rows(self.base)
        # a shard is rewritten without the first image, and one cannot be read
        data.captions = {f"{i}.png": everything[f"{i}.png"] for i in range(1, 9)}
        (data.folder / "images/bad.png").write_bytes(b"no image")
        data.captions["bad.png"] = ["a blue ball"]
        data.write()
        whole = self.copy(folder / "whole")
        self.unbroken = self.run(whole)
        assert self.unbroken.code == 0, self.unbroken.said
        self.expected = self.files(whole)
        self.states = [before, self.rows(whole)]
        assert before != self.states[1]
        assert len(list(whole.glob("*/shard-*"))) > 5

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def run(self, folder: Path, at: str = "", workers: int = 0) -> Outcome:
        """Ground and cut out, and be killed at a point; other workers continue.

        Returns:
            what became of the run, or of the first worker.
        """
        outputs = ["--data", self._data, "--out", folder / "out", "--cutouts", folder / "cut"]
        used = self._servers[: workers or 1]
        for number, server in enumerate(used):
            words = ["ground", *map(str, outputs), *self._words, "--max-failed=1"]
            words += [f"--worker={number}/{workers}"] if workers else []
            broken = {"act": "kill", "at": at} if at and not number else {}
            server.begin(folder, words=words, **broken)
        first, *others = [server.outcome() for server in used]
        assert all(other.code == 0 for other in others), others
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
        tables = read_phrases(folder / "out"), rows_with_keys(folder / "cut", "cutouts")
        return [sorted(map(repr, table.to_pylist())) for table in tables]

    def check_kill(self, folder: Path, point: str, workers: int = 0) -> None:
        """After a kill there, readers find the old or the new rows, and the next run fixes it."""
        folder = self.copy(folder)
        killed = self.run(folder, point, workers)
        hit = (KILLED, 0) if workers else (KILLED,)  # the other may be faster
        assert killed.code in hit, f"{point}: {killed.said}"
        for found, *known in zip(self.rows(folder), *self.states, strict=True):
            assert found in known, point
        again = self.run(folder)
        assert again.code == 0, f"{point}: {again.said}"
        assert self.files(folder) == self.expected, point
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[World]:
    world = World(tmp_path_factory.mktemp("world"))
    yield world
    world.close()


def test_a_kill_at_every_write_boundary_of_records_and_cutouts(world, tmp_path):
    by_name: dict[str, list[str]] = {}
    for point in world.unbroken.points:
        by_name.setdefault(re.sub(r" \d+$", "", point), []).append(point)
    files = ("shard", "index", "record", "part", "plan", "failures")
    moments = ("before rename", "after rename", "half write")
    names = {*(f"{moment} {what}" for moment in moments for what in files), "before remove part"}
    assert names <= by_name.keys()
    for name in sorted(names):
        points = by_name[name]
        world.check_kill(tmp_path / "some", points[len(points) // 2])


def test_two_workers_leave_the_files_of_one_run(world, tmp_path):
    for number in range(3):
        folder = world.copy(tmp_path / str(number))
        first = world.run(folder, workers=2)
        assert first.code == 0, first.said
        assert world.run(folder).code == 0  # the cut-outs, if both left them to the other
        assert world.files(folder) == world.expected


def test_a_worker_killed_while_another_continues(world, tmp_path):
    points = [point for point in world.unbroken.points if "before rename" in point]
    for point in points[::3]:
        world.check_kill(tmp_path / "some", point, workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_kill_at_every_point(world, tmp_path, workers):
    for point in world.unbroken.points:
        world.check_kill(tmp_path / "some", point, workers)
