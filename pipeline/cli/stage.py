"""`sightline stage NAME`: the stages of dvc.yaml; they read params.yaml and write DVC's outputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from pipeline.cli.model_options import takes
from pipeline.cli.options import (
    CHECK,
    DRY_RUN,
    RETRY_FAILED,
    WORKER,
    launched_workers,
    print_check,
)
from pipeline.machine import Machine


@takes("machine", Machine, panel="Machine")
def stage(
    name: Annotated[str, typer.Argument(help="As in dvc.yaml, such as image-features or train.")],
    machine: Machine,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="WORD", help="What it is about: scenes clip, or mcse-clip 0."),
    ] = None,
    worker: WORKER = None,
    retry_failed: RETRY_FAILED = False,
    dry_run: DRY_RUN = False,
    check: CHECK = 0,
) -> None:
    """Run one stage of the graph, as `dvc repro` does.

    Example: sightline stage image-features scenes clip
    """
    from pipeline import stages
    from sightline.devices import is_first_process
    from sightline.settings import unknown

    if name not in stages.STAGES:
        raise typer.BadParameter(unknown(name, stages.STAGES, "stage"), param_hint="NAME")
    chosen, arguments = stages.STAGES[name], tuple(words or ())
    if len(arguments) != len(chosen.words):
        usage = " ".join([f"sightline stage {name}", *map(str.upper, chosen.words)])
        raise typer.BadParameter(f"found {' '.join(arguments) or 'no word'}, expected: {usage}")
    options = {"worker": worker, "retry_failed": retry_failed, "dry_run": dry_run, "check": check}
    options = {option: value for option, value in options.items() if value}
    if odd := sorted({*machine.model_fields_set, *options} - chosen.options):
        option = f"--{odd[0].replace('_', '-')}"
        raise typer.BadParameter(f"the stage {name} does not take it", param_hint=option)
    params = stages.load_here(machine)
    sets = chosen.sets(*arguments) if chosen.sets else []
    if sets and not (check or dry_run) and launched_workers(params.machine, worker, sets):
        return
    done = chosen(params, *arguments, **options)
    if not is_first_process():
        return
    if hasattr(done, "faults"):
        print_check(done, sets[0])
    elif hasattr(done, "folder"):
        print(f"{done.folder}: {done}")
    else:
        for line in done if isinstance(done, Iterator) else [done]:
            print(line, flush=True)
