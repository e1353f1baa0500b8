"""WebDataset shards, as img2dataset writes them: tar files with KEY.jpg, KEY.txt and KEY.json."""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import os
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, ClassVar, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, ValidationError, create_model, field_validator, model_validator

from pipeline.datasets.images import SUFFIXES, any_pixel_count
from pipeline.datasets.manifests import Rows, write_captioned
from pipeline.datasets.source import (
    MOST_SHOWN,
    DatasetError,
    PrepareReport,
    Progress,
    Source,
    split_name,
)
from pipeline.datasets.tar_shard import Member, members
from sightline.cache.manifest import Place

_EVERY = "*.tar"
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_SHARDS = 1_000_000
_MOST_IMAGE = 1 << 30  # bytes
_MOST_TEXT = 1 << 24  # bytes of a .txt or .json


class WebDatasetSource(Source):
    """WebDataset shards, as img2dataset writes them; nothing is unpacked.

    The members of a tar file belong together by the part of their name before the first dot.

    Attributes:
        images: folder of the shards; in `params.yaml` by default `source` itself.
        shards: which files below it, as in ``cc12m/{00000..01242}.tar``, where every number of the
            range must be there; default: ``*.tar``.
        splits: instead of ``shards``: for each split, its shards.
        caption_field: field of KEY.json with the caption, or a list of them; without it, KEY.txt
            is the caption.
        limit: read only this many images, in the order of the shards.
        strict: treat problems such as captions without image or images without caption as errors.
    """

    example: ClassVar[str] = (
        "sightline prepare webdataset --set images=cc12m --set 'shards={00000..00099}.tar' "
        "--out data/cc12m"
    )
    licence: ClassVar[str] = (
        "not known here; images from the web belong to their authors, and the terms of the data "
        "set that lists them apply"
    )

    images: Path = Path()
    shards: str | None = Field(default=None, min_length=1)
    splits: dict[str, str] | None = None
    caption_field: str | None = Field(default=None, min_length=1)
    limit: int | None = Field(default=None, ge=1)
    strict: bool = False

    @field_validator("shards", "splits")
    @classmethod
    def _below_the_folder(
        cls, patterns: str | dict[str, str] | None
    ) -> str | dict[str, str] | None:
        for pattern in patterns.values() if isinstance(patterns, dict) else [patterns or "*"]:
            path = PurePosixPath(pattern)
            if path.is_absolute() or ".." in path.parts or not path.parts:
                raise ValueError(f"found {pattern!r}, expected a pattern below the folder `images`")
        return patterns

    @model_validator(mode="after")
    def _one_pattern(self) -> Self:
        if self.splits and self.shards:
            raise ValueError("give `shards` or `splits`, but not both")
        return self


def prepare(
    source: WebDatasetSource, folder: Path, report: PrepareReport, progress: Progress | None = None
) -> None:
    """Write the manifests of ``source`` into ``folder`` and fill ``report``.

    An image's place in the manifest is its shard, offset and length. A shard that ends early costs
    the samples that are not whole, and is reported.

    Raises:
        DatasetError: a pattern matches no file, a file is no uncompressed tar, or there are no
            images with captions.
    """
    shards = [
        (path, split_name(split, "splits") if split else "")
        for split, pattern in (source.splits or {"": source.shards or _EVERY}).items()
        for path in find_shards(source.images, pattern)
    ]
    if len({path for path, _ in shards}) < len(shards):
        raise DatasetError(f"{source.images}: a shard is in several of `splits`; use it once")
    limit = source.limit or sys.maxsize
    images, captions = [], []
    problems: defaultdict[str, list[str]] = defaultdict(list)
    count = 0
    for (path, _), rows in zip(shards, _read_all(source, shards), strict=False):
        some_images, some_captions = rows.tables()
        if len(some_images) > limit - count:
            some_images = some_images.slice(0, limit - count)
            kept = pc.is_in(some_captions["image_id"], some_images["image_id"])
            some_captions = some_captions.filter(kept)
        images.append(some_images)
        captions.append(some_captions)
        report.shards[path.as_posix()] = {
            "images": len(some_images),
            "captions": len(some_captions),
        }
        count += len(some_images)
        for kind, names in rows.problems.items():
            problems[kind] += names
        if progress is not None:
            progress("reading", len(images), len(shards), "shards")
        if count == limit:
            break
    report.counts["shards"] = len(images)
    report.notes += _sizes(report.shards)
    if source.limit is not None and count < limit:
        report.notes.append(f"warning: limit is {limit:,}, but there are fewer images")
    for kind, names in sorted(problems.items()):
        record = report.warn if kind == "incomplete_shards" else report.note
        record(kind, names)
    write_captioned(
        folder,
        pa.concat_tables(images),
        pa.concat_tables(captions),
        report,
        where=str(source.images),
        strict=source.strict,
    )


def _sizes(shards: dict[str, dict[str, int]]) -> Iterator[str]:
    """How many files there are and what each holds, so that a missing one is noticed."""
    names = list(shards)
    if len(names) <= MOST_SHOWN:
        for name, counts in shards.items():
            yield f"{name}: {counts['images']:,} images, {counts['captions']:,} captions"
        return
    sizes = [counts["images"] for counts in shards.values()]
    yield (
        f"{len(names):,} files, {names[0]} to {names[-1]}: {min(sizes):,} to {max(sizes):,} images "
        f"each, median {statistics.median(sizes):,.0f}"
    )


