"""The manifests of a data set: every source hands its images and captions to one writer.

A caption in a manifest has no control characters and no white space around it, and something to
see in it. What the writer changes or leaves out, it counts.
"""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import io
import json
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.datasets.samples import Placed, Sample
from pipeline.datasets.source import (
    MOST_SHOWN,
    DatasetError,
    PrepareReport,
    Progress,
)
from sightline.cache.manifest import (
    CAPTIONS,
    IMAGES,
    SENTENCES,
    TRAINED_SPLITS,
    write_manifest,
)
from sightline.user_files import CONTROL

SPLITS = ("train", "dev", "test", "")
INCOMPLETE = "incomplete_shards"
"""A problem that is shown on the terminal as well."""
_IN_LISTS = 1 << 16  # rows
_PACKED = pa.ipc.IpcWriteOptions(compression="zstd")

# White space, format and control characters, and what Unicode lists as default-ignorable besides,
# with the blank Braille pattern.
_INVISIBLE = (
    r"\p{Z}\p{Cc}\p{Cf}\x{34F}\x{115F}\x{1160}\x{17B4}\x{17B5}\x{180B}-\x{180F}\x{2065}\x{2800}"
    r"\x{3164}\x{FE00}-\x{FE0F}\x{FFA0}\x{FFF0}-\x{FFF8}\x{E0000}-\x{E0FFF}"
)


def write_captioned(
    folder: Path,
    images: pa.Table,
    captions: pa.Table,
    report: PrepareReport,
    *,
    where: str,
    strict: bool = False,
    sentences: Sequence[str] | None = None,
    lines: Sequence[int | str] = (),
) -> None:
    """Write ``images.parquet``, ``captions.parquet`` and ``sentences.parquet`` into ``folder``.

    Args:
        images: table of the schema IMAGES.
        captions: table of the schema CAPTIONS, each text as its source has it.
        report: gets the counts and the problems.
        where: the source, for messages.
        strict: refuse the problems that ``report`` then holds.
        sentences: by default the distinct training captions, in order, so that captions can serve
            as plain sentences (`graph.text`), without their images.
        lines: [n], where each caption stands in its source, for messages.

    Raises:
        DatasetError: two captions have one id, no caption can be used, or ``strict`` is set and
            there are problems.
    """
    _refuse_duplicates(captions["caption_id"], where, lines)
    captions = _visible_captions(captions, report)
    report.counts |= {"images": len(images), "captions": len(captions)}
    for split in SPLITS:
        count = pc.sum(pc.equal(images["split"], split)).as_py() or 0
        report.counts[f"images_{split or 'without_split'}"] = count
    if 0 < report.counts["images_without_split"] == len(images):
        report.notes.append("no image has a split: all are trained on, none is left to evaluate")
    ids = images["image_id"]
    bare = pc.invert(pc.is_in(ids, pc.unique(captions["image_id"])))
    report.note("images_without_caption", ids.filter(bare).to_pylist())
    report.note("images_in_two_splits", _in_two_splits(images))
    if strict:
        report.refuse_problems()
    if not len(captions):
        problems = "; ".join(report.in_words(without="images_without_caption"))
        raise DatasetError(
            f"{where}: found {len(images)} images and no usable caption"
            f"{f' ({problems})' if problems else ''}; check where the images and captions are"
        )
    if sentences is None:
        trained = pc.is_in(captions["split"], pa.array(TRAINED_SPLITS))
        texts = pc.unique(captions.filter(trained)["text"])
    else:
        texts = pa.array(sentences, pa.large_string())
    report.counts["sentences"] = len(texts)
    write_manifest(folder / "images.parquet", images, IMAGES)
    write_manifest(folder / "captions.parquet", captions, CAPTIONS)
    write_manifest(folder / "sentences.parquet", pa.table({"text": texts}, SENTENCES), SENTENCES)


def _refuse_duplicates(ids: pa.ChunkedArray, where: str, lines: Sequence[int | str]) -> None:
    if pc.count_distinct(ids).as_py() == len(ids):
        return
    first: dict[str, int] = {}
    twice = [(i, name) for i, name in enumerate(ids.to_pylist()) if first.setdefault(name, i) != i]
    second, name = twice[0]
    at = f" (lines {lines[first[name]]} and {lines[second]})" if lines else ""
    raise DatasetError(
        f"{where}: {len(twice)} duplicate caption ids, the first is {name!r}{at}; "
        "give every caption a unique id"
    )


