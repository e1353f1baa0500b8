"""Every table and figure of the papers: what it prints, and what Sightline runs for it.

All numbers are in published.json, each once: a row that another table printed first names that
table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from sightline.errors import SightlineError
from sightline.settings import unknown
from sightline.user_files import read_json
from train.report.tables import Cell, Row

BEST_DEV = "best dev"
"""The dev score of the weights that a run exported, as a metric of a column."""
MINUTES = "minutes"
"""Minutes of a training's steps, as a metric of a column."""

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Text = Annotated[str, Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Column(_Strict):
    """A column of a table; in the file its name alone, if results name the metric so.

    Attributes:
        metric: as results name it, `BEST_DEV`, `MINUTES`, or a parameter such as "train.epochs".
    """

    name: _Text
    metric: _Text
    decimals: int = 2

    @model_validator(mode="before")
    @classmethod
    def _a_name_alone(cls, value: Any) -> Any:
        return {"name": value, "metric": value} if isinstance(value, str) else value

    @property
    def is_setting(self) -> bool:
        """Whether it holds a parameter and not a score."""
        return "." in self.metric


class PaperRow(_Strict):
    """A row of a table, or a point of a figure.

    Attributes:
        model, data: named alike in all papers; `label`: as this table prints it, if different.
        source: what printed it, if not this table.
        configuration, run: what trains it; `command`: what scores it, if nothing is trained.
        reason: why Sightline does not produce it.
        note: what its score needs besides the configuration.
        scores, std: column → printed value; empty if the text has none.
        scores_of: the table that printed them first, and has them.
        significant: columns that the paper marks.
        seeds: if different from the entry's.
    """

    model: _Text
    data: _Text
    label: str = ""
    source: str = ""
    configuration: str = ""
    run: str = ""
    command: str = ""
    reason: str = ""
    note: str = ""
    scores: dict[str, _Finite] = {}
    std: dict[str, _Finite] = {}
    scores_of: str = ""
    significant: tuple[str, ...] = ()
    seeds: int | None = None

    @property
    def title(self) -> str:
        """Such as "MCSE-BERT, wiki+flickr"."""
        name = self.label or self.model
        return name if self.data == "none" else f"{name}, {self.data}"

    @property
    def full_name(self) -> str:
        """Such as "MCSE-BERT:wiki+flickr"."""
        return self.model if self.data == "none" else f"{self.model}:{self.data}"


class Entry(_Strict):
    """A table, a figure, an illustration, or the settings that the text states.

    Attributes:
        shows: in a phrase.
        seeds: of every row; None if the paper does not say.
        configurations, runs: what is trained for it, if it has no rows; without runs, the data
            sets of the configurations are enough.
        commands: besides training and scoring its rows.
        reason: why Sightline does not produce it.
        printed: what the paper says in words or captions.
        notes: what is doubtful or not stated.
    """

    id: Annotated[str, Field(pattern=r"^[a-z]+:((table|figure)-\d+|settings)$")]
    kind: Literal["table", "figure", "settings", "illustration"]
    shows: _Text
    seeds: int | None = None
    columns: tuple[Column, ...] = ()
    rows: tuple[PaperRow, ...] = ()
    configurations: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    reason: str = ""
    printed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """Such as "MCSE table 1"."""
        paper, _, place = self.id.partition(":")
        return f"{paper.upper()} {place.replace('-', ' ')}"

    @property
    def trainings(self) -> list[tuple[str, str]]:
        """(configuration, run) of everything that is trained for it, each once."""
        of_rows = [(row.configuration, row.run) for row in self.rows if row.configuration]
        of_names = [(name, run) for name in self.configurations for run in self.runs]
        return list(dict.fromkeys([*of_rows, *of_names]))

    def seeds_of(self, row: PaperRow) -> int | None:
        """How many seeds the paper's score is a mean over; None if it does not say."""
        return self.seeds if row.seeds is None else row.seeds


class Paper(_Strict):
    """A paper with everything that it shows, in its order."""

    title: _Text
    source: _Text
    entries: tuple[Entry, ...]


class _Papers(_Strict):
    """The file. Others: rows that are in no paper."""

    papers: dict[str, Paper]
    others: tuple[PaperRow, ...]

    @model_validator(mode="after")
    def _numbers_filled_in(self) -> _Papers:
        """Rows with `scores_of` get the numbers of the row that has them."""
        entries = [entry for paper in self.papers.values() for entry in paper.entries]
        rows = {(entry.id, row.full_name): row for entry in entries for row in entry.rows}

        def filled(row: PaperRow) -> PaperRow:
            if not row.scores_of:
                return row
            first = rows[row.scores_of, row.full_name]
            return row.model_copy(update={"scores": first.scores, "std": first.std})

        def whole(entry: Entry) -> Entry:
            return entry.model_copy(update={"rows": tuple(map(filled, entry.rows))})

        papers = {
            name: paper.model_copy(update={"entries": tuple(map(whole, paper.entries))})
            for name, paper in self.papers.items()
        }
        return self.model_copy(update={"papers": papers})


@cache
def _file() -> _Papers:
    path = Path(__file__).with_name("published.json")
    return read_json(path, TypeAdapter(_Papers), "the papers' tables and figures")


def load_papers() -> Mapping[str, Paper]:
    """Name → paper."""
    return _file().papers


def every_entry() -> Iterator[Entry]:
    """Every table and figure, paper by paper."""
    for paper in load_papers().values():
        yield from paper.entries


def every_row() -> Iterator[PaperRow]:
    """Every row of them, and those that are in no paper."""
    yield from (row for entry in every_entry() for row in entry.rows)
    yield from _file().others


def find_entries(name: str) -> list[Entry]:
    """The entries that a user means: `mcse:table-1`, `mcse:1` for a table, `mcse` for a paper."""
    name_of = name.strip().lower()
    if name_of in load_papers():
        return list(load_papers()[name_of].entries)
    paper, _, number = name_of.partition(":")
    full = f"{paper}:table-{number}" if number.isdecimal() else name_of
    entries = [entry for entry in every_entry() if entry.id == full]
    if not entries:
        names = [*load_papers(), *(entry.id for entry in every_entry())]
        message = unknown(full, names, "table or figure").partition(" (available")[0]
        raise SightlineError(f"{message}; `sightline compare --paper list` shows all of them")
    return entries


def published_rows() -> dict[str, Row]:
    """`PaperRow.full_name` → row of a comparison: of each paper's first table, and of no paper.

    They have STS12–16, STS-B and SICK-R: Spearman ×100 in the "all" setting.
    """
    first = [entry for entry in every_entry() if entry.id.endswith(":table-1")]
    rows = {
        row.full_name: _published(row, entry.source)
        for entry in first
        for row in entry.rows
        if row.scores and not row.scores_of
    }
    return rows | {row.full_name: _published(row, row.source) for row in _file().others}


def _published(row: PaperRow, source: str) -> Row:
    cells = {task: Cell(score, row.std.get(task)) for task, score in row.scores.items()}
    marks = (f"published: {source}",)
    return Row(row.title, cells, kind="published", marks=marks, runs=(row.title,))


def select_published(names: Sequence[str]) -> list[Row]:
    """The published rows named `SYSTEM` (in every setting) or `SYSTEM:SETTING`, in that order."""
    rows = published_rows()
    chosen: dict[str, Row] = {}
    for name in names:
        folded = name.casefold()
        matching = {
            full: row
            for full, row in rows.items()
            if folded in (full.casefold(), full.partition(":")[0].casefold())
        }
        if not matching:
            systems = {full.partition(":")[0] for full in rows}
            raise SightlineError(unknown(name, systems | rows.keys(), "published row"))
        chosen |= matching
    return list(chosen.values())
