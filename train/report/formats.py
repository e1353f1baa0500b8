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
from rich.table import Table as RichTable
from rich.text import Text

from sightline.files.output import write_file
from train.report.tables import SIGN, Column, Document, Row, Table, parts_of, printable

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
    return draw(document.tables, document.lines)


def to_file(document: Document, format_: Format) -> bytes:
    """`to_text`, with the schema at its beginning, in a comment where the format has those."""
    schema = document.schema
    comment = {"terminal": f"({schema})\n\n", "markdown": f"<!-- {schema} -->\n\n"}
    comment |= {"latex": f"% {schema}\n", "json": "", "html": ""}
    return (comment[format_] + to_text(document, format_)).encode()


def to_json(document: Document) -> dict[str, object]:
    """Its schema and data, unrounded."""
    return {"schema": document.schema, **to_jsonable_python(document.data)}


def show(
    document: Document, format_: Format, out: Path | None = None, inputs: Sequence[Path] = ()
) -> None:
    """Print ``document``, or write it to the file ``out``, which it may replace if it is ours."""
    if out is not None:
        write_file(out, to_file(document, format_), document.schema.encode(), inputs)
    elif format_ == "terminal":
        console = Console(width=None if sys.stdout.isatty() else 100)
        print_tables(console, document.tables, document.lines)
    else:
        print(to_text(document, format_), end="")


def print_tables(console: Console, tables: Sequence[Table], lines: Sequence[str]) -> None:
    """Print `tables`, then `lines`.

    If the terminal is too narrow, labels are broken first, then a cell's two parts are put on two
    lines, then the columns are spread over several tables: no figure is ever truncated, and a long
    text is broken into lines.
    """
    for table in tables:
        tries = [(None, False), (_NARROW, False), (_NARROW, True)]
        room = console.width
        layouts = [(_widths(table, label, stacked, room), stacked) for label, stacked in tries]
        fitting = (layout for layout in layouts if _total(layout[0]) <= console.width)
        widths, stacked = next(fitting, layouts[-1])
        for columns in _blocks(table, widths, console.width):
            _print_table(console, table, columns, widths, stacked)
            console.print()
    for line in lines:
        console.print(Text(line))


def terminal_text(tables: Sequence[Table], lines: Sequence[str], width: int = 100) -> str:
    """What `print_tables` prints, without colours."""
    file = io.StringIO()
    print_tables(Console(file=file, width=width, color_system=None), tables, lines)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


def to_markdown(tables: Sequence[Table], lines: Sequence[str]) -> str:
    """One GitHub table each under its title, then `lines`; all text escaped."""
    texts = []
    for table in tables:
        figures = ["---:" if column.form else "---" for column in table.columns]
        rows = [
            map(escape_markdown, _headings(table)),
            ["---", *figures],
            *(_markdown_row(row, table) for row in table.rows),
        ]
        text = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
        texts.append(f"**{escape_markdown(table.title)}**\n\n{text}\n")
    return "\n".join([*texts, *(f"- {escape_markdown(line)}" for line in lines), ""])


def escape_markdown(text: str) -> str:
    """`text` on one line, its Markdown and HTML characters escaped."""
    text = " ".join(text.split())
    for character in "\\`*_|[]~$":
        text = text.replace(character, f"\\{character}")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def to_latex(tables: Sequence[Table], lines: Sequence[str]) -> str:
    r"""One tabular per table, with `lines` as comments for the caption.

    In UTF-8, for XeLaTeX and LuaLaTeX, and for pdfLaTeX with the characters that it knows; it needs
    ``\usepackage{booktabs}``.
    """
    head = [r"% needs \usepackage{booktabs}", *(f"% {_visible(line)}" for line in lines)]
    return "\n".join([*head, "", *map(_tabular, tables)])


def escape_latex(text: str) -> str:
    """`text` escaped for LaTeX."""
    escaped = "".join(_LATEX.get(character, character) for character in text)
    return re.sub("-(?=-)", "-{}", escaped)  # two hyphens in a row would become a dash


def _headings(table: Table) -> list[str]:
    """Those of the labels and of the columns."""
    return [printable(name) for name in (table.heading, *(c.heading for c in table.columns))]


def _label(row: Row) -> str:
    """With its marks in brackets."""
    return printable(row.label)


def _cells(row: Row, table: Table) -> list[tuple[Sequence[str], bool]]:
    """The parts of each cell's text, with the sign of a significant one, and whether it is bold."""
    cells = []
    for column in table.columns:
        cell = row.cells.get(column.name)
        cells.append((_parts(row, column), cell is not None and cell.strong))
    return cells


