"""`sightline ground`: phrases, boxes, masks and cut-outs of captioned images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.model_options import from_words, set_values, takes
from pipeline.cli.options import (
    DATA,
    DRY_RUN,
    JSON,
    OUT,
    RETRY_FAILED,
    WORKER,
    launched_workers,
    option,
    print_summary,
    set_option,
)
from pipeline.extract.run_options import RunOptions
from pipeline.extract.settings import ExtractSettings
from pipeline.machine import OF_TRAINING, Machine
from sightline.settings import FamilySettings, unknown


@takes("machine", Machine, panel="Machine", only=Machine.model_fields.keys() - OF_TRAINING)
@takes(
    "settings",
    ExtractSettings,
    panel="Model",
    panels={"max_failed": "Output"},
    only={"precision", "max_failed"},
)
def ground(
    data: DATA,
    out: OUT,
    machine: Machine,
    settings: ExtractSettings,
    grounder: Annotated[
        str | None, option("Model", "FAMILY:MODEL, or annotations:PATH of boxes that are there.")
    ] = None,
    segmenter: Annotated[
        str | None, option("Model", "FAMILY or FAMILY:MODEL, such as sam2 or box.")
    ] = None,
    set_: Annotated[
        list[str],
        set_option("Model", "A key of `grounding` in params.yaml, such as rules.min_score=0.3"),
    ] = [],  # noqa: B006
    cutouts: Annotated[
        Path | None, option("Output", "Folder for cut-outs; without it, none are made.")
    ] = None,
    as_json: JSON = False,
    worker: WORKER = None,
    retry_failed: RETRY_FAILED = False,
    dry_run: DRY_RUN = False,
) -> None:
    """Find the phrases of captions, their boxes and masks.

    docs/grounding.md describes the keys of `grounding` that --set takes, those within others with
    dots.

    Example: sightline ground --data data/mine
    --grounder grounding-dino:IDEA-Research/grounding-dino-base --segmenter box --out objects/mine
    """
    from pipeline.grounding.ground import ground_dataset
    from pipeline.grounding.grounding_settings import GroundingSettings
    from pipeline.grounding.settings import GrounderSettings, SegmenterSettings
    from sightline.cache.groundings import grounding_counts
    from sightline.cache.prepared import PreparedDataset
    from sightline.machine.heap import keep_heap

    keep_heap(of_threads=True)
    words = [
        *_family("grounder", grounder, GrounderSettings),
        *_family("segmenter", segmenter, SegmenterSettings),
        *set_,
    ]
    grounding = from_words(GroundingSettings, {}, extra=set_values(GroundingSettings, words))
    sets = [out, *filter(None, [cutouts])]
    if not dry_run and launched_workers(machine, worker, sets):
        return
    summary = ground_dataset(
        PreparedDataset.open(data),
        grounding,
        out,
        cutouts,
        settings,
        machine,
        RunOptions(worker, retry_failed, dry_run),
    )
    counts = grounding_counts(out) if summary.record is not None else {}
    print_summary(summary, as_json, counts=counts)


def _family(key: str, word: str | None, base: type[FamilySettings]) -> list[str]:
    """FAMILY:MODEL as ``--set`` has it; what follows the colon is the family's model or path."""
    if word is None:
        return []
    family, _, model = word.partition(":")
    if family not in base.families:
        fault = unknown(family, base.families, base.families.noun)
        raise typer.BadParameter(fault, param_hint=f"--{key}")
    fields = base.families.subclass(family, base).model_fields
    field = next((name for name in ("model", "path") if name in fields), None)
    if model and field is None:
        raise typer.BadParameter(
            f"{family} takes no model; give its fields with --set {key}.NAME=VALUE",
            param_hint=f"--{key}",
        )
    return [f"{key}.family={family}", *([f"{key}.{field}={model}"] if model else [])]