def find_shards(root: Path, pattern: str) -> list[Path]:
    """The files below ``root`` that ``pattern`` names, sorted, relative to it.

    Raises:
        DatasetError: no such folder, no file matches, or a number of a range is missing.
    """
    if not root.is_dir():
        raise DatasetError(f"{root}: no such folder of shards; check the path")
    shards: set[Path] = set()
    for each in _expanded(pattern):
        matches = [path.relative_to(root) for path in root.glob(each) if path.is_file()]
        if not matches:
            of = "" if each == pattern else f" (of {pattern})"
            there = sorted(path.name for path in root.iterdir())[:3]
            raise DatasetError(
                f"{root}: no shard matches {each!r}{of}; check `shards` and the folder, which "
                f"contains {', '.join(map(ascii, there)) or 'nothing'}"
            )
        shards.update(matches)
    return sorted(shards)


def _expanded(pattern: str) -> list[str]:
    """``{00..02}.tar`` → 00.tar, 01.tar, 02.tar; WebDataset's notation."""
    match = _RANGE.search(pattern)
    if match is None:
        return [pattern]
    first, last = int(match[1]), int(match[2])
    if not first <= last < first + _MOST_SHARDS:
        raise DatasetError(f"shards: found {match[0]}, expected a range that counts up")
    before, after, width = pattern[: match.start()], pattern[match.end() :], len(match[1])
    numbers = range(first, last + 1)
    return [each for n in numbers for each in _expanded(f"{before}{n:0{width}}{after}")]


def _read_all(source: WebDatasetSource, shards: list[tuple[Path, str]]) -> Iterator[Rows]:
    """Every shard in order, a few at a time: a `limit` stops soon after it is reached."""
    workers = min(8, 2 * (os.cpu_count() or 1))
    reader = _caption_reader(source.caption_field)
    waiting = iter(shards)
    with any_pixel_count(), ThreadPoolExecutor(workers) as pool:
        while some := list(islice(waiting, 2 * workers)):
            yield from pool.map(lambda each: _read_shard(source.images, *each, reader=reader), some)


@dataclass
class _Sample:
    image: Member | None = None
    text: Member | None = None


def _read_shard(root: Path, path: Path, split: str, reader: _CaptionReader) -> Rows:
    rows = Rows()
    samples: dict[str, _Sample] = {}
    try:
        file = (root / path).open("rb")
    except OSError as error:
        raise DatasetError(f"{root / path}: cannot be read ({error.strerror})") from error
    with file:
        seen: set[str] = set()
        for member in members(file, str(path), rows):
            if member.name in seen:
                rows.problem("members_with_a_name_used_before", f"{path}/{member.name}")
                continue
            seen.add(member.name)
            if _sort(member, samples, reader.suffix):
                rows.problem("images_whose_key_has_another", f"{path}/{member.name}")
        for sample in samples.values():
            _add(sample, file, path, rows, reader, split)
    if not any(sample.image for sample in samples.values()):
        rows.problem("shards_without_images", str(path))
    return rows


def _sort(member: Member, samples: dict[str, _Sample], suffix: str) -> bool:
    """Put a member into its sample if it is an image or the caption's file.

    Returns:
        Whether it is a second image of its sample.
    """
    folder, _, name = member.name.rpartition("/")
    stem, _, extension = name.partition(".")
    extension = f".{extension.lower()}"
    if extension != suffix and extension not in SUFFIXES:
        return False
    sample = samples.setdefault(f"{folder}/{stem}", _Sample())
    if extension == suffix:
        sample.text = sample.text or member
    elif sample.image is not None:
        return True
    else:
        sample.image = member
    return False


def _add(
    sample: _Sample, file: IO[bytes], path: Path, rows: Rows, reader: _CaptionReader, split: str
) -> None:
    image, text = sample.image, sample.text
    if image is None:
        assert text is not None
        rows.problem("captions_without_image", f"{path}/{text.name}")
        return
    image_id = f"{path}/{image.name}"
    if image.length > _MOST_IMAGE:
        rows.problem("images_above_1_gib", image_id)
        return
    rows.add_image(image_id, Place(path, image.offset, image.length), _bytes_of(image, file), split)
    if text is None:
        return
    try:
        if text.length > _MOST_TEXT:
            raise DatasetError(f"{text.length:,} bytes, expected at most {_MOST_TEXT:,}")
        texts = reader.read(_bytes_of(text, file))
    except DatasetError as error:
        rows.problem("unusable_captions", f"{path}/{text.name}: {error}")
        return
    for number, each in enumerate(texts):
        rows.add_caption(image_id, number, each, split)


def _bytes_of(member: Member, file: IO[bytes]) -> bytes:
    return os.pread(file.fileno(), member.length, member.offset)


class _CaptionReader(NamedTuple):
    """Reads the captions of KEY``suffix``; a DatasetError does not name the member."""

    suffix: str
    read: Callable[[bytes], list[str]]


def _caption_reader(field: str | None) -> _CaptionReader:
    """For KEY.txt, or for a field of KEY.json."""
    if field is None:
        return _CaptionReader(".txt", _text)
    caption = Annotated[str | list[str] | None, Field(alias=field)]
    schema = create_model("Sample", caption=(caption, ...))

    def read(data: bytes) -> list[str]:
        try:
            texts = schema.model_validate_json(data).model_dump()["caption"]
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"][:1]))
            raise DatasetError(f"{where}: {first['msg']}" if where else first["msg"]) from None
        return [texts] if isinstance(texts, str) else texts or []

    return _CaptionReader(".json", read)


def _text(data: bytes) -> list[str]:
    try:
        return [data.decode("utf-8-sig")]
    except UnicodeDecodeError as error:
        raise DatasetError(f"byte {error.start} is not UTF-8") from None
