"""However a run is killed, the next one leaves exactly the files of an uninterrupted run."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
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


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    server = StageServer()
    yield make_world(server, tmp_path_factory)
    server.close()


def boundaries(points: list[str]) -> list[str]:
    """One point per name: the middle one if there are several."""
    by_name: dict[str, list[str]] = {}
    for point in points:
        by_name.setdefault(re.sub(r" \d+$", "", point), []).append(point)
    return [some[len(some) // 2] for some in by_name.values()]


def kill(world: World, folder: Path, point: str) -> None:
    folder = world.copy(folder)
    broken = world.server.run(folder, texts=AFTER, act="kill", at=point)
    assert broken.code == KILLED, point
    world.check_readers(folder)
    world.go_on(folder, broken)


def kill_some_time(world: World, folder: Path, rng: random.Random) -> bool:
    """Kill up to three runs in a row at random; returns whether any was hit before it ended."""
    folder = world.copy(folder)
    hit = False
    for _ in range(rng.randint(1, 3)):
        delay = rng.uniform(0, 1.2 * world.unbroken.seconds)
        broken = world.server.run(folder, texts=AFTER, kill_after=delay)
        assert broken.code in (KILLED, 0)
        world.check_readers(folder)
        hit = hit or broken.code == KILLED
    outcome = world.server.run(folder, texts=AFTER)
    assert outcome.code == 0, outcome.said
    assert files(folder) == world.expected
    return hit


def test_a_kill_at_every_write_boundary(world: World, tmp_path: Path) -> None:
    points = boundaries(world.unbroken.points)
    assert {
        *("half write part", "before rename part", "after rename part"),
        *("half write shard", "before rename shard", "after rename shard"),
        *("half write index", "before rename index", "after rename index"),
        *("half write record", "before rename record", "after rename record"),
        *("half write plan", "half write failures", "before remove part", "after remove plan"),
    } <= {re.sub(r" \d+$", "", point) for point in points}
    for point in points:
        kill(world, tmp_path / point, point)


def test_kills_at_random(world: World, tmp_path: Path) -> None:
    rng = random.Random(0)
    hits = [kill_some_time(world, tmp_path / str(i), rng) for i in range(10)]
    assert sum(hits) >= 3


@pytest.mark.slow
def test_kills_at_every_point_and_at_random(world: World, tmp_path: Path) -> None:
    points = [point for point in world.unbroken.points if "encode" not in point]
    for point in points:
        kill(world, tmp_path / point, point)
        shutil.rmtree(tmp_path / point)
    rng = random.Random(1)
    for i in range(max(60, 270 - len(points))):
        kill_some_time(world, tmp_path / str(i), rng)
        shutil.rmtree(tmp_path / str(i))


@dataclass(frozen=True)
class RealWorld:
    """A small CLIP on images, by the command line; its output, and how long it takes."""

    server: StageServer
    words: list[str]
    expected: dict[str, bytes]
    seconds: float


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealWorld]:
    folder = tmp_path_factory.mktemp("real")
    server = StageServer("--torch")
    words = image_words(folder, count=60)
    whole = server.run(folder, words=[*words, str(folder / "whole")])
    assert whole.code == 0, whole.said
    yield RealWorld(server, words, files(folder / "whole"), whole.seconds)
    server.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_ten_kills_of_a_real_encoder_with_decode_workers(
    real: RealWorld, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    hits = 0
    for i in range(10):
        out = tmp_path / f"out {i}"
        words = [*real.words, str(out)]
        delay = rng.uniform(0, 0.9 * real.seconds)
        hits += real.server.run(out, words=words, kill_after=delay).code == KILLED
        if (out / "set.json").exists():
            assert verify(out) == []
        # decode workers of the killed run may still be there
        again = real.server.run(out, words=words)
        assert again.code == 0, again.said
        assert files(out) == real.expected
    assert hits >= 7


def image_words(folder: Path, count: int) -> list[str]:
    """`sightline extract image` on random images with a small CLIP, without the output folder."""
    (folder / "photos").mkdir()
    rng = np.random.default_rng(0)
    for i in range(count):
        pixels = rng.integers(0, 256, (200, 200 + i, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{i}.png")
    vision = {"image_size": 32, "layers": 1, "width": 16, "head_width": 8, "patch_size": 16}
    text = {"context_length": 12, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1}
    clip = folder / "clip.json"
    clip.write_text(json.dumps({"embed_dim": 8, "vision_cfg": vision, "text_cfg": text}))
    words = ["extract", "image", "--images", str(folder / "photos"), "--encoder", str(clip)]
    return [*words, "--weights", "random:0", "--batch-size", "4", "--workers", "2", "--out"]
