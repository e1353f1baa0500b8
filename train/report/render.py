"""A document in each format: on a terminal, as Markdown, LaTeX, JSON and one HTML page."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic_core import to_jsonable_python
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sightline.files.output import write_file
from train.report.grid import SIGN, Document, Grid, GridCell, GridRow

Format = Literal["terminal", "markdown", "latex", "json", "html"]

_NARROW = 26  # characters of a label before it is broken into lines
_GAP = 3  # padding and separator of a column
_SIGNIFICANT = r"$^{\dagger}$"
_SIGNED = re.compile(r"(?:(?<!\w)|(?<=\de))([-+])(?=\d)")
"""The sign of a figure, or of its exponent, which math mode sets as a minus; no name's hyphen."""
_LATEX = {
    **{"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"},
    **{character: f"\\{character}" for character in "{}$&#%_"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"$\pm$"},
}
"""In TeX's default encoding <, > and | are other characters. The rest is written as UTF-8."""


def to_text(document: Document, format_: Format) -> str:
    """``document`` as text; `terminal` is 100 characters wide and has no colours."""
    if format_ == "json":
        return json.dumps(to_json(document), indent=2, ensure_ascii=False) + "\n"
    if format_ == "html":
        from train.report.page import to_page

        return to_page(document)
    draw = {"terminal": terminal_text, "markdown": to_markdown, "latex": to_latex}[format_]
    return draw(document.grids, document.lines)


def to_file(document: Document, format_: Format) -> bytes:
    """`to_text`, with the schema at its beginning, in a comment where the format has those."""
    schema = document.schema
    comment = {"terminal": f"({schema})\n\n", "markdown": f"<!-- {schema} -->\n\n"}
    comment |= {"latex": f"% {schema}\n", "json": "", "html": ""}
    return (comment[format_] + to_text(document, format_)).encode()


def to_json(document: Document) -> dict[str, object]:
    """Its schema and body, unrounded."""
    return {"schema": document.schema, **to_jsonable_python(document.body)}


def show(
    document: Document, format_: Format, out: Path | None = None, inputs: Sequence[Path] = ()
) -> None:
    """Print ``document``, or write it to the file ``out``, which it may replace if it is ours."""
    if out is not None:
        write_file(out, to_file(document, format_), document.schema.encode(), inputs)
    elif format_ == "terminal":
        console = Console(width=None if sys.stdout.isatty() else 100)
        print_grids(console, document.grids, document.lines)
    else:
        print(to_text(document, format_), end="")


def print_grids(console: Console, grids: Sequence[Grid], lines: Sequence[str]) -> None:
    """Print `grids`, then `lines`.

    If the terminal is too narrow, labels are broken first, then a cell's two parts are put on two
    lines, then the columns are spread over several tables: no figure is ever truncated, and a long
    text is broken into lines.
    """
    for grid in grids:
        tries = [(None, False), (_NARROW, False), (_NARROW, True)]
        room = console.width
        layouts = [(_widths(grid, label, stacked, room), stacked) for label, stacked in tries]
        fitting = (layout for layout in layouts if _total(layout[0]) <= console.width)
        widths, stacked = next(fitting, layouts[-1])
        for columns in _blocks(grid, widths, console.width):
            _print_table(console, grid, columns, widths, stacked)
            console.print()
    for line in lines:
        console.print(Text(line))


def terminal_text(grids: Sequence[Grid], lines: Sequence[str], width: int = 100) -> str:
    """What `print_grids` prints, without colours."""
    file = io.StringIO()
    print_grids(Console(file=file, width=width, color_system=None), grids, lines)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def to_markdown(grids: Sequence[Grid], lines: Sequence[str]) -> str:
    """One GitHub table per grid under its title, then `lines`; all text escaped."""
    tables = []
    for grid in grids:
        rule = ["---" if index < grid.left else "---:" for index in range(len(grid.header))]
        rows = [map(escape_markdown, grid.header), rule, *map(_markdown_row, grid.rows)]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
        tables.append(f"**{escape_markdown(grid.title)}**\n\n{table}\n")
    return "\n".join([*tables, *(f"- {escape_markdown(line)}" for line in lines), ""])


def escape_markdown(text: str) -> str:
    """`text` on one line, its Markdown and HTML characters escaped."""
    text = " ".join(text.split())
    for character in "\\`*_|[]~$":
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_latex(grids: Sequence[Grid], lines: Sequence[str]) -> str:
    r"""One tabular per grid, with `lines` as comments for the caption.

    In UTF-8, for XeLaTeX and LuaLaTeX, and for pdfLaTeX with the characters that it knows; it needs
    ``\usepackage{booktabs}``.
    """
    head = [r"% needs \usepackage{booktabs}", *(f"% {_visible(line)}" for line in lines)]
    return "\n".join([*head, "", *map(_tabular, grids)])


