"""The commands that the documents show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from typer.main import get_command

from pipeline.cli.commands import app, load
from train.evaluate.task import TASKS

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
CODE = re.compile(r"```(?:bash|sh|console)?\n(.*?)```|^((?: {4}.+\n)+)", re.S | re.M)


def shown_commands(page: Path) -> list[str]:
    """Every `sightline …` and `make …` line of a page's code blocks, continued lines joined."""
    return commands_in(page.read_text())


def commands_in(page: str) -> list[str]:
    """The same of a text."""
    lines: list[str] = []
    for block in CODE.findall(page):
        text = "".join(block).replace("\\\n", " ")
        lines += [re.sub(r"\s+#.*", "", line).strip(" $") for line in text.splitlines()]
    return [line for line in lines if re.match(r"(sightline|make) ", line)]


def leaves(command: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Every command that does something, by its words."""
    if not hasattr(command, "list_commands"):
        return {path: command}
    found: dict[tuple[str, ...], Any] = {}
    for name in command.list_commands(None):
        found |= leaves(command.get_command(None, name), (*path, name))
    return found


def known_options() -> set[str]:
    """The options of all commands."""
    commands = [*leaves(get_command(app)).values()]
    commands += [load("evaluate").with_options_for([name]) for name in TASKS]
    params = [param for command in commands for param in command.params]
    return {option for param in params for option in (*param.opts, *param.secondary_opts)}


def check_command(command: str) -> None:
    """Assert that the application has the command of a ``sightline …`` line and all its options."""
    words = shlex.split(command)[1:]
    node: Any = get_command(app)
    while hasattr(node, "list_commands"):
        assert words, f"{command!r} names no command"
        assert words[0] in node.list_commands(None), f"{command!r}: no command {words[0]!r}"
        node = node.get_command(None, words.pop(0))
    if hasattr(node, "with_options_for"):
        node = node.with_options_for(words)
    known = {option for param in node.params for option in (*param.opts, *param.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in known, f"{command!r}: no option {word!r}"
