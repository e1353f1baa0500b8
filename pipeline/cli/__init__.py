"""The `sightline` command: parse, call one function, print. Heavy imports are deferred."""

from __future__ import annotations

import gc
import os
import sys
import traceback

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
    plan,
    prepare,
    runs,
    stage,
    text_tokens,
    train,
)
from sightline.errors import SaidElsewhere, message_of
from sightline.launched import is_first_process
from sightline.quick_exit import run_then_exit
from sightline.signals import Stopped, stop_on_signals

_ORDER = (
    *("prepare", "extract", "ground", "tokens", "phrase-tokens", "train", "evaluate"),
    *(
        "compare",
        "neighbours",
        "geometry",
        "gallery",
        "runs",
        "configure",
        "plan",
        "stage",
        "cache",
        "doctor",
    ),
)


class _InOrder(TyperGroup):
    """Lists commands and command groups in workflow order."""

    def list_commands(self, ctx: typer.Context | None) -> list[str]:
        return sorted(self.commands, key=_ORDER.index)


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
app.command("configure")(configure.configure)
app.add_typer(cache.app, name="cache")
app.command("plan", context_settings={"ignore_unknown_options": True})(plan.plan)
app.add_typer(stage.app, name="stage")
app.command("doctor")(doctor.doctor)


def console() -> None:
    """The entry point of the `sightline` command: `main` in a process of its own."""
    run_then_exit(main)


def main() -> None:
    """Run the command line.

    Exit codes: 0 done, 1 failed, 2 misuse, 130 stopped by SIGINT (Ctrl-C), 143 by SIGTERM.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # quiet in forked decode workers
    # importing torch and transformers creates millions of objects, none of them garbage
    gc.set_threshold(100_000, 20, 50)
    hear_no_more = stop_on_signals()
    try:
        app()
    except Stopped as stop:
        _fail(str(stop) if is_first_process() else "", 128 + stop.number, stop)
    except SaidElsewhere as error:
        hear_no_more()
        _fail("", 1, error)
    except Exception as error:
        hear_no_more()  # a launcher ends the other processes of the run, which fail on their own
        message = message_of(error)
        if message is None:
            raise  # our bug: a bug report needs the traceback
        _fail(f"error: {message}", 1, error)


def _fail(message: str, code: int, error: BaseException | None) -> None:
    if message:
        print(message, file=sys.stderr, flush=True)
    while error is not None:
        # Its frames keep resources open. End decode workers now: Python kills them with a signal
        # at exit, which their owner would report as a crash.
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    sys.exit(code)
