"""`sightline repro`."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.model_options import from_words
from pipeline.machine import Machine
from sightline.devices import OMP
from sightline.wording import counted

if TYPE_CHECKING:
    from pipeline.params import Params
    from pipeline.repro import Jobs


def repro(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="TARGET", help="As for `dvc repro --glob`; none: all."),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            min=1,
            metavar="<int>",
            help="Stages that run at once; default: one per GPU; without, one per core, if each "
            "has 2 GB of memory.",
            show_default=False,
        ),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(help="GPUs to use, such as 0,1,2,3; default: all.", show_default=False),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Run every stage, changed or not.")
    ] = False,
    pull: Annotated[
        bool, typer.Option("--pull", help="Fetch what the DVC remote has instead of computing it.")
    ] = False,
    allow_missing: Annotated[
        bool,
        typer.Option(
            "--allow-missing",
            help="Skip stages whose data are not here, if they have not changed otherwise; with "
            "--pull, the targets' own data are fetched.",
        ),
    ] = False,
    dry: Annotated[
        bool,
        typer.Option("--dry", help="Print what would run and how much it would do; run nothing."),
    ] = False,
) -> None:
    """Run the stages that changed, side by side.

    Those that are ready run at once, as many as there are GPUs or cores; otherwise as `dvc repro`.

    Example: sightline repro train-mcse-clip --jobs 2
    """
    from pipeline.stages import load_here, to_do
    from sightline.optional_imports import require

    params = load_here()
    require("dvc", "`sightline repro`")
    from pipeline.dvc_project import Options, stages_due
    from pipeline.inputs import Inputs
    from pipeline.repro import repro as run_graph

    options = Options(force=force, pull=pull, allow_missing=allow_missing)
    if not dry:
        run_graph(targets or [], _jobs(params, jobs, devices), options)
        return
    due = stages_due(targets or [], options, Inputs(params).changed())
    for name, command, needs in due:
        told = to_do(params, command, needs)
        print(f"{name}: {told}" if told else name, flush=True)
    print(f"{counted(len(due), 'stage')} to run" if due else "nothing to do")


def _jobs(params: Params, jobs: int | None, devices: str | None) -> Jobs:
    """The jobs of this machine; ``threads`` and ``devices`` in params.yaml come first."""
    from pipeline.repro import Jobs
    from pipeline.side_by_side import JOBS, VISIBLE, gpu_of, jobs_here, visible_gpus
    from pipeline.stages import LIGHT, STAGES, stage_words
    from sightline.machine.hardware import cores

    machine = params.machine
    chosen = machine if devices is None else from_words(Machine, {"devices": devices})
    gpus, threads = chosen.gpus(visible_gpus()), machine.threads
    if devices is not None and chosen.devices and not gpus:
        raise typer.BadParameter(
            f"found {devices!r}, expected GPUs such as 0,1; elsewhere a stage computes as the "
            "section `machine` of params.yaml says, such as `devices: [cpu]`",
            param_hint="--devices",
        )
    count = jobs or jobs_here(gpus, threads)
    per_level = re.match(r"\d+", os.environ.get(OMP, ""))  # of OpenMP, such as 4,2
    stage_threads = threads or (int(per_level[0]) if per_level else 0)
    whole = {JOBS: str(count)}
    if gpus:
        whole[VISIBLE] = ",".join(gpus)
    dividing = {"evaluate"}
    if machine.starts_workers:
        dividing |= {name for name, stage in STAGES.items() if stage.sets}
    share_of_one = {JOBS: "1"} | ({OMP: str(stage_threads)} if stage_threads else {})
    return Jobs(
        slots=[share_of_one | gpu_of(gpus, index) for index in range(count)],
        whole=whole,
        alone=lambda command: not dividing.isdisjoint(stage_words(command)[:1]),
        cores=0 if stage_threads else cores(),
        computes=lambda command: LIGHT.isdisjoint(stage_words(command)[:1]),
    )
