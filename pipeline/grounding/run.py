"""Ground a data set: plan what is missing, decode, ground, segment, write, publish."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.cache import CacheError, SightlineError
from pipeline.cache.atomic import write_bytes
from pipeline.cache.lock import WriterLock
from pipeline.cache.records import (
    GROUNDING,
    ShardSet,
    is_whole,
    read_shard_set,
    read_table,
    read_tables,
    remove_unnamed,
    write_shard_set,
)
from pipeline.cache.rle import CROP_RULE
from pipeline.grounding.base import Grounder, Segmenter
from pipeline.grounding.config import Rules
from pipeline.grounding.journal import BlockJournal, FinishedBlock
from pipeline.grounding.units import Unit, blocks_of
from pipeline.grounding.worker import GroundSettings, Worker
from pipeline.progress import progress

_FORMAT = "grounding/1"


@dataclass(frozen=True)
class GroundSummary:
    """What a run did, and what there is now.

    Attributes:
        counts: ``images``, ``captions``, ``pairs``, ``failed``, and ``dropped`` by reason.
        computed: images of this run.
        resumed: images taken over from an interrupted run.
        halved: how often a batch was halved for memory.
    """

    counts: dict[str, Any]
    computed: int
    resumed: int
    halved: int
    seconds: float

    def __str__(self) -> str:
        counts = self.counts
        per_image = counts["pairs"] / max(counts["images"] - counts["failed"], 1)
        parts = [
            f"{counts['images']:,} images, {counts['captions']:,} captions, "
            f"{counts['pairs']:,} pairs ({per_image:.1f} an image)"
        ]
        if self.computed:
            rate = self.computed / max(self.seconds, 1e-9)
            parts.append(f"{self.computed:,} grounded in {self.seconds:.1f} s ({rate:,.1f} a s)")
        else:
            parts.append("nothing to ground")
        if self.resumed:
            parts.append(f"{self.resumed:,} taken over from an interrupted run")
        if counts["dropped"]:
            parts.append(f"{sum(counts['dropped'].values()):,} phrases or boxes dropped")
        if counts["failed"]:
            parts.append(f"{counts['failed']:,} images failed")
        if self.halved:
            parts.append(f"batches halved {self.halved} times for memory")
        return " · ".join(parts)


def ground(
    units: Sequence[Unit],
    grounder: Grounder,
    segmenter: Segmenter | None,
    rules: Rules,
    out: Path,
    settings: GroundSettings,
) -> GroundSummary:
    """Make ``out`` hold the records of exactly ``units``; what it holds already is kept.

    Args:
        units: images and captions, see `pipeline.grounding.units.units_of`.
        segmenter: None takes the masks that come with the grounder's boxes.
        out: folder of the records; the run's own files go to ``<out>.run`` beside it.

    Raises:
        BusyError: another process is writing here.
        SightlineError: nothing to ground, or more images failed than ``settings.max_failed``
            allows (everything good was published before).
    """
    if not units:
        raise SightlineError(f"{out}: there are no captions to ground; look at the manifest")
    start = time.monotonic()
    run_folder = out.with_name(out.name + ".run")
    description: dict[str, Any] = {
        "format": _FORMAT,
        "grounder": grounder.describe(),
        "segmenter": segmenter.describe() if segmenter else {"family": "annotations"},
        "rules": rules.model_dump(mode="json"),
        "crop_rule": CROP_RULE,
    }
    description = json.loads(json.dumps(description))  # tuples become lists, as they are read back
    with WriterLock(run_folder):
        journal = BlockJournal(run_folder, out)
        target = ShardSet(description, (), {})
        wanted = {unit.unit_key: unit for unit in units}
        kept, held = _kept(out, target.fingerprint, set(wanted), journal)
        missing = [unit for key, unit in wanted.items() if key not in held]
        blocks = blocks_of(missing, settings.block_images, target.fingerprint)
        found = {block.name: journal.finished(block.name) for block in blocks}
        finished = {name: block for name, block in found.items() if block is not None}
        resumed = sum(len(block.units) for block in blocks if block.name in finished)
        worker = Worker(grounder, segmenter, rules, settings)
        with progress(out.as_posix(), len(missing), "images", resumed) as advance:
            for block in blocks:
                if block.name not in finished:
                    tables = worker.ground_block(block, advance)
                    finished[block.name] = journal.finish(
                        block.name, tables.to_arrow(), tables.failures
                    )
        new = [finished[block.name] for block in blocks]
        counts = _publish(out, journal, description, kept, new)
        failures = _list_failures(run_folder / "failures.jsonl", out, new)
        journal.clear()
    summary = GroundSummary(
        counts, len(missing) - resumed, resumed, worker.halved, time.monotonic() - start
    )
    _check_failures(counts, failures, run_folder / "failures.jsonl", out, settings.max_failed)
    return summary


def _kept(
    out: Path, fingerprint: str, wanted: set[bytes], journal: BlockJournal
) -> tuple[list[FinishedBlock], set[bytes]]:
    """What stays of the published set, and the unit keys that it holds.

    A shard some of whose images are no longer wanted is written anew without them.
    """
    kept: list[FinishedBlock] = []
    held: set[bytes] = set()
    try:
        published = read_shard_set(out, GROUNDING)
    except CacheError:
        return kept, held  # damaged or not there: everything is made anew
    if published.fingerprint != fingerprint:
        return kept, held
    for shard in published.shards:
        if not is_whole(out, shard):
            continue  # its images are made anew
        table = read_table(out, "images", shard["images"])
        keys = table["unit_key"].to_pylist()
        stay = [key in wanted for key in keys]
        if not all(stay):
            keys_of_images = table["image_key"].to_pylist()
            gone = {key for key, each in zip(keys_of_images, stay, strict=True) if not each}
            tables = {kind: read_table(out, kind, file) for kind, file in shard.items()}
            rest = {kind: _without(table, gone) for kind, table in tables.items()}
            block = journal.finish(f"rest-{shard['images'].sha256}", rest, [])
        else:
            block = FinishedBlock(shard, [])
        if any(stay):
            kept.append(block)
            held.update(key for key in keys if key in wanted)
    return kept, held


def _without(table: pa.Table, image_keys: set[bytes]) -> pa.Table:
    stay = [key not in image_keys for key in table["image_key"].to_pylist()]
    return table.filter(pa.array(stay, type=pa.bool_()))


def _publish(
    out: Path,
    journal: BlockJournal,
    description: dict[str, Any],
    kept: Sequence[FinishedBlock],
    new: Sequence[FinishedBlock],
) -> dict[str, Any]:
    """Move the finished tables, replace the commit point, remove what it no longer names."""
    shards = tuple(block.shard for block in [*kept, *new])
    for block in [*kept, *new]:
        journal.move_files(block)
    images = pa.concat_tables(read_table(out, "images", shard["images"]) for shard in shards)
    reasons: Counter[str] = Counter()
    for shard in shards:
        reasons.update(read_table(out, "drops", shard["drops"])["reason"].to_pylist())
    counts = {
        "images": images.num_rows,
        "captions": sum(images["captions"].to_pylist()),
        "pairs": sum(images["pairs"].to_pylist()),
        "failed": sum(error != "" for error in images["error"].to_pylist()),
        "dropped": dict(sorted(reasons.items())),
    }
    write_shard_set(out, GROUNDING, ShardSet(description, shards, counts))
    remove_unnamed(out, shards)
    return counts


def _list_failures(path: Path, out: Path, new: Sequence[FinishedBlock]) -> list[dict[str, str]]:
    """Write path and reason of every image in error, of this run and of those before."""
    known: dict[str, dict[str, str]] = {}
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            known[json.loads(line)["key"]] = json.loads(line)
    known.update({failure["key"]: failure for block in new for failure in block.notes})
    rows = read_tables(out, "images").to_pylist()
    failed = [row["image_key"] for row in rows if row["error"]]
    listed = [known[key.hex()] for key in sorted(failed) if key.hex() in known]
    lines = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in listed)
    write_bytes(path, lines.encode())
    return listed


def _check_failures(
    counts: Mapping[str, Any],
    failures: Sequence[dict[str, str]],
    listed: Path,
    out: Path,
    max_failed: float,
) -> None:
    failed, total = counts["failed"], counts["images"]
    if failed < total and failed <= max_failed * total:
        return
    example = failures[0] if failures else {"path": "", "reason": "listed by an earlier run"}
    raise SightlineError(
        f"{out}: {failed:,} of {total:,} images failed, more than max_failed = {max_failed:g} "
        f"allows; the {total - failed:,} good ones are published.\n"
        f"  for example: {example['path']}: {example['reason']}\n"
        f"  all of them: {listed}\n"
        "  Mend or remove these files and prepare the data set again, or raise max_failed."
    )
