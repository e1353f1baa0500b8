"""Grids as LaTeX tabulars that need nothing but the booktabs package."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from train.report.grid import Grid, GridCell, GridRow

_SIGNIFICANT = r"$^{\dagger}$"
_SIGNED = re.compile(r"(?:(?<!\w)|(?<=\de))([-+])(?=\d)")
"""The sign of a figure, or of its exponent, which math mode sets as a minus; no name's hyphen."""

# A bracket or a star after the end of a row or a rule would be parsed as its argument; in TeX's
# default encoding < and > are different characters.
_ASCII = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "`": r"\textasciigrave{}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
}
_SIGNS = {
    "±": r"$\pm$",
    "–": r"\textendash{}",
    "—": r"\textemdash{}",
    "−": "$-$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "→": r"$\to$",
    "†": r"$\dagger$",
    "’": "'",
}
_GREEK = "αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΥΦΨΩ"  # the letters that have a command
_LETTERS = {"ß": r"\ss{}", "ø": r"\o{}", "Ø": r"\O{}", "ł": r"\l{}", "Ł": r"\L{}", "æ": r"\ae{}"}
_ACCENTS = {
    "\u0300": "`",
    "\u0301": "'",
    "\u0302": "^",
    "\u0303": "~",
    "\u0304": "=",
    "\u0306": "u",
    "\u0307": ".",
    "\u0308": '"',
    "\u030a": "r",
    "\u030b": "H",
    "\u030c": "v",
    "\u0327": "c",
}


def to_latex(grids: Sequence[Grid], lines: Sequence[str]) -> str:
    r"""One tabular per grid, with `lines` as comments for the caption.

    For pdfLaTeX, XeLaTeX and LuaLaTeX with ``\usepackage{booktabs}``; the tabulars are ASCII,
    whatever the names.
    """
    head = [r"% needs \usepackage{booktabs}", *(f"% {_visible(line)}" for line in lines)]
    return "\n".join([*head, "", *map(_tabular, grids)])


def escape_latex(text: str) -> str:
    """`text` escaped for LaTeX.

    Accented letters become accent commands; characters that pdfLaTeX lacks become their code point,
    such as U+6F22.
    """
    escaped = "".join(map(_escaped, text))
    return re.sub("-(?=-)", "-{}", escaped)  # two hyphens in a row would become a dash


def _escaped(character: str) -> str:
    if character in _GREEK:
        name = unicodedata.name(character).split()[-1].replace("LAMDA", "LAMBDA")
        return rf"$\{name.capitalize() if character.isupper() else name.lower()}$"
    for table in (_ASCII, _SIGNS, _LETTERS):
        if character in table:
            return table[character]
    if character.isascii():
        return character
    letter, *accents = unicodedata.normalize("NFD", character)
    if letter.isascii() and letter.isalpha() and len(accents) == 1 and accents[0] in _ACCENTS:
        return rf"\{_ACCENTS[accents[0]]}{{{letter}}}"
    return f"U+{ord(character):04X}"


def _tabular(grid: Grid) -> str:
    columns = "l" * grid.left + "r" * (len(grid.header) - grid.left)
    rows = [
        rf"% {_visible(grid.title)}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        _joined([escape_latex(name) for name in grid.header]),
        r"\midrule",
    ]
    for before, row in zip((None, *grid.rows), grid.rows, strict=False):
        if not row.measured and before is not None and before.measured:
            rows.append(r"\midrule")
        rows.append(_row(row))
    return "\n".join([*rows, r"\bottomrule", r"\end{tabular}", ""])


def _row(row: GridRow) -> str:
    label = escape_latex(row.text)
    return _joined([label if row.measured else rf"\textit{{{label}}}", *map(_cell, row.cells)])


def _cell(cell: GridCell) -> str:
    first, *rest = (_SIGNED.sub(r"$\1$", escape_latex(part)) for part in cell.parts)
    if cell.bold:
        first = rf"\textbf{{{first}}}"
    return " ".join([f"{first}{_SIGNIFICANT}" if cell.significant else first, *rest])


def _joined(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _visible(text: str) -> str:
    """``text`` for a comment, without line ends and escape sequences."""
    return "".join(char for char in text if char.isprintable())
