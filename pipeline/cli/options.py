"""Options shared by several commands, and printing of results."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.errors import SightlineError

if TYPE_CHECKING:
    from pydantic import ValidationError

    from pipeline.cache.worker import Worker

OUT = Annotated[Path, typer.Option("--out", help="Folder to write to.", show_default=False)]
DEVICE = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
JSON = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
MODELS = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="Folder of a training run or of a model, or a name on the hub; NAME=MODEL renames it; "
        "repeatable.",
        show_default=False,
    ),
]
POOLING = Annotated[
    str | None,
    typer.Option(help="cls, pooler, mean or first_last_mean; default: from the folder."),
]
MOST_SEED = (1 << 32) - 1  # the largest that NumPy and PyTorch both accept
PARAMS = Annotated[Path, typer.Option("--params", help="Parameter file of the graph.")]


class Retry(StrEnum):
    """Values of ``--retry``."""

    FAILED = "failed"


RETRY = Annotated[Retry | None, typer.Option("--retry", help="Recompute failed rows.")]


WORKER = Annotated[
    str | None,
    typer.Option(
        "--worker",
        metavar="I/N",
        help="Run as worker I (from 0) of N that fill one folder together.",
        show_default=False,
    ),
]
THREADS = Annotated[
    int | None,
    typer.Option(min=1, help="Compute threads; part of the plan.", show_default="all"),
]


def worker_of(given: str | None) -> Worker | None:
    """The worker of ``--worker``; misuse (exit code 2) for anything but I/N."""
    from pipeline.cache.worker import Worker

    try:
        return None if given is None else Worker.parse(given)
    except SightlineError as error:
        raise typer.BadParameter(str(error), param_hint="--worker") from error


def models_of(given: list[str] | None) -> list[str]:
    """The models of ``--model``; misuse (exit code 2) if there are none."""
    if not given:
        raise typer.BadParameter(
            "give at least one, a folder or a name on the hub", param_hint="--model"
        )
    return given


def print_json(value: Any) -> None:
    """Print ``value`` as indented JSON on standard output."""
    print(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False))


def pairs_of(given: list[str], option: str) -> dict[str, str]:
    """``NAME=VALUE`` options as a dictionary; misuse (exit code 2) for anything else."""
    pairs: dict[str, str] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"found {each!r}, expected NAME=VALUE", param_hint=option)
        if name in pairs:
            raise typer.BadParameter(f"{name} appears twice", param_hint=option)
        pairs[name] = value
    return pairs


def first_mistake(error: ValidationError) -> str:
    """The first validation error, under the name of its option."""
    first = error.errors()[0]
    where = "".join(f"--{part}: ".replace("_", "-") for part in first["loc"][:1])
    found = "" if first["type"] == "value_error" else f"; found {first['input']!r}"
    return where + first["msg"].removeprefix("Value error, ") + found
