"""docs/cli.md from the commands themselves: `python -m pipeline.cli.reference > docs/cli.md`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from pipeline.cli import app


def reference() -> str:
    """Every command with its help, arguments and options, as Markdown."""
    parts = ["# Commands", "", "Made by `make docs` from the commands' own help.", ""]
    for name, command in _commands(get_command(app), "sightline"):
        text, _, example = (command.help or "").partition("Example:")
        parts += [f"## `{name}`", "", " ".join(text.split()), ""]
        parts += ["    " + " ".join(example.split()), ""]
        rows = [_row(param) for param in command.params if param.name != "help"]
        parts += ["| | | default |", "|---|---|---|", *rows, ""]
    return "\n".join(parts)


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name in group.list_commands(None):
        command = group.commands[name]
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _row(param: Any) -> str:
    names = ", ".join(param.opts) if param.opts[0].startswith("-") else param.opts[0].upper()
    help_text = " ".join((getattr(param, "help", None) or "").split()).replace("|", "\\|")
    if param.required:
        default = "required"
    elif param.default in (None, (), [], False, True):
        default = ""
    else:
        default = f"`{param.default}`"
    return f"| `{names}` | {help_text} | {default} |"


if __name__ == "__main__":
    print(reference(), end="")
