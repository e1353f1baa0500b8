"""No command deletes or changes what it did not write."""

from __future__ import annotations

import errno
import os
import random
import shutil
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet
from fault_layer import middle_of_each
from output_world import FILES, FOLDERS, IN_PLACE, Command, OutputWorld

COMMANDS = {command.name: command for command in (*FOLDERS, *IN_PLACE, *FILES)}
NOTES = {
    "notes.txt": "why",
    ".hidden": "x",
    ".images.parquet.4711.tmp": "not a leftover of ours",
    "features/clip/shard.h5": "a set of somebody's",
    "model/notes.md": "about the model",
    "images/photo.jpg": "a photograph",
    "empty/": "",
}
"""File names that Sightline never uses."""


_WRITERS = (
    *("prepare pairs", "extract image", "ground", "train", "cache export npy"),
    *("cache import mcse", "stage report", "cache gc"),
)
"""A command for each way to write a folder; the others write as one of these does."""


def one_of_each_writer(commands: list[Command]) -> list[ParameterSet]:
    """These; the others are slow."""
    others = pytest.mark.slow
    return [
        pytest.param(command, marks=[] if command.name in _WRITERS else others, id=str(command))
        for command in commands
    ]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """The inputs of every command, made once, and one process that runs all of them."""
    world = OutputWorld(tmp_path_factory.mktemp("world"))
    yield world
    world.server.close()


@pytest.fixture(autouse=True)
def inputs_stay(world):
    before = everything(world.made)
    yield
    assert everything(world.made) == before


def everything(folder: Path) -> dict[str, object]:
    """The content of ``folder``: path → ``folder``, the target of a link, or size and time.

    What readers remember of a set beside it, and the run folder that holds only that, do not count.
    """
    found: dict[str, object] = {}
    for root, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(root, name)
            if path.is_symlink():
                what = path.readlink()
            elif path.is_dir():
                if name.endswith(".run") and {*path.iterdir()} <= {path / "remembered.parquet"}:
                    continue
                what = "folder"
            elif name == "remembered.parquet":
                continue
            else:
                what = path.stat().st_size, path.stat().st_mtime_ns
            found[path.relative_to(folder).as_posix()] = what
    return found


def changed(before: dict[str, object], folder: Path) -> list[str]:
    """The entries of ``before`` that are missing in ``folder`` now, or different."""
    after = everything(folder)
    return sorted(name for name, what in before.items() if after.get(name) != what)


def write_notes(folder, notes=NOTES):
    for name, text in notes.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("/"):
            path.mkdir(exist_ok=True)
        elif not os.path.lexists(path):
            path.write_text(text)


@pytest.mark.parametrize("command", one_of_each_writer([*FOLDERS, *IN_PLACE]))
def test_files_beside_below_and_around_the_output_stay(world, tmp_path, command):
    out = tmp_path / "out"
    world.make(command, out)
    ours = everything(tmp_path).keys()
    write_notes(tmp_path)
    if command.name == "train":  # a folder `model` without a run is somebody else's
        write_notes(out, {name: NOTES[name] for name in ("notes.txt", ".hidden")})
    else:
        write_notes(out)
    (tmp_path / "out.run").mkdir(exist_ok=True)
    (tmp_path / "out.run/thesis.tex").write_text("years of work")
    before = everything(tmp_path)
    for _ in range(2):
        done = world.run(command, out)
        assert done.code == 0 or command.name == "cache import", done.said
        assert {*changed(before, tmp_path)} <= ours
        write_notes(out)  # below a folder that is there now
        notes = {f"out/{name.rstrip('/')}" for name in NOTES}
        before |= {name: what for name, what in everything(tmp_path).items() if name in notes}
    listed = "".join(path.read_text() for path in out.glob("*.json*"))
    for name, what in everything(out).items():
        if what != "folder" and name not in NOTES and ".json" not in name:
            assert f'"{name}"' in listed


@pytest.mark.parametrize("command", FOLDERS, ids=str)
def test_a_file_with_our_name_that_no_record_lists_is_refused(world, tmp_path, command):
    """Its record, the next record, and all other files."""
    names = command.names.split()
    alone = [name for name in names if ".json" in name and "/" not in name]
    others = [name for name in names if name not in alone]
    for names in filter(None, [*([name] for name in alone), others]):
        place = tmp_path / names[0].replace("/", "-")
        write_notes(place / "out", dict.fromkeys(names, "years of work"))
        before = everything(place)
        done = world.run(command, place / "out")
        assert done.code == 1, f"{names}: {done.said}"
        assert "move" in done.said
        assert "another" in done.said or "elsewhere" in done.said
        assert "Traceback" not in done.said
        assert changed(before, place) == []


@pytest.mark.parametrize("command", FILES, ids=str)
def test_a_file_of_ours_is_replaced_and_a_foreign_one_is_not(world, tmp_path, command):
    out = tmp_path / "page.html"
    codes = [world.run(command, out).code for _ in range(2)]
    assert codes == [0, 0]
    for suffix in (".html", ".png"):
        out.with_suffix(suffix).write_text("years of work")
    before = everything(tmp_path)
    done = world.run(command, out)
    assert done.code == 1, done.said
    assert "already exists" in done.said
    assert everything(tmp_path) == before


