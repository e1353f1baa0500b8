"""A data source: its parameters, how it is prepared, and the report of that."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar, TypeAlias, get_args, get_origin

from pydantic import AfterValidator, BeforeValidator, ConfigDict, ValidationInfo, field_validator

from sightline.cache.file_memory import FileMemory
from sightline.cache.prepared import LICENCE_UNKNOWN, MANIFESTS, SCHEMA
from sightline.errors import SightlineError
from sightline.files.places import base_of, is_url, location, path_below
from sightline.settings import FamilySettings, Registry
from sightline.tables.image_names import SPLITS
from sightline.tables.outside_columns import FETCH
from sightline.user_files import short

MOST_LISTED = 1000  # per problem; counts are always exact
MOST_SHOWN = 6  # of one kind on the terminal; dataset.json has all

KEY_WITH_DOT = (
    "WebDataset ends a key at the first dot: rename the members, so that no key contains one"
)
WRITE_PATHS = "write the paths from the folder `images`"
AMBIGUOUS = f"several files have this name: {WRITE_PATHS}"

LOSSES: dict[str, str] = {
    "captions_of_ambiguous_image": AMBIGUOUS,
    "captions_that_look_quoted": "only .csv has quotation marks around values: write .csv",
    "captions_whose_key_contains_a_dot": KEY_WITH_DOT,
    "captions_without_image": f"check that the images are there, or {WRITE_PATHS}",
    "captions_without_their_control_characters": "",
    "captions_whose_key_has_another": "only the first text of a key is kept",
    "empty_captions": "",
    "images_above_1_gib": "",
    "images_in_two_splits": "they are the same file: remove one of them",
    "images_outside_their_folder": "paths start from the folder `images`",
    "images_whose_key_contains_a_dot": KEY_WITH_DOT,
    "images_whose_key_has_another": "only the first image of a key is kept",
    "images_without_caption": "",
    "images_without_file": "check the folder `images`",
    "incomplete_shards": "get them again",
    "members_with_a_name_used_before": "only the first is kept",
    "members_with_unusable_names": "",
    "missing_files": "",
    "rows_without_image": "",
    "shards_not_read": "name them with `shards`, such as '**/*.tar'; decompress .tar.gz first",
    "shards_with_links_or_devices": "",
    "shards_without_images": "",
    "split_entries_of_ambiguous_image": AMBIGUOUS,
    "split_entries_without_image": f"check the lists of splits, or {WRITE_PATHS}",
    "tables_not_read": "no split has them: see the data set's description, or move them out",
    "unreadable_images": "",
    "urls_in_place_of_images": FETCH,
    "unusable_captions": "",
}
"""Kind of loss, as in ``dataset.json`` → remedy, where one is known that its name does not say."""

Progress: TypeAlias = Callable[[str, int, int, str], None]
"""Called as ``progress(what, done, total, unit)`` while a source is prepared."""


class DatasetError(SightlineError):
    """A source cannot be turned into manifests."""


Location = Annotated[Path | str, BeforeValidator(location)]
"""A file or folder here, or the URL of one: ``s3://``, ``gs://`` or ``https://``."""


def below(pattern: str) -> str:
    """``pattern``, which is relative and leads into the folder of the images.

    Raises:
        ValueError: it leads out of it, or ``**`` stands for less than whole folders.
    """
    path = PurePosixPath(pattern)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise ValueError(f"found {pattern!r}, expected a pattern below the folder `images`")
    if any("**" in part and part != "**" for part in path.parts):
        raise ValueError(
            f"found {pattern!r}: ** stands for folders, alone between slashes; write '*' for any "
            "part of a name, as in '*.tar', or '**/' before it for all folders, as in '**/*.tar'"
        )
    return pattern


Below = Annotated[str, AfterValidator(below)]


def _may_be_url(annotation: Any) -> bool:
    """Whether a field takes URLs beside paths, itself or as the values of its mapping."""
    types = get_args(annotation)
    types = types[1:] if get_origin(annotation) is dict else types
    return {Path, str} <= {*types} or any(map(_may_be_url, types))