def write_files(
    folder: Path,
    names: Sequence[str],
    files: Iterable[ManifestRows],
    report: PrepareReport,
    *,
    unit: str,
    where: str,
    strict: bool,
    limit: int = sys.maxsize,
    progress: Progress | None = None,
) -> None:
    """`write_captioned` for a data set that comes in several files, each counted in the record.

    Args:
        names: of the files.
        files: what each holds, in their order; no more are read than ``limit`` needs.
        unit: what they are, in the plural.
        limit: number of images, of which the first are kept.
    """
    images, captions = [IMAGES.empty_table()], [CAPTIONS.empty_table()]
    problems: defaultdict[str, list[str]] = defaultdict(list)
    room = limit
    for done, (name, rows) in enumerate(zip(names, files, strict=True), start=1):
        some_images, some_captions = rows.tables()
        if len(some_images) > room:
            some_images = some_images.slice(0, room)
            kept = pc.is_in(some_captions["image_id"], some_images["image_id"])
            some_captions = some_captions.filter(kept)
        images.append(some_images)
        captions.append(some_captions)
        room -= len(some_images)
        report.shards[name] = {"images": len(some_images), "captions": len(some_captions)}
        for kind, of_file in rows.problems.items():
            problems[kind] += of_file
        report.ignored += rows.ignored
        if progress is not None:
            progress("reading", done, len(names), unit)
        if not room:
            break
    report.counts[unit] = len(report.shards)
    report.notes += _sizes(report.shards)
    for kind, faults in sorted(problems.items()):
        (report.warn if kind == INCOMPLETE else report.note)(kind, faults)
    tables = pa.concat_tables(images), pa.concat_tables(captions)
    write_captioned(folder, *tables, report, where=where, strict=strict)


def _sizes(files: dict[str, dict[str, int]]) -> Iterator[str]:
    """How many files there are and what each holds, so that a missing one is noticed."""
    names = list(files)
    if len(names) <= MOST_SHOWN:
        for name, counts in files.items():
            yield f"{name}: {counts['images']:,} images, {counts['captions']:,} captions"
        return
    sizes = [counts["images"] for counts in files.values()]
    yield (
        f"{len(names):,} files, {names[0]} to {names[-1]}: {min(sizes):,} to {max(sizes):,} images "
        f"each, median {statistics.median(sizes):,.0f}"
    )


def cleaned(texts: pa.Array) -> pa.Array:
    """Texts as manifests hold them: no control characters, no white space around them."""
    if pc.any(_with_control(texts)).as_py():
        texts = pc.replace_substring_regex(texts, CONTROL.pattern, "")
    return pc.utf8_trim_whitespace(texts)


def visible(texts: pa.Array) -> pa.BooleanArray:
    """Whether each text has a character that can be seen."""
    return pc.match_substring_regex(texts, f"[^{_INVISIBLE}]")


def _with_control(texts: pa.Array) -> pa.BooleanArray:
    return pc.match_substring_regex(texts, CONTROL.pattern)


def shared_images(images: pa.Table, column: str) -> list[tuple[str, str]]:
    """Ids of images with the same bytes and another value of ``column``: the first, and a later."""
    if pc.count_distinct(images["key"]).as_py() == len(images):
        return []
    by_key = images.group_by("key").aggregate([(column, "count_distinct")])
    shared = by_key.filter(pc.greater(by_key[f"{column}_count_distinct"], 1))["key"]
    rows = images.select(["image_id", "key", column]).filter(pc.is_in(images["key"], shared))
    first: dict[bytes, tuple[str, str]] = {}  # key → id, value
    pairs = []
    for row in rows.to_pylist():
        image, value = first.setdefault(row["key"], (row["image_id"], row[column]))
        if value != row[column]:
            pairs.append((image, row["image_id"]))
    return pairs


def _in_two_splits(images: pa.Table) -> list[str]:
    # those without a split are trained on
    splits = pc.if_else(pc.equal(images["split"], ""), "train", images["split"])
    images = images.set_column(images.schema.get_field_index("split"), "split", splits)
    return [image for _, image in shared_images(images, "split")]


