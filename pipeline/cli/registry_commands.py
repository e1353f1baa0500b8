"""Groups of commands that a registry names: one for each name, loaded when it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from pipeline.cli.commands import Command, Group, command_of
from sightline.errors import SightlineError
from sightline.settings import Registry, unknown


def chosen_by_name(names: Registry, command: Callable[[str], Callable[..., None]]) -> typer.Typer:
    """A group with a command for each of ``names``, those of other packages included.

    Args:
        command: the function of a name; its docstring is the help.
    """

    class Chosen(Group):
        def list_commands(self, ctx: typer.Context | None) -> list[str]:
            return list(names)

        def get_command(self, ctx: typer.Context | None, cmd_name: str) -> Any:
            try:
                return command_of(cmd_name, command(cmd_name))
            except SightlineError as error:  # the others can still be used
                return Command(cmd_name, help=str(error))

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            if args and not args[0].startswith("-"):
                if args[0] not in names:
                    raise typer.BadParameter(unknown(args[0], names, names.noun))
                command(args[0])  # or its error
            return super().resolve_command(ctx, args)

    return typer.Typer(cls=Chosen, no_args_is_help=True, add_completion=False)
