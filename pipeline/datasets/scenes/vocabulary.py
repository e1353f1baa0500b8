"""The content of scenes and the words for it: two invented synonyms for every attribute.

No text explains a word, and no text contains two words for one value, so that only images reveal
which words are synonyms.
"""

from __future__ import annotations

from typing import NamedTuple


class Value(NamedTuple):
    """One value of an attribute and the words that mean it."""

    name: str
    words: tuple[str, ...]


ATTRIBUTES: dict[str, tuple[Value, ...]] = {
    "shape": (
        Value("post", ("wug", "blicket")),
        Value("square", ("dax", "tovel")),
        Value("triangle", ("fep", "gorlan")),
        Value("diamond", ("koba", "stimmer")),
        Value("cross", ("modi", "plunket")),
        Value("ring", ("zup", "harnel")),
        Value("star", ("nizz", "crobble")),
        Value("bar", ("pilk", "drenna")),
    ),
    "colour": (
        Value("red", ("vorn", "keshy")),
        Value("green", ("tulm", "brindy")),
        Value("blue", ("tosk", "lavvy")),
        Value("yellow", ("yarro", "fimmel")),
        Value("purple", ("grune", "pashy")),
        Value("orange", ("zelt", "mirrin")),
        Value("cyan", ("hipple", "snavy")),
        Value("white", ("hax", "delvish")),
    ),
    "size": (
        Value("small", ("teep", "minnock")),
        Value("big", ("grolo", "bulvar")),
    ),
    "texture": (
        Value("plain", ("plome", "dunken")),
        Value("striped", ("rilly", "banfed")),
        Value("dotted", ("pobbed", "tinsy")),
    ),
}
"""Attribute → its values."""

WEIGHTS = {"shape": 0.35, "colour": 0.35, "size": 0.15, "texture": 0.15}
"""Weight of each attribute in the similarity of two things; they sum to 1."""

RELATIONS: tuple[Value, ...] = (
    Value("left", ("lebb", "sinder")),
    Value("right", ("rish", "dextra")),
    Value("above", ("above", "over")),
    Value("below", ("below", "beneath")),
)
CONVERSE = {"left": "right", "right": "left", "above": "below", "below": "above"}

RGB: dict[str, tuple[int, int, int]] = {
    "red": (214, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 215, 50),
    "purple": (150, 50, 180),
    "orange": (245, 135, 30),
    "cyan": (60, 205, 215),
    "white": (245, 245, 245),
}

FRAMES: dict[int, tuple[str, ...]] = {
    1: (
        "there is {0}",
        "we see {0} here",
        "{0} stands alone",
        "a picture of {0}",
        "nothing but {0} is shown",
        "{0} on grey ground",
    ),
    2: (
        "{0} is {rel} {1}",
        "there is {0} {rel} {1}",
        "we see {0} which is {rel} {1}",
        "{rel} {1} stands {0}",
        "a picture of {0} {rel} {1}",
        "look , {0} {rel} {1}",
    ),
    3: (
        "{0} is {rel} {1} , with {2}",
        "{2} , and {0} {rel} {1}",
        "there is {0} {rel} {1} and also {2}",
        "we see {2} and {0} which is {rel} {1}",
        "{rel} {1} stands {0} , near {2}",
        "a picture of {0} , {1} and {2} , the first {rel} the second",
    ),
}
"""Sentence frames for one, two and three things; ``{rel}`` is where 0 is relative to 1."""

NOUN_PHRASES = ("a {size} {texture} {colour} {shape}", "a {shape} {colour} {texture} {size}")


def words() -> list[str]:
    """Every word and punctuation mark that a caption may contain, sorted."""
    texts = [word for values in ATTRIBUTES.values() for value in values for word in value.words]
    texts += [word for value in RELATIONS for word in value.words]
    texts += [frame for frames in FRAMES.values() for frame in frames]
    texts += list(NOUN_PHRASES)
    return sorted({word for text in texts for word in text.split() if "{" not in word})
