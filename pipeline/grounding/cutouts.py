"""Cut-outs of a grounding's records: lossless images in Parquet shards, as a separate output.

They depend only on images and records, so they can be kept off a remote and recreated, and a new
image encoder needs neither grounder nor segmenter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.extract.decode import ImageError
from pipeline.extract.inputs import CutoutEntry, cutout_entries, require_images
from pipeline.extract.objects import SPEC, Cutter, to_png
from pipeline.extract.runner import Advance, BatchResult, Job
from sightline.cache import Place
from sightline.cache.groundings import read_phrases
from sightline.cache.keys import as_keys, find_keys, unique_sorted
from sightline.cache.manifest import key_column
from sightline.cache.parts import Failure
from sightline.cache.plan import Batch
from sightline.cache.tables import CUTOUTS
from sightline.tables.arrow_arrays import number_array
from sightline.wording import counted

_BLOCK = 512  # objects that are finished together


def cutouts_job(
    records: Path,
    places: Mapping[bytes, Place],
    out: Path,
    inputs: Sequence[Path] = (),
    workers: int = 1,
) -> Job:
    """Cutting the objects of exactly ``records`` out of their images, into ``out``.

    Args:
        records: folder of a grounding.
        places: place of each image, by key.
        out: folder of the cut-outs; the run's own files go to ``<out>.run`` beside it.
        inputs: files and folders of the data set.
        workers: threads that decode images.

    Raises:
        SightlineError: no grounding. Of the run: one of its images is not in ``places``.
    """
    phrases = read_phrases(records).select(["image_key", "cutout_key", "mask"])
    phrases = phrases.take(number_array(unique_sorted(key_column(phrases["cutout_key"]))))
    keys = key_column(phrases["cutout_key"])

    def compute(batches: Iterator[Batch], advance: Advance) -> Iterator[BatchResult]:
        with ThreadPoolExecutor(max_workers=max(workers, 1)) as pool:
            for batch in batches:
                chosen = phrases.take(number_array(find_keys(keys, batch.keys)))
                owners = chosen["image_key"].to_pylist()
                require_images(records, as_keys([key for key in owners if key not in places]))
                objects = cutout_entries(chosen, [places[key] for key in owners])
                images = [[*group] for _, group in groupby(objects, lambda entry: entry.image_key)]
                rows: list[dict[str, Any]] = []
                failed: dict[bytes, Failure] = {}
                for group, failures in pool.map(cut, images):
                    rows += group
                    failed |= failures
                    advance(len(group) + len(failures))
                yield BatchResult(batch, pa.Table.from_pylist(rows, schema=CUTOUTS), failed)

    def cut(objects: list[CutoutEntry]) -> tuple[list[dict[str, Any]], dict[bytes, Failure]]:
        """The rows of one image's objects, in order, and why others cannot be cut out."""
        cutter = Cutter()
        rows: list[dict[str, Any]] = []
        failed: dict[bytes, Failure] = {}
        for entry in objects:
            try:
                cutout = cutter(entry)
            except ImageError as error:
                failed[entry.key] = error.at(entry.place)
            else:
                height, width = cutout.shape[1:]
                rows.append({"width": width, "height": height, "png": to_png(cutout)})
        return rows, failed

    return Job(
        out,
        SPEC,
        inputs,
        "objects",
        keys,
        _BLOCK,
        compute,
        lambda record: [counted(record.rows, "cut-out")],
        groups=key_column(phrases["image_key"]),
    )
