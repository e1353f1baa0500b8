"""Human-drawn boxes: Flickr30k Entities' sentences and annotations.

Sentences/<image>.txt has one caption per line, phrases marked as ``[/EN#283585/people A man]``.
Annotations/<image>.xml has objects with the ids they belong to and a box, or ``nobndbox`` or
``scene``. Boxes count pixels from 1 and include the last one. The authors describe the format
(Plummer et al., "Flickr30k Entities", ICCV 2015, and the README of their release).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field, FiniteFloat, NonNegativeInt, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from sightline.errors import SightlineError
from sightline.outside import Text, dotted, read_data, read_lines, refusal

NOT_VISUAL = "notvisual"
_MARK = re.compile(r"\[/EN#(\d+)((?:/[^/\s\]]+)+)\s")


class _Corners(TypedDict):
    xmin: FiniteFloat
    ymin: FiniteFloat
    xmax: FiniteFloat
    ymax: FiniteFloat


class _Thing(TypedDict):
    name: Annotated[list[Text], Field(min_length=1)]
    bndbox: _Corners | None
    scene: str


class _Size(TypedDict):
    width: NonNegativeInt
    height: NonNegativeInt


class _File(TypedDict):
    """The values of an image's XML."""

    size: _Size
    object: list[_Thing]


_FILE = TypeAdapter(_File)


@dataclass(frozen=True)
class Mention:
    """A marked phrase: the entity it names, its types, and its span in the plain sentence."""

    entity: str
    types: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Sentence:
    """A caption without its markup, and its phrases in order."""

    text: str
    mentions: tuple[Mention, ...]


@dataclass
class Entity:
    """Annotated boxes of one id: x0, y0, x1, y1 in pixels from 0, the end exclusive."""

    boxes: list[tuple[float, float, float, float]] = field(default_factory=list)
    scene: bool = False


@dataclass(frozen=True)
class Annotation:
    """One image's XML: its size in pixels according to the file, and its entities by id."""

    width: int
    height: int
    entities: dict[str, Entity]


def parse_sentence(line: str) -> Sentence:
    """Strip the markup from a sentence.

    A phrase may contain brackets if they are balanced.

    Raises:
        ValueError: unclosed markup.
    """
    text = ""
    mentions: list[Mention] = []
    at = 0
    while (mark := _MARK.search(line, at)) is not None:
        text += line[at : mark.start()]
        end = _closing_bracket(line, mark.end())
        phrase = line[mark.end() : end]
        lead = len(phrase) - len(phrase.lstrip())
        start = len(text) + lead
        types = tuple(mark[2].strip("/").split("/"))
        mentions.append(Mention(mark[1], types, start, start + len(phrase.strip())))
        text += phrase
        at = end + 1
    return Sentence(text + line[at:], tuple(mentions))


def read_sentences(path: Path) -> list[Sentence]:
    """The sentences of one image.

    Raises:
        SightlineError: as `sightline.outside.read_lines`, or unclosed markup.
    """
    sentences: list[Sentence] = []
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            try:
                sentences.append(parse_sentence(line))
            except ValueError as error:
                raise SightlineError(f"{path}: line {number}: {error}") from error
    return sentences


def read_annotation(path: Path) -> Annotation:
    """The boxes of one image.

    Raises:
        SightlineError: no such file, truncated or otherwise invalid XML, or an element is missing
            or not a finite number.
    """
    try:
        root = ElementTree.fromstring(read_data(path))
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # also a strange encoding
        raise SightlineError(f"{path}: truncated or invalid XML ({error})") from error
    size = root.find("size")
    written = {
        "size": None if size is None else _texts(size),
        "object": [
            {
                "name": [
                    text for name in thing.iter("name") if (text := (name.text or "").strip())
                ],
                "bndbox": None if (box := thing.find("bndbox")) is None else _texts(box),
                "scene": (thing.findtext("scene") or "").strip(),
            }
            for thing in root.iter("object")
        ],
    }
    try:
        checked = _FILE.validate_python(written)
    except ValidationError as error:
        raise refusal(path, error, dotted) from None
    entities: dict[str, Entity] = {}
    for thing in checked["object"]:
        for name in thing["name"]:
            entity = entities.setdefault(name, Entity())
            entity.scene = entity.scene or thing["scene"] == "1"
            if box := thing["bndbox"]:
                entity.boxes.append((box["xmin"] - 1, box["ymin"] - 1, box["xmax"], box["ymax"]))
    return Annotation(checked["size"]["width"], checked["size"]["height"], entities)


def _texts(element: ElementTree.Element | None) -> dict[str, str] | None:
    """The texts of an element's children, by name; the first of each."""
    if element is None:
        return None
    return {child.tag: (child.text or "").strip() for child in reversed(element)}


def align(sentence: Sentence, caption: str) -> Callable[[Mention], tuple[int, int] | None] | None:
    """A function from the sentence's mentions to spans of ``caption``, or None.

    The sentences are tokenised ("a man 's hat ."), while a caption may be raw. They match if their
    characters do, ignoring white space and case, or else their letters and digits; spans are
    mapped character by character.
    """
    for counts in (lambda c: not c.isspace(), str.isalnum):
        ours, theirs = _characters(caption, counts), _characters(sentence.text, counts)
        if [c for c, _ in ours] != [c for c, _ in theirs]:
            continue
        pairs = [(there, here) for (_, there), (_, here) in zip(theirs, ours, strict=True)]

        def span(mention: Mention, pairs: list[tuple[int, int]] = pairs) -> tuple[int, int] | None:
            inside = [here for there, here in pairs if mention.start <= there < mention.end]
            return (inside[0], inside[-1] + 1) if inside else None

        return span
    return None


def _characters(text: str, counts: Callable[[str], bool]) -> list[tuple[str, int]]:
    """Folded relevant characters, each with its position in ``text``."""
    return [(f, i) for i, c in enumerate(text) if counts(c) for f in c.casefold()]


def _closing_bracket(line: str, start: int) -> int:
    depth = 1
    for i in range(start, len(line)):
        depth += {"[": 1, "]": -1}.get(line[i], 0)
        if not depth:
            return i
    raise ValueError(f"the markup at character {start} has no closing bracket")
