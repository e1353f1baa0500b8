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
    from pipeline import stages

    for line in stages.accept_code(stages.load_here(), runs or []):
        print(line)
