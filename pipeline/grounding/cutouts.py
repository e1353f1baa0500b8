"""Cut-outs of a grounding's records: lossless pictures in Parquet shards of their own output.

They follow from images and records alone, so they can be left out of a remote and made again, and
another image encoder needs neither grounder nor segmenter.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from pipeline.cache import CacheError, Place
from pipeline.cache.commit import read_tables_record, refuse_other_kinds, set_output
from pipeline.cache.record import TableShard, TableSpec
from pipeline.cache.rle import CROP_RULE, decode_mask
from pipeline.cache.tables import CUTOUTS, is_whole, publish_tables, read_table
from pipeline.extract.decode import MAX_PIXELS, ImageError, load_image
from pipeline.extract.objects import cut_out
from pipeline.grounding.journal import BlockJournal, FinishedBlock
from sightline.errors import SightlineError
from sightline.progress import progress

_FORMAT = "cutouts/1"
SPEC = TableSpec(kind="cutouts", description={"format": _FORMAT, "crop_rule": CROP_RULE})
"""What decides the content of cut-outs, beside the phrases that they are made from."""


def write_cutouts(
    records: Path,
    paths: Mapping[bytes, Place],
    out: Path,
    *,
    workers: int = 2,
    max_pixels: int = MAX_PIXELS,
    inputs: Iterable[Path] = (),
) -> int:
    """Make ``out`` hold the cut-outs of exactly the records in ``records``; what is there is kept.

    Args:
        records: folder of a grounding.
        paths: where each image is, by its key.
        out: folder of the cut-outs; the run's own files go to ``<out>.run`` beside it.
        workers: threads that decode images and compress cut-outs.
        inputs: files and folders that the run reads.

    Returns:
        how many cut-outs there are.

    Raises:
        BusyError: another process is writing here.
        SightlineError: no grounding, or one of its images is missing or no longer the same.
    """
    if out.resolve() == records.resolve():
        raise SightlineError(f"{out}: holds the grounding itself; name another folder for cut-outs")
    grounding = read_tables_record(records, "grounding")
    refuse_other_kinds(out, "cutouts")
    with set_output(out, inputs) as output:
        journal = BlockJournal(output)
        published = _published(out)
        blocks: list[FinishedBlock] = []
        total = sum(shard.tables["phrases"].rows for shard in grounding.shards)
        with (
            progress(out.as_posix(), total, "records") as advance,
            ThreadPoolExecutor(max_workers=max(workers, 1)) as pool,
        ):
            for shard in grounding.shards:
                source = shard.tables["phrases"]
                name = hashlib.sha256(f"{_FORMAT}\n{source.blake3}".encode()).hexdigest()
                block = published.get(source.blake3) or journal.finished(name)
                if block is None:
                    objects = _objects(read_table(records, "phrases", source))
                    cut = partial(_cut_image, paths, max_pixels)
                    rows = [
                        row for some in pool.map(cut, objects, objects.values()) for row in some
                    ]
                    table = pa.Table.from_pylist(rows, schema=CUTOUTS)
                    block = journal.finish(name, {"cutouts": table}, source.blake3)
                blocks.append(block)
                advance(source.rows)
        for block in blocks:
            journal.move_files(block)
        shards = [
            TableShard(tables=block.shard.tables, computed={"phrases": block.notes})
            for block in blocks
        ]
        count = sum(shard.tables["cutouts"].rows for shard in shards)
        publish_tables(output, SPEC, shards, {"cutouts": count})
        journal.clear()
    return count


def _published(out: Path) -> dict[str, FinishedBlock]:
    """Shards that stand in ``out`` whole, by the BLAKE3 of the table they were made from."""
    try:
        found = read_tables_record(out, "cutouts")
    except CacheError:
        return {}  # damaged or not there: everything is made again
    if found.fingerprint != SPEC.fingerprint:
        return {}
    return {
        source: FinishedBlock(shard, source)
        for shard in found.shards
        if isinstance(source := shard.computed.get("phrases"), str) and is_whole(out, shard)
    }


def _objects(phrases: pa.Table) -> dict[bytes, dict[bytes, dict[str, Any]]]:
    """Masks by cut-out key, by image key, each once, in the order of the records."""
    columns = [phrases[name].to_pylist() for name in ("image_key", "cutout_key", "mask")]
    objects: dict[bytes, dict[bytes, dict[str, Any]]] = {}
    for image_key, cutout_key, mask in zip(*columns, strict=True):
        objects.setdefault(image_key, {})[cutout_key] = mask
    return objects


def _cut_image(
    paths: Mapping[bytes, Place],
    max_pixels: int,
    image_key: bytes,
    masks: Mapping[bytes, dict[str, Any]],
) -> Sequence[dict[str, Any]]:
    """Rows of one image's cut-outs."""
    path = paths.get(image_key)
    if path is None:
        raise SightlineError(
            f"image {image_key.hex()[:16]}: the records have objects of it and the manifest does "
            "not know it; ground again, or name the manifest that the records were made from"
        )
    try:
        pixels = load_image(path, image_key, max_pixels)
    except ImageError as error:
        raise SightlineError(
            f"{path}: {error.reason}; its objects cannot be cut out. Put the image back and run "
            "this again; what was finished is kept"
        ) from error
    rows: list[dict[str, Any]] = []
    for key, mask in masks.items():
        cutout = cut_out(pixels, decode_mask(mask["size"], mask["counts"]))
        image = Image.fromarray(cutout.permute(1, 2, 0).contiguous().numpy(), "RGBA")
        data = io.BytesIO()
        image.save(data, "PNG")
        rows.append(
            {"key": key, "width": image.width, "height": image.height, "png": data.getvalue()}
        )
    return rows
