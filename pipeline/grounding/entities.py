"""The grounder `annotations` on Flickr30k Entities: phrases and boxes that people marked.

Sentences/<image>.txt has one caption per line, phrases marked as ``[/EN#283585/people A man]``.
Annotations/<image>.xml has objects with the ids they belong to and a box, or ``nobndbox`` or
``scene``. Boxes count pixels from 1 and include the last one. The authors describe the format
(Plummer et al., "Flickr30k Entities", ICCV 2015, and the README of their release).
"""

from __future__ import annotations

import hashlib
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

from pydantic import Field, FiniteFloat, NonNegativeInt, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from pipeline.grounding.protocols import Answer, Caption, Dropped, Grounded, GroundingError
from sightline.cache import key_of_bytes
from sightline.errors import SightlineError
from sightline.user_files import Text, dotted, read_data, read_lines, refusal

if TYPE_CHECKING:
    from torch import Tensor

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


class Entities:
    """Phrases and boxes of the release in a folder; it has no masks."""

    name = "annotations"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def describe(self) -> dict[str, object]:
        digest = hashlib.sha256()
        for pattern in ("Sentences/*.txt", "Annotations/*.xml"):
            for path in sorted(self.folder.glob(pattern)):
                digest.update(f"{path.relative_to(self.folder).as_posix()}\n".encode())
                digest.update(key_of_bytes(read_data(path)))
        return {"family": self.name, "format": "entities", "sha256": digest.hexdigest()}

    def ground(self, images: Sequence[Tensor], captions: Sequence[Caption]) -> list[Answer]:
        """See `Grounder`. Captions are matched to sentences by their text."""
        return [
            self._answer(image, caption) for image, caption in zip(images, captions, strict=True)
        ]

    def _answer(self, image: Tensor, caption: Caption) -> Answer:
        sentences, entities = self._read(image, caption)
        mentioned = {mention.entity for sentence in sentences for mention in sentence.mentions}
        phrases: list[Grounded] = []
        dropped = [
            Dropped("", "unnamed", f"id {entity} has no phrase in any sentence")
            for entity in entities
            if entity not in mentioned
        ]
        for sentence in sentences:
            spans = align(sentence, caption.text)
            if spans is None:
                continue
            for mention, span in zip(sentence.mentions, spans, strict=True):
                entity = entities.get(mention.entity)
                if span is None:
                    words = sentence.text[mention.start : mention.end]
                    dropped.append(Dropped(words, "not_in_caption", "the mark holds no letter"))
                elif entity is not None and entity.boxes:
                    phrases.append(_grounded(caption.text, span, entity))
                else:
                    dropped.append(_without_box(caption.text[slice(*span)], mention, entity))
            if not sentence.mentions:
                dropped.append(Dropped("", "no_phrase", "nothing is marked in this sentence"))
            return phrases, dropped
        dropped.append(Dropped("", "no_phrase", "no sentence of the image reads like this caption"))
        return phrases, dropped

    def _read(self, image: Tensor, caption: Caption) -> tuple[list[Sentence], dict[str, Entity]]:
        """The sentences of an image, and its entities by id."""
        stem = PurePosixPath(caption.image_id).stem
        path = self.folder / "Annotations" / f"{stem}.xml"
        try:
            sentences = read_sentences(self.folder / "Sentences" / f"{stem}.txt")
            annotation = _read_annotation(path)
        except SightlineError as error:
            raise GroundingError(caption.image_key, "bad_annotation", str(error)) from error
        height, width = image.shape[1:]
        size = annotation["size"]
        if (size["width"], size["height"]) != (width, height):
            raise GroundingError(
                caption.image_key,
                "wrong_size",
                f"{path}: boxes for {size['width']} × {size['height']} pixels, the image "
                f"has {width} × {height}",
            )
        entities: dict[str, Entity] = {}
        for element in annotation["object"]:
            for name in element["name"]:
                entity = entities.setdefault(name, Entity())
                entity.scene = entity.scene or element["scene"] == "1"
                if box := element["bndbox"]:
                    corners = box["xmin"] - 1, box["ymin"] - 1, box["xmax"], box["ymax"]
                    entity.boxes.append(corners)
        return sentences, entities