def escape_latex(text: str) -> str:
    """`text` escaped for LaTeX."""
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub("-(?=-)", "-{}", escaped)  # two hyphens in a row would become a dash


def _markdown_row(row: GridRow) -> list[str]:
    label = escape_markdown(row.text)
    return [label if row.measured else f"*{label}*", *map(_markdown_cell, row.cells)]


def _markdown_cell(cell: GridCell) -> str:
    first, *later = (escape_markdown(part) for part in cell.parts)
    text = " ".join([f"{first}{SIGN}" if cell.significant else first, *later])
    return f"**{text}**" if cell.bold else text


def _tabular(grid: Grid) -> str:
    columns = "l" * grid.left + "r" * (len(grid.header) - grid.left)
    rows = [
        rf"% {_visible(grid.title)}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _latex_line([escape_latex(name) for name in grid.header]),
        r"\midrule",
    ]
    for before, row in zip((None, *grid.rows), grid.rows, strict=False):
        if not row.measured and before is not None and before.measured:
            rows.append(r"\midrule")
        label = escape_latex(row.text)
        label = label if row.measured else rf"\textit{{{label}}}"
        label = rf"\quad {label}" if row.under else label
        rows.append(_latex_line([label, *map(_latex_cell, row.cells)]))
    return "\n".join([*rows, r"\bottomrule", r"\end{tabular}", ""])


def _latex_cell(cell: GridCell) -> str:
    first, *later = (_SIGNED.sub(r"$\1$", escape_latex(part)) for part in cell.parts)
    if cell.bold:
        first = rf"\textbf{{{first}}}"
    return " ".join([f"{first}{_SIGNIFICANT}" if cell.significant else first, *later])


def _latex_line(cells: Sequence[str]) -> str:
    line = " & ".join(cells) + r" \\"
    # after the end of a row or a rule, a bracket or a star would be parsed as its argument
    return f"{{}}{line}" if line.startswith(("[", "*")) else line


def _visible(text: str) -> str:
    """``text`` for a comment, without line ends and escape sequences."""
    return "".join(char for char in text if char.isprintable())


def _print_table(
    console: Console, grid: Grid, columns: Sequence[int], widths: Sequence[int], stacked: bool
) -> None:
    console.print(Text(grid.title, style="bold"))
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for index in columns:
        justify = "right" if index >= grid.left else "left"
        name, width = Text(grid.header[index]), widths[index]
        table.add_column(name, justify=justify, overflow="fold", width=width)
    for row in grid.rows:
        texts = [Text(_indented(row), style="yellow" if row.warn else "")]
        for cell in row.cells:
            text = "\n".join(_lines(cell, stacked))
            texts.append(Text(text, style="bold" if cell.bold else ""))
        table.add_row(*(texts[i] for i in columns), style="" if row.measured else "dim")
    room = console.width
    console.width = max(room, _total([widths[index] for index in columns]))
    console.print(table)
    console.width = room


def _blocks(grid: Grid, widths: Sequence[int], room: int) -> list[list[int]]:
    """The columns of each table: all the text columns, and as many figures as fit.

    A grid that is all text has as many of its columns in each, behind the first.
    """
    fixed = 1 if grid.left == len(widths) else grid.left
    texts = list(range(fixed))
    blocks = [[*texts]]
    for index in range(fixed, len(widths)):
        full = _total([widths[i] for i in (*blocks[-1], index)]) > room
        if full and len(blocks[-1]) > fixed:
            blocks.append([*texts])
        blocks[-1].append(index)
    return blocks


def _lines(cell: GridCell, stacked: bool) -> list[str]:
    first, *later = cell.parts
    parts = [f"{first}{SIGN}" if cell.significant else first, *later]
    return parts if stacked else [" ".join(parts)]


def _widths(grid: Grid, label: int | None, stacked: bool, room: int) -> list[int]:
    """Width of each column; headers and labels may be broken, figures never.

    Columns of a grid that is all text share the room.
    """
    widths = []
    for index, name in enumerate(grid.header):
        if index == 0:
            texts = [name, *map(_indented, grid.rows)]
            longest = max(map(len, texts))
            widths.append(longest if label is None else min(longest, label))
            continue
        lines = [line for row in grid.rows for line in _lines(row.cells[index - 1], stacked)]
        title = len(name) if label is None else max(map(len, name.split()), default=0)
        widths.append(max(title, *map(len, lines)))
    if grid.left < len(widths):
        return widths
    share = (room - widths[0]) // max(len(widths) - 1, 1) - 2 * _GAP
    return [widths[0], *(min(width, max(share, _NARROW)) for width in widths[1:])]


def _indented(row: GridRow) -> str:
    return f"  {row.text}" if row.under else row.text


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * len(widths)
