"""A set whose next run is broken, and what an uninterrupted run leaves."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from fault_layer import middle_of_each
from small_inputs import write_clip, write_photos
from stage_server import BATCH, BLOCK, Outcome, StageServer

from sightline.cache import FeatureSet, verify

BEFORE, AFTER = 100, 240  # texts of the existing set, and of the interrupted run
KILLED = -9
_OF_THE_PLACE = ("lock", "remembered.parquet")
ON_THEIR_WAY = 5 * BATCH  # batches between the encoder and the blocks


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a set and of its run folder, except those that name processes and files."""
    run = folder.with_name(folder.name + ".run")
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    others = [path for path in run.rglob("*") if path.is_file() and path.name not in _OF_THE_PLACE]
    return found | {f"run/{path.name}": path.read_bytes() for path in others}


class World:
    """A published set, the run that adds to it, and the result of an uninterrupted one.

    Attributes:
        unbroken: the uninterrupted run.
        expected: the files that it leaves.
    """

    def __init__(self, server: StageServer, folders: pytest.TempPathFactory) -> None:
        self.server, self._base = server, folders.mktemp("base")
        assert server.run(self._base / "set", texts=BEFORE).code == 0
        whole = self.copy(folders.mktemp("whole"))
        self.unbroken: Outcome = server.run(whole, texts=AFTER)
        assert self.unbroken.code == 0, self.unbroken.said
        assert self.unbroken.encoded == AFTER - BEFORE
        self.expected = files(whole)
        before, after = (FeatureSet.open(each).record for each in (self._base / "set", whole))
        assert len(after.shards) > 4
        assert after.failed == 3
        self._digests = {before.content_digest, after.content_digest}
        assert len(self._digests) == 2

    def copy(self, folder: Path) -> Path:
        """A copy in ``folder`` of the published set, to break."""
        for part in self._base.iterdir():
            shutil.copytree(part, folder / part.name)
        return folder / "set"

    def check_readers(self, folder: Path) -> None:
        """A reader now finds the old set or the new one, complete."""
        assert verify(folder) == []
        assert FeatureSet.open(folder).record.content_digest in self._digests

    def go_on(self, folder: Path, broken: Outcome) -> None:
        """The next run ends with the files of an uninterrupted one, and repeats little."""
        outcome = self.server.run(folder, texts=AFTER)
        assert outcome.code == 0, outcome.said
        assert files(folder) == self.expected
        repeated = broken.encoded + outcome.encoded - self.unbroken.encoded
        assert 0 <= repeated <= BLOCK + ON_THEIR_WAY


def boundaries(points: list[str], *without: str) -> list[str]:
    """One point per name that does not begin so: the middle one if there are several.

    What is after one point is before the next.
    """
    return middle_of_each(point for point in points if not point.startswith(("after", *without)))


def some_of(points: list[str]) -> list[str]:
    """A block, a shard, both sides of what publishes them, and what is left to tidy after it."""
    names = ("half write part", "before rename shard", "half write record", "before rename record")
    return [point for point in points if point.startswith((*names, "before remove plan"))]


def image_words(folder: Path, count: int) -> list[str]:
    """`sightline extract image` on photographs with a small CLIP, without the output folder."""
    words = ["extract", "image", "--data", str(write_photos(folder / "photos", count))]
    words += ["--encoder", str(write_clip(folder)), "--weights", "random:0"]
    return [*words, "--batch-size", "4", "--workers", "2", "--out"]
