"""Cut-outs of a grounding's records: lossless images in Parquet shards, as a separate output.

They depend only on images and records, so they can be kept off a remote and recreated, and a new
image encoder needs neither grounder nor segmenter.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from pipeline.extract.decode import ImageError, load_image
from pipeline.extract.objects import cut_out
from pipeline.extract.runner import Advance, Computed, Job, RunSettings, SetSummary, run
from sightline.cache import Place
from sightline.cache.groundings import read_phrases
from sightline.cache.keys import KeyTable, unique_sorted
from sightline.cache.manifest import key_column
from sightline.cache.parts import Failure
from sightline.cache.plan import Batch
from sightline.cache.record import SetRecord, TableSpec
from sightline.cache.rle import CROP_RULE, decode_mask
from sightline.cache.tables import CUTOUTS
from sightline.cache.writer import SetWriter
from sightline.errors import SightlineError
from sightline.wording import counted

_FORMAT = "cutouts/1"
SPEC = TableSpec(kind="cutouts", description={"format": _FORMAT, "crop_rule": CROP_RULE})
"""What determines the content of cut-outs, besides their phrases."""


_BLOCK = 512  # objects that are finished together


def write_cutouts(
    records: Path,
    places: Mapping[bytes, Place],
    out: Path,
    settings: RunSettings = RunSettings(),  # noqa: B008  (frozen)
) -> SetSummary:
    """Make ``out`` hold the cut-outs of exactly ``records``; existing ones are kept.

    Args:
        records: folder of a grounding.
        places: place of each image, by key.
        out: folder of the cut-outs; the run's own files go to ``<out>.run`` beside it.

    Raises:
        BusyError: another process is writing here.
        SightlineError: no grounding, one of its images is not in ``places``, or more of them
            failed than ``settings.max_failed`` allows (good cut-outs are published first).
    """
    if out.resolve() == records.resolve():
        raise SightlineError(
            f"{out}: holds the grounding itself; choose another folder for cut-outs"
        )
    phrases = read_phrases(records).select(["image_key", "cutout_key", "mask"])
    phrases = phrases.take(unique_sorted(key_column(phrases["cutout_key"])))
    keys = key_column(phrases["cutout_key"])
    table = KeyTable(keys)
    writer = SetWriter(out, SPEC, settings.inputs, settings.worker)

    def plan() -> list[Batch]:
        return writer.plan(
            keys,
            groups=key_column(phrases["image_key"]),
            batch_size=settings.block_rows or _BLOCK,
            shard_rows=settings.shard_rows,
            retry_failed=settings.retry_failed,
            **settings.shape,
        )

    def compute(batches: Iterator[Batch], advance: Advance) -> Iterator[Computed]:
        cut = partial(_cut_image, places, settings.max_pixels)
        with ThreadPoolExecutor(max_workers=max(settings.workers, 1)) as pool:
            for batch in batches:
                objects = _by_image(phrases.take(table.find(batch.keys)))
                rows: dict[bytes, dict[str, Any]] = {}
                failed: dict[bytes, Failure] = {}
                for some, failures in pool.map(cut, objects, objects.values()):
                    rows |= some
                    failed |= failures
                    advance(len(some) + len(failures))
                good = [rows[key.tobytes()] for key in batch.keys if key.tobytes() in rows]
                yield Computed(batch, pa.Table.from_pylist(good, schema=CUTOUTS), failed)

    return run(Job(writer, plan, compute, _described, "objects"), settings)


def _described(record: SetRecord) -> list[str]:
    return [counted(record.rows, "cut-out")]


def _by_image(phrases: pa.Table) -> dict[bytes, dict[bytes, dict[str, Any]]]:
    """Masks by cut-out key, by image key."""
    columns = [phrases[name].to_pylist() for name in ("image_key", "cutout_key", "mask")]
    objects: dict[bytes, dict[bytes, dict[str, Any]]] = {}
    for image_key, cutout_key, mask in zip(*columns, strict=True):
        objects.setdefault(image_key, {})[cutout_key] = mask
    return objects


def _cut_image(
    places: Mapping[bytes, Place],
    max_pixels: int,
    image_key: bytes,
    masks: Mapping[bytes, dict[str, Any]],
) -> tuple[dict[bytes, dict[str, Any]], dict[bytes, Failure]]:
    """Rows of one image's cut-outs by key, or why they cannot be cut."""
    place = places.get(image_key)
    if place is None:
        raise SightlineError(
            f"image {image_key.hex()[:16]}: has objects in the records but is not in the manifest; "
            "ground again, or give the manifest that the records were made from"
        )
    try:
        pixels = load_image(place, image_key, max_pixels)
    except ImageError as error:
        why = {"code": error.code, "path": str(place), "reason": error.reason}
        return {}, dict.fromkeys(masks, why)
    rows: dict[bytes, dict[str, Any]] = {}
    for key, mask in masks.items():
        cutout = cut_out(pixels, decode_mask(mask["size"], mask["counts"]))
        image = Image.fromarray(cutout.permute(1, 2, 0).contiguous().numpy(), "RGBA")
        data = io.BytesIO()
        image.save(data, "PNG")
        rows[key] = {"width": image.width, "height": image.height, "png": data.getvalue()}
    return rows, {}
