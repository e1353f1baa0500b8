"""Publish: merge rows into shards, write the index over them, and replace the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from sightline.cache.index import content_digest, write_index
from sightline.cache.keys import Keys, as_keys, find_keys, picked, selected
from sightline.cache.parts import Part
from sightline.cache.plan import Plan
from sightline.cache.record import Provenance, SetRecord, ShardRecord, write_record
from sightline.cache.rows import Rows, Shard, rows_in, union
from sightline.cache.shards import DIGEST_BYTES, Computed, Digests, shard_name
from sightline.errors import CacheError
from sightline.files.output import Output

MAX_SMALL_SHARDS = 16
"""With more shards than this less than half full, the next run merges them."""


def publish_plan(
    output: Output,
    plan: Plan,
    parts: Sequence[Part],
    provenance: Provenance | None,
    cut: int | None,
) -> tuple[SetRecord, dict[bytes, str]]:
    """Merge what a plan computed and what it takes from elsewhere into shards, and commit.

    Args:
        parts: those of the plan's blocks.
        provenance, cut: as `SetWriter.publish` takes them.

    Returns:
        the record, and the code of every failed key.
    """
    (sound, before, _), keys = plan.found_set, plan.keys
    finished = rows_in(plan.spec, [part.shard for part in parts if part.shard is not None])
    kept = sound.rows.only(find_keys(keys, sound.rows.keys) >= 0)
    inside = selected(find_keys(keys, bad := as_keys(sorted(sound.failed))), ~plan.missing)
    codes = {key.tobytes(): sound.failed[key.tobytes()] for key in bad[inside]}
    codes |= _failed(plan, finished, parts)
    if before is not None:
        cut = before.cut if cut is None else cut
        whole = len(kept) == len(sound.rows) and codes == sound.failed and not sound.lines()
        if whole and not plan.missing.any() and cut == before.cut:
            return before, codes
        if provenance is None and (len(kept) or plan.takes_own):
            provenance = before.provenance
    output.remove(sound.dropped)
    kept, small = _split_small(kept, plan.shape.shard_rows)
    sources = union(plan.spec, [finished, plan.reused, small])
    again = plan.missing.copy()
    again[find_keys(keys, small.keys)] = True
    del finished, small
    new = write_shards(output, picked(keys, again), plan.shape.shard_rows, sources)
    del sources
    return commit_rows(output, [kept, new], codes, provenance or Provenance(), cut or 0), codes


def _failed(plan: Plan, finished: Rows, parts: Sequence[Part]) -> dict[bytes, str]:
    """Key → code of the rows of the plan without values."""
    reported = {key: why for part in parts for key, why in part.failed.items()}
    planned = as_keys([]) if not plan.batches else np.concatenate([b.keys for b in plan.batches])
    without = [key.tobytes() for key in planned[finished.find(planned) < 0]]
    lost = sum(key not in reported for key in without)
    if lost:
        raise CacheError(f"{plan.folder}: {lost} planned rows were never computed")
    every = {key: reported[key] for key in without} | plan.failed
    return {key: why["code"] for key, why in every.items()}


def _split_small(kept: Rows, shard_rows: int) -> tuple[Rows, Rows]:
    """Rows that stay in place, and rows of small shards once there are too many of these."""
    small = kept.live() < shard_rows / 2
    if small.sum() <= MAX_SMALL_SHARDS:
        return kept, kept.only(np.zeros(len(kept), dtype=bool))
    return kept.only(~small[kept.shards]), kept.only(small[kept.shards])


def write_shards(
    output: Output, keys: Keys, shard_rows: int, rows: Rows, sound: Sequence[ShardRecord] = ()
) -> Rows:
    """Split ``keys`` into shards and write those of ``rows``.

    Args:
        keys: uint8 [n, 32], sorted; keys that ``rows`` lacks (failed rows) leave a gap, so that
            the split does not depend on failures.
        shard_rows: keys per shard, including failed rows.
        sound: sound shards of the output, which are not written again.
    """
    record_of = {record.name: record for record in sound}
    files: list[Shard] = []
    present = np.zeros(len(keys), dtype=bool)
    digests = np.empty((len(keys), DIGEST_BYTES), dtype=np.uint8)
    sizes: list[int] = []
    done = 0
    for start in range(0, len(keys), shard_rows):
        places = rows.find(keys[start : start + shard_rows])
        present[start : start + shard_rows] = places >= 0
        places = places[places >= 0]
        if len(places):
            record, hashed = _write(output, rows, places, record_of)
            files.append(Shard(output.folder, record))
            sizes.append(len(places))
            digests[done : done + len(places)] = hashed
            done += len(places)
    shards = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    numbers = np.arange(done, dtype=np.int32)
    numbers -= np.repeat(np.cumsum([0, *sizes], dtype=np.int32)[:-1], sizes)
    return Rows(rows.spec, files, picked(keys, present), shards, numbers, digests[:done])


def _write(
    output: Output, rows: Rows, places: NDArray[np.int64], stored: Mapping[str, ShardRecord]
) -> tuple[ShardRecord, Digests]:
    """Write the rows at these positions as one shard, unless it is there.

    Returns:
        The shard's record, and the digests of its rows.
    """
    keys, suffix = rows.keys[places], rows.format.suffix
    if rows.digests is not None:
        name = shard_name(keys, rows.digests[places], suffix)
        if name in stored:
            return stored[name], rows.digests[places]
    values = rows.gather(places)
    digests = rows.format.digests(values)
    name, data = shard_name(keys, digests, suffix), rows.format.encode(keys, values)
    output.write(name, data)
    record = ShardRecord(
        name=name,
        blake3=blake3(data).hexdigest(),
        bytes=len(data),
        rows=len(keys),
        computed=merged(rows.computed(places)),
    )
    return record, digests


def commit_rows(
    output: Output,
    parts: Sequence[Rows],
    failed: Mapping[bytes, str],
    provenance: Provenance,
    cut: int = 0,
) -> SetRecord:
    """Write the index over rows of the output's shards and replace the commit point.

    Args:
        parts: rows with their digests; keys are distinct.
        failed: key → error code of rows that could not be computed.
        provenance: whether the rows were computed here or imported.
        cut: as in `SetRecord`.
    """
    spec = parts[0].spec
    rows = union(spec, parts)
    assert len(rows) == sum(map(len, parts)), f"{output.folder}: rows to write share a key"
    names = sorted({file.record.name for file in rows.files})
    number = {name: i for i, name in enumerate(names)}
    records = {file.record.name: file.record for file in rows.files}
    places = np.array([number[file.record.name] for file in rows.files], dtype=np.int32)
    files = [Shard(output.folder, records[name]) for name in names]
    shards = places[rows.shards] if len(rows) else rows.shards
    digests = np.empty((0, DIGEST_BYTES), np.uint8) if rows.digests is None else rows.digests
    rows = Rows(spec, files, rows.keys, shards, rows.numbers, digests)
    record = SetRecord(
        spec=spec,
        fingerprint=spec.fingerprint,
        content_digest=content_digest(rows, failed),
        provenance=provenance,
        rows=len(rows),
        failed=len(failed),
        cut=cut,
        index=write_index(output, rows, failed),
        shards=tuple(file.record for file in files),
    )
    write_record(output, record)
    return record


def merged(computed: Sequence[Computed]) -> Computed:
    """Merge several accounts: equal values appear once, different ones side by side."""
    distinct = {repr(sorted(run.items())): run for run in computed}
    if len(distinct) == 1:
        return dict(computed[0])
    names = sorted({name for run in computed for name in run})
    values = {
        name: {repr(run[name]): run[name] for run in computed if name in run} for name in names
    }
    return {
        name: next(iter(values_of.values()))
        if len(values_of) == 1
        else " + ".join(sorted(map(str, values_of.values())))
        for name, values_of in values.items()
    }
