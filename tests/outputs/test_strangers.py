"""No command deletes or changes what it did not write."""

from __future__ import annotations

import errno
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from output_world import (
    COMMANDS,
    FILES,
    FOLDERS,
    IN_PLACE,
    NOTES,
    Command,
    OutputWorld,
    changed,
    copy_of,
    everything,
    make,
    write_notes,
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OutputWorld]:
    """The inputs of every command, made once, and one process that runs all of them."""
    world = OutputWorld(tmp_path_factory.mktemp("world"))
    yield world
    world.close()


@pytest.mark.parametrize("command", [*FOLDERS, *IN_PLACE], ids=str)
def test_files_beside_below_and_around_the_output_stay(
    world: OutputWorld, tmp_path: Path, command: Command
) -> None:
    out = tmp_path / "out"
    make(world, command, out)
    write_notes(out, {} if command.maker == "" else NOTES)
    write_notes(tmp_path)
    if command.name == "train":  # a folder `model` without a run is somebody else's
        write_notes(out, {name: NOTES[name] for name in ("notes.txt", ".hidden")})
    else:
        write_notes(out)
    (tmp_path / "out.run").mkdir(exist_ok=True)
    (tmp_path / "out.run/thesis.tex").write_text("years of work")
    before, inputs = everything(tmp_path), everything(world.made)
    ours = {"out/set.json", "out/set.json.next"} if command.maker else set()
    for _ in range(2):
        done = world.run(command, out)
        assert done.code == 0 or command.name == "cache import", done.said
        gone = [name for name in changed(before, everything(tmp_path)) if name not in ours]
        assert gone == []
        write_notes(out)  # below a folder that is there now
        before |= {name: what for name, what in everything(tmp_path).items() if _is_note(name)}
    assert everything(world.made) == inputs


def _is_note(name: str) -> bool:
    return any(name == f"out/{note.rstrip('/')}" for note in NOTES)


@pytest.mark.parametrize("command", FOLDERS, ids=str)
def test_a_file_with_our_name_that_no_record_lists_is_refused(
    world: OutputWorld, tmp_path: Path, command: Command
) -> None:
    for name in command.names:
        place = tmp_path / name.replace("/", "-")
        write_notes(place / "out", {name: "years of work"})
        before = everything(place)
        done = world.run(command, place / "out")
        assert done.code == 1, f"{name}: {done.said}"
        assert "move" in done.said
        assert "another" in done.said or "elsewhere" in done.said
        assert "Traceback" not in done.said
        assert changed(before, everything(place)) == [], name


@pytest.mark.parametrize("command", FILES, ids=str)
def test_a_foreign_file_is_not_replaced(
    world: OutputWorld, tmp_path: Path, command: Command
) -> None:
    for suffix in (".html", ".txt", ".png"):
        write_notes(tmp_path, {f"page{suffix}": "years of work"})
    before = everything(tmp_path)
    done = world.run(command, tmp_path / "page.html")
    assert done.code == 1, done.said
    assert "already exists" in done.said
    assert everything(tmp_path) == before


@pytest.mark.parametrize("command", FILES, ids=str)
def test_a_file_of_ours_is_replaced(world: OutputWorld, tmp_path: Path, command: Command) -> None:
    out = tmp_path / "page.html"
    codes = [world.run(command, out).code for _ in range(2)]
    again = 1 if command.name == "cache export mcse" else 0  # its form has no room for a mark
    assert codes == [0, again]


@pytest.mark.parametrize("command", [*FOLDERS, *FILES], ids=str)
def test_an_output_that_holds_or_is_an_input_is_refused(
    world: OutputWorld, tmp_path: Path, command: Command
) -> None:
    real, world.made = world.made, copy_of(world.made, tmp_path / "made")
    try:
        before = everything(tmp_path)
        for out in [world.made, *command.inputs(world.made)]:
            done = world.run(command, out)
            assert done.code in (1, 2), f"{out}: {done.said}"
            assert "Traceback" not in done.said
            assert everything(tmp_path) == before, out
    finally:
        world.made = real


@pytest.mark.parametrize(
    ("command", "number"),
    [("prepare pairs", errno.ENOSPC), ("train", errno.ENOSPC), ("look grounding", errno.EROFS)],
)
def test_a_full_or_read_only_disk(
    world: OutputWorld, tmp_path: Path, command: str, number: int
) -> None:
    broken(world, COMMANDS[command], tmp_path, act="raise", number=number)


@pytest.mark.parametrize("command", ["prepare pairs", "cache export parquet"])
def test_a_kill_at_every_write_boundary(world: OutputWorld, tmp_path: Path, command: str) -> None:
    broken(world, COMMANDS[command], tmp_path, act="kill")


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS.values(), ids=str)
def test_every_command_killed_and_with_a_full_disk_at_every_write_boundary(
    world: OutputWorld, tmp_path: Path, command: Command
) -> None:
    broken(world, command, tmp_path / "kill", act="kill")
    broken(world, command, tmp_path / "full", act="raise", number=errno.ENOSPC)


def broken(world: OutputWorld, command: Command, folder: Path, **how: object) -> None:
    """Break a run that replaces an earlier one, at one point of every name, and run it again."""
    single = command in FILES
    base = folder / "base"
    base.mkdir(parents=True)
    make(world, command, base / "out")
    if not command.maker and command.name not in ("cache import", "cache export mcse"):
        assert world.run(command, base / "out").code == 0
    ours = set(everything(base))
    write_notes(base, {"notes.txt": "why"} if single else NOTES)
    if not single:
        write_notes(base / "out", {"notes.txt": "why", "model/notes.md": "so"})
    notes = {name: what for name, what in everything(base).items() if name not in ours}
    unbroken = world.run(command, copy_of(base, folder / "whole") / "out")
    points = one_of_every_name(unbroken.points)
    assert points, unbroken.said
    inputs = everything(world.made)
    for number, point in enumerate(points):
        place = copy_of(base, folder / str(number))
        done = world.run(command, place / "out", at=point, **how)
        assert done.code != 0 or how["act"] == "raise", f"{point}: {done.said}"
        assert "Traceback" not in done.said, f"{point}: {done.said}"
        assert changed(notes, everything(place)) == [], point
        again = world.run(command, place / "out")
        there = command.name in ("cache import", "cache export mcse") and "already" in again.said
        assert again.code == 0 or there, f"{point}: {again.said}"
        assert changed(notes, everything(place)) == [], point
        left = list(place.rglob("*.json.next"))
        assert not left or command.maker or there, point
        shutil.rmtree(place)
    assert everything(world.made) == inputs


def one_of_every_name(points: list[str]) -> list[str]:
    """The middle one of the points that differ in their number alone."""
    by_name: dict[str, list[str]] = {}
    for point in points:
        by_name.setdefault(re.sub(r" \d+$", "", point), []).append(point)
    return [some[len(some) // 2] for some in by_name.values()]


# --- random trees of foreign files, random commands, random kills


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
