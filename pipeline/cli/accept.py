"""`sightline accept`: keep finished runs after a code edit."""

from __future__ import annotations

from typing import Annotated

import typer


def accept(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Names under `runs` of a system; default: all.")
    ] = None,
) -> None:
    """Keep finished runs and scores after an edit of the code.

    For an edit that changes no numbers: without it the next `dvc repro` trains and scores again.
    The results record it.

    Example: sightline accept mcse-clip
    """
    from pipeline.accepted_code import accept_code
    from pipeline.stages import load_here

    for line in accept_code(load_here(), runs or []):
        print(line)