class Source(FamilySettings):
    """Where a data set comes from; a kind is a subclass with its parameters.

    A field ``images`` is the base folder of the image paths; a source without one puts its images
    into the folder ``images`` beside the manifests. Relative paths in all fields start from
    ``source``.

    Attributes:
        has_pairs: whether it has images with captions; a source of plain sentences has none.
        example: a command that prepares such a data set, for its help.
        licence: what is known about the data's licence; shown by `sightline cache info`.
        writes: files that `prepare` writes, so that a clash is found before the work starts.
        drawn_by: the package of ours that draws the data; a data set of the graph then has the
            digest of its code as its source (the stage `code` writes it). Empty: it has a source.
        kind: name in the registry.
        source: folder (or file) that the data set comes from, or its URL; its other paths are
            relative to it.
    """

    model_config = ConfigDict(validate_default=True)

    families: ClassVar[Registry] = Registry(
        "kind of data set",
        "sightline.datasets",
        {
            "scenes": "pipeline.datasets.scenes:ScenesSource",
            "pairs": "pipeline.datasets.pairs:PairsSource",
            "flickr30k": "pipeline.datasets.pairs:Flickr30kSource",
            "coco": "pipeline.datasets.pairs:CocoSource",
            "webdataset": "pipeline.datasets.webdataset:WebDatasetSource",
            "huggingface": "pipeline.datasets.huggingface:HuggingFaceSource",
            "sentences": "pipeline.datasets.sentences:SentencesSource",
            "joined": "pipeline.datasets.joined:JoinedSource",
        },
    )
    chosen_by: ClassVar[str] = "kind"
    has_pairs: ClassVar[bool] = True
    example: ClassVar[str] = ""
    licence: ClassVar[str] = LICENCE_UNKNOWN
    writes: ClassVar[tuple[str, ...]] = MANIFESTS
    drawn_by: ClassVar[str] = ""

    kind: str
    source: Location = Path()

    @field_validator("*")
    @classmethod
    def _starts_from_the_source(cls, value: Any, info: ValidationInfo) -> Any:
        source = info.data.get("source", Path())  # of the fields before it, none
        if isinstance(value, dict):
            return {name: cls._below(source, path, info) for name, path in value.items()}
        return cls._below(source, value, info)

    @classmethod
    def _below(cls, source: Path | str, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, Path) or value.is_absolute():
            return value
        if isinstance(source, Path):
            return source / value
        if not _may_be_url(cls.model_fields[str(info.field_name)].annotation):
            raise ValueError(
                f"found {value.as_posix()!r}, which starts from a URL, but this file is read here; "
                "let `source` be its folder, and give the URL of the images as `images`"
            )
        return source if value == Path() else path_below(source, value.as_posix())

    @abstractmethod
    def prepare(
        self, folder: Path, report: PrepareReport, progress: Progress | None = None
    ) -> None:
        """Write the manifests into ``folder`` and fill ``report``.

        Raises:
            SightlineError: the data cannot be used; the message explains why.
        """

    def image_root(self, prepared: Path) -> Path | str:
        """Base folder of the paths in the images manifest that was prepared in ``prepared``."""
        images: Path | str | None = getattr(self, "images", None)
        return prepared / "images" if images is None else base_of(images)

    def inputs(self) -> list[Path | str]:
        """The input files and folders of the data set, or their URLs."""
        values = [getattr(self, name) for name in type(self).model_fields if name != "source"]
        nested = [list(v.values()) if isinstance(v, dict) else [v] for v in values]
        return [
            place
            for places in nested
            for place in places
            if isinstance(place, Path) or is_url(place)
        ]


def _an_image_folder(value: Any) -> Any:
    if value is None or value == "":
        raise ValueError(
            "no image folder is given; a set of pairs needs its images. Give their folder, "
            "or use the kind `sentences` for text only"
        )
    return location(value)


ImageFolder = Annotated[Path | str, BeforeValidator(_an_image_folder)]
"""A folder of images, or its URL; rejects null with an explanation."""


