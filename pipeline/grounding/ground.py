"""Grounding from settings to published records, shared by the stage, the command and Python."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from pipeline.extract.runner import Advance, Computed, Job, SetSummary, run
from pipeline.extract.settings import RunSettings
from pipeline.grounding.captioned_images import Unit, units_of
from pipeline.grounding.protocols import Grounder, Segmenter
from pipeline.grounding.settings import GroundingSettings, Rules
from sightline.cache.groundings import grounding_counts
from sightline.cache.keys import as_keys
from sightline.cache.plan import Batch
from sightline.cache.prepared import PreparedDataset
from sightline.cache.record import TableSpec, refuse_other_kinds, set_output
from sightline.cache.rle import CROP_RULE
from sightline.cache.sets import write_rows
from sightline.cache.tables import CUTOUTS
from sightline.cache.writer import SetWriter
from sightline.errors import SightlineError
from sightline.files import check_apart
from sightline.settings import explain
from sightline.wording import counted

_FORMAT = "grounding/1"
_BLOCK = 256  # images that are finished together


def ground_dataset(
    data: PreparedDataset,
    settings: GroundingSettings,
    out: Path,
    cutouts: Path | None = None,
    how: RunSettings = RunSettings(),  # noqa: B008  (frozen)
) -> SetSummary:
    """Ground the captions of a data set and cut out their objects.

    Args:
        out: folder of the records.
        cutouts: folder of the cut-outs; None: make none.
        how: the device, precision and so on; its inputs and batches are set here.
            The worker that publishes the records continues with the cut-outs; workers that start
            then share those.

    Raises:
        SightlineError: a manifest, a model or a device is missing, too many images failed, or
            another run is writing here.
    """
    inputs = (data.images_manifest, data.captions_manifest, data.require_images())
    if cutouts is not None:
        check_apart(cutouts, inputs)
        if cutouts.resolve() == out.resolve():
            raise SightlineError(
                f"{cutouts}: is given for both the grounding and its cut-outs; they are two "
                "sets, so give two folders"
            )
    units = units_of(data, settings.captions)
    refuse_other_kinds(out, "grounding")
    set_output(out, inputs, str(how.worker or "")).check_place()
    settings.grounder.require_files()
    settings.segmenter.require_files()
    from pipeline.extract.objects import SPEC
    from pipeline.grounding.cutouts import write_cutouts
    from sightline.devices import computing, pick_device

    device = pick_device(how.device)
    grounder = settings.grounder.build(device, how.precision)
    segmenter = settings.segmenter.build(device, how.precision)
    how = how.on(str(device)).but(inputs=inputs, copy_from=None)
    grounding = how.but(batch_size=settings.batch_size, block_rows=settings.block_images)
    # models set global flags per call; set here, two threads cannot reset each other's
    with computing(device, "fp32"):
        summary = ground(units, grounder, segmenter, settings.rules, out, grounding)
    if cutouts is None or (summary.record is None and summary.to_do != 0):
        return summary
    if settings.cutouts:
        cut = write_cutouts(out, {unit.key: unit.place for unit in units}, cutouts, how)
        if how.dry_run:
            summary = replace(summary, remarks=(*summary.remarks, f"{cutouts}: {cut}"))
    elif not how.dry_run:
        write_rows(cutouts, SPEC, as_keys([]), CUTOUTS.empty_table())
    return summary


def ground_captions(
    data: PreparedDataset,
    settings: GroundingSettings | Mapping[str, Any],
    out: Path | str,
    *,
    cutouts: Path | str | None = None,
    device: str = "auto",
    precision: str = "fp32",
) -> Path:
    """Ground the captions of ``data`` into ``out``; `pipeline.read_phrases` reads the records.

    Args:
        settings: grounder, segmenter and rules, as under `grounding` in params.yaml.
        cutouts: folder of the cut-outs; None: make none.

    Returns:
        The folder of the records.

    Raises:
        SightlineError: invalid settings; or as `ground_dataset`.
    """
    if not isinstance(settings, GroundingSettings):
        try:
            settings = GroundingSettings.model_validate(settings)
        except ValidationError as error:
            raise SightlineError(f"grounding: {'; '.join(explain(error))}") from error
    folder = None if cutouts is None else Path(cutouts)
    how = RunSettings.model_validate({"devices": device, "precision": precision})
    ground_dataset(data, settings, Path(out), folder, how)
    return Path(out)


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
    from pipeline.grounding.block_grounder import BlockGrounder

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
            block = [by_key[key.tobytes()] for key in batch.keys]
            yield Computed(batch, *blocks.ground(block, advance))

    job = Job(
        SetWriter(out, spec, settings.inputs, settings.worker),
        "images",
        as_keys(list(by_key)),
        settings.block_rows or _BLOCK,
        compute,
        lambda _: _described(grounding_counts(out)),
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
