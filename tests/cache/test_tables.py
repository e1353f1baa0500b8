"""Rows of groundings, cut-outs, tokens and phrase tokens: digests, histories, and their place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from every_kind import (
    HEADER,
    KINDS,
    TEXTS,
    Forger,
    every_kind,
    make,
    make_grounding,
    make_tokens,
    photographs,
    read,
)
from stub_set import files

from sightline.cache import CacheError, keys_of_texts, verify, write_tokens
from sightline.cache.compact import collect, compact
from sightline.cache.record import (
    FILE_NAME,
    TABLE_KINDS,
    TableKind,
    read_record,
    refuse_other_kinds,
)
from sightline.cache.shards import format_of
from sightline.errors import SightlineError

every_table = pytest.mark.parametrize("kind", TABLE_KINDS)


@every_table
def test_a_digest_does_not_depend_on_how_arrow_holds_the_values(world, kind) -> None:
    """Chunks and offsets into larger buffers change nothing."""
    rows = read(world / kind, kind)
    form = format_of(read_record(world / kind).spec)
    twice = pa.concat_tables([rows, rows]).combine_chunks()
    parts = [twice.slice(len(rows) + i, 1) for i in range(len(rows))]
    otherwise = pa.concat_tables([rows.slice(0, 0), *parts])
    np.testing.assert_array_equal(form.digests(otherwise), form.digests(rows))


def test_another_shard_under_the_name_of_one_is_replaced(world: Path) -> None:
    """Only its own rows make a file the shard that its name says."""
    folder = world / "tokens"
    before, shard = files(folder), Forger(folder).shard()
    table = pq.read_table(shard)
    ids = pa.array([[7]] * len(table), table.schema.field("input_ids").type)
    pq.write_table(table.set_column(1, table.schema.field("input_ids"), ids), shard)
    make_tokens(folder)
    assert {name: files(folder)[name] for name in before} == before
    assert verify(folder, rows=True) == []


@every_table
def test_rows_that_another_version_of_a_library_wrote_are_kept(
    world: Path, kind: TableKind
) -> None:
    """A shard is named by its rows: other bytes of the same rows are recorded as they are."""
    folder = world / kind
    record, shard = read_record(folder), Forger(folder).shard()
    pq.write_table(pq.read_table(shard), shard, compression="none")
    other = shard.read_bytes()
    (folder / FILE_NAME).unlink()
    make(world, kind)
    assert read_record(folder).content_digest == record.content_digest
    assert shard.read_bytes() == other
    assert verify(folder, rows=True) == []


def test_a_grounding_has_one_digest_regardless_of_history(world: Path) -> None:
    data = photographs(world)
    before = read_record(world / "grounding")
    for block_images in (1, 3, 100):
        make_grounding(data, world / f"by-{block_images}", block_images)
        found = read_record(world / f"by-{block_images}")
        assert found.content_digest == before.content_digest
    grown, captions = world / "grown", dict(data.captions)
    for names in (["6.png", "1.png"], ["1.png", "3.png", "0.png"], list(captions)[::-1]):
        data.captions = {name: captions[name] for name in names}
        make_grounding(data, grown)
    assert read_record(grown).content_digest == before.content_digest
    compact(grown, 2)
    collect(grown)
    assert files(grown) == files(world / "grounding")
    data.captions["4.png"] = ["another phrase", *captions["4.png"][1:]]
    make_grounding(data, grown)
    assert read_record(grown).content_digest != before.content_digest


def test_the_digest_of_tokens_does_not_depend_on_the_order_of_texts(world: Path) -> None:
    expected = read_record(world / "tokens").content_digest
    make_tokens(world / "other", [*TEXTS[::-1], *TEXTS[:3]])
    assert read_record(world / "other").content_digest == expected
    make_tokens(world / "other", TEXTS[1:])
    assert read_record(world / "other").content_digest != expected
    write_tokens(world / "third", HEADER, keys_of_texts(TEXTS), [[1]] * len(TEXTS))
    assert read_record(world / "third").content_digest != expected


@every_kind
def test_a_set_is_replaced_only_by_its_own_kind(world: Path, kind: str) -> None:
    refuse_other_kinds(world / kind, kind)
    refuse_other_kinds(world / "nothing", kind)
    for other in {*KINDS} - {kind}:
        before = files(world / other)
        with pytest.raises(CacheError, match=f"of kind {other}, but this is .* of kind {kind}"):
            refuse_other_kinds(world / other, kind)
        with pytest.raises(SightlineError, match="choose another folder"):
            make(world, kind, world / other)
        assert files(world / other) == before
