"""Rows copied from papers, to show beside measured ones; always marked as published."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from sightline.errors import SightlineError

_Finite = Annotated[float, Field(allow_inf_nan=False)]


class PublishedRow(BaseModel):
    """A row of a paper's table.

    Attributes:
        model: the system's name in the paper; `data`: what it was trained on.
        source: paper and table, such as "MCSE table 1".
        scores: task → mean, named as the measured tasks are; `std`: task → its spread.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, Field(min_length=1)]
    data: str = ""
    source: Annotated[str, Field(min_length=1)]
    scores: dict[str, _Finite]
    std: dict[str, _Finite] = {}

    @property
    def title(self) -> str:
        """Such as "MCSE-BERT, wiki+flickr"."""
        return f"{self.model}, {self.data}" if self.data else self.model


def load_published(path: str | Path) -> list[PublishedRow]:
    """Rows from a JSON file: a list of {model, data, source, scores: {task: mean}, std: {…}}.

    Raises:
        SightlineError: missing, not JSON, or a row with a field that is unknown, missing or of the
            wrong type (row and field named).
    """
    file = Path(path)
    try:
        return TypeAdapter(list[PublishedRow]).validate_python(
            json.loads(file.read_text(encoding="utf-8"))
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise SightlineError(
            f"{file}: {where}: {first['msg']}; expected a list of rows with model, source and "
            "scores {task: mean}"
        ) from error
    except ValueError as error:
        raise SightlineError(f"{file}: not JSON in UTF-8 ({error}); fix the file") from error
    except OSError as error:
        raise SightlineError(
            f"{file}: cannot be read ({error.strerror}); expected a JSON file of published rows"
        ) from error


def published_rows() -> list[PublishedRow]:
    """The rows that come with Sightline: STS12–16, STS-B, SICK-R, Spearman ×100, "all" setting."""
    return load_published(Path(__file__).with_name("published_results.json"))


def select_published(names: Sequence[str], rows: Sequence[PublishedRow]) -> list[PublishedRow]:
    """The rows named `SYSTEM` (in every setting) or `SYSTEM:SETTING`, in the requested order.

    Raises:
        SightlineError: no row has the name; lists the available ones.
    """
    chosen: list[PublishedRow] = []
    for name in names:
        wanted = name.casefold()
        found = [row for row in rows if wanted in (row.model.casefold(), _full(row).casefold())]
        if not found:
            systems: dict[str, list[str]] = {}
            for row in rows:
                systems.setdefault(row.model, []).append(row.data)
            known = [*systems, *map(_full, rows)]
            near = difflib.get_close_matches(name, known, n=1)
            raise SightlineError(
                f"no published row {name!r}"
                + (f" (did you mean {near[0]!r}?)" if near else "")
                + "; expected SYSTEM or SYSTEM:SETTING, of:"
                + "".join(
                    f"\n  {system}" + (f": {', '.join(settings)}" if any(settings) else "")
                    for system, settings in systems.items()
                )
            )
        chosen += [row for row in found if row not in chosen]
    return chosen


def _full(row: PublishedRow) -> str:
    return f"{row.model}:{row.data}" if row.data else row.model
