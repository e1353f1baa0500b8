"""Ground a data set: plan what is missing, decode, ground, segment, write, publish."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.cache import CacheError
from pipeline.cache.commit import read_tables_record, refuse_other_kinds, set_output
from pipeline.cache.failures import FailureList
from pipeline.cache.record import TableShard, TableSpec
from pipeline.cache.rle import CROP_RULE
from pipeline.cache.tables import (
    is_whole,
    publish_tables,
    read_table,
    read_tables,
)
from pipeline.extract.account import check_failures
from pipeline.grounding.block_grounder import BlockGrounder, GroundSettings
from pipeline.grounding.captioned_images import Block, Unit, blocks_of
from pipeline.grounding.ground_summary import GroundSummary
from pipeline.grounding.grounder_config import Rules
from pipeline.grounding.journal import BlockJournal, FinishedBlock
from pipeline.grounding.protocols import Grounder, Segmenter
from sightline.errors import SightlineError
from sightline.output import Output
from sightline.progress import progress
from sightline.signals import Stopped

_FORMAT = "grounding/1"


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
        units: images and captions, see `pipeline.grounding.captioned_images.units_of`.
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
    description: dict[str, Any] = {
        "format": _FORMAT,
        "grounder": grounder.describe(),
        "segmenter": segmenter.describe() if segmenter else {"family": "annotations"},
        "rules": rules.model_dump(mode="json"),
        "crop_rule": CROP_RULE,
    }
    description = json.loads(json.dumps(description))  # tuples become lists, as they are read back
    refuse_other_kinds(out, "grounding")
    spec = TableSpec(kind="grounding", description=description)
    with set_output(out, settings.inputs) as output:
        journal = BlockJournal(output)
        wanted = {unit.unit_key: unit for unit in units}
        kept, held = _kept(out, spec.fingerprint, set(wanted), journal, settings.retry_failed)
        missing = [unit for key, unit in wanted.items() if key not in held]
        blocks = blocks_of(missing, settings.block_images, spec.fingerprint)
        finished = _finished(journal, blocks, settings.retry_failed)
        resumed = sum(len(block.units) for block in blocks if block.name in finished)
        worker = BlockGrounder(grounder, segmenter, rules, settings)
        for block in finished.values():
            worker.go_on_with(block.notes["computed"].get("halved_to", {}))
        with (
            _account(out, blocks, finished),
            progress(out.as_posix(), len(missing), "images", resumed) as advance,
        ):
            for block in blocks:
                if block.name not in finished:
                    tables = worker.ground_block(block, advance)
                    notes = {
                        "failures": tables.failures,
                        "computed": _computed_by(settings, worker.halved_to),
                    }
                    finished[block.name] = journal.finish(block.name, tables.to_arrow(), notes)
        new = [finished[block.name] for block in blocks]
        failures = FailureList(output.run_folder / "failures.jsonl")
        failures.read()
        failures.add(
            {bytes.fromhex(each["key"]): each for block in new for each in block.notes["failures"]}
        )
        failures.write()  # before it is published: no kill leaves an error without its reason
        counts = _publish(output, out, journal, spec, kept, new)
        failures.keep(_failed_images(out))
        failures.write()
        journal.clear()
    summary = GroundSummary(
        counts, len(missing) - resumed, resumed, worker.halved_to, time.monotonic() - start
    )
    failed, total = counts["failed"], counts["images"]
    check_failures(out, failures, failed, total, "images", settings.max_failed)
    return summary


def _computed_by(settings: GroundSettings, halved_to: dict[str, int]) -> dict[str, Any]:
    """Device, library and batch sizes of a block, for the record; not part of the fingerprint."""
    import torch

    cuda = settings.device.startswith("cuda")
    device = torch.cuda.get_device_name(settings.device) if cuda else settings.device
    computed = {
        "device": device,
        "torch": torch.__version__,
        "batch_size": settings.batch_size,
    }
    return {**computed, "halved_to": halved_to} if halved_to else computed


@contextmanager
def _account(
    out: Path, blocks: Sequence[Block], finished: Mapping[str, FinishedBlock]
) -> Iterator[None]:
    """Say how much is done and how to go on when a signal ends the run."""
    try:
        yield
    except Stopped as stop:
        done = sum(len(block.units) for block in blocks if block.name in finished)
        total = sum(len(block.units) for block in blocks)
        stop.add_note(
            f"{out}: {done:,} of {total:,} images are done and kept; run the same command again "
            "to go on"
        )
        raise


def _finished(
    journal: BlockJournal, blocks: Sequence[Block], retry_failed: bool
) -> dict[str, FinishedBlock]:
    """Blocks that an interrupted run left, by name; to retry, without those that hold errors."""
    found = {block.name: journal.finished(block.name) for block in blocks}
    return {
        name: block
        for name, block in found.items()
        if block is not None and not (retry_failed and block.notes["failures"])
    }


def _kept(
    out: Path,
    fingerprint: str,
    wanted: set[bytes],
    journal: BlockJournal,
    retry_failed: bool,
) -> tuple[list[FinishedBlock], set[bytes]]:
    """What stays of the published set, and the unit keys that it holds.

    A shard some of whose images are no longer wanted, or are to be tried again, is written again
    without them.
    """
    kept: list[FinishedBlock] = []
    held: set[bytes] = set()
    try:
        published = read_tables_record(out, "grounding")
    except CacheError:
        return kept, held  # damaged or not there: everything is made again
    if published.fingerprint != fingerprint:
        return kept, held
    for shard in published.shards:
        if not is_whole(out, shard):
            continue  # its images are made again
        table = read_table(out, "images", shard.tables["images"])
        keys, errors = table["unit_key"].to_pylist(), table["error"].to_pylist()
        stay = [
            key in wanted and not (retry_failed and error)
            for key, error in zip(keys, errors, strict=True)
        ]
        notes = {"failures": [], "computed": shard.computed}
        if not all(stay):
            keys_of_images = table["image_key"].to_pylist()
            gone = {key for key, each in zip(keys_of_images, stay, strict=True) if not each}
            tables = {name: read_table(out, name, file) for name, file in shard.tables.items()}
            rest = {name: _without(table, gone) for name, table in tables.items()}
            block = journal.finish(f"rest-{shard.tables['images'].blake3}", rest, notes)
        else:
            block = FinishedBlock(shard, notes)
        if any(stay):
            kept.append(block)
            held.update(key for key, each in zip(keys, stay, strict=True) if each)
    return kept, held


def _without(table: pa.Table, image_keys: set[bytes]) -> pa.Table:
    stay = [key not in image_keys for key in table["image_key"].to_pylist()]
    return table.filter(pa.array(stay, type=pa.bool_()))


def _publish(
    output: Output,
    out: Path,
    journal: BlockJournal,
    spec: TableSpec,
    kept: Sequence[FinishedBlock],
    new: Sequence[FinishedBlock],
) -> dict[str, Any]:
    """Move the finished tables and replace the commit point."""
    blocks = [*kept, *new]
    shards = [
        TableShard(tables=block.shard.tables, computed=block.notes["computed"]) for block in blocks
    ]
    for block in blocks:
        journal.move_files(block)
    images = pa.concat_tables(read_table(out, "images", shard.tables["images"]) for shard in shards)
    reasons: Counter[str] = Counter()
    for shard in shards:
        reasons.update(read_table(out, "drops", shard.tables["drops"])["reason"].to_pylist())
    counts = {
        "images": images.num_rows,
        "captions": sum(images["captions"].to_pylist()),
        "pairs": sum(images["pairs"].to_pylist()),
        "failed": sum(error != "" for error in images["error"].to_pylist()),
        "dropped": dict(sorted(reasons.items())),
    }
    publish_tables(output, spec, shards, counts)
    return counts


def _failed_images(out: Path) -> set[bytes]:
    """Keys of the images in error."""
    rows = read_tables(out, "images").to_pylist()
    return {row["image_key"] for row in rows if row["error"]}
