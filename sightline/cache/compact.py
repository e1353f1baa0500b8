"""Compact and gc: reduce a set to exactly the files of a clean run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sightline.cache.assemble import Placed, publish, write_shards
from sightline.cache.bundles import Bundle, BundleRows, mapped
from sightline.cache.commit import FILE_NAME, read_record, set_output
from sightline.cache.errors import CacheError
from sightline.cache.feature_set import FeatureSet
from sightline.cache.keys import Keys, as_keys, sort_order
from sightline.cache.record import (
    NAMES,
    SINGLE_KINDS,
    FeatureSetRecord,
    ShardRecord,
    TableSetRecord,
)
from sightline.cache.row_sources import PlacedRows, live_rows, only_sound
from sightline.cache.shard import rows_per_shard
from sightline.cache.table_writer import SHARD_ROWS, write_table_shards
from sightline.cache.tables import publish_tables, read_table
from sightline.claims import read_claims
from sightline.output import Output


@dataclass(frozen=True)
class Garbage:
    """What `collect` removed, or would remove.

    Attributes:
        files: name → bytes of superseded files and leftovers of killed runs.
        rows: rows in live shards that the index no longer references.
        bytes: total bytes freed, including those rows.
    """

    files: dict[str, int]
    rows: int
    bytes: int


def compact(folder: Path, shard_rows: int | None = None) -> FeatureSetRecord | TableSetRecord:
    """Rewrite a set into the files that a clean run over its keys would have written.

    Splits the sorted keys, including failed rows, into full shards; shards that already match are
    kept. Superseded files stay on disk until `collect`.

    Args:
        shard_rows: rows per shard; default: as in a run.

    Raises:
        BusyError: a run is writing there.
        CacheError: the set is damaged, or is a single table, which is recreated instead.
    """
    with set_output(folder) as output:
        record = read_record(folder)
        if isinstance(record, TableSetRecord):
            return _compact_tables(output, record, shard_rows)
        features = FeatureSet.open(folder)
        every = np.concatenate([features.keys, as_keys(list(features.failed))])
        spec = features.record.spec
        row_bytes = np.dtype(spec.dtype).itemsize
        cut = shard_rows or rows_per_shard(spec.dim, row_bytes)
        return _rewrite(output, features, [every[sort_order(every)]], cut)


def _compact_tables(
    output: Output, record: TableSetRecord, shard_rows: int | None
) -> TableSetRecord:
    folder, kind = output.folder, record.spec.kind
    if kind in SINGLE_KINDS:
        raise CacheError(f"{folder}: holds {NAMES[kind]}, one table; there is nothing to compact")
    with output.scratch() as made:
        bundles = [
            Bundle(
                kind,
                {
                    name: mapped(read_table(folder, name, file), made / f"{number}-{name}.arrow")
                    for name, file in shard.tables.items()
                },
                shard.computed,
            )
            for number, shard in enumerate(record.shards)
        ]
        rows = BundleRows(kind, bundles)
        cut = shard_rows or SHARD_ROWS[kind]
        shards = write_table_shards(output, kind, rows.keys, cut, rows)
    return publish_tables(output, record.spec, shards, record.counts, record.provenance)


def garbage(folder: Path) -> Garbage:
    """The parts of a set's folder that no reader needs any more.

    Raises:
        CacheError: no set there, or a damaged one.
    """
    record = read_record(folder)
    named = {file.name for file in record.files}
    ours = read_claims(folder, FILE_NAME) - named
    paths = {name: folder / name for name in sorted(ours) if "/" not in name}
    files = {name: path.lstat().st_size for name, path in paths.items() if path.is_file()}
    size = sum(files.values())
    if not isinstance(record, FeatureSetRecord):
        return Garbage(files, 0, size)
    rows = sum(shard.rows for shard in record.shards) - record.rows
    row_bytes = record.spec.dim * np.dtype(record.spec.dtype).itemsize + 32
    return Garbage(files, rows, size + rows * row_bytes)


def collect(folder: Path) -> Garbage:
    """Remove what a set no longer references from its folder: files, and rows inside shards.

    Rewrites shards with such rows. Leaves other files alone.

    Raises:
        BusyError: a run is writing there.
        CacheError: the set is damaged.
    """
    with set_output(folder) as output:
        before = garbage(folder)
        if before.rows:
            features = FeatureSet.open(folder)
            shards = features.index.by_shard(len(features.record.shards))
            parts = [features.keys[entries] for entries in shards if len(entries)]
            _rewrite(output, features, parts, max(shard.rows for shard in features.record.shards))
        removed = garbage(folder).files
        output.remove(removed)
        output.settle(file.name for file in read_record(folder).files)
        return Garbage(removed, before.rows, before.bytes)


def _rewrite(
    output: Output, features: FeatureSet, parts: Sequence[Keys], shard_rows: int
) -> FeatureSetRecord:
    """Republish the rows of a set: each part (sorted keys) is split into separate shards."""
    folder, spec, live = features.path, features.record.spec, live_rows(features)
    sound = only_sound(folder, live)
    if len(sound.keys) != len(live.keys):
        raise CacheError(
            f"{folder}: {len(live.keys) - len(sound.keys):,} rows are in damaged shards; run "
            f"`sightline cache repair {folder}` first"
        )

    def same(keys: Keys) -> ShardRecord | None:
        rows = features.find(keys)
        number = features.index.shards[rows[0]]
        shard = features.record.shards[number]
        here = (features.index.shards[rows] == number).all() and len(rows) == shard.rows
        return shard if here else None

    source = PlacedRows(folder, spec, sound)
    placed = [write_shards(output, spec, part, shard_rows, [source], same) for part in parts]
    nothing = [Placed.nothing()]
    return publish(output, spec, placed or nothing, features.failed, features.record.provenance)
