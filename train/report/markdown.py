"""Grids as GitHub tables."""

from __future__ import annotations

from collections.abc import Sequence

from train.report.grid import SIGN, Grid, GridCell, GridRow


def to_markdown(grids: Sequence[Grid], lines: Sequence[str]) -> str:
    """One table per grid under its title, then `lines`; all text escaped."""
    return "\n".join([*map(_table, grids), *(f"- {escape_markdown(line)}" for line in lines), ""])


def escape_markdown(text: str) -> str:
    """`text` on one line, its Markdown and HTML characters escaped."""
    text = " ".join(text.split())
    for character in "\\`*_|[]~$":
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _table(grid: Grid) -> str:
    rule = ["---" if index < grid.left else "---:" for index in range(len(grid.header))]
    rows = [[escape_markdown(name) for name in grid.header], rule, *map(_row, grid.rows)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    return f"**{escape_markdown(grid.title)}**\n\n{table}\n"


def _row(row: GridRow) -> list[str]:
    label = escape_markdown(row.text)
    return [label if row.measured else f"*{label}*", *map(_cell, row.cells)]


def _cell(cell: GridCell) -> str:
    first, *rest = (escape_markdown(part) for part in cell.parts)
    text = " ".join([f"{first}{SIGN}" if cell.significant else first, *rest])
    return f"**{text}**" if cell.bold else text
