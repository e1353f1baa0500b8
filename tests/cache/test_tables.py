"""Rows of groundings, cut-outs, tokens and phrase tokens: digests, and their place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stub_set import (
    HEADER,
    KEYS,
    KINDS,
    SPECS,
    Forger,
    every_kind,
    every_table,
    files,
    fill,
    make,
    read,
    rows_of,
)

from sightline.cache import CacheError, verify, write_tokens
from sightline.cache.record import FILE_NAME, read_record, refuse_other_kinds
from sightline.cache.shards import format_of


@every_table
def test_a_digest_does_not_depend_on_how_arrow_holds_the_values(world: Path, kind: str) -> None:
    """Chunks and offsets into larger buffers change nothing."""
    rows, form = read(world / kind, kind), format_of(SPECS[kind])
    twice = pa.concat_tables([rows, rows]).combine_chunks()
    parts = [twice.slice(len(rows) + i, 1) for i in range(len(rows))]
    otherwise = pa.concat_tables([rows.slice(0, 0), *parts])
    np.testing.assert_array_equal(form.digests(otherwise), form.digests(rows))


@every_table
def test_rows_that_another_version_of_a_library_wrote_are_kept(world: Path, kind: str) -> None:
    """A shard is named by its rows: other bytes of the same rows are recorded as they are."""
    folder = world / kind
    record, shard = read_record(folder), Forger(folder).shard()
    pq.write_table(pq.read_table(shard), shard, compression="none")
    other = shard.read_bytes()
    (folder / FILE_NAME).unlink()
    make(folder, kind)
    assert read_record(folder).content_digest == record.content_digest
    assert shard.read_bytes() == other
    assert verify(folder, rows=True) == []


def test_another_shard_under_the_name_of_one_is_replaced(tmp_path: Path) -> None:
    """Only its own rows make a file the shard that its name says."""
    folder, ids = tmp_path / "set", [[1, i] for i in range(40)]
    write_tokens(folder, HEADER, KEYS[:40], ids)
    before, shard = files(folder), Forger(folder).shard()
    pq.write_table(pq.read_table(shard).take([1, 0, *range(2, 40)]), shard)
    write_tokens(folder, HEADER, KEYS[:40], ids)
    assert files(folder).items() >= before.items()
    assert verify(folder, rows=True) == []


def test_the_digest_of_tokens_does_not_depend_on_the_order_of_texts(world: Path) -> None:
    def digest(keys: np.ndarray, ids: list[list[int]]) -> str:
        write_tokens(world / "other", HEADER, keys, ids)
        return read_record(world / "other").content_digest

    expected = read_record(world / "tokens").content_digest
    keys = KEYS[[*range(40), 1, 2]][::-1]
    ids = rows_of(keys, SPECS["tokens"])["input_ids"].to_pylist()
    assert digest(keys, ids) == expected
    assert digest(keys[:-1], ids[:-1]) != expected
    assert digest(keys, [[1]] * len(keys)) != expected


@every_kind
def test_a_set_is_replaced_only_by_its_own_kind(world: Path, kind: str) -> None:
    refuse_other_kinds(world / kind, kind)
    refuse_other_kinds(world / "nothing", kind)
    for other in {*KINDS} - {kind}:
        before = files(world / other)
        with pytest.raises(
            CacheError, match=f"of kind {other}, but this is .* of kind {kind}; choose another"
        ):
            fill(world / other, spec=SPECS[kind])
        assert files(world / other) == before
    if kind != "tokens":
        with pytest.raises(CacheError, match="this is a token set of kind tokens"):
            write_tokens(world / kind, HEADER, KEYS[:1], [[1]])
