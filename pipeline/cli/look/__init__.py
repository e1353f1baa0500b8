"""`sightline look`: at a grounding, features and neighbours."""

from __future__ import annotations

import typer

from pipeline.cli.commands import Command, Group
from pipeline.cli.look import features, grounding, neighbours

app = typer.Typer(
    cls=Group,
    help="Look at groundings, features and neighbours.",
    no_args_is_help=True,
    add_completion=False,
)
app.command(cls=Command)(grounding.grounding)
app.command(cls=Command)(features.features)
app.command(cls=Command)(neighbours.neighbours)
