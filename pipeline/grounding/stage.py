"""Grounding from settings to published records, shared by the stage and the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.datasets.prepared import PreparedDataset
from pipeline.extract.runner import RunSettings, SetSummary
from pipeline.grounding.captioned_images import units_of
from pipeline.grounding.grounder_config import GroundingSettings
from sightline.cache.keys import as_keys
from sightline.cache.record import refuse_other_kinds, set_output
from sightline.cache.sets import write_rows
from sightline.cache.tables import CUTOUTS
from sightline.errors import SightlineError
from sightline.files import check_apart
from sightline.settings import explain


@dataclass(frozen=True)
class GroundPaths:
    """Input and output paths of a grounding.

    Attributes:
        images, captions: manifests of one data set.
        root: base folder of the paths in ``images``.
        out: folder of the records.
        cutouts: folder of the cut-outs; None: make none.
    """

    images: Path
    captions: Path
    root: Path
    out: Path
    cutouts: Path | None


def ground_dataset(
    paths: GroundPaths,
    settings: GroundingSettings,
    how: RunSettings = RunSettings(),  # noqa: B008  (frozen)
) -> SetSummary:
    """Ground the captions of a data set and cut out their objects.

    Args:
        how: the device (None: ``auto``), precision and so on; its inputs and batches are set here.
            The worker that publishes the records continues with the cut-outs; workers that start
            then share those.

    Raises:
        SightlineError: a manifest, a model or a device is missing, too many images failed, or
            another run is writing here.
    """
    inputs = (paths.images, paths.captions, paths.root)
    if paths.cutouts is not None:
        check_apart(paths.cutouts, inputs)
        if paths.cutouts.resolve() == paths.out.resolve():
            raise SightlineError(
                f"{paths.cutouts}: is given for both the grounding and its cut-outs; they are two "
                "sets, so give two folders"
            )
    units = units_of(paths.images, paths.captions, paths.root, settings.captions)
    refuse_other_kinds(paths.out, "grounding")
    set_output(paths.out, inputs, str(how.worker or "")).check_place()
    settings.grounder.require_files()
    settings.segmenter.require_files()
    from pipeline.extract.objects import SPEC
    from pipeline.grounding.cutouts import write_cutouts
    from pipeline.grounding.ground_missing import ground
    from sightline.devices import computing, pick_device

    where = pick_device(how.device or "auto")
    grounder = settings.grounder.build(where, how.precision)
    segmenter = settings.segmenter.build(where, how.precision)
    how = replace(how, device=str(where), inputs=inputs, copy_from=None)
    grounding = replace(how, batch_size=settings.batch_size, block_rows=settings.block_images)
    # models set global flags per call; set here, two threads cannot reset each other's
    with computing(where, "fp32"):
        summary = ground(units, grounder, segmenter, settings.rules, paths.out, grounding)
    if paths.cutouts is None or not (summary.record is not None or summary.to_do == 0):
        return summary
    if settings.cutouts:
        places = {unit.key: unit.place for unit in units}
        cut = write_cutouts(paths.out, places, paths.cutouts, how)
        if how.dry_run:
            summary = replace(summary, remarks=(*summary.remarks, f"{paths.cutouts}: {cut}"))
    elif not how.dry_run:
        write_rows(paths.cutouts, SPEC, as_keys([]), CUTOUTS.empty_table())
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
    paths = GroundPaths(
        data.images_manifest,
        data.captions_manifest,
        data.require_images(),
        Path(out),
        None if cutouts is None else Path(cutouts),
    )
    ground_dataset(paths, settings, RunSettings(device=device, precision=precision))
    return paths.out
