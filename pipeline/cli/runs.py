"""`sightline runs`: finished training runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import PARAMS
from pipeline.cli.stage import load_here

app = typer.Typer(help="Finished training runs.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Finished training runs."""


@app.command()
def accept(
    runs: Annotated[
        list[str] | None, typer.Argument(help="Names under `runs` of a system; default: all.")
    ] = None,
    params: PARAMS = Path("params.yaml"),
) -> None:
    """Keep finished runs after a code edit that changes no numbers.

    Otherwise the next `dvc repro` retrains them. Their results record it.

    Example: sightline runs accept mcse-clip
    """
    from pipeline import stages

    for line in stages.accept_code(load_here(params), runs or []):
        print(line)


@app.command()
def card(
    run: Annotated[Path, typer.Argument(help="Folder of a finished training run.")],
    results: Annotated[
        Path, typer.Option(help="Its scores, as `evaluate --out` or the stage `evaluate` wrote.")
    ],
) -> None:
    """Print the model card of a run with its scores; scores of another training are refused.

    Example: sightline runs card runs/mcse-clip/seed-0 --results results/mcse-clip/seed-0.json
    """
    from train.card import card_with_scores

    print(card_with_scores(run, results), end="")
