"""Readers of captions: Flickr's token files, CSV, TSV and JSONL, Karpathy's JSON and COCO's."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, NotRequired

from pydantic import Field, TypeAdapter
from typing_extensions import TypedDict

from pipeline.datasets.source import DatasetError, Source, split_name
from sightline.plugins import expect_count, expect_valid
from sightline.tables.outside_tables import QUOTED, SUFFIXES
from sightline.user_files import (
    Identifier,
    Name,
    Text,
    read_json,
    read_lines,
    short,
)

OPTIONAL = ("split", "caption_id")


class CaptionRow(TypedDict):
    """A caption of a table."""

    image: Text
    caption: Text
    split: NotRequired[Text]
    caption_id: NotRequired[Identifier]


class _Sentence(TypedDict):
    raw: Text


class _KarpathyImage(TypedDict):
    """An image of Karpathy's files (dataset_flickr30k.json, dataset_coco.json)."""

    filename: Name
    split: Name
    sentences: NotRequired[list[_Sentence] | None]


class _Karpathy(TypedDict):
    images: Annotated[list[_KarpathyImage], Field(min_length=1)]


class _CocoImage(TypedDict):
    id: Identifier
    file_name: Name


class _CocoAnnotation(TypedDict):
    id: Identifier
    image_id: Identifier
    caption: Text


class _Coco(TypedDict):
    """A captions file of COCO."""

    images: list[_CocoImage]
    annotations: Annotated[list[_CocoAnnotation], Field(min_length=1)]


_KARPATHY, _COCO = TypeAdapter(_Karpathy), TypeAdapter(_Coco)


@dataclass
class Captions:
    """The rows of a caption file, in file order; a list that the file does not tell is empty.

    Attributes:
        where: the file, for messages.
        images: [n], each image as named in the file.
        texts: [n], verbatim.
        numbers: [n], the number after ``#`` in Flickr's files; else it is that in file order.
        ids: [n], caption ids from the file.
        splits: [n], the split of each row.
        lines: [n], number of each row in the file (its last line, in a CSV) or its own file.
        listed: (name of an image, its split, the file that says so), or None.
        left_out: names of images that are not wanted.
        problems: kind of loss → what it concerns.
        other_splits: number of rows whose split was not chosen.
        remarks: what was read otherwise than it is written, for the user.
        not_read: other columns of the table.
    """

    where: str
    images: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)
    lines: list[int | str] = field(default_factory=list)
    listed: list[tuple[str, str, str]] | None = None
    left_out: set[str] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)
    not_read: list[str] = field(default_factory=list)
    problems: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    other_splits: int = 0


def captions_in(text: str) -> list[str]:
    """The captions of a text that belongs to an image: its lines, but for blank ones.

    One that shows nothing is an empty caption.
    """
    lines = text.removesuffix("\n").split("\n")  # `str.splitlines` splits inside sentences, too
    return [line.removesuffix("\r") for line in lines if line.strip()] or [""]


def check_captions(captions: Captions, source: type[Source]) -> None:
    """Check what a ``source`` of another package says of its captions."""
    expect_valid(captions, Captions, source, "captions")
    for name in ("images", "numbers", "ids", "splits", "lines"):
        if name == "images" or getattr(captions, name):
            of_texts = getattr(captions, name)
            expect_count(of_texts, len(captions.texts), source, f"captions, {name}", "texts")


def read_karpathy(path: Path, restval: str | None = "restval") -> Captions:
    """Karpathy's splits and captions, numbered within their image; an image may have none.

    Args:
        restval: what his split of that name is here; None: its images are left out.
    """
    expected = "Karpathy's dataset_….json: 'images' with filename, split and sentences"
    where, listed = str(path), []
    captions = Captions(where, listed=listed)
    for image in read_json(path, _KARPATHY, expected)["images"]:
        name, split = image["filename"], image["split"]
        split = restval if split == "restval" else split
        if split is None:
            captions.left_out.add(name)
            continue
        if split == "restval":
            raise DatasetError(
                f"{where}: has COCO's split restval, which `pairs` does not know; use the kind "
                "`coco` with this file as `karpathy`, which leaves it out or, with `restval`, "
                "trains on it"
            )
        listed.append((name, split_name(split, where), where))
        for number, sentence in enumerate(image.get("sentences") or []):
            captions.images.append(name)
            captions.texts.append(sentence["raw"])
            captions.numbers.append(str(number))
            captions.splits.append(split)
    return captions


def read_coco(files: Mapping[str, Path]) -> Captions:
    """The captions of one file of COCO per split; a caption's number is its annotation id."""
    listed = []
    captions = Captions(", ".join(map(str, files.values())), listed=listed)
    expected = (
        "COCO's captions_*.json: 'images' with id and file_name, and 'annotations' with id, "
        "image_id and caption"
    )
    for name, path in files.items():
        split = split_name(name, "captions")
        body = read_json(path, _COCO, expected)
        names = {str(image["id"]): image["file_name"] for image in body["images"]}
        if len(names) != len(body["images"]):
            twice, _ = Counter(str(image["id"]) for image in body["images"]).most_common(1)[0]
            raise DatasetError(f"{path}: images: several have the id {twice}; give each its own")
        listed += [(image, split, str(path)) for image in names.values()]
        for annotation in body["annotations"]:
            number, image = annotation["id"], str(annotation["image_id"])
            if image not in names:
                captions.problems["captions_without_image"].append(f"image_id {image}#{number}")
                continue
            captions.images.append(names[image])
            captions.texts.append(annotation["caption"])
            captions.numbers.append(str(number))
            captions.splits.append(split)
    if not captions.texts:
        raise DatasetError(
            f"{captions.where}: no annotation has the image_id of one of the 'images' in its file"
        )
    return captions


def read_token(path: Path) -> Captions:
    """The captions of Flickr's files: ``name.jpg#k<TAB>caption``."""
    captions = Captions(str(path))
    for line, row in enumerate(read_lines(path), start=1):
        if not row.strip():
            continue
        head, tab, text = row.partition("\t")
        image, mark, number = head.rpartition("#")
        if not (tab and mark and image and number.strip()):
            raise DatasetError(
                f"{path}: line {line}: found {short(row)}, expected `name.jpg#k<TAB>caption`; a "
                f"table must end in {', '.join(SUFFIXES)}. Of names and captions in two files make "
                "one: `(printf 'image\\tcaption\\n'; paste NAMES CAPTIONS) > captions.tsv`"
            )
        captions.images.append(image)
        captions.texts.append(text)
        captions.numbers.append(number)
        captions.lines.append(line)
    note_quoted(captions)
    return captions


def note_quoted(captions: Captions) -> None:
    """Note the lines whose texts have marks around them and doubled within, as CSV has them.

    Where all texts have marks around them, those without any within too.
    """
    quoted = [bool(QUOTED.fullmatch(text)) for text in captions.texts]
    texts = zip(quoted, captions.texts, strict=True)
    doubled = [whole and '""' in text[1:-1] for whole, text in texts]
    marks = quoted if len(quoted) > 1 and all(quoted) else doubled
    lines = [f"line {line}" for line, mark in zip(captions.lines, marks, strict=True) if mark]
    captions.problems["captions_that_look_quoted"] += lines
