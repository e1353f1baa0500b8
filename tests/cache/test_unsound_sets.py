"""Sets whose digests fit but which are not sound are refused, and a writer follows no links."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from every_kind import Forger, every_format, make, read
from stub_set import DIM, files, fill

from sightline.cache import CacheError, PhraseTokens, TokenSet, verify
from sightline.cache.compact import collect
from sightline.cache.record import FILE_NAME, TABLE_KINDS, TableKind, TableSpec, read_record
from sightline.cache.tables import GROUNDED, ROWS_OF
from sightline.cache.verify import repair

SHA = "0" * 32
LIES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a name outside": (
        lambda b: b["shards"][0].update(name=f"../shard-{SHA}.h5"),
        r"shards\.0\.name",
    ),
    "an absolute name": (lambda b: b["shards"][0].update(name="/etc/passwd"), r"shards\.0\.name"),
    "a negative number of rows": (lambda b: b["shards"][0].update(rows=-1), r"shards\.0\.rows"),
    "true for a number": (lambda b: b.update(failed=True), "failed"),
    "text for a number": (lambda b: b.update(rows="89"), "rows"),
    "a field that nobody knows": (lambda b: b.update(more=1), "more"),
    "another kind": (lambda b: b["spec"].update(kind="text"), r"fingerprint|spec\.encoder"),
}


@pytest.mark.parametrize("lie", LIES)
@every_format
def test_a_record_that_lies_is_refused_unread(world: Path, kind: str, lie: str) -> None:
    change, field = LIES[lie]
    Forger(world / kind).say(change)
    for act in (read_record, repair, collect, lambda folder: read(folder, kind)):
        with pytest.raises(CacheError, match=f"{FILE_NAME}: .*({field})"):
            act(world / kind)


@pytest.mark.parametrize("kind", ["tokens", "phrase-tokens"])
def test_a_header_of_other_types_is_refused(world: Path, kind: TableKind) -> None:
    opened = TokenSet.open if kind == "tokens" else PhraseTokens.open
    forger = Forger(world / kind)
    good = forger.body()["spec"]["description"]
    headers = [{**good, field: bad} for field in good for bad in (["x"], None, 0.5)]
    without = {name: value for name, value in good.items() if name != "max_length"}
    for header in [*headers, without, {**good, "more": 1}]:
        spec = TableSpec(kind=kind, description=header)
        forger.say(lambda b, s=spec: b.update(spec=s.model_dump(), fingerprint=s.fingerprint))
        with pytest.raises(CacheError, match="described by a different version; rerun"):
            opened(world / kind)


def _zeros(rows: int) -> np.ndarray:
    return np.zeros((rows, DIM), np.float16)


def _soft_link(file: h5py.File, rows: int) -> None:
    file["elsewhere"] = _zeros(rows)
    file["features"] = h5py.SoftLink("/elsewhere")


def _external(file: h5py.File, rows: int) -> None:
    raw = [("/etc/passwd", 0, rows * DIM * 2)]
    file.create_dataset("features", (rows, DIM), np.float16, external=raw)


def _chunks(file: h5py.File, rows: int) -> None:
    file.create_dataset("features", data=_zeros(rows), chunks=True)


def _other_floats(file: h5py.File, rows: int) -> None:
    file["features"] = _zeros(rows).astype(">f2")


def _one_row_less(file: h5py.File, rows: int) -> None:
    file["features"] = _zeros(rows - 1)


def _nothing_written(file: h5py.File, rows: int) -> None:
    file.create_dataset("features", (rows, DIM), np.float16)


def expect_refused(folder: Path, kind: str, message: str) -> None:
    with pytest.raises(CacheError, match=message) as refused:
        read(folder, kind)
    assert str(folder) in str(refused.value)
    assert verify(folder, rows=True)  # the same as a message, without an exception


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (_soft_link, "/features is not one contiguous run of numbers"),
        (_external, "/features is not one contiguous run of numbers"),
        (_chunks, "/features is not one contiguous run of numbers"),
        (_other_floats, "expected float16"),
        (_one_row_less, "expected float16"),
        (_nothing_written, "outside the file"),
    ],
)
def test_numbers_that_cannot_be_mapped_are_refused(world: Path, write, message: str) -> None:
    Forger(world / "image").hdf5(write)
    expect_refused(world / "image", "image", message)
    assert verify(world / "image")  # even if no rows are read


def test_a_shard_that_is_no_hdf5_is_refused(world: Path) -> None:
    Forger(world / "image").shard().write_bytes(b"\0" * 4000)
    Forger(world / "image").refit()
    expect_refused(world / "image", "image", "not a readable HDF5")


@pytest.mark.parametrize(
    ("column", "change", "message"),
    [
        ("key", lambda keys: [keys[1], keys[0], *keys[2:]], "not sorted"),
        ("row", lambda rows: [1000] * len(rows), "rows that do not exist"),
        ("row", lambda rows: [-3] * len(rows), "rows that do not exist"),
        ("shard", lambda shards: [7] * len(shards), "rows that do not exist"),
        ("row", lambda rows: rows[1:], "has other rows than"),
        ("row", lambda rows: [str(row) for row in rows], "not an index"),
    ],
)
def test_an_index_that_does_not_fit_is_refused_and_rebuilt(
    world: Path, column: str, change, message: str
) -> None:
    Forger(world / "image").column(column, change)
    expect_refused(world / "image", "image", message)
    assert message in repair(world / "image").index_fault
    assert verify(world / "image") == []


@pytest.mark.parametrize("kind", TABLE_KINDS)
def test_null_values_are_refused(world: Path, kind: TableKind) -> None:
    schema = ROWS_OF[kind]
    Forger(world / kind).rows(pa.Table.from_pylist([dict.fromkeys(schema.names)], schema=schema))
    assert any("row 0: " in f and "found null" in f for f in verify(world / kind, rows=True))
    with pytest.raises(CacheError, match=r"row 0: .*: found null"):
        read(world / kind, kind)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("box[1]", {"box": [1.0, None, 2.0, 3.0]}),
        ("mask.counts", {"mask": {"size": [1, 1], "counts": None}}),
    ],
)
def test_incomplete_boxes_and_masks_are_refused(world: Path, field: str, change: dict) -> None:
    rows = read(world / "grounding", "grounding").to_pylist()
    row = next(row for row in rows if row["phrases"])
    phrases = [{**row["phrases"][0], **change}]
    table = pa.Table.from_pylist([{**row, "phrases": phrases}], schema=GROUNDED)
    Forger(world / "grounding").rows(table)
    (fault,) = verify(world / "grounding", rows=True)[:1]
    assert f"row 0: phrases[0].{field}: found null" in fault


def test_more_rows_than_a_table_has_are_detected(world: Path) -> None:
    Forger(world / "tokens").say(lambda body: body["shards"][0].update(rows=(1 << 31) - 1))
    expect_refused(world / "tokens", "tokens", "rows, expected 2,147,483,647")


# --- links in the way of a writer, which are replaced and not followed


@pytest.mark.parametrize("name", ["plan.json", "failures.jsonl"])
def test_a_run_does_not_write_through_links_in_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "precious").touch()
    (tmp_path / "set.run").mkdir()
    (tmp_path / "set.run" / "lock").touch()
    (tmp_path / "set.run" / name).symlink_to(tmp_path / "precious")
    make(tmp_path, "image", tmp_path / "set")
    assert (tmp_path / "precious").read_text() == ""


def test_a_run_does_not_write_through_links_in_the_set(world: Path, tmp_path: Path) -> None:
    theirs, folder = world / "image", tmp_path / "set"
    before = files(theirs)
    folder.mkdir()
    (folder / FILE_NAME).symlink_to(theirs / FILE_NAME)
    unfinished = tmp_path / "set.run/scratch-0123456789abcdef/.set.json.tmp"
    unfinished.parent.mkdir(parents=True)
    (tmp_path / "set.run" / "lock").write_text("process 1 on host\n0123456789abcdef\n")
    unfinished.symlink_to(theirs / FILE_NAME)
    make(tmp_path, "image", folder)
    assert not unfinished.is_symlink()
    assert files(theirs) == files(folder) == before
    assert verify(folder) == []


def test_a_damaged_list_of_failures_is_named(tmp_path: Path) -> None:
    (tmp_path / "set.run").mkdir()
    (tmp_path / "set.run" / "lock").touch()
    (tmp_path / "set.run" / "failures.jsonl").write_text('{"key": 5}\n')
    with pytest.raises(CacheError, match=r"failures.jsonl: not a list of failures .* delete it"):
        fill(tmp_path / "set")
