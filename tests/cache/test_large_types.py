"""Texts and lists have offsets of 64 bits in memory, so that a column takes any size in one piece.

Files have Arrow's plain types.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stub_set import SPECS, every_table, fill

from sightline.cache import PHRASES, manifest, read_manifest, write_manifest
from sightline.cache.manifest import as_in_file, in_file, read_table
from sightline.cache.record import read_record
from sightline.cache.tables import ROWS_OF

LONG = 60_000
"""Bytes of a text of which 2 GiB hold fewer than ``ROWS``."""
ROWS = 40_000


def phrases(rows: int, counts: str = "04" * 50) -> pa.Table:
    """Phrases with a number each, and masks of ``counts``."""
    row = {
        **{"image_key": b"i" * 32, "caption_key": b"c" * 32, "char_start": 0, "char_end": 5},
        **{"box": [0.0, 0.0, 2.0, 2.0], "score": 1.0, "cutout_key": b"o" * 32},
        "mask": {"size": [4, 4], "counts": counts},
    }
    return pa.Table.from_pylist([{**row, "phrase": f"dog {i}"} for i in range(rows)], PHRASES)


def nested(text: pa.DataType, listed: Callable[[pa.DataType], pa.DataType]) -> pa.Schema:
    fixed = pa.list_(pa.float32(), 4)
    inside = pa.struct([("word", text), ("box", fixed), ("ids", listed(pa.int32()))])
    columns = [("text", text), ("said", listed(inside)), ("png", pa.large_binary())]
    return pa.schema(columns, {"sightline": "nested/1"})


def test_only_the_offsets_of_texts_and_lists_differ_in_a_file():
    large, plain = nested(pa.large_string(), pa.large_list), nested(pa.string(), pa.list_)
    assert in_file(large).equals(plain, check_metadata=True)
    assert in_file(plain).equals(plain, check_metadata=True)
    row = {"text": "a", "said": [{"word": "b", "box": [0.0] * 4, "ids": [1, 2]}], "png": b"c"}
    assert as_in_file(pa.Table.from_pylist([row] * 3, large)).to_pylist() == [row] * 3


@every_table
def test_the_files_of_a_set_have_plain_types(tmp_path, kind):
    fill(tmp_path / "set", spec=SPECS[kind])
    for shard in read_record(tmp_path / "set").shards:
        schema = pq.read_schema(tmp_path / "set" / shard.name)
        assert schema.remove(0) == in_file(ROWS_OF[kind])
        assert read_table(tmp_path / "set" / shard.name, ROWS_OF[kind]).schema == ROWS_OF[kind]


@pytest.mark.parametrize("limit", [1 << 31, 10])
@pytest.mark.parametrize("group", [7, 1000])
def test_a_table_is_read_in_one_piece_however_it_was_written(tmp_path, monkeypatch, limit, group):
    monkeypatch.setattr(manifest, "_PLAIN_BYTES", limit)
    monkeypatch.setattr(manifest, "_BATCH_ROWS", 64)
    path, table = tmp_path / "phrases.parquet", phrases(300)
    write_manifest(path, table, PHRASES)
    assert pq.read_schema(path) == in_file(PHRASES)
    pq.write_table(pq.read_table(path), path, row_group_size=group)
    found = read_manifest(path, PHRASES)
    assert found.equals(table)
    assert found.schema.equals(PHRASES, check_metadata=True)
    assert {column.num_chunks for column in found.columns} == {1}
    assert read_table(path, PHRASES.empty_table().select(["mask"]).schema).schema.names == ["mask"]


@pytest.mark.slow
def test_texts_of_more_than_2_gib_are_written_read_and_taken(tmp_path):
    one = phrases(ROWS, "0" * LONG)
    assert one.nbytes > 1 << 31
    write_manifest(tmp_path / "phrases.parquet", one, PHRASES)
    found = read_manifest(tmp_path / "phrases.parquet", PHRASES)
    assert found.equals(one)
    del one
    back = found.take(pa.array(range(ROWS - 1, -1, -1)))
    assert back["phrase"].to_pylist() == found["phrase"].to_pylist()[::-1]
    assert back["mask"].nbytes > 1 << 31
