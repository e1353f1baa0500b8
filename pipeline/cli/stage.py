"""`sightline stage NAME`: the stages of dvc.yaml; they read params.yaml and write DVC's outputs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Annotated

import typer

from pipeline.cli.options import computed_here, print_check, takes
from pipeline.extract.settings import Invocation


@takes("how", Invocation)
def stage(
    name: Annotated[str, typer.Argument(help="As in dvc.yaml, such as image-features or train.")],
    how: Invocation,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[WORD]...", help="What it is about: scenes clip, or mcse-clip 0."),
    ] = None,
) -> None:
    """Run one stage of the graph, as `dvc repro` does.

    Example: sightline stage image-features scenes clip
    """
    from pipeline import stages
    from sightline.devices import is_first_process
    from sightline.settings import unknown

    if name not in stages.STAGES:
        raise typer.BadParameter(unknown(name, stages.STAGES, "stage"), param_hint="NAME")
    chosen, given = stages.STAGES[name], tuple(words or ())
    expected = [e for e in inspect.signature(chosen.run).parameters if e not in ("params", "how")]
    if len(given) != len(expected):
        usage = " ".join([f"sightline stage {name}", *map(str.upper, expected)])
        raise typer.BadParameter(f"found {' '.join(given) or 'no word'}, expected: {usage}")
    if odd := sorted(how.model_fields_set.difference(chosen.options)):
        option = f"--{odd[0].replace('_', '-')}"
        raise typer.BadParameter(f"the stage {name} does not take it", param_hint=option)
    params = stages.load_here(how)
    sets = chosen.sets(*given) if chosen.sets else []
    if sets and not (how.check or computed_here(stages.settings_of(params, how), sets)):
        return
    done = chosen.run(params, *given, **{"how": how} if chosen.options else {})
    if not is_first_process():
        return
    if hasattr(done, "faults"):
        print_check(done, sets[0])
    elif hasattr(done, "folder"):
        print(f"{done.folder}: {done}")
    else:
        for line in done if isinstance(done, Iterator) else [done]:
            print(line, flush=True)