def _visible_captions(captions: pa.Table, report: PrepareReport) -> pa.Table:
    """The captions with something to see, cleaned."""
    ids, written_texts = captions["caption_id"], captions["text"]
    control = ids.filter(_with_control(written_texts)).to_pylist()
    report.note("captions_without_their_control_characters", control)
    texts = cleaned(written_texts)
    kept = visible(texts)
    report.note("empty_captions", ids.filter(pc.invert(kept)).to_pylist())
    count_trimmed(written_texts, texts, kept, "captions", report)
    captions = captions.set_column(CAPTIONS.get_field_index("text"), "text", texts)
    return captions if pc.all(kept).as_py() else captions.filter(kept)


def count_trimmed(
    original: pa.Array, texts: pa.Array, kept: pa.Array, unit: str, report: PrepareReport
) -> None:
    """Count the texts that lost outer white space: a hash of the raw text does not find them."""
    trimmed = pc.and_not(pc.and_(kept, pc.not_equal(original, texts)), _with_control(original))
    if count := pc.sum(trimmed).as_py():
        report.counts[f"{unit}_trimmed"] = count
        report.notes.append(
            f"white space around {count:,} {unit} left out; their key is the SHA-256 of the text "
            "without it"
        )


class _Rows:
    """Rows that are added one by one; a million take a gigabyte before they are in Arrow."""

    def __init__(self, schema: pa.Schema, *tables: pa.Table) -> None:
        self._schema, self._tables = schema, [*tables]
        self._values: list[list[Any]] = [[] for _ in schema]

    def add(self, *row: Any) -> None:
        for values, value in zip(self._values, row, strict=True):
            values.append(value)
        if len(self._values[0]) == _IN_LISTS:
            self._tables = [self.table()]
            self._values = [[] for _ in self._schema]

    def table(self) -> pa.Table:
        columns = dict(zip(self._schema.names, self._values, strict=True))
        return pa.concat_tables([*self._tables, pa.table(columns, self._schema)])


@dataclass
class ManifestRows:
    """Images and captions, collected one by one.

    Attributes:
        problems: type of problem → the names that it concerns.
        ignored: as in `PrepareReport`.
    """

    problems: dict[str, list[str]] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    _images: _Rows = field(default_factory=lambda: _Rows(IMAGES))
    _captions: _Rows = field(default_factory=lambda: _Rows(CAPTIONS))

    def add_image(self, image_id: str, placed: Placed, split: str) -> None:
        """Add an image; one without a path was only ever features.

        Args:
            split: train, dev, test or empty.
        """
        if placed.path and not placed.size[0]:
            self.problem("unreadable_images", image_id)
        path, key, size, offset, length = placed
        self._images.add(image_id, path, offset, length, key, *size, split)

    def add_captions(self, image_id: str, sample: Sample, split: str, number: int = 0) -> int:
        """Add the captions of an image, of which the first has this number unless it has an id.

        Returns:
            The number of the next one.
        """
        numbers = sample.numbers or range(number, number + len(sample.texts))
        ids = sample.ids or [f"{image_id}#{own_number}" for own_number in numbers]
        for own_id, text in zip(ids, sample.texts, strict=True):
            self._captions.add(own_id, image_id, text, split)
        return number + len(sample.texts)

    def problem(self, kind: str, name: str) -> None:
        """Note that ``name`` has a problem."""
        self.problems.setdefault(kind, []).append(name)

    def tables(self) -> tuple[pa.Table, pa.Table]:
        """The rows, as tables of the schemas IMAGES and CAPTIONS."""
        return self._images.table(), self._captions.table()

    def packed(self) -> bytes:
        """All of it as bytes, to be remembered."""
        about = json.dumps([self.problems, self.ignored])
        data = io.BytesIO()
        for table in self.tables():
            schema = table.schema.with_metadata({"about": about})
            with pa.ipc.new_stream(data, schema, options=_PACKED) as stream:
                stream.write_table(table)
        return data.getvalue()

    @classmethod
    def unpacked(cls, data: bytes) -> ManifestRows:
        """What was packed."""
        source = io.BytesIO(data)
        images, captions = (pa.ipc.open_stream(source).read_all() for _ in range(2))
        problems, ignored = json.loads(images.schema.metadata[b"about"])
        rows = _Rows(IMAGES, images.cast(IMAGES)), _Rows(CAPTIONS, captions.cast(CAPTIONS))
        return cls(problems, Counter(ignored), *rows)
