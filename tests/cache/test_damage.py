"""Whatever happens to a file of a set, verify names the file and no reader serves a row."""

from __future__ import annotations

import errno
import json
import os
import random
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pytest
from stub_set import (
    DIM,
    KEYS,
    SHARD_ROWS,
    Forger,
    every_format,
    every_kind,
    every_table,
    files,
    fill,
    make,
    read,
)

from sightline.cache import CacheError, FeatureSet, PhraseTokens, TokenSet, verify
from sightline.cache.compact import collect, compact
from sightline.cache.record import FILE_NAME, TableSpec, read_record
from sightline.cache.repair import repair
from sightline.cache.tables import ROWS_OF
from sightline.errors import SightlineError


def expect_refused(path, kind):
    """Verify and a reader name the damaged file."""
    assert any(path.name in fault for fault in verify(path.parent))
    with pytest.raises(CacheError) as refused:
        read(path.parent, kind)
    assert path.name in str(refused.value)


def expect_noticed(path, data, kind):
    """A file with these bytes instead is refused; a record that says the same is only named."""
    before = path.read_bytes()
    path.write_bytes(data)
    if path.name == FILE_NAME and says_the_same(data, before):
        (fault,) = verify(path.parent)
        assert f"{path.name}: its content is valid, but the file was rewritten" in fault
        read(path.parent, kind)
    else:
        expect_refused(path, kind)
    path.write_bytes(before)


def says_the_same(one, other):
    try:
        return json.dumps(json.loads(one)) == json.dumps(json.loads(other))
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("count", "seed"), [(60, 0), pytest.param(2000, 1, marks=pytest.mark.slow)]
)
@every_kind
def test_a_flipped_bit_or_a_cut_is_named_and_not_served(world, kind, count, seed):
    folder, rng = world / kind, random.Random(f"{kind} {seed}")
    for path in rng.choices(sorted(folder.iterdir()), k=count):  # every file equally often
        data = path.read_bytes()
        at = rng.randrange(len(data))
        flipped = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        expect_noticed(path, data[:at] if rng.random() < 0.1 else flipped, kind)
    assert verify(folder) == []
    read(folder, kind)


@pytest.mark.parametrize(("count", "seed"), [(30, 0), pytest.param(200, 1, marks=pytest.mark.slow)])
@every_kind
def test_damage_that_the_record_agrees_with_is_served_or_one_error(world, kind, count, seed):
    """Readers, `verify` and `repair` meet nonsense behind digests that fit."""
    folder, rng = world / kind, random.Random(f"{kind} {seed}")
    good, errors = files(folder), list[str]()
    for name in rng.choices(sorted(good.keys() - {FILE_NAME}), k=count):
        data = bytearray(good[name])
        at = rng.randrange(len(data))
        match rng.choice(["flip", "zero", "cut"]):
            case "flip":
                data[at] ^= 1 << rng.randrange(8)
            case "zero":
                end = min(len(data), at + rng.choice([1, 8, 64]))
                data[at:end] = bytes(end - at)
            case _:
                del data[at:]
        (folder / name).write_bytes(data)
        Forger(folder).refit()
        sound = verify(folder) == []
        try:
            read(folder, kind)
        except CacheError as error:
            errors.append(str(error))
        with suppress(CacheError):
            repair(folder)
            assert sound or verify(folder) == []
        for path in folder.iterdir():
            path.unlink()
        for file, intact in good.items():
            (folder / file).write_bytes(intact)
    assert errors
    assert [error for error in errors if str(folder) not in error or "prepare" in error] == []
    assert not any(error.endswith(("\n", "\n)")) for error in errors)
    assert verify(folder) == []


@pytest.mark.slow
@every_kind
def test_a_bit_of_every_byte_of_the_commit_file(world, kind):
    path = world / kind / FILE_NAME
    data = path.read_bytes()
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]
        expect_noticed(path, flipped, kind)


@every_kind
def test_extra_bytes_a_missing_file_a_link_to_others_and_a_folder_are_named(world, kind):
    folder, elsewhere = world / kind, world / "elsewhere"
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        for changed in (data[:-1], data + b"\n", data + b"\0", b" " + data, b"", bytes(len(data))):
            expect_noticed(path, changed, kind)
        path.rename(elsewhere)
        expect_refused(path, kind)
        path.symlink_to(elsewhere)
        assert verify(folder) == []
        read(folder, kind)
        elsewhere.write_bytes(data[:-8])
        expect_refused(path, kind)
        elsewhere.write_bytes(data)
        path.unlink()
        path.mkdir()
        expect_refused(path, kind)
        path.rmdir()
        elsewhere.rename(path)
    assert verify(folder) == []


