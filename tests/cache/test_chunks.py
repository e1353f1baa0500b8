"""Tables whose text has no room in one chunk of a column; here one holds a few hundred bytes."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sightline.cache import PHRASES, chunks, write_manifest
from sightline.cache.chunks import joined, taken
from sightline.cache.groundings import read_phrases
from sightline.cache.manifest import read_table

ROOT = Path(__file__).parents[2]
LIMIT = 400
NESTED = pa.schema([("name", pa.string()), ("said", pa.list_(pa.struct([("word", pa.string())])))])


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", LIMIT)


def nested(start: int, stop: int) -> pa.Table:
    rows = [
        {"name": f"n{i}", "said": [{"word": "w" * (i % 9)}] * (i % 4)} for i in range(start, stop)
    ]
    return pa.Table.from_pylist(rows, NESTED)


def largest(table: pa.Table) -> int:
    return max(batch.nbytes for batch in table.to_batches())


@pytest.mark.parametrize("parts", [[], [(0, 0)], [(0, 3), (3, 5)], [(0, 40), (40, 41), (41, 120)]])
def test_rows_are_taken_in_order_in_chunks_with_room(parts):
    table = joined([nested(*part) for part in parts], NESTED)
    rows = table.to_pylist()
    assert rows == [row for part in parts for row in nested(*part).to_pylist()]
    rng = np.random.default_rng(0)
    for wanted in (rng.permutation(len(rows)), rng.integers(0, max(len(rows), 1), 5 * len(rows))):
        some = taken(table, wanted)
        assert some.to_pylist() == [rows[i] for i in wanted]
        assert some.schema == NESTED
        assert not len(rows) or largest(some) < 4 * LIMIT
    assert taken(table, np.arange(0)).to_pylist() == []
    assert taken(table, np.arange(len(rows))) is table


@pytest.mark.parametrize("group", [7, 1000])
def test_a_table_is_read_in_chunks_with_room_whatever_its_row_groups(tmp_path, group):
    path = tmp_path / "table.parquet"
    pq.write_table(nested(0, 300), path, row_group_size=group, use_dictionary=False)
    table = read_table(path)
    assert table.to_pylist() == nested(0, 300).to_pylist()
    assert table.column("said").num_chunks > 5
    assert read_table(path, ["name"]).schema.names == ["name"]


def test_nothing_else_takes_rows_of_a_table_or_joins_its_chunks():
    """Both copy all chunks into one, which has no room for the text of a large set."""
    arrow = re.compile(r"combine_chunks\(|concat_arrays\(|\.take\(pa\.|\.chunk\(0\)")
    uses = {
        path.relative_to(ROOT).as_posix()
        for room in ("sightline", "pipeline", "train")
        for path in (ROOT / room).rglob("*.py")
        if arrow.search(path.read_text())
    }
    # a part of an export has a few thousand rows of numbers
    assert uses == {"sightline/cache/chunks.py", "pipeline/interchange/rows.py"}


def test_a_manifest_of_phrases_is_read_in_chunks(tmp_path):
    row = {
        **{"image_key": b"i" * 32, "caption_key": b"c" * 32, "phrase": "a dog", "char_start": 0},
        **{"char_end": 5, "box": [0.0, 0.0, 2.0, 2.0], "score": 1.0, "cutout_key": b"o" * 32},
        "mask": {"size": [4, 4], "counts": "04" * 50},
    }
    table = pa.Table.from_pylist([row] * 40, PHRASES)
    write_manifest(tmp_path / "phrases.parquet", table, PHRASES)
    assert read_phrases(tmp_path / "phrases.parquet").to_pylist() == table.to_pylist()
