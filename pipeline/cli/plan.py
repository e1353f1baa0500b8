"""`sightline plan`: what the graph or one command would compute, write and take."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.cli.options import JSON, print_json

_FILE = "params.yaml"
COMMANDS: dict[str, tuple[str, ...]] = {
    "extract": ("image", "object", "text", "teacher"),
    "ground": ("run",),
    "train": (),
    "stage": (
        *("ground", "image-features", "object-features", "text-features", "teachers"),
        "train",
    ),
}
"""Commands that can be planned."""


def plan(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="A command with its options, such as extract image …; none: the whole graph.",
            show_default=False,
        ),
    ] = None,
    probe: Annotated[
        bool | None,
        typer.Option(
            "--probe/--no-probe",
            help="Time a few batches or steps; default: where there is something to compute.",
            show_default=False,
        ),
    ] = None,
    params: Annotated[
        Path | None, typer.Option(help="Parameter file of the graph.", show_default=_FILE)
    ] = None,
    as_json: JSON = False,
) -> None:
    """What a command or the graph would compute and write, where, and how long it would take.

    Nothing is written, and runs in progress are not disturbed. Without a command, every stage of
    params.yaml that runs a model is planned.

    Example: sightline plan extract image --images photos --encoder resnet50 --weights random:0
    --out features/resnet50
    """
    from sightline.planning import Planning

    planning, words = Planning(probe), command or []
    if not words:
        from pipeline.cli.stage import load_here
        from pipeline.plan_graph import plan_graph

        graph = plan_graph(load_here(params or Path(_FILE)), planning)
        if as_json:
            print_json(graph.to_json())
        else:
            print(graph)
        return
    _require_known(words)
    if params is not None:
        words = [*words, "--params", str(params)]
    root: Any = context.find_root().command
    found = planning.of(partial(root.main, words, "sightline", standalone_mode=False))
    if as_json:
        print_json([each.to_json() for each in found])
        return
    for each in found:
        print(each)


def _require_known(words: list[str]) -> None:
    """Refuse anything but a command in `COMMANDS`; it would be run."""
    group, name = words[0], words[1] if len(words) > 1 else ""
    if group in COMMANDS and (not COMMANDS[group] or name in COMMANDS[group]):
        return
    known = [" ".join([group, each]) for group, some in COMMANDS.items() for each in some or [""]]
    raise typer.BadParameter(
        f"{' '.join(words[:2])!r} cannot be planned; these can: "
        + ", ".join(each.strip() for each in known),
        param_hint="command",
    )
