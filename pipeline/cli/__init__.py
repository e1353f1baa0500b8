"""The `sightline` command: parse, call one function, print. Heavy imports wait for the command."""

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
    ground,
    phrase_tokens,
    prepare,
    runs,
    stage,
    text_tokens,
    train,
)
from sightline.errors import SaidElsewhere, SightlineError
from sightline.launched import is_first_process
from sightline.signals import Stopped, stop_on_signals

_ORDER = (
    *("prepare", "extract", "ground", "tokens", "phrase-tokens", "train", "evaluate"),
    *("compare", "gallery", "runs", "configure", "stage", "cache", "doctor"),
)


class _InOrder(TyperGroup):
    """Lists the commands in the order of the work, groups of commands among them."""

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
app.add_typer(evaluate.app, name="evaluate")
app.add_typer(runs.app, name="runs")
app.command("compare")(compare.compare)
app.command("gallery")(gallery.gallery)
app.command("configure")(configure.configure)
app.add_typer(cache.app, name="cache")
app.add_typer(stage.app, name="stage")
app.command("doctor")(doctor.doctor)


def main() -> None:
    """Run the command line.

    Exit codes: 0 done, 1 failed, 2 misuse, 130 stopped by SIGINT (Ctrl-C), 143 by SIGTERM.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # quiet in forked decode workers
    # importing torch and transformers makes millions of objects, and none of them is garbage
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
        hear_no_more()  # a launcher ends the other processes of a run that fail by themselves
        message = _message(error)
        if message is None:
            raise  # our own mistake: the traceback is what a report of it needs
        _fail(f"error: {message}", 1, error)


def _message(error: Exception) -> str | None:
    """What a user is told about an error of theirs or of the system; None for any other."""
    if isinstance(error, SightlineError):
        return str(error)
    if isinstance(error, OSError):
        # disk full, no permission, a device that went away: the system's reason says it all
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}; what was published before is intact"
    return None


def _fail(message: str, code: int, error: BaseException | None) -> None:
    if message:
        print(message, file=sys.stderr, flush=True)
    while error is not None:
        # Its frames hold whatever was open. Decode workers have to end now: Python ends them with
        # a signal as it exits, and their owner takes that for a crash and says so.
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    sys.exit(code)
