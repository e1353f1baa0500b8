"""A set whose next run is broken, and what an uninterrupted run leaves."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_inputs import write_clip
from stage_server import BATCH, BLOCK, Outcome, StageServer

from sightline.cache import FeatureSet, verify

BEFORE, AFTER = 100, 240  # texts of the existing set, and of the interrupted run
KILLED = -9
_OF_THE_PLACE = ("lock", "checked.json")
ON_THEIR_WAY = 5 * BATCH  # batches between the encoder and the blocks


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a set and of its run folder, except those that name processes and files."""
    run = folder.with_name(folder.name + ".run")
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    others = [path for path in run.rglob("*") if path.is_file() and path.name not in _OF_THE_PLACE]
    return found | {f"run/{path.name}": path.read_bytes() for path in others}


@dataclass(frozen=True)
class World:
    """A published set, the run that adds to it, and the result of an uninterrupted one."""

    server: StageServer
    base: Path
    expected: dict[str, bytes]
    unbroken: Outcome
    digests: set[str]

    def copy(self, folder: Path) -> Path:
        for part in self.base.iterdir():
            shutil.copytree(part, folder / part.name)
        return folder / "set"

    def check_readers(self, folder: Path) -> None:
        """A reader now finds the old set or the new one, complete."""
        assert verify(folder) == []
        assert FeatureSet.open(folder).record.content_digest in self.digests

    def go_on(self, folder: Path, broken: Outcome) -> None:
        """The next run ends with the files of an uninterrupted one, and repeats little."""
        outcome = self.server.run(folder, texts=AFTER)
        assert outcome.code == 0, outcome.said
        assert files(folder) == self.expected
        repeated = broken.encoded + outcome.encoded - self.unbroken.encoded
        assert 0 <= repeated <= BLOCK + ON_THEIR_WAY


def make_world(server: StageServer, folders: pytest.TempPathFactory) -> World:
    """The existing set, and the result of an uninterrupted run on it."""
    base, whole = folders.mktemp("base"), folders.mktemp("whole")
    assert server.run(base / "set", texts=BEFORE).code == 0
    digest = FeatureSet.open(base / "set").record.content_digest
    for part in base.iterdir():
        shutil.copytree(part, whole / part.name)
    unbroken = server.run(whole / "set", texts=AFTER)
    assert unbroken.code == 0, unbroken.said
    assert unbroken.encoded == AFTER - BEFORE
    record = FeatureSet.open(whole / "set").record
    assert len(record.shards) > 4
    assert record.failed == 3
    digests = {digest, record.content_digest}
    assert len(digests) == 2
    return World(server, base, files(whole / "set"), unbroken, digests)


def boundaries(points: list[str]) -> list[str]:
    """One point per name: the middle one if there are several."""
    by_name: dict[str, list[str]] = {}
    for point in points:
        by_name.setdefault(re.sub(r" \d+$", "", point), []).append(point)
    return [some[len(some) // 2] for some in by_name.values()]


def image_words(folder: Path, count: int) -> list[str]:
    """`sightline extract image` on random images with a small CLIP, without the output folder."""
    (folder / "photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(count):
        pixels = rng.integers(0, 256, (200, 200 + i, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{i}.png")
    clip = write_clip(folder)
    words = ["extract", "image", "--data", str(folder / "photos"), "--encoder", str(clip)]
    return [*words, "--weights", "random:0", "--batch-size", "4", "--workers", "2", "--out"]


def wait_until(true: Callable[[], object], seconds: float = 120.0) -> None:
    """Wait until it holds."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)