@every_kind
def test_two_files_that_were_swapped_are_both_named(world, kind):
    folder = world / kind
    read(folder, kind)  # which remembers both as sound
    one, two = sorted(folder.glob("*-*"))[:2]
    one.rename(world / "one")
    two.rename(one)
    (world / "one").rename(two)
    expect_refused(one, kind)
    assert any(two.name in fault for fault in verify(folder))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "truncated or not JSON"),
        ("[" * 1_000_000, "truncated or not JSON"),
        ('{"schema": "\udcff"}', "truncated or not JSON"),
        ("[1, 2]", "schema version 'list'"),
        ('{"schema": "sightline.set/9"}', "'sightline.set/9', expected sightline.set/4; use the"),
        ('{"schema": "sightline.set/4"}', "digest does not match"),
        ('{"schema": "sightline.set/4", "rows": NaN}', "digest does not match"),
        (None, "not a feature set"),
    ],
    ids=lambda text: str(text)[:30].encode(errors="replace").decode(),
)
def test_a_commit_file_that_is_invalid_is_refused(world, text, message):
    folder = world / "image"
    if text is None:
        (folder / FILE_NAME).unlink()
    else:
        (folder / FILE_NAME).write_bytes(text.encode(errors="surrogateescape"))
    before = files(folder)
    with pytest.raises(CacheError, match=message):
        FeatureSet.open(folder)
    assert message.replace("feature ", "") in verify(folder)[0]
    for change in (repair, compact, collect):
        with pytest.raises(SightlineError, match=FILE_NAME):
            change(folder)
    assert files(folder) == before


def test_a_shard_on_a_failing_disk_is_named_and_not_mapped(world, monkeypatch):
    """An I/O error in a memory map is a signal that ends the process without a line."""
    shard = Forger(world / "image").shard()
    opened = Path.open

    def failing(path, *args, **kwargs):
        if path == shard:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", failing)  # with which shards are mapped, too
    (fault,) = verify(world / "image")
    assert f"{shard}: cannot be read (Input/output error)" in fault
    with pytest.raises(CacheError, match="cannot be read"):
        FeatureSet.open(world / "image")
    assert [*repair(world / "image").dropped] == [shard.name]


# --- sets that are not sound although their digests fit


OUTSIDE = {"name": f"../shard-{'0' * 32}.h5"}


@pytest.mark.parametrize(
    ("lie", "field"),
    [
        (lambda body: body["shards"][0].update(OUTSIDE), r"shards\.0\.name"),
        (lambda body: body["shards"][0].update(name="/etc/passwd"), r"shards\.0\.name"),
        (lambda body: body["shards"][0].update(rows=-1), r"shards\.0\.rows"),
        (lambda body: body.update(failed=True), "failed"),
        (lambda body: body.update(rows="89"), "rows"),
        (lambda body: body.update(more=1), "more"),
        (lambda body: body["spec"].update(kind="text"), r"fingerprint|spec\.encoder"),
    ],
)
@every_format
def test_a_record_that_lies_is_refused_unread(world, kind, lie, field):
    Forger(world / kind).say(lie)
    for act in (read_record, repair, collect, lambda folder: read(folder, kind)):
        with pytest.raises(CacheError, match=f"{FILE_NAME}: .*({field})"):
            act(world / kind)


@pytest.mark.parametrize(
    ("kind", "opened"), [("tokens", TokenSet.open), ("phrase-tokens", PhraseTokens.open)]
)
def test_a_header_of_other_types_is_refused(world, kind, opened):
    forger = Forger(world / kind)
    good = forger.record["spec"]["description"]
    headers = [{**good, field: bad} for field in good for bad in (["x"], None, 0.5)]
    without = {name: value for name, value in good.items() if name != "max_length"}
    for header in [*headers, without, {**good, "more": 1}]:
        spec = TableSpec(kind=kind, description=header)
        forger.say(lambda b, s=spec: b.update(spec=s.model_dump(), fingerprint=s.fingerprint))
        with pytest.raises(CacheError, match="described by a different version; rerun"):
            opened(world / kind)


def expect_unreadable(folder, kind, message):
    with pytest.raises(CacheError, match=message) as refused:
        read(folder, kind)
    assert str(folder) in str(refused.value)


def expect_unsound(folder, kind, message):
    expect_unreadable(folder, kind, message)
    assert verify(folder)  # the same as a message, without an exception


