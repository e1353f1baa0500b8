"""Random trees of foreign files, random commands, random kills: nothing is ever lost."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from output_world import (
    COMMANDS,
    FILES,
    FOLDERS,
    OutputWorld,
    changed,
    everything,
    make,
    write_notes,
)

KILLED = -9
PLACES = ("", ".run", "-cutouts", "-features", "-images", "-texts")
"""Suffixes that commands append to the name of their output."""
STRANGE = [
    *("notes.txt", "a b/ü.txt", ".hidden", ".x.0123456789abcdef.tmp", "out.part", "plan", "lock"),
    *("images/0.jpg", "model/config.json", "model/notes", "checkpoints/checkpoint-9/model.pt"),
    *("images.parquet", "captions.parquet", "dataset.json", "report.json", "run.json"),
    *("set.json", "set.json.next", "shard-" + "0" * 32 + ".h5", "grounding.json"),
    *("index-" + "0" * 32 + ".parquet", "phrases-" + "0" * 16 + ".parquet", "blocks/notes"),
    *("tokens.parquet", "student.json", "stats.json", "scores.png", "best.safetensors"),
    *("scratch-0123456789abcdef/notes", "failures.jsonl", "journal.bin", "heads.safetensors"),
]
"""Names that foreign files may have, including ours."""


@pytest.mark.slow
def test_five_hundred_random_trees_commands_and_kills(world: OutputWorld, tmp_path: Path) -> None:
    rng = random.Random(0)
    killed = refused = 0
    inputs = everything(world.made)
    for case in range(520):
        place = tmp_path / str(case)
        command = rng.choice(list(COMMANDS.values()))
        earlier = rng.choice([None, command, rng.choice(FOLDERS)])
        out = place / "out"
        make(world, command, out)
        if earlier is not None and not command.maker and command not in FILES:
            assert world.run(earlier, out).code == 0
        ours = set(everything(place)) if place.exists() else set()
        strangers = rng.sample(STRANGE, rng.randint(1, 8))
        for name in strangers:
            try:
                write_notes(place / f"out{rng.choice(PLACES)}", {name: rng.choice(["", "x" * 99])})
            except (NotADirectoryError, FileExistsError):
                continue  # a file of ours is in the way
        foreign = {name: what for name, what in everything(place).items() if name not in ours}
        for _ in range(rng.randint(0, 2)):
            done = world.run(command, out, kill_after=rng.uniform(0, 0.5))
            killed += done.code == KILLED
            assert changed(foreign, everything(place)) == [], (case, command, strangers)
        done = world.run(command, out)
        refused += done.code != 0
        assert "Traceback" not in done.said, (case, command, done.said)
        assert changed(foreign, everything(place)) == [], (case, command, strangers, done.said)
        shutil.rmtree(place)
    assert everything(world.made) == inputs
    assert killed > 50
    assert refused > 50
