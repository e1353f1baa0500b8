"""Every table and figure of the papers: what it prints, and what Sightline runs for it.

The numbers of a row are where `load_papers` finds them: rows marked ``shared`` are in
published_results.json, which `sightline compare --published` reads too; all others are in
printed/. No number is in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from sightline.errors import SightlineError
from sightline.outside import read_json
from sightline.settings import unknown
from train.report.published import published_rows

PAPERS = ("mcse", "kdmcse", "dalr", "mcseo")

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
    def _a_name_alone(cls, given: Any) -> Any:
        return {"name": given, "metric": given} if isinstance(given, str) else given

    @property
    def is_setting(self) -> bool:
        """Whether it holds a parameter and not a score."""
        return "." in self.metric


class PaperRow(_Strict):
    """A row of a table, or a point of a figure.

    Attributes:
        model, data: named alike in all papers; `label`: as this table prints it, if different.
        configuration, run: what trains it; `command`: what scores it, if nothing is trained.
        reason: why Sightline does not produce it.
        note: what its score needs besides the configuration.
        prefix: before the names of its metrics, as those of a renamed evaluation task have it.
        scores, std: column → printed value; empty if the text has none.
        significant: columns that the paper marks.
        seeds: if different from the entry's.
        shared: its numbers are in published_results.json.
    """

    model: _Text
    data: _Text
    label: str = ""
    configuration: str = ""
    run: str = ""
    command: str = ""
    reason: str = ""
    note: str = ""
    prefix: str = ""
    scores: dict[str, _Finite] = {}
    std: dict[str, _Finite] = {}
    significant: tuple[str, ...] = ()
    seeds: int | None = None
    shared: bool = False

    @model_validator(mode="after")
    def _one_way(self) -> PaperRow:
        ways = [bool(self.configuration), bool(self.command), bool(self.reason)]
        if sum(ways) != 1 or bool(self.run) == bool(self.reason):
            raise ValueError(
                f"{self.model}: needs a run with its configuration or command, or a reason"
            )
        return self

    @property
    def title(self) -> str:
        """Such as "MCSE-BERT, wiki+flickr"."""
        name = self.label or self.model
        return name if self.data == "none" else f"{name}, {self.data}"


class Entry(_Strict):
    """A table, a figure, an illustration, or the settings that the text states.

    Attributes:
        shows: in a phrase.
        seeds: of every row; None if the paper does not say.
        configurations, runs: what is trained for it, if it has no rows; without runs, the data
            sets of the configurations are enough, and `needs` names them.
        commands: besides training and scoring its rows.
        needs: data sets and evaluation tasks besides those of trainings.
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
    needs: tuple[str, ...] = ()
    reason: str = ""
    printed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _reachable(self) -> Entry:
        ways = self.trainings or self.commands or [row for row in self.rows if row.command]
        if bool(self.reason) == bool(ways):
            raise ValueError(f"{self.id}: needs a configuration or a command, or else a reason")
        names = {column.name for column in self.columns}
        for row in self.rows:
            if more := {*row.scores, *row.std, *row.significant} - names:
                raise ValueError(f"{self.id}: {row.model}: {min(more)} is not a column")
        return self

    @property
    def trainings(self) -> list[tuple[str, str]]:
        """(configuration, run) of everything that is trained for it, each once."""
        of_rows = [(row.configuration, row.run) for row in self.rows if row.configuration]
        others = [(name, run) for name in self.configurations for run in self.runs]
        return list(dict.fromkeys([*of_rows, *others]))

    def seeds_of(self, row: PaperRow) -> int | None:
        """How many seeds the paper's score is a mean over; None if it does not say."""
        return self.seeds if row.seeds is None else row.seeds


class Paper(_Strict):
    """A paper with everything that it shows, in its order."""

    title: _Text
    source: _Text
    entries: tuple[Entry, ...]

    @model_validator(mode="after")
    def _each_once(self) -> Paper:
        ids = [entry.id for entry in self.entries]
        if twice := next((each for each in ids if ids.count(each) > 1), None):
            raise ValueError(f"{twice} is there twice")
        return self


@cache
def load_papers() -> Mapping[str, Paper]:
    """Name → paper; shared rows have their numbers.

    Raises:
        SightlineError: a file is missing or breaks the schema (names the place), or a shared row is
            not in published_results.json.
    """
    folder = Path(__file__).with_name("printed")
    schema = TypeAdapter(Paper)
    found = {}
    for name in PAPERS:
        paper = read_json(folder / f"{name}.json", schema, "a paper's tables and figures")
        entries = tuple(_with_shared(entry) for entry in paper.entries)
        found[name] = paper.model_copy(update={"entries": entries})
    return found


def every_entry() -> Iterator[Entry]:
    """Every table and figure, paper by paper."""
    for paper in load_papers().values():
        yield from paper.entries


def find_entries(given: str) -> list[Entry]:
    """The entries that a user means: `mcse:table-1`, `mcse:1` for a table, `mcse` for a paper.

    Raises:
        SightlineError: there is none (names the nearest).
    """
    wanted = given.strip().lower()
    if wanted in load_papers():
        return list(load_papers()[wanted].entries)
    paper, _, number = wanted.partition(":")
    full = f"{paper}:table-{number}" if number.isdecimal() else wanted
    found = [entry for entry in every_entry() if entry.id == full]
    if not found:
        known = [*PAPERS, *(entry.id for entry in every_entry())]
        what = "table or figure"
        message = unknown(full, known, what).partition(" (available")[0]
        raise SightlineError(f"{message}; `sightline paper list` shows all of them")
    return found


def _with_shared(entry: Entry) -> Entry:
    rows = [row.model_copy(update=_numbers_of(row)) if row.shared else row for row in entry.rows]
    return entry.model_copy(update={"rows": tuple(rows)})


def _numbers_of(row: PaperRow) -> dict[str, dict[str, float]]:
    data = "" if row.data == "none" else row.data
    for each in published_rows():
        if (each.model, each.data) == (row.model, data):
            return {"scores": each.scores, "std": each.std}
    raise SightlineError(f"published_results.json has no row of {row.title}; add it")