@dataclass
class PrepareReport:
    """What `prepare` found and wrote, as in ``dataset.json``.

    Attributes:
        kind: kind of the data set.
        counts: numbers of items read and kept, by name.
        problems: for each type of problem, the names it concerns (at most `MOST_LISTED`).
        problem_counts: for each type of problem, their number.
        shards: for each file of a data set that comes in several, its counts by name.
        facts: what readers of the manifests need to know, by name.
        notes: lines for the terminal, below the summary.
        ignored: suffix, ``hidden`` or ``hidden folders`` → number of files, members of tars, or
            folders left out for it.
        guesses: what was read otherwise than it is written, or chosen unasked; also in the notes.
        memory: what an earlier `prepare` read of files that may still be the same; no part of the
            record.
    """

    kind: str
    counts: dict[str, int] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=dict)
    problem_counts: dict[str, int] = field(default_factory=dict)
    shards: dict[str, dict[str, int]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    guesses: list[str] = field(default_factory=list)
    memory: FileMemory = field(default_factory=FileMemory)

    def guess(self, *lines: str) -> None:
        """Record what was read otherwise than it is written, or chosen unasked; and show it."""
        self.guesses += lines
        self.notes += lines

    def leave_columns(self, names: Iterable[str]) -> None:
        """Count and name the columns of tables that are not read."""
        if left := sorted(set(names)):
            self.counts["columns_not_read"] = len(left)
            self.notes.append(f"not read: {', '.join(map(short, left))}")

    def note(self, problem: str, names: Iterable[str]) -> None:
        """Record that ``problem`` concerns ``names`` too; does nothing without names.

        Args:
            problem: one of `LOSSES`, or another word of a kind of another package.
        """
        names = list(names)
        if not names:
            return
        if problem not in self.problems and (remedy := LOSSES.get(problem)):
            self.notes.append(f"{spelled(problem)}: {remedy}")
        listed = self.problems.setdefault(problem, [])
        listed += names[: MOST_LISTED - len(listed)]
        self.problem_counts[problem] = self.problem_counts.get(problem, 0) + len(names)

    def warn(self, problem: str, faults: Iterable[str]) -> None:
        """Record ``faults`` as `note` does, and show the first of them on the terminal."""
        listed = list(faults)
        self.note(problem, listed)
        self.notes += [f"warning: {fault}" for fault in listed[:MOST_SHOWN]]

    def refuse_problems(self) -> None:
        """Raise for the problems recorded so far (the parameter ``strict``)."""
        if self.problems:
            lines = "\n".join(f"  {line}" for line in self.in_words())
            raise DatasetError(
                f"{self.kind}: strict is set and the data has problems:\n{lines}\n"
                "  Fix the data, or omit `strict` to continue without these rows."
            )

    def in_words(self, without: str = "") -> Iterator[str]:
        """A line for each problem but one: its number, the first names, and its remedy."""
        for problem, names in self.problems.items():
            count = self.problem_counts[problem]
            shown = ", ".join(names[:3]) + (", …" if count > 3 else "")
            remedy = f"; {LOSSES[problem]}" if LOSSES.get(problem) else ""
            if problem != without:
                yield f"{spelled(problem)}: {count} ({shown}){remedy}"

    def body(self) -> dict[str, Any]:
        """The record without its list of files: no timestamps, no absolute paths."""
        return {
            "schema": SCHEMA,
            "kind": self.kind,
            "counts": self.counts,
            "problem_counts": self.problem_counts,
            "problems": self.problems,
            **({"ignored": dict(sorted(self.ignored.items()))} if self.ignored else {}),
            **({"shards": self.shards} if self.shards else {}),
            **({"guesses": self.guesses} if self.guesses else {}),
            **self.facts,
        }

    def summary(self) -> str:
        """One line for the terminal, and the notes on lines of their own."""
        parts = [f"{count:,} {name.replace('_', ' ')}" for name, count in self.counts.items()]
        parts += [f"{count:,} {spelled(problem)}" for problem, count in self.problem_counts.items()]
        lines = [f"{self.kind}: " + ", ".join(parts), *self.notes]
        if self.ignored:
            kinds = ", ".join(f"{n:,} {name}" for name, n in self.ignored.most_common(MOST_SHOWN))
            lines.append(f"ignored: {kinds}")
        return "\n  ".join(lines)


def spelled(loss: str) -> str:
    """A kind of loss in words."""
    return loss.replace("_", " ")


def split_name(name: str, where: str) -> str:
    """``train``, ``dev`` or ``test``; the usual synonyms of ``dev`` are accepted."""
    split = SPLITS.get(name.strip().lower())
    if split is None:
        raise DatasetError(f"{where}: unknown split {name!r}; expected train, dev (or val) or test")
    return split
