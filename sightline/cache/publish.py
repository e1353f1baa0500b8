"""Publish a plan: merge what was computed, copied and kept by key into shards, and commit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sightline.cache.commit import commit, write_shards
from sightline.cache.keys import as_keys, find_keys, picked, selected
from sightline.cache.parts import Part
from sightline.cache.plan import Plan
from sightline.cache.record import Provenance, SetRecord
from sightline.cache.rows import Rows, joined, rows_in
from sightline.errors import CacheError
from sightline.output import Output

MAX_SMALL_SHARDS = 16
"""With more shards than this less than half full, the next run merges them."""


def publish(
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
    (sound, before, _), wanted = plan.found, plan.wanted
    finished = rows_in(plan.spec, [part.shard for part in parts if part.shard is not None])
    kept = sound.rows.only(find_keys(wanted, sound.rows.keys) >= 0)
    inside = selected(find_keys(wanted, bad := as_keys(sorted(sound.failed))), ~plan.missing)
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
    sources = joined(plan.spec, [finished, plan.taken, small])
    again = plan.missing.copy()
    again[find_keys(wanted, small.keys)] = True
    del finished, small
    new = write_shards(output, picked(wanted, again), plan.shape.shard_rows, sources)
    del sources
    return commit(output, [kept, new], codes, provenance or Provenance(), cut or 0), codes


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
