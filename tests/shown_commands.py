"""The commands that the documents show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from typer.main import get_command

from pipeline.cli.commands import app

ROOT = Path(__file__).parents[1]
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


def known_options(node: Any = None) -> set[str]:
    """The options of all commands."""
    node = node or get_command(app)
    options = {option for param in node.params for option in (*param.opts, *param.secondary_opts)}
    if hasattr(node, "list_commands"):
        for name in node.list_commands(None):
            options |= known_options(node.get_command(None, name))
    return options


def check_command(command: str) -> None:
    """Assert that the application has the command of a ``sightline …`` line and all its options."""
    words = shlex.split(command)[1:]
    node: Any = get_command(app)
    while hasattr(node, "list_commands"):
        assert words, f"{command!r} names no command"
        assert words[0] in node.list_commands(None), f"{command!r}: no command {words[0]!r}"
        node = node.get_command(None, words.pop(0))
    known = {option for param in node.params for option in (*param.opts, *param.secondary_opts)}
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in known, f"{command!r}: no option {word!r}"
