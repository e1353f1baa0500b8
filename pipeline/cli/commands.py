"""The commands of `sightline`: a table, from which each is loaded when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from sightline.errors import harmless


class Entry(NamedTuple):
    """A command: where it is, and the first line of its help."""

    place: str
    line: str
    hidden: bool = False


COMMANDS = {
    "init": Entry(
        "init:init",
        "Make a project: dvc.yaml, params.yaml, DVC's settings and a folder for data.",
    ),
    "configure": Entry(
        "configure:configure",
        "Write params.yaml, the parameters of `dvc repro`, from configurations.",
    ),
    "prepare": Entry("prepare:app", "Turn a data set into manifests."),
    "extract": Entry("extract:extract", "Run one frozen model and cache its features."),
    "ground": Entry("ground:ground", "Find the phrases of captions, their boxes and masks."),
    "tokens": Entry("tokens:tokens", "Tokenise training texts, or find the tokens of phrases."),
    "train": Entry("train:app", "Fine-tune a student on cached features."),
    "evaluate": Entry("evaluate:app", "Score models on tasks."),
    "compare": Entry("compare:compare", "Compare runs with each other and with the papers."),
    "look": Entry("look:app", "Look at groundings, features and neighbours."),
    "cache": Entry("cache:app", "List, verify, repair and share the sets of the cache."),
    "accept": Entry("accept:accept", "Keep finished runs and scores after an edit of the code."),
    "repro": Entry("repro:repro", "Run the stages that changed, side by side."),
    "doctor": Entry("doctor:doctor", "Show what this machine has, and what is wrong with it."),
    "stage": Entry("stage:stage", "Run one stage of the graph, as `dvc repro` does.", hidden=True),
}
"""Name → command, in the order of the work."""


@contextmanager
def _harmless_refusals() -> Iterator[None]:
    """Refusals repeat words of the user, which may hold control characters."""
    try:
        yield
    except typer.BadParameter as refusal:
        refusal.message = harmless(refusal.message)
        raise


class _PlainFlags:
    """Help without a type beside flags, which take no value."""

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)  # pyright: ignore[reportAttributeAccessIssue]
        for parameter in params:
            if getattr(parameter, "is_flag", False) and parameter.metavar is None:
                parameter.metavar = ""
        return params


class Command(_PlainFlags, TyperCommand):
    """A command of Sightline; a URL is not taken for a path, a folder called ``s3:``."""

    def invoke(self, ctx: Any) -> Any:
        from sightline.files.places import why_no_path

        params: list[Any] = [*self.params]
        for param in params:
            value = ctx.params.get(param.name)
            for path in value if isinstance(value, list) else [value]:
                if isinstance(path, Path) and (fault := why_no_path(path)):
                    raise typer.BadParameter(fault, ctx=ctx, param=param)
        return super().invoke(ctx)


class Group(_PlainFlags, TyperGroup):
    """A group of commands of Sightline."""


class _Lazy(Group):
    """Loads a command when it is called; its own help needs none of them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {
            name: Command(name, help=entry.line, hidden=entry.hidden)
            for name, entry in COMMANDS.items()
        }
        self._helping = False

    def list_commands(self, ctx: typer.Context | None) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: typer.Context | None, cmd_name: str) -> Any:
        if self._helping or cmd_name not in COMMANDS:
            return self.commands.get(cmd_name)
        return load(cmd_name)

    def invoke(self, ctx: Any) -> Any:
        with _harmless_refusals():
            return super().invoke(ctx)

    @_harmless_refusals()
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if with_home := [word for word in args if "~" in word]:
            from sightline.files.atomic_files import HOME_REMEDY, names_home

            for word in filter(names_home, with_home):
                raise typer.BadParameter(f"{word}: {HOME_REMEDY}")
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._helping = True
        super().format_help(ctx, formatter)


def load(name: str) -> Any:
    """The command or group called ``name``."""
    module, _, attribute = COMMANDS[name].place.partition(":")
    command = getattr(importlib.import_module(f"pipeline.cli.{module}"), attribute)
    if not isinstance(command, typer.Typer):
        return command_of(name, command, hidden=COMMANDS[name].hidden)
    group = get_command(command)
    group.name = name
    return group


def command_of(
    name: str,
    function: Callable[..., None],
    *,
    hidden: bool = False,
    cls: type[Command] = Command,
) -> Any:
    """The command called ``name`` that ``function`` is."""
    alone = typer.Typer(add_completion=False)
    alone.command(name, cls=cls, hidden=hidden)(function)
    return get_command(alone)


app = typer.Typer(
    name="sightline",
    help="Train sentence encoders that have seen what sentences talk about.",
    cls=_Lazy,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Print the traceback of an unexpected error.")
    ] = False,
) -> None:
    """Train sentence encoders that have seen what sentences talk about."""
    # `pipeline.cli.main` itself looks for --debug: it reports what commands raise