def _parts(row: Row, column: Column) -> list[str]:
    cell = row.cells.get(column.name)
    first, *later = parts_of(cell, column)
    return [f"{first}{SIGN}" if cell is not None and cell.significant else first, *later]


def _markdown_row(row: Row, table: Table) -> list[str]:
    label = escape_markdown(_label(row))
    cells = [(" ".join(map(escape_markdown, parts)), bold) for parts, bold in _cells(row, table)]
    texts = (f"**{text}**" if bold else text for text, bold in cells)
    return [label if row.measured else f"*{label}*", *texts]


def _tabular(table: Table) -> str:
    columns = "".join("r" if column.form else "l" for column in table.columns)
    rows = [
        rf"% {_visible(table.title)}",
        rf"\begin{{tabular}}{{l{columns}}}",
        r"\toprule",
        _latex_line([escape_latex(name) for name in _headings(table)]),
        r"\midrule",
    ]
    for before, row in zip((None, *table.rows), table.rows, strict=False):
        if not row.measured and before is not None and before.measured:
            rows.append(r"\midrule")
        label = escape_latex(_label(row))
        label = label if row.measured else rf"\textit{{{label}}}"
        label = rf"\quad {label}" if row.under else label
        rows.append(_latex_line([label, *(_latex_cell(row, column) for column in table.columns)]))
    return "\n".join([*rows, r"\bottomrule", r"\end{tabular}", ""])


def _latex_cell(row: Row, column: Column) -> str:
    cell = row.cells.get(column.name)
    first, *later = (_SIGNED.sub(r"$\1$", escape_latex(part)) for part in parts_of(cell, column))
    if cell is not None and cell.strong:
        first = rf"\textbf{{{first}}}"
    sign = _SIGNIFICANT if cell is not None and cell.significant else ""
    return " ".join([f"{first}{sign}", *later])


def _latex_line(cells: Sequence[str]) -> str:
    line = " & ".join(cells) + r" \\"
    # after the end of a row or a rule, a bracket or a star would be parsed as its argument
    return f"{{}}{line}" if line.startswith(("[", "*")) else line


def _visible(text: str) -> str:
    """``text`` for a comment, without line ends and escape sequences."""
    return "".join(char for char in text if char.isprintable())


def _print_table(
    console: Console, table: Table, columns: Sequence[int], widths: Sequence[int], stacked: bool
) -> None:
    console.print(Text(printable(table.title), style="bold"))
    printed = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    headings, texts_first = _headings(table), 1 + table.text_columns
    for index in columns:
        justify = "right" if index >= texts_first else "left"
        name, width = Text(headings[index]), widths[index]
        printed.add_column(name, justify=justify, overflow="fold", width=width)
    for row in table.rows:
        texts = [Text(_indented(row), style="yellow" if row.doubtful else "")]
        for parts, bold in _cells(row, table):
            texts.append(Text(("\n" if stacked else " ").join(parts), style="bold" if bold else ""))
        printed.add_row(*(texts[i] for i in columns), style="" if row.measured else "dim")
    room = console.width
    console.width = max(room, _total([widths[index] for index in columns]))
    console.print(printed)
    console.width = room


def _blocks(table: Table, widths: Sequence[int], room: int) -> list[list[int]]:
    """The columns of each block: all the text columns, and as many figures as fit.

    A table that is all text has as many of its columns in each, behind the first.
    """
    fixed = 1 if table.text_columns == len(table.columns) else 1 + table.text_columns
    texts = list(range(fixed))
    blocks = [[*texts]]
    for index in range(fixed, len(widths)):
        full = _total([widths[i] for i in (*blocks[-1], index)]) > room
        if full and len(blocks[-1]) > fixed:
            blocks.append([*texts])
        blocks[-1].append(index)
    return blocks


def _widths(table: Table, label: int | None, stacked: bool, room: int) -> list[int]:
    """Width of each column; headings and labels may be broken, figures never.

    Columns of a table that is all text share the room.
    """
    labels, *headings = _headings(table)
    longest = max(map(len, [labels, *map(_indented, table.rows)]))
    widths = [longest if label is None else min(longest, label)]
    for name, column in zip(headings, table.columns, strict=True):
        parts = [_parts(row, column) for row in table.rows]
        lines = [line for part in parts for line in (part if stacked else [" ".join(part)])]
        title = len(name) if label is None else max(map(len, name.split()), default=0)
        widths.append(max(title, *map(len, lines)))
    if table.text_columns < len(table.columns):
        return widths
    share = (room - widths[0]) // max(len(widths) - 1, 1) - 2 * _GAP
    return [widths[0], *(min(width, max(share, _NARROW)) for width in widths[1:])]


def _indented(row: Row) -> str:
    return f"  {_label(row)}" if row.under else _label(row)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * len(widths)
