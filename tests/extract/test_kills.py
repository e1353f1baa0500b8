"""However a run is killed, the next one leaves exactly the files of an uninterrupted run."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest
from interrupted import AFTER, KILLED, World, boundaries, files, image_words
from stage_server import StageServer

from sightline.cache import verify


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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_ten_kills_of_a_real_encoder_with_decode_workers(
    real: StageServer, tmp_path: Path, seed: int
) -> None:
    words = image_words(tmp_path, count=60)
    whole = real.run(tmp_path, words=[*words, str(tmp_path / "whole")])
    assert whole.code == 0, whole.said
    rng = random.Random(seed)
    hits = 0
    for i in range(10):
        out = tmp_path / f"out {i}"
        delay = rng.uniform(0, 0.9 * whole.seconds)
        hits += real.run(out, words=[*words, str(out)], kill_after=delay).code == KILLED
        if (out / "set.json").exists():
            assert verify(out) == []
        # decode workers of the killed run may still be there
        again = real.run(out, words=[*words, str(out)])
        assert again.code == 0, again.said
        assert files(out) == files(tmp_path / "whole")
    assert hits >= 7
