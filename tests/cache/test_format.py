"""Rows of every kind, their digests and files, as docs/cache.md describes them."""

from __future__ import annotations

import hashlib
import io
import json
import re
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from blake3 import blake3
from shown_reader import PAGE, shown_code
from stub_set import (
    HEADER,
    KEYS,
    KINDS,
    SPEC,
    SPECS,
    every_kind,
    every_table,
    files,
    fill,
    make,
    read,
    rows_of,
)
from xxhash import xxh3_128

from sightline.cache import CacheError, write_tokens
from sightline.cache.record import FILE_NAME, SCHEMA, read_record, set_output
from sightline.cache.shards import format_of
from sightline.cache.tables import SHARD_ROWS


@every_table
def test_a_digest_does_not_depend_on_how_arrow_holds_the_values(world, kind):
    """Chunks and offsets into larger buffers change nothing."""
    rows, form = read(world / kind, kind), format_of(SPECS[kind])
    twice = pa.concat_tables([rows, rows]).combine_chunks()
    parts = [twice.slice(len(rows) + i, 1) for i in range(len(rows))]
    otherwise = pa.concat_tables([rows.slice(0, 0), *parts])
    np.testing.assert_array_equal(form.digests(otherwise), form.digests(rows))


def test_the_digest_of_tokens_does_not_depend_on_the_order_of_texts(world):
    def digest(keys, ids):
        write_tokens(world / "other", HEADER, keys, ids)
        return read_record(world / "other").content_digest

    expected = read_record(world / "tokens").content_digest
    keys = KEYS[[*range(40), 1, 2]][::-1]
    ids = rows_of(keys, SPECS["tokens"])["input_ids"].to_pylist()
    assert digest(keys, ids) == expected
    assert digest(keys[:-1], ids[:-1]) != expected
    assert digest(keys, [[1]] * len(keys)) != expected


@every_kind
def test_a_set_is_replaced_only_by_its_own_kind(world, kind):
    for name in (kind, "nothing"):
        set_output(world / name, kind=kind)
    for other in {*KINDS} - {kind}:
        before = files(world / other)
        fault = f"of kind {other}, but this is .* of kind {kind}; choose another"
        with pytest.raises(CacheError, match=fault):
            fill(world / other, spec=SPECS[kind])
        assert files(world / other) == before
    if kind != "tokens":
        with pytest.raises(CacheError, match="this is a token set of kind tokens"):
            write_tokens(world / kind, HEADER, KEYS[:1], [[1]])


@pytest.mark.parametrize("rows", [0, 1, 3])
@pytest.mark.parametrize("dim", [1, 3, 513])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_numbers_of_a_shard_are_aligned(dtype, dim, rows):
    numbers = format_of(SPEC.model_copy(update={"dim": dim, "dtype": dtype}))
    keys, values = KEYS[:rows], np.ones((rows, dim), np.float32)
    with h5py.File(io.BytesIO(numbers.encode(keys, values))) as file:
        assert (file["features"].id.get_offset() or 0) % 8 == 0


# --- docs/cache.md


def test_the_shown_code_is_short_and_needs_nothing_of_ours():
    code = shown_code()
    assert len(code.splitlines()) <= 30
    modules = set(re.findall(r"^(?:import|from) (\w+)", code, re.M))
    assert modules == {"json", "pathlib", "h5py", "pyarrow"}


def test_the_page_has_the_sizes_of_shards_and_the_fields_of_the_record(world):
    text = PAGE.read_text()
    record = read_record(world / "image")
    for name in (SCHEMA, *(f"`{field}`" for field in record.model_dump(by_alias=True))):
        assert name in text
    for rows in SHARD_ROWS.values():
        assert f"{rows:,}" in text


def digest_of(row):
    """The digest of a row, as the page describes it."""
    if isinstance(row, np.ndarray):
        return xxh3_128(row.astype(row.dtype.newbyteorder("<")).tobytes()).digest()
    text = json.dumps(row, separators=(",", ":"), default=lambda data: xxh3_128(data).hexdigest())
    return xxh3_128(text.encode()).digest()


def sha256_of_json(value):
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


@every_kind
def test_names_and_digests_are_those_that_the_page_describes(world, kind, monkeypatch):
    monkeypatch.setattr("sightline.cache.index._ROWS", 16)
    folder = world / "again"
    make(folder, kind)
    shown: dict[str, Any] = {}
    exec(shown_code(), shown)
    keys, rows, failed = shown["read_set"](folder)
    digests = [digest_of(row) for row in rows]
    record = json.loads((folder / FILE_NAME).read_bytes())
    index = pq.read_table(folder / record["index"]["name"])
    live = index.filter(pc.equal(index["status"].cast(pa.string()), "ok"))
    assert live["digest"].to_pylist() == digests

    content = blake3(record["fingerprint"].encode())
    content.update(b"".join(key + value for key, value in zip(keys, digests, strict=True)))
    content.update(b"".join(key + failed[key].encode() for key in sorted(failed)))
    assert content.hexdigest() == record["content_digest"]

    names = [shard["name"] for shard in record["shards"]]
    assert names == sorted(names)
    for number, name in enumerate(names):
        here = [i for i, other in enumerate(live["shard"].to_pylist()) if other == number]
        content = blake3(b"".join([keys[i] for i in here] + [digests[i] for i in here]))
        assert name.startswith(f"shard-{content.hexdigest()[:32]}.")
    for file in (record["index"], *record["shards"]):
        data = (folder / file["name"]).read_bytes()
        assert (file["blake3"], file["bytes"]) == (blake3(data).hexdigest(), len(data))
    assert record["index"]["name"] == f"index-{record['index']['blake3'][:32]}.parquet"

    own = record.pop("digest")
    assert own == sha256_of_json(record)
    spec = {"schema": "sightline.set/2", **record["spec"]}
    if kind == "image":
        encoder = spec["encoder"]
        names = ["kind", "preprocessing", "precision", "dim", "dtype"]
        spec = {name: spec[name] for name in names}
        spec |= {"schema": "sightline.feature_set/1", "encoder": encoder["name"]}
        spec["weights_sha256"] = encoder["weights_sha256"]
    assert record["fingerprint"] == sha256_of_json(spec)