@pytest.mark.parametrize("command", [*FOLDERS, *FILES], ids=str)
def test_an_output_that_holds_or_is_an_input_is_refused(world, command):
    before = everything(world.made)
    inputs = [path for path in command.inputs(world.made) if path.is_file() == (command in FILES)]
    for out in [world.made, *inputs]:  # the first holds all of them
        done = world.run(command, out)
        assert done.code in (1, 2), f"{out}: {done.said}"
        assert "Traceback" not in done.said
        assert everything(world.made) == before, out


def test_a_kill_while_a_command_writes(world, tmp_path):
    broken(world, COMMANDS["prepare pairs"], tmp_path, at_most=4, act="kill")


@pytest.mark.parametrize(
    ("command", "number"), [("train", errno.ENOSPC), ("look grounding", errno.EROFS)]
)
def test_a_full_or_read_only_disk(world, tmp_path, command, number):
    broken(world, COMMANDS[command], tmp_path, at_most=3, act="raise", number=number)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS.values(), ids=str)
def test_every_command_killed_and_with_a_full_disk_at_every_write_boundary(
    world, tmp_path, command
):
    broken(world, command, tmp_path / "kill", act="kill")
    broken(world, command, tmp_path / "full", act="raise", number=errno.ENOSPC)


def copy_of(folder: Path, target: Path) -> Path:
    """A copy to modify freely."""
    return Path(shutil.copytree(folder, target, symlinks=True))


def broken(
    world: OutputWorld, command: Command, folder: Path, at_most: int = 99, **how: object
) -> None:
    """Break a run that replaces an earlier one, and run it again.

    Args:
        at_most: so many points, from the first to the last; there is one of every name.
    """
    single, refuses_itself = command in FILES, command.name == "cache import"
    base = folder / "base"
    base.mkdir(parents=True)
    world.make(command, base / "out")
    if command not in IN_PLACE and not refuses_itself:
        assert world.run(command, base / "out").code == 0
    ours = everything(base).keys()
    write_notes(base, {"notes.txt": "why"} if single else NOTES)
    if not single:
        write_notes(base / "out", {"notes.txt": "why", "model/notes.md": "so"})
    notes = {name: what for name, what in everything(base).items() if name not in ours}
    unbroken = world.run(command, copy_of(base, folder / "whole") / "out")
    points = middle_of_each(unbroken.points)
    # what is after one point is before the next, a write that begins leaves less than half of it,
    # and a sync leaves nothing for a kill to find
    unlike = ("after", "before write", *([] if how["act"] == "raise" else ["before sync"]))
    points = [point for point in points if not point.startswith(unlike)]
    assert points, unbroken.said
    if len(points) > at_most:
        points = [points[i * (len(points) - 1) // (at_most - 1)] for i in range(at_most)]
    for number, point in enumerate(points):
        place = copy_of(base, folder / str(number))
        done = world.run(command, place / "out", at=point, **how)
        assert done.code != 0 or how["act"] == "raise", f"{point}: {done.said}"
        assert "Traceback" not in done.said, f"{point}: {done.said}"
        assert changed(notes, place) == [], point
        again = world.run(command, place / "out")
        there = refuses_itself and "already" in again.said
        assert again.code == 0 or there, f"{point}: {again.said}"
        assert changed(notes, place) == [], point
        left = list(place.rglob("*.json.next"))
        assert not left or command in IN_PLACE or there, point
        shutil.rmtree(place)


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
    *("tokens.parquet", "student.json", "stats.json", "curves.json", "checkpoints/state.json"),
    *("scratch-0123456789abcdef/notes", "failures.jsonl", "journal.bin", "heads.safetensors"),
]
"""Names that foreign files may have, including ours."""


@pytest.mark.slow
def test_random_trees_commands_and_kills(world, tmp_path):
    rng = random.Random(0)
    killed = refused = 0
    for case in range(150):
        place = tmp_path / str(case)
        command = rng.choice(list(COMMANDS.values()))
        earlier = rng.choice([None, command, rng.choice(FOLDERS)])
        out = place / "out"
        world.make(command, out)
        if earlier is not None and command not in (*IN_PLACE, *FILES):
            assert world.run(earlier, out).code == 0
        ours = everything(place).keys()
        strangers = rng.sample(STRANGE, rng.randint(1, 8))
        for name in strangers:
            # an empty lock is ours: a run was killed before it wrote its line
            text = "x" * 99 if name == "lock" else rng.choice(["", "x" * 99])
            try:
                write_notes(place / f"out{rng.choice(PLACES)}", {name: text})
            except (NotADirectoryError, FileExistsError):
                continue  # a file of ours is in the way
        foreign = {name: what for name, what in everything(place).items() if name not in ours}
        for _ in range(rng.randint(0, 2)):
            done = world.run(command, out, kill_after=rng.uniform(0, 0.5))
            killed += done.code == KILLED
            assert changed(foreign, place) == [], (case, command, strangers)
        done = world.run(command, out)
        refused += done.code != 0
        assert "Traceback" not in done.said, (case, command, done.said)
        assert changed(foreign, place) == [], (case, command, strangers, done.said)
        shutil.rmtree(place)
    assert killed > 12
    assert refused > 12
