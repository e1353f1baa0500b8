"""What a person reads of runs and scores, before a format prints it: tables, notes, documents."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

SIGN = "†"
"""Marks a significant difference from the baseline."""
_SEEDS = "@seeds"  # a metric may be called seeds


def number(value: float, form: str = ".2f") -> str:
    """``value`` as the format specification ``form`` says; what rounds to 0 has no minus."""
    sign = form[0] if form.startswith("+") else ""
    return format(value, f"{sign}z{form.removeprefix('+')}")


def form_of(form: str) -> Callable[[float], str]:
    """`number` with one format specification, for a column."""
    return lambda value: number(value, form)


@dataclass(frozen=True)
class Column:
    """What the cells of one name have in common.

    Attributes:
        name: key of its cells; of a metric its name.
        form: how its numbers are printed; None: it holds text.
        better: which of its values are better; "": none is.
        part: title of the table that shows it, where a wide table is shown in several; "": the
            first.
        run: the run that it is about, by which a page filters.
        shown: in place of the name as its heading; "": the name.
    """

    name: str
    form: Callable[[float], str] | None = None
    better: Literal["", "high", "low"] = ""
    part: str = ""
    run: str = ""
    shown: str = ""

    @property
    def heading(self) -> str:
        """What stands above its cells."""
        return self.shown or self.name


@dataclass(frozen=True)
class Cell:
    """A number, such as a mean over seeds, or text.

    Attributes:
        value: a page sorts by it; None: by the text.
        sd: sample standard deviation (n − 1 in the denominator); None for one seed.
        seeds: the scores of all seeds, defined or not; empty for a row that is not a run.
        text: in place of the column's form of the value.
        second: such as "(p = 0.012)", in place of the deviation; may be put on a line of its own.
        hint: more about it, which only a page shows. Of a score that is not defined: why.
        strong: whether it stands out, as the best.
        significant: whether it gets `SIGN`.
    """

    value: float | None = None
    sd: float | None = None
    seeds: tuple[float | None, ...] = ()
    text: str = ""
    second: str = ""
    hint: str = ""
    strong: bool = False
    significant: bool = False


@dataclass(frozen=True)
class Row:
    """A label and the cells behind it.

    Attributes:
        cells: name of a column → cell; a column that is not named has a dash.
        kind: a run, or a task under which runs stand; a reference needs no run, such as chance or a
            frozen model; a published row is copied from a paper; a detail belongs to another row.
        seeds: of a run.
        marks: what a reader must know about the label; in brackets behind it.
        doubtful: whether the marks are doubts: it learned from untrained weights or unchecked
            features.
        runs: names of the runs that the row is about, by which a page filters.
        details: rows that a page shows on request, such as those of the seeds.
        under: whether it belongs to the row above; its label is indented.
        parameters: of a run, "objective" and every flattened one in which its seeds agree.
    """

    name: str
    cells: Mapping[str, Cell]
    kind: Literal["run", "reference", "published", "detail"] = "run"
    seeds: tuple[int, ...] = ()
    marks: tuple[str, ...] = ()
    doubtful: bool = False
    runs: tuple[str, ...] = ()
    details: tuple[Row, ...] = ()
    under: bool = False
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measured(self) -> bool:
        """Whether it is a run: the other rows are compared with nothing and look different."""
        return self.kind == "run"

    @property
    def label(self) -> str:
        """The name with its marks in brackets."""
        return f"{self.name} ({'; '.join(self.marks)})" if self.marks else self.name


@dataclass(frozen=True)
class Table:
    """Rows under columns.

    Attributes:
        heading: of the rows' labels.
        folded: whether a page shows it only on request.
    """

    title: str
    heading: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    folded: bool = False

    @property
    def measured(self) -> dict[str, Row]:
        """The runs, by name."""
        return {row.name: row for row in self.rows if row.measured}

    @property
    def names(self) -> tuple[str, ...]:
        """Those of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def text_columns(self) -> int:
        """How many columns of text stand first; the others hold figures."""
        forms = [column.form is None for column in self.columns]
        return forms.index(False) if False in forms else len(forms)

    @property
    def parts(self) -> tuple[Table, ...]:
        """A table for each title among the columns, of the rows that have a cell in it."""
        columns: dict[str, list[Column]] = {}
        for column in self.columns:
            columns.setdefault(column.part, []).append(column)
        return tuple(
            replace(
                self,
                title=title or self.title,
                columns=tuple(group),
                rows=tuple(
                    row for row in self.rows if any(column.name in row.cells for column in group)
                ),
            )
            for title, group in columns.items()
        )

    @property
    def with_seeds(self) -> Table:
        """With the rows' seeds as their first column, and a row for each seed as a detail."""
        return replace(
            self,
            columns=(Column(_SEEDS, shown="seeds"), *self.columns),
            rows=tuple(map(_with_seeds, self.rows)),
        )


