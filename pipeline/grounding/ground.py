"""Grounding from settings to published records, shared by the stage, the command and Python."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from pipeline.extract.run_options import RunOptions
from pipeline.extract.runner import Advance, BatchResult, Job, SetSummary, run
from pipeline.extract.services import Service
from pipeline.extract.settings import ExtractSettings
from pipeline.grounding.captioned_images import CaptionedImage, units_of
from pipeline.grounding.grounding_settings import GroundingSettings, Rules
from pipeline.grounding.protocols import Grounder, Segmenter
from pipeline.machine import Machine
from sightline.cache.cutout_identity import CROP_RULE
from sightline.cache.groundings import grounding_counts
from sightline.cache.keys import KEY_BYTES, as_keys, find_keys, unique_sorted
from sightline.cache.plan import Batch
from sightline.cache.prepared import PreparedDataset
from sightline.cache.record import TableSpec, set_output
from sightline.cache.table_sets import write_rows
from sightline.cache.tables import CUTOUTS
from sightline.errors import SightlineError
from sightline.files.atomic_files import check_apart
from sightline.files.places import here
from sightline.identity import also, identity
from sightline.plugins import OURS, expect_seam, package_of
from sightline.settings import explain
from sightline.source_code import digest_of_others
from sightline.wording import counted

_FORMAT = "grounding/1"


def ground_dataset(
    data: PreparedDataset,
    grounding: GroundingSettings,
    out: Path,
    cutouts: Path | None,
    settings: ExtractSettings,
    machine: Machine,
    options: RunOptions = RunOptions(),  # noqa: B008  (frozen)
) -> SetSummary:
    """Ground the captions of a data set and cut out their objects.

    The worker that publishes the records continues with the cut-outs; workers that start then
    share those.

    Args:
        out: folder of the records.
        cutouts: folder of the cut-outs; None: make none.
        settings: the precision, and how many rows may fail.

    Raises:
        SightlineError: a manifest, a model or a device is missing, too many images failed, or
            another run is writing here.
    """
    inputs = here(data.images_manifest, data.captions_manifest, data.require_images())
    if cutouts is not None:
        check_apart(cutouts, inputs)
        if cutouts.resolve() == out.resolve():
            raise SightlineError(
                f"{cutouts}: is given for both the grounding and its cut-outs; they are two "
                "sets, so give two folders"
            )
    units = units_of(data, grounding.captions)
    set_output(out, inputs, kind="grounding").check_place()
    grounding.grounder.require_files()
    grounding.segmenter.require_files()
    from pipeline.extract.objects import SPEC
    from pipeline.grounding.box_tables import BoxTable
    from pipeline.grounding.cutouts import cutouts_job
    from sightline.devices import computing, pick_device, use_device

    def fill(job: Job) -> SetSummary:
        return run(job, settings.max_failed, machine, options)

    needs_device = grounding.grounder.needs_device or grounding.segmenter.needs_device
    device = use_device(machine.device) if needs_device else pick_device("cpu")
    workers = machine.workers
    grounder = grounding.grounder.build(device, settings.precision)
    segmenter = grounding.segmenter.build(device, settings.precision)
    expect_seam(grounder, Grounder, "describe", of=grounding.grounder)
    if segmenter is not None:
        expect_seam(segmenter, Segmenter, "describe", of=grounding.segmenter)
    remarks: list[str] = []
    if units and isinstance(grounder, BoxTable):
        remarks = grounder.match(units, masks=segmenter is None)
    # models set global flags per call; set here, two threads cannot reset each other's
    with computing(device, "fp32") if needs_device else nullcontext():
        job = grounding_job(
            units,
            grounder,
            segmenter,
            grounding.rules,
            out,
            inputs,
            batch_size=grounding.batch_size,
            block_images=grounding.block_images,
            workers=workers,
            needs_device=needs_device,
            identities=_named(grounding, settings),
        )
        code = digest_of_others(grounding.grounder, grounding.segmenter)
        summary = fill(replace(job, spec=job.spec.model_copy(update={"code": code})))
    summary = replace(summary, remarks=(*remarks, *summary.remarks))
    if cutouts is None or (summary.record is None and summary.to_do != 0):
        return summary
    if grounding.cutouts:
        places = {unit.key: unit.place for unit in units}
        cut = fill(cutouts_job(out, places, cutouts, inputs, workers))
        if options.dry_run:
            summary = replace(summary, remarks=(*summary.remarks, f"{cutouts}: {cut}"))
    elif not options.dry_run:
        write_rows(cutouts, SPEC, as_keys([]), CUTOUTS.empty_table())
    return summary


def _named(grounding: GroundingSettings, settings: ExtractSettings) -> dict[str, dict[str, Any]]:
    """What names a grounding besides what its parts describe: part → settings."""
    parts = {"grounder": grounding.grounder, "segmenter": grounding.segmenter}
    identities = {name: identity(part) for name, part in parts.items()}
    for name, part in parts.items():
        if part.needs_device and package_of(part) not in OURS:  # ours describe it
            identities[name]["@precision"] = settings.precision
    return {**identities, "grounding": identity(grounding), "extract": identity(settings)}


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
    rows = ExtractSettings.model_validate({"precision": precision})
    machine = Machine.model_validate({"devices": device})
    ground_dataset(data, settings, Path(out), folder, rows, machine)
    return Path(out)


def grounding_job(
    units: Sequence[CaptionedImage],
    grounder: Grounder,
    segmenter: Segmenter | None,
    rules: Rules,
    out: Path,
    inputs: Sequence[Path] = (),
    *,
    batch_size: int,
    block_images: int,
    workers: int,
    needs_device: bool = True,
    identities: Mapping[str, Mapping[str, object]] = {},
) -> Job:
    """Grounding exactly ``units`` into ``out``.

    Args:
        units: images and captions, see `pipeline.grounding.captioned_images.units_of`.
        segmenter: None: use the masks that come with the grounder's boxes.
        out: folder of the records; the run's own files go to ``<out>.run`` beside it.
        inputs: files and folders of the data set.
        batch_size: captions, and images, per model call.
        block_images: images that are finished together; with a model behind an API each alone.
        workers: threads that decode images.
        needs_device: whether the grounder or the segmenter computes on a device.
        identities: settings that the grounding is named by, besides what its parts describe.

    Raises:
        SightlineError: nothing to ground.
    """
    from pipeline.grounding.block_grounder import BlockGrounder, concurrency_of

    if not units:
        raise SightlineError(f"{out}: there are no captions to ground; check the manifest")
    description: dict[str, Any] = {
        "format": _FORMAT,
        "grounder": grounder.describe(),
        "segmenter": {"family": "annotations"} if segmenter is None else segmenter.describe(),
        "rules": identity(rules),
        "crop_rule": CROP_RULE,
        **also(identities),
    }
    description = json.loads(json.dumps(description))  # tuples become lists, as when read back
    spec = TableSpec(kind="grounding", description=description)
    keys, groups = bytearray(), bytearray()
    for unit in units:
        keys += unit.unit_key
        groups += _by_size(unit)
    unit_keys = as_keys(np.frombuffer(keys, np.uint8).reshape(-1, KEY_BYTES))
    order = unique_sorted(unit_keys)
    at_once = max(concurrency_of(grounder) or 0, concurrency_of(segmenter) or 0)
    service = Service(at_once) if at_once else None
    blocks = BlockGrounder(grounder, segmenter, rules, batch_size, workers, service)

    def block_of(batch: Batch) -> list[CaptionedImage]:
        places = order[find_keys(unit_keys[order], batch.keys)]
        return [units[place] for place in places.tolist()]

    def answer(batch: Batch, block: list[CaptionedImage]) -> BatchResult:
        (unit,) = block
        return BatchResult(batch, *blocks.ground_one(unit))

    def compute(batches: Iterator[Batch], advance: Advance) -> Iterator[BatchResult]:
        if service is not None:
            yield from service.results(batches, block_of, answer, advance)
            return
        for batch in batches:
            yield BatchResult(batch, *blocks.ground(block_of(batch), advance))

    return Job(
        out,
        spec,
        inputs,
        "images",
        unit_keys,
        1 if service else block_images,
        compute,
        lambda _: _described(grounding_counts(out)),
        groups=np.frombuffer(groups, np.uint8).reshape(-1, KEY_BYTES),
        calls=blocks.calls,
        needs_device=needs_device,
        service=service,
    )


def _by_size(unit: CaptionedImage) -> bytes:
    """Group of images of one size, which are grounded together: 32 bytes."""
    return unit.height.to_bytes(16, "big") + unit.width.to_bytes(16, "big")


def _described(counts: dict[str, Any]) -> list[str]:
    per_image = counts["pairs"] / max(counts["images"] - counts["failed"], 1)
    words = (
        f"{counted(counts['images'], 'image')}, {counted(counts['captions'], 'caption')}, "
        f"{counted(counts['pairs'], 'pair')} ({per_image:.1f} per image)"
    )
    dropped = sum(counts["dropped"].values())
    return [words, f"{dropped:,} phrases or boxes dropped"] if dropped else [words]
