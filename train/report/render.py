"""The table on a terminal, in Markdown and in JSON."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from train.report.gains import Gain, headline
from train.report.table import Row, Table

_WIDE = 5  # columns with a deviation each that fit a terminal


def to_terminal(table: Table, title: str | None = None) -> RichTable:
    """A rich table; the best measured mean of a task is bold, rows without a run are dim."""
    grid = RichTable(title=None if title is None else Text(title), title_justify="left")
    grid.add_column("run", overflow="fold")
    grid.add_column("seeds")
    for task in table.tasks:
        grid.add_column(Text(task), justify="right", no_wrap=True)
    for row in table.rows:
        style = "" if row.measured else "dim"
        name = Text(row.name)
        if row.marks:
            name.append(
                f"\n{'; '.join(row.marks)}",
                style="yellow" if row.untrained or row.doubts else "dim",
            )
        cells = [
            Text(_narrow(text) if len(table.tasks) > _WIDE else text, style="bold" if best else "")
            for text, best in (cell_text(table, row, task) for task in table.tasks)
        ]
        grid.add_row(name, Text(seeds_text(row)), *cells, style=style)
    return grid


def to_text(title: str, table: Table, gains: Sequence[Gain], width: int = 100) -> str:
    """The table and its gains as plain text, for a terminal of ``width`` columns."""
    file = io.StringIO()
    console = Console(file=file, width=width, color_system=None)
    for heading, part in table.parts:
        console.print(to_terminal(part, heading or title))
    for gain in headline(gains):
        console.print(gain.sentence, highlight=False)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def to_markdown(table: Table, gains: Sequence[Gain] = ()) -> str:
    """A GitHub table for each part, then one line per stated gain and per note."""
    lines = []
    for heading, part in table.parts:
        lines += [*(["", f"**{escape_markdown(heading)}**", ""] if heading else []), *_grid(part)]
    lines += ["", "Mean ± sample standard deviation over seeds."]
    lines += [*_bullets([gain.sentence for gain in headline(gains)])]
    lines += [*_bullets([f"Note: {note}." for note in table.notes])]
    return "\n".join(lines) + "\n"


def _grid(table: Table) -> list[str]:
    lines = [
        _markdown_row(["run", "seeds", *map(escape_markdown, table.tasks)]),
        _markdown_row(["---", "---", *["---:"] * len(table.tasks)]),
    ]
    for row in table.rows:
        cells = []
        for task in table.tasks:
            text, best = cell_text(table, row, task)
            cells.append(f"**{text}**" if best else text)
        label = escape_markdown(row.label)
        lines.append(
            _markdown_row([label if row.measured else f"*{label}*", seeds_text(row), *cells])
        )
    return lines


def to_json(table: Table, gains: Sequence[Gain] = ()) -> dict[str, Any]:
    """The whole table, unrounded."""
    return {
        "tasks": list(table.tasks),
        "rows": [
            {
                "run": row.name,
                "objective": row.objective,
                "seeds": list(row.seeds),
                "untrained_weights": list(row.untrained),
                "imported_features": list(row.doubts),
                "published": row.published or None,
                "reference": row.reference,
                "scores": {task: asdict(cell) for task, cell in row.cells.items()},
            }
            for row in table.rows
        ],
        "gains": [gain.to_json() for gain in gains],
        "notes": list(table.notes),
    }


def cell_text(table: Table, row: Row, task: str) -> tuple[str, bool]:
    """The text of a cell, and whether it is the best of the measured ones."""
    cell = row.cells.get(task)
    if cell is None:
        return "–", False
    best = row.measured and cell.mean is not None and cell.mean == table.best(task)
    return cell.text, best


def _narrow(text: str) -> str:
    """The text of a cell on two lines."""
    return text.replace(" ± ", "\n± ").replace("not defined", "not\ndefined")


def seeds_text(row: Row) -> str:
    """Such as "0, 1, 2"; a dash for a row without a run."""
    return ", ".join(map(str, row.seeds)) or "–"


def escape_markdown(text: str) -> str:
    """`text` on one line, its Markdown and HTML characters escaped."""
    text = " ".join(text.split())
    for character in "\\`*_|[]~$":
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _bullets(lines: Sequence[str]) -> list[str]:
    return ["", *(f"- {escape_markdown(line)}" for line in lines)] if lines else []


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
