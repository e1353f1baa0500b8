"""docs/cache.md describes a set so that h5py and pyarrow are enough to read it."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from blake3 import blake3
from shown_reader import APART, PAGE, shown_code
from stub_set import every_kind, make
from xxhash import xxh3_128

from sightline.cache.record import SCHEMA, read_record
from sightline.cache.tables import SHARD_ROWS


def test_the_code_is_short_and_needs_nothing_of_ours(tmp_path):
    code = shown_code()
    assert len(code.splitlines()) <= 30
    modules = set(re.findall(r"^(?:import|from) (\w+)", code, re.M))
    assert modules == {"json", "pathlib", "h5py", "pyarrow"}
    done = subprocess.run(
        [sys.executable, "-c", APART + "import sightline"], capture_output=True, text=True
    )
    assert "ModuleNotFoundError" in done.stderr


def test_the_page_has_the_sizes_of_shards_and_the_fields_of_the_record(world):
    text = PAGE.read_text()
    record = read_record(world / "image")
    for name in (SCHEMA, *(f"`{field}`" for field in record.model_dump(by_alias=True))):
        assert name in text
    for rows in SHARD_ROWS.values():
        assert f"{rows:,}" in text


def digest_of(row) -> bytes:
    """The digest of a row, as the page describes it."""
    if isinstance(row, np.ndarray):
        return xxh3_128(row.astype(row.dtype.newbyteorder("<")).tobytes()).digest()
    text = json.dumps(row, separators=(",", ":"), default=lambda data: xxh3_128(data).hexdigest())
    return xxh3_128(text.encode()).digest()


@every_kind
def test_names_and_digests_are_those_that_the_page_describes(world, kind, monkeypatch):
    monkeypatch.setattr("sightline.cache.index._ROWS", 16)
    folder = world / "again"
    make(folder, kind)
    read: dict[str, Any] = {}
    exec(shown_code(), read)
    keys, rows, failed = read["read_set"](folder)
    digests = [digest_of(row) for row in rows]
    record = json.loads((folder / "set.json").read_bytes())
    index = pq.read_table(folder / record["index"]["name"])
    live = index.filter(pc.equal(index["status"].cast(pa.string()), "ok"))
    assert live["digest"].to_pylist() == digests

    content = blake3(record["fingerprint"].encode())
    content.update(b"".join(key + value for key, value in zip(keys, digests, strict=True)))
    content.update(b"".join(key + failed[key].encode() for key in sorted(failed)))
    assert content.hexdigest() == record["content_digest"]

    names = [shard["name"] for shard in record["shards"]]
    assert names == sorted(names)
    for number, shard in enumerate(record["shards"]):
        here = [i for i, other in enumerate(live["shard"].to_pylist()) if other == number]
        name = blake3(b"".join([keys[i] for i in here] + [digests[i] for i in here])).hexdigest()
        assert shard["name"].split(".")[0] == f"shard-{name[:32]}"
        data = (folder / shard["name"]).read_bytes()
        assert (shard["blake3"], shard["bytes"]) == (blake3(data).hexdigest(), len(data))
    data = (folder / record["index"]["name"]).read_bytes()
    assert record["index"]["name"] == f"index-{blake3(data).hexdigest()[:32]}.parquet"

    own = record.pop("digest")
    assert own == sha256_of_json(record)
    spec = record["spec"]
    if kind == "image":
        names = ["kind", "preprocessing", "precision", "dim", "dtype"]
        spec = {name: spec[name] for name in names} | {
            "schema": "sightline.feature_set/1",
            "encoder": spec["encoder"]["name"],
            "weights_sha256": spec["encoder"]["weights_sha256"],
        }
    else:
        spec = {"schema": "sightline.set/2", **spec}
    assert record["fingerprint"] == sha256_of_json(spec)


def sha256_of_json(value: dict[str, Any]) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()