def _grounded(caption: str, span: tuple[int, int], entity: Entity) -> Grounded:
    import torch

    boxes = torch.tensor(entity.boxes, dtype=torch.float32)
    return Grounded(caption[slice(*span)], *span, boxes, torch.ones(len(boxes)))


def _without_box(phrase: str, mention: Mention, entity: Entity | None) -> Dropped:
    if "notvisual" in mention.types:
        return Dropped(phrase, "not_visual")
    if entity is None:
        return Dropped(phrase, "no_box", f"id {mention.entity} is not in the XML")
    if entity.scene:
        return Dropped(phrase, "scene")
    return Dropped(phrase, "no_box", f"id {mention.entity} has none")


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
        start = len(text) + len(phrase) - len(phrase.lstrip())
        types = tuple(mark[2].strip("/").split("/"))
        mentions.append(Mention(mark[1], types, start, start + len(phrase.strip())))
        text += phrase
        at = end + 1
    return Sentence(text + line[at:], tuple(mentions))


def _closing_bracket(line: str, start: int) -> int:
    depth = 1
    for i in range(start, len(line)):
        depth += {"[": 1, "]": -1}.get(line[i], 0)
        if not depth:
            return i
    raise ValueError(f"the markup at character {start} has no closing bracket")


def read_sentences(path: Path) -> list[Sentence]:
    """The sentences of one image.

    Raises:
        SightlineError: as `sightline.user_files.read_lines`, or unclosed markup.
    """
    sentences: list[Sentence] = []
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            try:
                sentences.append(parse_sentence(line))
            except ValueError as error:
                raise SightlineError(f"{path}: line {number}: {error}") from error
    return sentences


def _read_annotation(path: Path) -> _File:
    """The boxes of one image.

    Raises:
        SightlineError: no such file, truncated or otherwise invalid XML, or an element is missing
            or not a finite number.
    """
    try:
        root = ElementTree.fromstring(read_data(path))
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # also a strange encoding
        raise SightlineError(f"{path}: truncated or invalid XML ({error})") from error
    content = {
        "size": _texts(root.find("size")),
        "object": [
            {
                "name": [
                    text for name in element.iter("name") if (text := (name.text or "").strip())
                ],
                "bndbox": _texts(element.find("bndbox")),
                "scene": (element.findtext("scene") or "").strip(),
            }
            for element in root.iter("object")
        ],
    }
    try:
        return _FILE.validate_python(content)
    except ValidationError as error:
        raise refusal(path, error, dotted) from None


def _texts(element: ElementTree.Element | None) -> dict[str, str] | None:
    """The texts of an element's children, by name; the first of each."""
    if element is None:
        return None
    return {child.tag: (child.text or "").strip() for child in reversed(element)}


def align(sentence: Sentence, caption: str) -> list[tuple[int, int] | None] | None:
    """Spans of a sentence's mentions in ``caption``, None for a mark without letters.

    The sentences are tokenised ("a man 's hat ."), while a caption may be raw. They match if their
    characters do, ignoring white space and case, or else their letters and digits; spans are
    mapped character by character.

    Returns:
        None if they do not match.
    """
    for counts in (lambda c: not c.isspace(), str.isalnum):
        ours, marked_text = _characters(caption, counts), _characters(sentence.text, counts)
        if [c for c, _ in ours] != [c for c, _ in marked_text]:
            continue
        spans: list[tuple[int, int] | None] = []
        for mention in sentence.mentions:
            inside = [
                at
                for (_, at), (_, marked) in zip(ours, marked_text, strict=True)
                if mention.start <= marked < mention.end
            ]
            spans.append((inside[0], inside[-1] + 1) if inside else None)
        return spans
    return None


def _characters(text: str, counts: Callable[[str], bool]) -> list[tuple[str, int]]:
    """Folded relevant characters, each with its position in ``text``."""
    return [(f, i) for i, c in enumerate(text) if counts(c) for f in c.casefold()]
