"""Assemble shards: split sorted keys into shards and collect rows from any source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sightline.cache.commit import write_record
from sightline.cache.content import content_digest
from sightline.cache.errors import CacheError
from sightline.cache.index import Index, write_index
from sightline.cache.keys import KEY_BYTES, Keys, increasing, picked, sort_order
from sightline.cache.record import FeatureSetRecord, FeatureSpec, Provenance, ShardRecord
from sightline.cache.shard import write_shard
from sightline.output import Output

Computed = dict[str, Any]
"""Device, library versions and batch size used to compute rows."""


class RowSource(Protocol):
    """A source of rows: a published set, finished blocks, rows dropped from an index."""

    def find(self, keys: Keys) -> NDArray[np.int64]:
        """Row of each key, or -1: int64 [n]."""
        ...

    def gather(self, rows: NDArray[np.int64]) -> NDArray:
        """These rows: [n, dim]."""
        ...

    def computed(self, rows: NDArray[np.int64]) -> list[Computed]:
        """The distinct ways in which these rows were computed."""
        ...


@dataclass(frozen=True)
class Placed:
    """Live rows and their positions.

    Attributes:
        keys: uint8 [n, 32], distinct, in any order.
        shards: int32 [n], position in ``records``.
        rows: int32 [n], row within the shard.
        records: the shards.
    """

    keys: Keys
    shards: NDArray[np.int32]
    rows: NDArray[np.int32]
    records: tuple[ShardRecord, ...]

    @classmethod
    def nothing(cls) -> Placed:
        none = np.empty(0, dtype=np.int32)
        return cls(np.empty((0, KEY_BYTES), dtype=np.uint8), none, none, ())

    def only(self, mask: NDArray[np.bool_]) -> Placed:
        """The rows selected by ``mask`` (bool [n]), and the shards that hold any of them."""
        shards = self.shards[mask]
        used = np.flatnonzero(np.bincount(shards, minlength=len(self.records)))
        return Placed(
            picked(self.keys, mask),
            np.searchsorted(used, shards).astype(np.int32),
            self.rows[mask],
            tuple(self.records[i] for i in used),
        )

    def live_rows(self) -> NDArray[np.int64]:
        """How many rows of each shard are live: int64 [len(records)]."""
        return np.bincount(self.shards, minlength=len(self.records))


def write_shards(
    output: Output,
    spec: FeatureSpec,
    keys: Keys,
    shard_rows: int,
    sources: Sequence[RowSource],
    reuse: Callable[[Keys], ShardRecord | None] = lambda _: None,
) -> Placed:
    """Split ``keys`` into shards and write the rows that any source has; the first source wins.

    Args:
        keys: uint8 [n, 32], sorted; keys that no source has (failed rows) leave a gap, so that
            the split does not depend on failures.
        shard_rows: keys per shard, including failed rows.
        reuse: an existing shard that holds exactly these keys, or None.
    """
    records: list[ShardRecord] = []
    parts, shards, rows = [], [], []
    for start in range(0, len(keys), shard_rows):
        part = keys[start : start + shard_rows]
        found = [source.find(part) for source in sources]
        here = np.any([rows >= 0 for rows in found], axis=0)
        if not here.any():
            continue
        live = part[here]
        record = reuse(live)
        if record is None:
            features, computed = _gather([rows[here] for rows in found], sources, spec)
            record = write_shard(output, live, features, computed)
        parts.append(live)
        shards.append(np.full(len(live), len(records), dtype=np.int32))
        rows.append(np.arange(len(live), dtype=np.int32))
        records.append(record)
    if not records:
        return Placed.nothing()
    return Placed(
        np.concatenate(parts), np.concatenate(shards), np.concatenate(rows), tuple(records)
    )


def _gather(
    found: Sequence[NDArray[np.int64]], sources: Sequence[RowSource], spec: FeatureSpec
) -> tuple[NDArray, Computed]:
    """Each row from the first source that has it, and how the rows were computed."""
    features = np.empty((len(found[0]), spec.dim), np.dtype(spec.dtype).newbyteorder("<"))
    left = np.ones(len(features), dtype=bool)
    computed: list[Computed] = []
    for rows, source in zip(found, sources, strict=True):
        take = left & (rows >= 0)
        if take.any():
            features[take] = source.gather(rows[take])
            computed += source.computed(rows[take])
            left &= ~take
    return features, merged(computed)


def publish(
    output: Output,
    spec: FeatureSpec,
    placed: Sequence[Placed],
    failed: dict[bytes, str],
    provenance: Provenance,
) -> FeatureSetRecord:
    """Write the index over ``placed`` rows and replace the commit point.

    Args:
        placed: rows and their shards; keys are distinct.
        failed: key → error code of rows that could not be computed.
        provenance: whether the rows were computed here or imported.
    """
    folder = output.folder
    every = [record for part in placed for record in part.records]
    records = tuple(record for _, record in sorted({shard.name: shard for shard in every}.items()))
    number = {record.name: i for i, record in enumerate(records)}
    keys = np.concatenate([part.keys for part in placed])
    order = sort_order(keys)
    keys = keys[order]
    if not increasing(keys):
        raise CacheError(f"{folder}: a key appears twice; run `sightline cache repair`")
    shards = np.concatenate(
        [
            np.array([number[record.name] for record in part.records], dtype=np.int32)[part.shards]
            for part in placed
            if len(part.keys)
        ]
        or [np.empty(0, dtype=np.int32)]
    )
    rows = np.concatenate([part.rows for part in placed])
    index = Index(keys, shards[order], rows[order], failed)
    digest = content_digest(folder, spec, index, records)
    index_file = write_index(output, index)
    record = FeatureSetRecord(
        spec=spec,
        fingerprint=spec.fingerprint,
        content_digest=digest,
        provenance=provenance,
        rows=len(index.keys),
        failed=len(failed),
        index=index_file,
        shards=records,
    )
    write_record(output, record)
    return record


def merged(computed: Sequence[Computed]) -> Computed:
    """Merge several accounts: equal values appear once, different ones side by side."""
    distinct = {repr(sorted(each.items())): each for each in computed}
    if len(distinct) == 1:
        return dict(computed[0])
    names = sorted({name for each in computed for name in each})
    values = {
        name: {repr(each[name]): each[name] for each in computed if name in each} for name in names
    }
    return {
        name: next(iter(some.values()))
        if len(some) == 1
        else " + ".join(sorted(map(str, some.values())))
        for name, some in values.items()
    }
