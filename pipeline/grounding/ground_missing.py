"""Ground missing units with a grounder and a segmenter, into the set of records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.extract.runner import Advance, Computed, Job, RunSettings, SetSummary, run
from pipeline.grounding.block_grounder import BlockGrounder
from pipeline.grounding.captioned_images import Unit
from pipeline.grounding.grounder_config import Rules
from pipeline.grounding.protocols import Grounder, Segmenter
from sightline.cache.groundings import grounding_counts
from sightline.cache.keys import as_keys
from sightline.cache.plan import Batch
from sightline.cache.record import TableSpec
from sightline.cache.rle import CROP_RULE
from sightline.cache.writer import SetWriter
from sightline.errors import SightlineError
from sightline.wording import counted

_FORMAT = "grounding/1"
_BLOCK = 256  # images that are finished together


def ground(
    units: Sequence[Unit],
    grounder: Grounder,
    segmenter: Segmenter | None,
    rules: Rules,
    out: Path,
    settings: RunSettings,
) -> SetSummary:
    """Make ``out`` hold the records of exactly ``units``; existing ones are kept.

    Args:
        units: images and captions, see `pipeline.grounding.captioned_images.units_of`.
        segmenter: None: use the masks that come with the grounder's boxes.
        out: folder of the records; the run's own files go to ``<out>.run`` beside it.

    Raises:
        BusyError: another process is writing here.
        SightlineError: nothing to ground, or more images failed than ``settings.max_failed``
            allows (good images are published first).
    """
    if not units:
        raise SightlineError(f"{out}: there are no captions to ground; check the manifest")
    description: dict[str, Any] = {
        "format": _FORMAT,
        "grounder": grounder.describe(),
        "segmenter": segmenter.describe() if segmenter else {"family": "annotations"},
        "rules": rules.model_dump(mode="json"),
        "crop_rule": CROP_RULE,
    }
    description = json.loads(json.dumps(description))  # tuples become lists, as when read back
    spec = TableSpec(kind="grounding", description=description)
    by_key = {unit.unit_key: unit for unit in units}
    blocks = BlockGrounder(grounder, segmenter, rules, settings)

    def compute(batches: Iterator[Batch], advance: Advance) -> Iterator[Computed]:
        for batch in batches:
            done = blocks.ground([by_key[key.tobytes()] for key in batch.keys], advance)
            yield Computed(batch, done.to_arrow(), done.failures)

    def described(_: object) -> list[str]:
        return _described(grounding_counts(out))

    job = Job(
        SetWriter(out, spec, settings.inputs, settings.worker),
        "images",
        as_keys(list(by_key)),
        settings.block_rows or _BLOCK,
        compute,
        described,
        groups=np.array([_by_size(unit) for unit in by_key.values()], dtype=np.uint8),
        calls=blocks.calls,
    )
    return run(job, settings)


def _by_size(unit: Unit) -> list[int]:
    """Group of images of one size, which are grounded together: 32 bytes."""
    return [*unit.height.to_bytes(16, "big"), *unit.width.to_bytes(16, "big")]


def _described(counts: dict[str, Any]) -> list[str]:
    per_image = counts["pairs"] / max(counts["images"] - counts["failed"], 1)
    words = (
        f"{counted(counts['images'], 'image')}, {counted(counts['captions'], 'caption')}, "
        f"{counted(counts['pairs'], 'pair')} ({per_image:.1f} per image)"
    )
    dropped = sum(counts["dropped"].values())
    return [words, f"{dropped:,} phrases or boxes dropped"] if dropped else [words]
