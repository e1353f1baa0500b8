"""`sightline look`: at a grounding, features and neighbours."""

from __future__ import annotations

import typer

from pipeline.cli.look import features, grounding, neighbours

app = typer.Typer(
    help="Look at groundings, features and neighbours.",
    no_args_is_help=True,
    add_completion=False,
)
app.command()(grounding.grounding)
app.command()(features.features)
app.command()(neighbours.neighbours)
