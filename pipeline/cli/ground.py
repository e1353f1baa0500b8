"""`sightline ground`: phrases, boxes, masks and cut-outs of captioned images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import (
    DATA,
    JSON,
    OUT,
    SET,
    checked,
    computed_here,
    print_summary,
    set_values,
    takes,
)
from pipeline.extract.settings import Invocation, RunSettings

_OWN = Invocation.model_fields.keys() - {"check"} | {"precision", "max_failed"}


@takes("how", RunSettings, only=_OWN)
def ground(
    data: DATA,
    out: OUT,
    how: RunSettings,
    set_: SET = [],  # noqa: B006
    cutouts: Annotated[
        Path | None, typer.Option(help="Folder for cut-outs; without it, none are made.")
    ] = None,
    as_json: JSON = False,
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

    settings = checked(GroundingSettings, set_values(GroundingSettings, set_))
    if not computed_here(how, [out, *filter(None, [cutouts])]):
        return
    summary = ground_dataset(PreparedDataset.open(data), settings, out, cutouts, how)
    counts = grounding_counts(out) if summary.record is not None else {}
    print_summary(summary, as_json, counts=counts)
