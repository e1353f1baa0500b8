"""The commands that the documents show."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from typer.main import get_command

from pipeline.cli.commands import app
from train.evaluate.task import TASKS, task_class

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = re.compile(r"```(?:bash|sh|console)?\n(.*?)```|^((?: {4}.+\n)+)", re.S | re.M)


def shown_commands(page: Path) -> list[str]:
    """Every `sightline …` and `make …` line of a page's code blocks, continued lines joined."""
    lines: list[str] = []
    for block in CODE.findall(page.read_text()):
        text = "".join(block).replace("\\\n", " ")
        lines += [re.sub(r"\s+#.*", "", line).strip(" $") for line in text.splitlines()]
    return [line for line in lines if re.match(r"(sightline|make) ", line)]


def check_command(command: str) -> None:
    """Assert that the application has the command of a ``sightline …`` line and all its options."""
    words = shlex.split(command)[1:]
    node = get_command(app)
    while hasattr(node, "commands"):
        assert words, f"{command!r} names no command"
        assert words[0] in node.commands, f"{command!r}: no command {words[0]!r}"
        node = node.commands[words.pop(0)]
    known = {option for param in node.params for option in param.opts}
    if command.startswith("sightline evaluate"):  # settings of its tasks are options too
        known |= {"--data"} | {
            f"--{key.replace('_', '-')}"
            for task in words
            if task in TASKS
            for key in task_class(task).Settings.model_fields
        }
    for word in words:
        if word.startswith("--"):
            assert word.split("=")[0] in known, f"{command!r}: no option {word!r}"
