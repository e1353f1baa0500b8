"""Options shared by several commands, and printing of results."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextvars import ContextVar
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sightline.errors import SightlineError

if TYPE_CHECKING:
    from pydantic import ValidationError

    from pipeline.extract.engine import Engine
    from pipeline.extract.runner import RunSettings
    from sightline.cache.plan import Worker

OUT = Annotated[Path, typer.Option("--out", help="Folder to write to.", show_default=False)]
DEVICE = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
FORMAT = Annotated[
    Literal["terminal", "markdown", "latex", "json", "html"],
    typer.Option("--format", help="terminal, markdown, latex, json or html."),
]
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
        help="Run as worker I (from 0) of N that fill one folder together; env: as srun or "
        "torchrun numbers this process.",
        show_default=False,
    ),
]
THREADS = Annotated[
    int | None,
    typer.Option(min=1, help="Compute threads; part of the plan.", show_default="all"),
]


DEVICES = Annotated[
    str | None,
    typer.Option(
        help="Run one worker on each of these devices, such as 0,1,2,3.", show_default=False
    ),
]
ENGINE = Annotated[
    str | None,
    typer.Option(metavar="local|ray", help="Who runs the workers.", show_default="local"),
]
RAY_ADDRESS = Annotated[
    str | None,
    typer.Option(
        help="HOST:PORT of the cluster's head, auto or local.", show_default="$RAY_ADDRESS or local"
    ),
]
ACTORS = Annotated[
    int | None,
    typer.Option(min=1, help="Workers on the Ray cluster.", show_default="as many as have room"),
]


DRY_RUN = Annotated[
    bool,
    typer.Option("--dry-run", help="Say which rows are there and which are to do; write nothing."),
]


def worker_of(given: str | None) -> Worker | None:
    """The worker of ``--worker``; misuse (exit code 2) for anything but I/N and env."""
    from sightline.cache.plan import Worker

    try:
        if given == "env":
            return Worker.of_environment(os.environ)
        return None if given is None else Worker.parse(given)
    except SightlineError as error:
        raise typer.BadParameter(str(error), param_hint="--worker") from error


def engine_of(
    devices: str | None,
    engine: str | None,
    ray_address: str | None,
    actors: int | None,
    configured: Engine | None = None,
) -> Engine:
    """The engine of a command; misuse (exit code 2) if the options do not fit together.

    Args:
        configured: the one in params.yaml; any option of the command replaces it.
    """
    from pydantic import ValidationError

    from pipeline.extract.engine import Engine

    options = {"name": engine, "devices": devices, "ray_address": ray_address, "actors": actors}
    given = {name: value for name, value in options.items() if value is not None}
    if not given and configured is not None:
        return configured
    try:
        return Engine.model_validate(given)
    except ValidationError as error:
        hint = first_mistake(error).replace("--name", "--engine")
        raise typer.BadParameter(hint, param_hint="engine") from error


WORDS: ContextVar[tuple[str, ...]] = ContextVar("words", default=())
"""The words of the command that is being run, after ``sightline``."""


def computing_here(how: RunSettings, engine: Engine, sets: Sequence[Path]) -> RunSettings | None:
    """How this process computes; None if the engine's workers have, and printed the result.

    Args:
        sets: the folders that this command fills.
    """
    from dataclasses import replace

    if engine.starts_workers and not how.dry_run:
        from pipeline.extract.workers import run_workers

        device = how.device or "auto"
        printed = run_workers(
            WORDS.get(), engine, sets, worker=how.worker, threads=how.threads, device=device
        )
        print(printed, end="")
        return None
    return replace(how, device=engine.devices[0]) if engine.devices else how


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
    names = [part for part in first["loc"] if isinstance(part, str)]
    where = "".join(f"--{name}: ".replace("_", "-") for name in names[-1:])
    return where + first["msg"].removeprefix("Value error, ")
