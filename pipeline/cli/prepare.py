"""`sightline prepare KIND`: a command for each kind of data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from pipeline.cli.options import (
    JSON,
    OUT,
    SET,
    checked,
    print_json,
    set_values,
    settings_help,
)
from pipeline.datasets.source import Source
from sightline.errors import SightlineError
from sightline.settings import unknown


class _Kinds(TyperGroup):
    """Every kind of data set, those of other packages included."""

    def list_commands(self, ctx: typer.Context | None) -> list[str]:
        return list(Source.families)

    def get_command(self, ctx: typer.Context | None, cmd_name: str) -> Any:
        try:
            return _command(cmd_name)
        except SightlineError as error:  # the others can still be used
            return TyperCommand(cmd_name, help=str(error))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        kinds = Source.families
        if args and not args[0].startswith("-"):
            if args[0] not in kinds:
                raise typer.BadParameter(unknown(args[0], kinds, kinds.what))
            kinds.subclass(args[0], Source)
        return super().resolve_command(ctx, args)


app = typer.Typer(
    help="Turn a data set into manifests.", cls=_Kinds, no_args_is_help=True, add_completion=False
)


@app.callback()
def _group() -> None:
    """Turn a data set into manifests."""


def _command(kind: str) -> Any:
    """The command that prepares data sets of ``kind``; its help lists the kind's fields."""
    settings = Source.families.subclass(kind, Source)

    def prepare(
        out: OUT,
        set_: SET = [],  # noqa: B006
        as_json: JSON = False,
    ) -> None:
        values = {"kind": kind, **set_values(settings, set_)}
        _prepare(checked(settings, values), out, as_json)

    about = (settings.__doc__ or "").strip().partition("\n")[0]
    example = settings.example or f"sightline prepare {kind} --out data/{kind}"
    prepare.__doc__ = f"{about}\n\n{settings_help(settings)}\n\nExample: {example}"
    alone = typer.Typer(add_completion=False)
    alone.command(kind)(prepare)
    return get_command(alone)


def _prepare(source: Source, out: Path, as_json: bool) -> None:
    from pipeline.datasets.prepared_output import prepare
    from sightline.progress import PhaseProgress

    report = prepare(source, out, PhaseProgress())
    if as_json:
        counts = {"counts": report.counts, "problem_counts": report.problem_counts}
        print_json({**counts, "shards": report.shards} if report.shards else counts)
        return
    print(f"{out}: {report.summary()}")
    if report.problems:
        print(f"  all are listed in {out / 'dataset.json'}")
