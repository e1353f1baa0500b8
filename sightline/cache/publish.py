"""Publish rows: merge them by key into shards, write the index, replace the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from blake3 import blake3

from sightline.cache.index import Content, Index, write_index
from sightline.cache.keys import Keys, increasing, sort_order
from sightline.cache.record import (
    FeatureSetRecord,
    FeatureSpec,
    Provenance,
    SetRecord,
    ShardRecord,
    TableSetRecord,
    TableSpec,
    write_record,
)
from sightline.cache.rows import Rows
from sightline.cache.shards import DIGEST_BYTES, Computed, Digests, Format, shard_name
from sightline.errors import CacheError
from sightline.output import Output

Spec = FeatureSpec | TableSpec


def write_shards(
    output: Output,
    spec: Spec,
    keys: Keys,
    shard_rows: int,
    sources: Sequence[Rows],
    known: Sequence[ShardRecord] = (),
) -> Rows:
    """Split ``keys`` into shards and write the rows that any source has; the first source wins.

    Args:
        keys: uint8 [n, 32], sorted; keys that no source has (failed rows) leave a gap, so that
            the split does not depend on failures.
        shard_rows: keys per shard, including failed rows.
        known: sound shards of the output, which are not written again.

    Raises:
        CacheError: a row is not the one that its set's index lists.
    """
    made = Rows(output.folder, spec)
    there = {record.name: record for record in known}
    records: list[ShardRecord] = []
    parts, digests = [made.keys], [np.empty((0, DIGEST_BYTES), dtype=np.uint8)]
    for start in range(0, len(keys), shard_rows):
        chunk = keys[start : start + shard_rows]
        found = np.array([source.find(chunk) for source in sources]).reshape(-1, len(chunk))
        has = (found >= 0).any(axis=0)
        if not has.any():
            continue
        found, chunk = found[:, has], chunk[has]
        record, hashed = _write(output, made.format, chunk, _Found(sources, found), there)
        records.append(record)
        parts.append(chunk)
        digests.append(hashed)
    counts = [len(part) for part in parts]
    numbers = np.repeat(np.arange(-1, len(records), dtype=np.int32), counts)
    rows = np.concatenate([np.arange(count, dtype=np.int32) for count in counts])
    every = np.concatenate(parts)
    return Rows(output.folder, spec, records, every, numbers, rows, np.concatenate(digests))


class _Found:
    """Where the rows of a new shard are.

    Args:
        sources: where rows may be.
        found: int64 [sources, n], position of each row in each source, or -1.
    """

    def __init__(self, sources: Sequence[Rows], found: np.ndarray) -> None:
        first = (found >= 0).argmax(axis=0)
        self._parts = [
            (source, np.flatnonzero(first == number), found[number][first == number])
            for number, source in enumerate(sources)
            if (first == number).any()
        ]

    def listed_digests(self) -> Digests | None:
        """The digests of the rows as the sources' indexes list them; None if one has no index."""
        listed = [source.digests for source, _, _ in self._parts]
        if any(each is None for each in listed):
            return None
        digests = [
            source.digests[rows] for source, _, rows in self._parts if source.digests is not None
        ]
        return np.concatenate(digests)[self._back()]

    def rows(self, format_: Format) -> Any:
        """The rows, in order."""
        if len(self._parts) == 1:
            source, _, rows = self._parts[0]
            return source.gather(rows)
        parts = [source.gather(rows) for source, _, rows in self._parts]
        return format_.taken(format_.joined(parts), self._back())

    def check(self, digests: Digests) -> None:
        """Refuse rows that are not the ones that an index lists.

        Raises:
            CacheError: there are some.
        """
        for source, here, rows in self._parts:
            if source.digests is not None:
                wrong = (source.digests[rows] != digests[here]).any(axis=1).sum()
                if wrong:
                    raise CacheError(
                        f"{source.folder}: {wrong:,} rows are not those that its index lists; run "
                        f"`sightline cache verify --rows {source.folder}`"
                    )

    def computed(self) -> Computed:
        """How the rows were computed."""
        return merged([each for source, _, rows in self._parts for each in source.computed(rows)])

    def _back(self) -> np.ndarray:
        return np.argsort(np.concatenate([here for _, here, _ in self._parts]), kind="stable")


def _write(
    output: Output, format_: Format, keys: Keys, found: _Found, there: Mapping[str, ShardRecord]
) -> tuple[ShardRecord, Digests]:
    """Write one shard, unless it is there; its record and the digests of its rows."""
    listed = found.listed_digests()
    if listed is not None:
        record = there.get(shard_name(keys, listed, format_.suffix))
        if record is not None:
            return record, listed
    rows = found.rows(format_)
    digests = format_.digests(rows)
    found.check(digests)
    name = shard_name(keys, digests, format_.suffix)
    record = _as_it_is(output, format_, name, keys, digests, found.computed())
    if record is None:
        data = format_.encode(keys, rows)
        output.write(name, data)
        record = _record(name, data, len(keys), found.computed())
    return record, digests


def _as_it_is(
    output: Output, format_: Format, name: str, keys: Keys, digests: Digests, computed: Computed
) -> ShardRecord | None:
    """The shard of this name, if it is there and holds these rows, whatever bytes it has.

    Another version of a library may have written other bytes for the same rows.
    """
    path = output.folder / name
    if not path.is_file() or path.is_symlink():
        return None
    record = _record(name, path.read_bytes(), len(keys), computed)
    try:
        there, rows = format_.open(output.folder, record)
        same = (there == keys).all() and (format_.digests(rows) == digests).all()
    except CacheError:
        return None
    return record if same else None


def _record(name: str, data: bytes | memoryview, rows: int, computed: Computed) -> ShardRecord:
    digest = blake3(data).hexdigest()
    return ShardRecord(name=name, blake3=digest, bytes=len(data), rows=rows, computed=computed)


def publish(
    output: Output,
    spec: Spec,
    parts: Sequence[Rows],
    failed: Mapping[bytes, str],
    provenance: Provenance,
) -> SetRecord:
    """Write the index over rows of the output's shards and replace the commit point.

    Args:
        parts: rows with their digests; keys are distinct.
        failed: key → error code of rows that could not be computed.
        provenance: whether the rows were computed here or imported.
    """
    every = {record.name: record for part in parts for record in part.records}
    records = [every[name] for name in sorted(every)]
    number = {record.name: i for i, record in enumerate(records)}
    places = [np.array([number[r.name] for r in part.records], dtype=np.int32) for part in parts]
    keys = np.concatenate([part.keys for part in parts])
    order = sort_order(keys)
    keys = keys[order]
    if not increasing(keys):
        raise CacheError(f"{output.folder}: a key appears twice; run `sightline cache repair`")
    shards = np.concatenate([place[part.shards] for place, part in zip(places, parts, strict=True)])
    rows = np.concatenate([part.numbers for part in parts])
    digests = np.concatenate([part.digests for part in parts if part.digests is not None])[order]
    index = write_index(output, Index(keys, shards[order], rows[order], dict(failed)), digests)
    content = Content(spec)
    content.add(keys, digests)
    kind = FeatureSetRecord if isinstance(spec, FeatureSpec) else TableSetRecord
    record = kind(
        spec=spec,  # pyright: ignore[reportArgumentType]
        fingerprint=spec.fingerprint,
        content_digest=content.digest(failed),
        provenance=provenance,
        rows=len(keys),
        failed=len(failed),
        index=index,
        shards=tuple(records),
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
