"""The commands that the documents show."""

from __future__ import annotations

import re
from pathlib import Path

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
