"""The commands of `sightline`, in one application. Heavy imports happen inside the commands."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pipeline.cli import (
    cache,
    compare,
    configure,
    doctor,
    evaluate,
    extract,
    gallery,
    geometry,
    ground,
    neighbours,
    phrase_tokens,
    prepare,
    repro,
    runs,
    stage,
    text_tokens,
    train,
)
from pipeline.cli.options import WORDS
from pipeline.cli.paper.command import paper

_ORDER = (
    *("prepare", "extract", "ground", "tokens", "phrase-tokens", "train", "evaluate"),
    *(
        "compare",
        "neighbours",
        "geometry",
        "gallery",
        "paper",
        "runs",
        "configure",
        "repro",
        "stage",
        "cache",
        "doctor",
    ),
)


class _InOrder(TyperGroup):
    """Lists commands and command groups in workflow order."""

    def list_commands(self, ctx: typer.Context | None) -> list[str]:
        return sorted(self.commands, key=_ORDER.index)

    def make_context(self, info_name: str | None, args: list[str], **more: Any) -> Any:
        """Note the words of the command, for workers that run it too."""
        WORDS.set(tuple(args))
        return super().make_context(info_name, args, **more)


app = typer.Typer(
    name="sightline",
    help="Train sentence encoders that have seen what sentences talk about.",
    cls=_InOrder,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(prepare.app, name="prepare")
app.add_typer(extract.app, name="extract")
app.add_typer(ground.app, name="ground")
app.command("tokens")(text_tokens.tokens)
app.command("phrase-tokens")(phrase_tokens.phrase_tokens)
app.command("train")(train.train)
app.command("evaluate", context_settings={"ignore_unknown_options": True})(evaluate.evaluate)
app.add_typer(runs.app, name="runs")
app.command("compare")(compare.compare)
app.command("neighbours")(neighbours.neighbours)
app.command("geometry")(geometry.geometry)
app.command("gallery")(gallery.gallery)
app.command("paper")(paper)
app.command("configure")(configure.configure)
app.add_typer(cache.app, name="cache")
app.command("repro")(repro.repro)
app.add_typer(stage.app, name="stage")
app.command("doctor")(doctor.doctor)


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an unexpected error.")
    ] = False,
) -> None:
    """Train sentence encoders that have seen what sentences talk about."""
    # `pipeline.cli.main` itself looks for --debug: it reports what commands raise
