"""`sightline accept`: keep finished runs after a code edit."""

from __future__ import annotations

from typing import Annotated

import typer


def accept(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Names under `runs` of a system; default: all.")
    ] = None,
) -> None:
    """Keep finished runs after an edit that changes no numbers.

    Otherwise the next `dvc repro` retrains them. Their results record it.

    Example: sightline accept mcse-clip
    """
    from pipeline import stages

    for line in stages.accept_code(stages.load_here(), runs or []):
        print(line)
