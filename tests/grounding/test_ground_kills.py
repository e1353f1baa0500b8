"""However a grounding is killed, the next run leaves exactly the files of an uninterrupted one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from command_line import set_words
from fault_layer import by_name, ends_and_middle_of_each, middle_of_each
from flat_tables import rows_with_keys
from ground_data import DataSet, annotated, write_phrases
from stage_server import Outcome, StageServer

from sightline.cache.groundings import read_phrases

KILLED = -9
OUTPUTS = ("out", "cut", "out.run", "cut.run")


class World:
    """Published records and cut-outs, and the result of an uninterrupted run on them."""

    def __init__(self, folder: Path) -> None:
        self.servers: list[StageServer] = []
        data = DataSet.of(folder / "data", 9)
        self._data, self.base = data.folder, folder / "base"
        everything = data.captions = {**data.captions, "0.png": ["a red dog", "a b"]}
        phrases = write_phrases(data, folder / "phrases.parquet")  # "a b" names nothing
        small = {"segmenter": {"family": "box"}, "batch_size": 4, "block_images": 3}
        self._words = list(set_words(annotated(phrases) | small))
        data.captions = {f"{i}.png": everything[f"{i}.png"] for i in range(5)}
        data.write()
        first = self.run(self.base)
        assert first.code == 0, first.said
        before = rows(self.base)
        # a shard is rewritten without the first image, and one cannot be read
        data.captions = {f"{i}.png": everything[f"{i}.png"] for i in range(1, 9)}
        (data.folder / "images/bad.png").write_bytes(b"no image")
        data.captions["bad.png"] = ["a blue ball"]
        data.write()
        whole = shutil.copytree(self.base, folder / "whole")
        unbroken = self.run(whole)
        assert unbroken.code == 0, unbroken.said
        self.expected = files(whole)
        assert not [name for name in self.expected if "part-" in name or "scratch-" in name]
        self.points = unbroken.points
        self._states = [before, rows(whole)]
        assert before != self._states[1]
        assert len(list(whole.glob("*/shard-*"))) > 5

    def run(self, folder: Path, at: str = "", workers: int = 0) -> Outcome:
        """Ground and cut out, and be killed at a point; other workers continue.

        Returns:
            what became of the run, or of the first worker.
        """
        outputs = ["--data", self._data, "--out", folder / "out", "--cutouts", folder / "cut"]
        used = self._servers(workers or 1)
        for number, server in enumerate(used):
            words = ["ground", *map(str, outputs), *self._words, "--max-failed=1"]
            words += [f"--worker={number}/{workers}"] if workers else []
            broken = {"act": "kill", "at": at} if at and not number else {}
            server.begin(folder, words=words, **broken)
        first, *others = [server.outcome() for server in used]
        assert all(other.code == 0 for other in others), others
        return first

    def _servers(self, count: int) -> list[StageServer]:
        """So many, which are started when they are needed first."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
            while len(self.servers) < count:
                self.servers.append(StageServer("--import=small_blocks"))
        return self.servers[:count]

    def check_kill(self, folder: Path, point: str, workers: int = 0) -> None:
        """After a kill there, readers find the old or the new rows, and the next run fixes it."""
        shutil.copytree(self.base, folder)
        killed = self.run(folder, point, workers)
        hit = (KILLED, 0) if workers else (KILLED,)  # the other may be faster
        assert killed.code in hit, f"{point}: {killed.said}"
        for found, *known in zip(rows(folder), *self._states, strict=True):
            assert found in known, point
        again = self.run(folder)
        assert again.code == 0, f"{point}: {again.said}"
        assert files(folder) == self.expected, point
        shutil.rmtree(folder)


def files(folder: Path) -> dict[str, bytes]:
    """Every file of both outputs and their run folders, except those that name processes."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for name in OUTPUTS
        for path in sorted((folder / name).rglob("*"))
        if path.is_file() and path.name not in ("lock", "remembered.parquet")
    }


def rows(folder: Path) -> list[list[str]]:
    """Rows of both outputs, in canonical order."""
    tables = read_phrases(folder / "out"), rows_with_keys(folder / "cut", "cutouts")
    return [sorted(map(repr, table.to_pylist())) for table in tables]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("world"))
    yield world
    for server in world.servers:
        server.close()


def middle(world: World, name: str) -> str:
    points = by_name(world.points)[name]
    return points[len(points) // 2]


def test_a_kill_while_blocks_and_both_sets_are_written(world, tmp_path):
    """A block, a shard, both sides of the record of the first set, and what is left to tidy."""
    names = ("half write part", "after rename shard", "half write record", "after rename record")
    for name in (*names, "before remove part"):
        world.check_kill(tmp_path / "some", middle(world, name))


@pytest.mark.slow
def test_two_workers_leave_the_files_of_one_run_though_one_is_killed(world, tmp_path):
    folder = shutil.copytree(world.base, tmp_path / "two")
    first = world.run(folder, workers=2)
    assert first.code == 0, first.said
    assert world.run(folder).code == 0  # the cut-outs, if both left them to the other
    assert files(folder) == world.expected
    for what in ("part", "record"):
        world.check_kill(tmp_path / "some", middle(world, f"before rename {what}"), workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_kill_at_every_kind_of_point(world, tmp_path, workers):
    """Of every name the first, the middle and the last point; of two workers the middle one."""
    chosen = middle_of_each if workers else ends_and_middle_of_each
    for point in chosen(world.points):
        world.check_kill(tmp_path / "some", point, workers)