RUN = "/features is not one contiguous run of numbers"
ZEROS = np.zeros((SHARD_ROWS, DIM), np.float16)
EXTERNAL = {"dtype": np.float16, "external": [("/etc/passwd", 0, ZEROS.nbytes)]}
"""Rows that lie in another file."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("no HDF5", "not a readable HDF5"),
        ("a soft link", RUN),
        ({"shape": ZEROS.shape, **EXTERNAL}, RUN),
        ({"data": ZEROS, "chunks": True}, RUN),
        ({"data": ZEROS.astype(">f2")}, "expected float16"),
        ({"data": ZEROS[1:]}, "expected float16"),
        ({"shape": ZEROS.shape, "dtype": np.float16}, "outside the file"),  # never written
    ],
)
def test_numbers_that_cannot_be_mapped_are_refused(world, options, message):
    forger = Forger(world / "image")
    if options == "no HDF5":
        forger.shard().write_bytes(b"\0" * 4000)
    else:
        with h5py.File(forger.shard(), "r+") as file:
            file.move("features", "elsewhere")
            if options == "a soft link":
                file["features"] = h5py.SoftLink("/elsewhere")
            else:
                file.create_dataset("features", **options)
    forger.refit()
    expect_unsound(world / "image", "image", message)


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("key", lambda keys: [keys[1], keys[0], *keys[2:]], "not sorted"),
        ("row", lambda rows: [1000] * len(rows), "rows that do not exist"),
        ("row", lambda rows: [-3] * len(rows), "rows that do not exist"),
        ("shard", lambda shards: [7] * len(shards), "rows that do not exist"),
        ("row", lambda rows: rows[1:], "has 99 rows, but set.json says 99 and 1 failed"),
        ("row", lambda rows: [str(row) for row in rows], "not an index"),
    ],
)
def test_an_index_that_does_not_fit_is_refused_and_rebuilt(world, column, change, message):
    Forger(world / "image").column(column, change)
    expect_unsound(world / "image", "image", message)
    assert message in repair(world / "image").index_fault
    assert verify(world / "image") == []


@every_table
def test_null_values_and_lost_rows_are_refused(world, kind):
    forger, schema = Forger(world / kind), ROWS_OF[kind]
    forger.say(lambda body: body["shards"][0].update(rows=(1 << 31) - 1))
    expect_unreadable(world / kind, kind, "rows, expected 2,147,483,647")
    forger.rows(pa.Table.from_pylist([dict.fromkeys(schema.names)], schema))
    expect_unreadable(world / kind, kind, r"row 0: .*: found null")


def test_a_null_inside_a_list_is_named_by_its_place(world):
    rows = read(world / "grounding", "grounding").to_pylist()
    row = next(row for row in rows if row["phrases"])
    row["phrases"][0]["box"] = [1.0, None, 2.0, 3.0]
    Forger(world / "grounding").rows(pa.Table.from_pylist([row], ROWS_OF["grounding"]))
    expect_unreadable(world / "grounding", "grounding", r"row 0: phrases\[0\].box\[1\]: found null")


@pytest.mark.parametrize("kind", ["image", "tokens"])
@pytest.mark.parametrize("field", ["rows", "failed"])
def test_a_count_that_no_memory_holds_is_compared_before_memory_is_taken(world, kind, field):
    Forger(world / kind).say(lambda body: body.update({field: (1 << 47)}))
    message = "rows, but set.json says .*140,737,488,355,328"
    expect_unsound(world / kind, kind, message)
    assert len(repair(world / kind).rows)  # by the shards
    assert verify(world / kind) == []


@every_kind
def test_a_shard_that_is_listed_twice_is_named(world, kind):
    Forger(world / kind).say(lambda body: body.update(shards=[body["shards"][0], *body["shards"]]))
    expect_unsound(world / kind, kind, r"set.json: lists shard-\w+\.\w+ 2 times")


# --- what is in the way of a writer


@pytest.fixture
def run_folder(tmp_path):
    """A folder of runs that the next run takes for one of ours."""
    (tmp_path / "set.run").mkdir()
    (tmp_path / "set.run/lock").touch()
    return tmp_path / "set.run"


@pytest.mark.parametrize("name", ["plan.json", "failures.jsonl"])
def test_a_run_does_not_write_through_links_in_its_folder(run_folder, tmp_path, name):
    (tmp_path / "precious").touch()
    (run_folder / name).symlink_to(tmp_path / "precious")
    make(tmp_path / "set", "image")
    assert (tmp_path / "precious").read_text() == ""


def test_a_run_does_not_write_through_links_in_the_set(world, run_folder, tmp_path):
    theirs, folder = world / "image", tmp_path / "set"
    before = files(theirs)
    folder.mkdir()
    (folder / FILE_NAME).symlink_to(theirs / FILE_NAME)
    unfinished = run_folder / "scratch-0123456789abcdef/.set.json.tmp"
    unfinished.parent.mkdir()
    (run_folder / "lock").write_text("process 1 on host\n0123456789abcdef\n")
    unfinished.symlink_to(theirs / FILE_NAME)
    make(folder, "image")
    assert not unfinished.is_symlink()
    assert files(theirs) == files(folder) == before
    assert verify(folder) == []


@pytest.mark.parametrize(
    "line",
    [
        '{"key": 5}',
        '{"key": "ab", "code": "", "path": "", "reason": ""}',
        f'{{"key": "{KEYS[0].tobytes().hex()}", "code": 5, "path": "", "reason": ""}}',
        f'{{"key": "{KEYS[0].tobytes().hex()}"}}',
        "[1]",
        "[" * 100_000,
    ],
)
def test_a_damaged_list_of_failures_is_named(run_folder, tmp_path, line):
    (run_folder / "failures.jsonl").write_text(f"{line}\n")
    with pytest.raises(CacheError, match=r"failures.jsonl: not a list of failures .* delete it"):
        fill(tmp_path / "set")
