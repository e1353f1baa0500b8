"""Options that commands share, and what commands print."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sightline.errors import SightlineError

if TYPE_CHECKING:
    from pipeline.encode_again import Checked
    from pipeline.extract.runner import SetSummary
    from pipeline.extract.worker_number import WorkerNumber
    from pipeline.machine import Machine


def option(panel: str, help: str, *flags: str, **more: Any) -> Any:
    """An option in a panel of its command's help, without its default."""
    return typer.Option(*flags, help=help, rich_help_panel=panel, **{"show_default": False, **more})


def place(text: str) -> Path | str:
    """A path, or a URL that is read."""
    from sightline.files.places import location

    try:
        return location(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def dataset(text: str) -> Path:
    """The folder of a prepared data set, or of what is fetched of the one at a URL; or a file."""
    data = place(text)
    if isinstance(data, Path):
        return data
    from sightline.cache.prepared import local_dataset

    return local_dataset(data)


def set_folder(text: str) -> Path:
    """The folder of a set, or of what is fetched of the one at a URL."""
    from sightline.cache.remote_sets import local_set

    return local_set(place(text))


def of_dataset(help: str) -> Any:
    """An option that takes a prepared data set, or its URL."""
    return option("Data", help, parser=dataset, metavar="<path>")


OUT = Annotated[Path, option("Output", "Folder to write to.")]
DEVICE = Annotated[str, option("Machine", "auto, cpu, cuda, cuda:1 or mps.", show_default=True)]
FORMAT = Annotated[
    Literal["terminal", "markdown", "latex", "json", "html"],
    option("Output", "terminal, markdown, latex, json or html.", "--format", show_default=True),
]
JSON = Annotated[bool, option("Output", "Print the result as JSON.", "--json")]
DATA = Annotated[Path, of_dataset("Folder that `sightline prepare` wrote, or its URL.")]
MODELS = Annotated[
    list[str] | None,
    option(
        "Model",
        "Folder of a training run or of a model, or a name on the hub; NAME=MODEL renames it; "
        "repeatable.",
        "--model",
        metavar="MODEL",
    ),
]
POOLING = Annotated[
    str | None,
    option("Model", "cls, pooler, mean, lasttoken or first_last_mean; default: from the folder."),
]
RETRY_FAILED = Annotated[bool, option("Output", "Compute failed rows again.", "--retry-failed")]
DRY_RUN = Annotated[
    bool,
    option("Output", "Say which rows are there and which are to do; write nothing.", "--dry-run"),
]
CHECK = Annotated[
    int,
    option(
        "Output",
        "Of features: encode this many rows of the set again, drawn at random, and compare.",
        min=0,
        metavar="<int>",
    ),
]


def set_option(panel: str, help: str) -> Any:
    """``--set``, for what is chosen by a value, in a panel of help."""
    return option(panel, f"{help}; repeatable.", "--set", metavar="NAME=VALUE")


def _worker(text: str) -> WorkerNumber:
    from pipeline.extract.worker_number import WorkerNumber

    try:
        return (
            WorkerNumber.of_environment(os.environ) if text == "env" else WorkerNumber.parse(text)
        )
    except SightlineError as error:
        raise typer.BadParameter(str(error)) from error


WORKER = Annotated[
    Any,  # a `WorkerNumber` or None
    option(
        "Machine",
        "I/N: be worker I (from 0) of the N that fill one folder together; env: as srun or "
        "torchrun numbers this process.",
        metavar="<str>",
        parser=_worker,
    ),
]
_MOST_SEED = (1 << 32) - 1  # the largest that NumPy and PyTorch both accept


def seed_of(text: str | int) -> int:
    """A seed; misuse (exit code 2) unless it is a whole number that every library accepts."""
    digits = str(text)
    if not re.fullmatch(r"[0-9]{1,10}", digits) or int(digits) > _MOST_SEED:
        raise typer.BadParameter(
            f"found {digits!r}, expected a whole number from 0 to {_MOST_SEED}"
        )
    return int(digits)


def launched_workers(machine: Machine, worker: WorkerNumber | None, sets: Sequence[Path]) -> bool:
    """Run this command as the workers that ``machine`` asks for, and print their result.

    Args:
        worker: this process among others that were started in the same way.
        sets: the folders that this command fills.

    Returns:
        False, without doing anything, if this process itself is to compute.
    """
    if not machine.starts_workers:
        return False
    from pipeline.extract.workers import run_workers

    print(run_workers(sys.argv[1:], machine, sets, worker=worker), end="")
    return True


def print_summary(summary: SetSummary | str, as_json: bool, **fields: Any) -> None:
    """What a command did to a set, or why it stays; ``fields`` is for JSON alone."""
    stays = isinstance(summary, str)
    if as_json:
        print_json({**({"stays": summary} if stays else summary.body()), **fields})
    else:
        print(summary if stays else f"{summary.folder}: {summary}")


def print_check(checked: Checked, out: Path, as_json: bool = False) -> None:
    """Say what was compared; exit code 1 if rows differ."""
    if as_json:
        compared = checked.recheck.model_dump(mode="json")
        print_json(
            {"out": out.as_posix(), **compared, "equal": checked.equal, "faults": checked.faults}
        )
    else:
        print(f"{out}: {checked}")
    if checked.faults:
        raise typer.Exit(1)


def models_of(models: list[str] | None) -> list[str]:
    """The models of ``--model``; misuse (exit code 2) if there are none."""
    if not models:
        raise typer.BadParameter(
            "give at least one, a folder or a name on the hub", param_hint="--model"
        )
    return models


def print_json(value: Any) -> None:
    """Print ``value`` as indented JSON on standard output."""
    print(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False))
