"""`sightline look`: at a grounding, features, neighbours and embedding spaces."""

from __future__ import annotations

import typer

from pipeline.cli.look import features, grounding, neighbours, space

app = typer.Typer(
    help="Look at groundings, features, neighbours and embedding spaces.",
    no_args_is_help=True,
    add_completion=False,
)
app.command()(grounding.grounding)
app.command()(features.features)
app.command()(neighbours.neighbours)
app.command()(space.space)
