"""Grids on a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from train.report.grid import SIGN, Grid, GridCell

_NARROW = 26  # characters of a label before it is broken into lines
_GAP = 3  # padding and separator of a column


def print_grids(console: Console, grids: Sequence[Grid], lines: Sequence[str]) -> None:
    """Print `grids`, then `lines`.

    If the terminal is too narrow, labels are broken first, then a cell's two parts are put on two
    lines, then the columns are spread over several tables: no figure is ever truncated.
    """
    for grid in grids:
        tries = [(None, False), (_NARROW, False), (_NARROW, True)]
        layouts = [(_widths(grid, label, stacked), stacked) for label, stacked in tries]
        fitting = (layout for layout in layouts if _total(layout[0]) <= console.width)
        widths, stacked = next(fitting, layouts[-1])
        for columns in _blocks(widths, grid.left, console.width):
            _print_table(console, grid, columns, widths, stacked)
            console.print()
    for line in lines:
        console.print(Text(line))


def terminal_text(grids: Sequence[Grid], lines: Sequence[str], width: int = 100) -> str:
    """What `print_grids` prints, without colours."""
    file = io.StringIO()
    print_grids(Console(file=file, width=width, color_system=None), grids, lines)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def _print_table(
    console: Console, grid: Grid, columns: Sequence[int], widths: Sequence[int], stacked: bool
) -> None:
    table = Table(
        title=Text(grid.title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    for index in columns:
        justify = "right" if index >= grid.left else "left"
        name = Text(grid.header[index])
        table.add_column(name, justify=justify, overflow="fold", width=widths[index])
    for row in grid.rows:
        texts = [
            Text(row.text, style="yellow" if row.warn or "untrained weights" in row.label else "")
        ]
        for cell in row.cells:
            text = "\n".join(_lines(cell, stacked))
            texts.append(Text(text, style="bold" if cell.bold else ""))
        table.add_row(*(texts[i] for i in columns), style="" if row.measured else "dim")
    room = console.width
    console.width = max(room, _total([widths[index] for index in columns]))
    console.print(table)
    console.width = room


def _blocks(widths: Sequence[int], left: int, room: int) -> list[list[int]]:
    """The columns of each table: all the text columns, and as many figures as fit."""
    texts = list(range(left))
    blocks = [[*texts]]
    for index in range(left, len(widths)):
        full = _total([widths[i] for i in (*blocks[-1], index)]) > room
        if full and len(blocks[-1]) > left:
            blocks.append([*texts])
        blocks[-1].append(index)
    return blocks


def _lines(cell: GridCell, stacked: bool) -> list[str]:
    first, *rest = cell.parts
    parts = [f"{first}{SIGN}" if cell.significant else first, *rest]
    return parts if stacked else [" ".join(parts)]


def _widths(grid: Grid, label: int | None, stacked: bool) -> list[int]:
    """Width of each column; headers and labels may be broken, figures never."""
    widths = []
    for index, name in enumerate(grid.header):
        if index == 0:
            texts = [name, *(row.text for row in grid.rows)]
            longest = max(map(len, texts))
            widths.append(longest if label is None else min(longest, label))
            continue
        lines = [line for row in grid.rows for line in _lines(row.cells[index - 1], stacked)]
        title = len(name) if label is None else max(map(len, name.split()), default=0)
        widths.append(max(title, *map(len, lines)))
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * len(widths)
