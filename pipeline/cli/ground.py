"""`sightline ground`: phrases, boxes, masks and cut-outs of captioned images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pipeline.cli.model_options import checked, set_values, takes
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
    set_in,
)
from pipeline.extract.settings import OF_TRAINING, ExtractSettings, Machine


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
    set_: Annotated[list[str], set_in("Model")] = [],  # noqa: B006
    cutouts: Annotated[
        Path | None,
        option("Output", "Folder for cut-outs; without it, none are made.", "--cutouts"),
    ] = None,
    as_json: JSON = False,
    worker: WORKER = None,
    retry_failed: RETRY_FAILED = False,
    dry_run: DRY_RUN = False,
) -> None:
    """Find the phrases of captions, their boxes and masks.

    --set gives the keys of `grounding` in params.yaml (docs/grounding.md), those within others
    with dots: rules.min_score=0.3.

    Example: sightline ground --data data/mine --set grounder.family=grounding-dino
    --set grounder.model=IDEA-Research/grounding-dino-base --set segmenter.family=box
    --out objects/mine
    """
    from pipeline.grounding.ground import ground_dataset
    from pipeline.grounding.settings import GroundingSettings
    from sightline.cache.groundings import grounding_counts
    from sightline.cache.prepared import PreparedDataset

    grounding = checked(GroundingSettings, set_values(GroundingSettings, set_))
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
        worker=worker,
        retry_failed=retry_failed,
        dry_run=dry_run,
    )
    counts = grounding_counts(out) if summary.record is not None else {}
    print_summary(summary, as_json, counts=counts)