def _with_seeds(row: Row) -> Row:
    details = row.details
    if len(row.seeds) > 1:
        details = tuple(
            Row(
                f"seed {seed}",
                {_SEEDS: Cell(text=str(seed))}
                | {name: _of_seed(cell, place) for name, cell in row.cells.items()},
                runs=row.runs,
            )
            for place, seed in enumerate(row.seeds)
        )
    seeds = Cell(text=", ".join(map(str, row.seeds)))
    return replace(row, cells={_SEEDS: seeds, **row.cells}, details=details)


def _of_seed(cell: Cell, place: int) -> Cell:
    value = cell.seeds[place]
    return Cell(text="not", second="defined") if value is None else Cell(value)


@dataclass(frozen=True)
class Section:
    """A part of a document: tables, then notes on them; on a page also figures.

    Attributes:
        title: every section of a page has another.
        charts: HTML of the page's figures (`figures.to_html`).
        html: what a page shows in place of the tables, such as neighbours with their photographs;
            `style` is its CSS.
    """

    title: str
    tables: tuple[Table, ...] = ()
    charts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    html: str = ""
    style: str = ""

    @property
    def slug(self) -> str:
        """Its address within the page."""
        plain = re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")
        if re.fullmatch(r"[A-Za-z0-9 ]+", self.title):
            return plain
        return f"{plain}-{hashlib.sha256(self.title.encode()).hexdigest()[:6]}"


@dataclass(frozen=True)
class Document:
    """What a command shows, for every format of `formats.to_text`.

    Attributes:
        schema: of its JSON; marks its files, so that a later command may replace them.
        data: what the JSON holds besides: dataclasses, models and plain values, unrounded.
        lead: sentences to state first on a page, and after the tables elsewhere.
    """

    title: str
    schema: str
    sections: tuple[Section, ...]
    data: Mapping[str, object]
    lead: tuple[str, ...] = ()

    @property
    def tables(self) -> list[Table]:
        """Those of all sections, as formats without pictures print them."""
        return [table for section in self.sections for table in section.tables]

    @property
    def lines(self) -> list[str]:
        """What those formats print after the tables."""
        notes = [note for section in self.sections for note in section.notes]
        return [printable(line) for line in (*self.lead, *notes)]


def printable(text: str) -> str:
    """`text` on one line; control characters, which may control a terminal, become U+FFFD."""
    text = " ".join(text.split())
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def parts_of(cell: Cell | None, column: Column) -> tuple[str, ...]:
    """The text of a cell in one or two parts, such as ("84.12", "± 0.31").

    A dash without a cell or a finite number, "not defined" with the reason as its hint.
    """
    if cell is None:
        return ("–",)
    form = column.form or number
    if cell.text:
        first, second = cell.text, cell.second
    elif cell.value is None and cell.hint:
        first, second = "not", "defined"
    elif cell.value is None or cell.value - cell.value != 0:
        first, second = "–", ""
    else:
        second = cell.second or ("" if cell.sd is None else f"± {form(cell.sd)}")
        first = form(cell.value)
    return tuple(printable(part) for part in (first, second) if part) or ("–",)


def to_json(table: Table) -> dict[str, object]:
    """A table of runs for a document's JSON: unrounded, without what is only shown."""
    return {
        "columns": [
            {"name": column.name, "better": column.better, "part": column.part}
            for column in table.columns
        ],
        "rows": [row_to_json(row) for row in table.rows],
    }


def row_to_json(row: Row) -> dict[str, object]:
    """A row of `to_json`; `mean` is None where a seed has no score, and `reason` says why."""
    return {
        "name": row.name,
        "seeds": row.seeds,
        "kind": row.kind,
        "marks": row.marks,
        "doubtful": row.doubtful,
        "parameters": row.parameters,
        "cells": {
            name: {"mean": cell.value, "sd": cell.sd, "seeds": cell.seeds, "reason": cell.hint}
            for name, cell in row.cells.items()
        },
    }
