"""Common to all data sources: parameters, report and problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import BeforeValidator

from sightline.cache.prepared import LICENCE_UNKNOWN, SCHEMA
from sightline.errors import SightlineError
from sightline.settings import Settings

MOST_LISTED = 1000  # per problem; counts are always exact
MOST_SHOWN = 6  # of one kind on the terminal; dataset.json has all

Progress: TypeAlias = Callable[[str, int, int, str], None]
"""Called as ``progress(what, done, total, unit)`` while a source is prepared."""

_SPLITS = {
    **{name: name for name in ("train", "dev", "test")},
    **dict.fromkeys(("val", "valid", "validation"), "dev"),
}


class DatasetError(SightlineError):
    """A source cannot be turned into manifests."""


class Source(Settings):
    """Where a data set comes from: the base of every source's parameters.

    A field ``images`` is the base folder of the image paths; a source without one puts its images
    into the folder ``images`` beside the manifests.

    Attributes:
        has_pairs: whether it has images with captions; a source of plain sentences has none.
        example: a command that prepares such a data set, for its help.
        licence: what is known about the data's licence; shown by `sightline cache info`.
    """

    has_pairs: ClassVar[bool] = True
    example: ClassVar[str] = ""
    licence: ClassVar[str] = LICENCE_UNKNOWN

    def image_root(self, prepared: Path) -> Path:
        """Base folder of the paths in the images manifest that was prepared in ``prepared``."""
        images: Path | None = getattr(self, "images", None)
        return prepared / "images" if images is None else Path(images)

    def inputs(self) -> list[Path]:
        """The input files and folders of the data set."""
        values = [getattr(self, name) for name in type(self).model_fields]
        nested = [list(v.values()) if isinstance(v, dict) else [v] for v in values]
        return [path for some in nested for path in some if isinstance(path, Path)]

    def below(self, folder: Path) -> Self:
        """The same source with relative paths resolved against ``folder``."""

        def moved(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: moved(each) for name, each in value.items()}
            return folder / value if isinstance(value, Path) else value

        return self.model_copy(
            update={name: moved(getattr(self, name)) for name in type(self).model_fields}
        )


def _an_image_folder(value: Any) -> Any:
    if value is None or value == "":
        raise ValueError(
            "no image folder is given; a set of pairs needs its images. Give their folder, "
            "or use the kind `sentences` for text only"
        )
    return value


ImageFolder = Annotated[Path, BeforeValidator(_an_image_folder)]
"""A folder of images; rejects null with an explanation."""


@dataclass
class PrepareReport:
    """What `prepare` found and wrote, as in ``dataset.json``.

    Attributes:
        kind: kind of the data set, as in `pipeline.datasets.kinds`.
        counts: numbers of items read and kept, by name.
        problems: for each type of problem, the names it concerns (at most `MOST_LISTED`).
        problem_counts: for each type of problem, their number.
        shards: for each file of a data set that comes in several, its counts by name.
        facts: what readers of the manifests need to know, by name.
        notes: lines for the terminal, below the summary.
    """

    kind: str
    counts: dict[str, int] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=dict)
    problem_counts: dict[str, int] = field(default_factory=dict)
    shards: dict[str, dict[str, int]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, problem: str, names: Iterable[str]) -> None:
        """Record that ``problem`` concerns ``names``; does nothing without names."""
        listed = list(names)
        if listed:
            self.problems[problem] = listed[:MOST_LISTED]
            self.problem_counts[problem] = len(listed)

    def warn(self, problem: str, faults: Iterable[str]) -> None:
        """Record ``faults`` as `note` does, and show the first of them on the terminal."""
        listed = list(faults)
        self.note(problem, listed)
        self.notes += [f"warning: {fault}" for fault in listed[:MOST_SHOWN]]

    def refuse_problems(self) -> None:
        """Raise for the problems recorded so far (the parameter ``strict``).

        Raises:
            DatasetError: there are any.
        """
        if not self.problems:
            return
        lines = [
            f"  {problem.replace('_', ' ')}: {self.problem_counts[problem]} "
            f"({_some(names, self.problem_counts[problem])})"
            for problem, names in self.problems.items()
        ]
        raise DatasetError(
            f"{self.kind}: strict is set and the data has problems:\n" + "\n".join(lines) + "\n"
            "  Fix the data, or omit `strict` to continue without these rows."
        )

    def body(self) -> dict[str, Any]:
        """The record without its list of files: no timestamps, no absolute paths."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "counts": self.counts,
            "problem_counts": self.problem_counts,
            "problems": self.problems,
            **({"shards": self.shards} if self.shards else {}),
            **self.facts,
        }

    def summary(self) -> str:
        """One line for the terminal, and the notes on lines of their own."""
        parts = [f"{count:,} {name.replace('_', ' ')}" for name, count in self.counts.items()]
        parts += [
            f"{count:,} {problem.replace('_', ' ')}"
            for problem, count in self.problem_counts.items()
        ]
        return "\n  ".join([f"{self.kind}: " + ", ".join(parts), *self.notes])


def _some(names: list[str], count: int) -> str:
    shown = ", ".join(names[:3])
    return shown + (", …" if count > 3 else "")


def split_name(name: str, where: str) -> str:
    """``train``, ``dev`` or ``test``; the usual synonyms of ``dev`` are accepted.

    Raises:
        DatasetError: an unknown name; ``where`` is its location.
    """
    known = _SPLITS.get(name.strip().lower())
    if known is None:
        raise DatasetError(f"{where}: unknown split {name!r}; expected train, dev (or val) or test")
    return known
