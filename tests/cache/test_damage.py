"""Whatever happens to a file of a set, verify names the file and no reader serves a row."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import sightline
from every_kind import KINDS, Forger, every_format, every_kind, read
from stub_set import flip

from sightline.cache import CacheError, FeatureSet, verify
from sightline.cache.archive import export_set
from sightline.cache.compact import collect, compact
from sightline.cache.record import FILE_NAME
from sightline.cache.verify import repair
from sightline.errors import SightlineError


@contextmanager
def replaced(path: Path, data: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(data)
    try:
        yield
    finally:
        path.write_bytes(before)


def expect_refused(path: Path, kind: str) -> None:
    """Verify and a reader name the damaged file."""
    assert any(path.name in fault for fault in verify(path.parent))
    with pytest.raises(CacheError) as refused:
        read(path.parent, kind)
    assert path.name in str(refused.value)


def expect_noticed(path: Path, data: bytes, kind: str) -> None:
    """A file with these bytes instead is refused; a record that says the same is only named."""
    same = path.name == FILE_NAME and says_the_same(data, path.read_bytes())
    with replaced(path, data):
        if same:
            (fault,) = verify(path.parent)
            assert f"{path.name}: its content is valid, but the file was rewritten" in fault
            read(path.parent, kind)
        else:
            expect_refused(path, kind)


def says_the_same(one: bytes, other: bytes) -> bool:
    try:
        return json.dumps(json.loads(one)) == json.dumps(json.loads(other))
    except ValueError:
        return False


def damages(folder: Path, kind: str, count: int, seed: int) -> None:
    """Flip bits and truncate, equally often for every file."""
    rng = random.Random(f"{kind} {seed}")
    for path in rng.choices(sorted(folder.iterdir()), k=count):
        data = path.read_bytes()
        at = rng.randrange(len(data))
        flipped = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        expect_noticed(path, data[:at] if rng.random() < 0.1 else flipped, kind)
    assert verify(folder) == []
    read(folder, kind)


@every_kind
def test_a_flipped_bit_or_a_cut_is_named_and_not_served(world: Path, kind: str) -> None:
    damages(world / kind, kind, 60, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@every_kind
def test_ten_thousand_damages(world: Path, kind: str, seed: int) -> None:
    damages(world / kind, kind, 5000, seed)


@pytest.mark.slow
@every_kind
def test_every_bit_of_the_commit_file(world: Path, kind: str) -> None:
    path = world / kind / FILE_NAME
    data = path.read_bytes()
    for at in range(len(data)):
        for bit in range(8):
            flipped = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
            expect_noticed(path, flipped, kind)


@every_kind
def test_extra_bytes_a_missing_file_a_link_and_a_folder_are_named(world: Path, kind: str) -> None:
    folder, elsewhere = world / kind, world / "elsewhere"
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        for changed in (data[:-1], data + b"\n", data + b"\0", b" " + data, b"", bytes(len(data))):
            expect_noticed(path, changed, kind)
        path.rename(elsewhere)
        expect_refused(path, kind)
        path.symlink_to(elsewhere)  # with identical bytes
        expect_refused(path, kind)
        path.unlink()
        path.mkdir()
        expect_refused(path, kind)
        path.rmdir()
        elsewhere.rename(path)
    assert verify(folder) == []


@every_kind
def test_two_files_that_were_swapped_are_both_named(world: Path, kind: str) -> None:
    folder = world / kind
    read(folder, kind)  # which remembers both as sound
    one, two = sorted(folder.glob("*-*"))[:2]
    one.rename(world / "one")
    two.rename(one)
    (world / "one").rename(two)
    expect_refused(one, kind)
    assert any(two.name in fault for fault in verify(folder))


def test_a_rewritten_but_equal_record_is_read_and_named(world: Path) -> None:
    sound, path = read(world / "image", "image"), world / "image" / FILE_NAME
    path.write_text(json.dumps(json.loads(path.read_text())))
    np.testing.assert_array_equal(read(world / "image", "image"), sound)
    (fault,) = verify(world / "image")
    assert "the file was rewritten" in fault


def leaves(value: Any, at: tuple = ()) -> Iterator[tuple]:
    """The path of every field in a commit file, including nested ones."""
    if at:
        yield at
    if isinstance(value, dict | list):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        for key, part in parts:
            yield from leaves(part, (*at, key))


def put(value: Any, at: tuple, new: Any) -> None:
    for key in at[:-1]:
        value = value[key]
    value[at[-1]] = new


@every_format
def test_a_field_changed_without_the_digest_is_detected(world: Path, kind: str) -> None:
    path = world / kind / FILE_NAME
    whole = json.loads(path.read_text())
    for at in leaves(whole):
        changed = json.loads(json.dumps(whole))
        put(changed, at, "1" * 64)
        expect_noticed(path, json.dumps(changed, indent=1).encode(), kind)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "truncated or not JSON"),
        ("[" * 1_000_000, "truncated or not JSON"),
        ('{"schema": "\udcff"}', "truncated or not JSON"),
        ("[1, 2]", "schema version 'list'"),
        ('{"schema": "sightline.set/9"}', "'sightline.set/9', expected sightline.set/3; use the"),
        ('{"schema": "sightline.set/3"}', "digest does not match"),
        ('{"schema": "sightline.set/3", "rows": NaN}', "digest does not match"),
    ],
    ids=lambda text: text[:30].encode(errors="replace").decode(),
)
def test_a_commit_file_that_is_invalid_is_refused(world: Path, text: str, message: str) -> None:
    folder = world / "image"
    (folder / FILE_NAME).write_bytes(text.encode(errors="surrogateescape"))
    before = {path.name for path in folder.iterdir()}
    assert message in verify(folder)[0]
    with pytest.raises(CacheError) as refused:
        FeatureSet.open(folder)
    assert message in str(refused.value)
    for change in (repair, compact, collect):
        with pytest.raises(SightlineError, match=FILE_NAME):
            change(folder)
    assert {path.name for path in folder.iterdir()} == before


def test_a_folder_without_a_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="no feature set here"):
        FeatureSet.open(tmp_path)


def test_a_shard_on_a_failing_disk_is_named_and_not_mapped(world: Path, monkeypatch) -> None:
    """An I/O error in a memory map is a signal that ends the process without a line."""
    shard = Forger(world / "image").shard()
    opened, mapped = Path.open, np.memmap

    def failing(path, *args, **kwargs):
        if path == shard:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path, *args, **kwargs)

    def refusing(path, *args, **kwargs):
        assert path != shard
        return mapped(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", failing)
    monkeypatch.setattr(np, "memmap", refusing)
    (fault,) = verify(world / "image")
    assert f"{shard}: cannot be read (Input/output error)" in fault
    with pytest.raises(CacheError, match="cannot be read"):
        FeatureSet.open(world / "image")
    assert [dropped.name for dropped in repair(world / "image").dropped] == [shard.name]


def test_a_damaged_set_is_neither_exported_nor_compacted(world: Path) -> None:
    folder = world / "image"
    flip(Forger(folder).shard(1), -100)
    (world / "set.tar").write_bytes(b"set.json\0 of an earlier export")
    with pytest.raises(CacheError, match="damaged"):
        export_set(folder, world / "set.tar")
    assert (world / "set.tar").read_bytes() == b"set.json\0 of an earlier export"
    with pytest.raises(CacheError, match="sightline cache repair"):
        compact(folder, 60)
    (fault,) = verify(folder)
    assert Forger(folder).shard(1).name in fault


def test_the_command_checks_the_sets_of_every_kind(world: Path, capsys) -> None:
    assert sightline("cache", "verify", world) == 0
    said = capsys.readouterr().out
    assert all(f"{world / kind}: sound" in said for kind in KINDS)
    for kind in KINDS:
        path = Forger(world / kind).shard()
        flip(path, path.stat().st_size // 2)
    assert sightline("cache", "verify", world) == 1
    said = capsys.readouterr().out
    assert ": sound" not in said
    assert all(Forger(world / kind).shard().name in said for kind in KINDS)
