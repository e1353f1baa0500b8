"""Publish a plan: merge what was computed, copied and kept by key into shards, and commit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sightline.cache.commit import commit, write_shards
from sightline.cache.keys import find_keys, picked
from sightline.cache.parts import Part
from sightline.cache.record import Provenance, SetRecord
from sightline.cache.rows import Rows, joined, rows_in
from sightline.cache.set_plan import Plan
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
    found, wanted = plan.found, plan.wanted
    files = [part.shard for part in parts if part.shard is not None]
    finished = rows_in(plan.spec, files)
    failed = _failed(plan, finished, parts)
    again = plan.to_compute | plan.copied | plan.resumed
    kept, kept_failed = found.kept(wanted, again)
    codes = kept_failed | failed
    before = 0 if found.record is None else found.record.cut
    cut = before if cut is None else cut
    is_whole = found.is_complete(kept, kept_failed) and not again.any()
    if found.record is not None and is_whole and cut == before:
        return found.record, codes
    output.remove(found.sound.dropped)
    owned = len(kept) or any(found.owns(rows) for rows in plan.sources)
    if provenance is None and owned and found.record is not None:
        provenance = found.record.provenance
    kept, small = _split_small(kept, plan.shape.shard_rows)
    sources = joined(plan.spec, [finished, *plan.sources, small])
    del finished
    again[find_keys(wanted, small.keys)] = True
    new = write_shards(output, picked(wanted, again), plan.shape.shard_rows, sources)
    del sources, small
    return commit(output, [kept, new], codes, provenance or Provenance(), cut), codes


def _failed(plan: Plan, finished: Rows, parts: Sequence[Part]) -> dict[bytes, str]:
    """Key → code of the rows of the plan without values."""
    reported = {key: why for part in parts for key, why in part.failed.items()}
    planned = plan.wanted[plan.to_compute]
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
