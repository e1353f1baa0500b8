"""Find a phrase in its caption: case and white space folded, whole words, exact spans."""

from __future__ import annotations

import unicodedata

import regex

_WORD = regex.compile(r"[\p{L}\p{N}\p{M}_]")
"""Of the Unicode that finds clusters (``\\X``), which may be newer than Python's own."""
_UNSPACED = regex.compile(
    r"[\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}\p{scx=Bopomofo}"
    r"\p{scx=Thai}\p{scx=Lao}\p{scx=Khmer}\p{scx=Myanmar}]"
)
"""Of scripts that put no spaces between words."""


class SpanFinder:
    """Finds the spans of one caption's phrases; a second mention gets the second occurrence.

    Letters are compared by Unicode case folding and composed form, runs of white space as one
    space. A span starts and ends at a word boundary, beside any letter of a script without spaces
    (Chinese, Japanese, Thai, …), never between a letter and its combining marks or inside an emoji
    sequence.

    Args:
        caption: spans count its characters.
        ascii_only: ignore non-ASCII characters in the comparison; for labels stripped of them. A
            span still covers whole words.
    """

    def __init__(self, caption: str, *, ascii_only: bool = False) -> None:
        self.caption = caption
        self._ascii_only = ascii_only
        self._folded = _fold(caption, ascii_only)
        self._text = "".join(character for character, _, _ in self._folded)
        self._resume: dict[str, int] = {}

    def find(self, label: str) -> tuple[int, int] | None:
        """Span (start, end) of the next occurrence of ``label``, or None if there is none left."""
        folded = self._wanted(label)
        if not folded:
            return None
        start = self._resume.get(folded, 0)
        while (start := self._text.find(folded, start)) >= 0:
            end = start + len(folded)
            if self._separates(start) and self._separates(end):
                self._resume[folded] = end
                return self._widened(self._folded[start][1], self._folded[end - 1][2])
            start += 1
        return None

    def reason(self, label: str) -> str:
        """Why `find` gave no span for ``label``."""
        if self._wanted(label) in self._resume:
            return "named more often than the caption has it"
        return "not in the caption"

    def _wanted(self, label: str) -> str:
        return "".join(character for character, _, _ in _fold(label, self._ascii_only)).strip(" ")

    def _separates(self, at: int) -> bool:
        """Whether the position before folded character ``at`` is between two clusters and words."""
        if at in (0, len(self._folded)):
            return True
        (before, start, _), (after, next_start, _) = self._folded[at - 1 : at + 1]
        return start != next_start and not _joined(before, after)

    def _widened(self, start: int, end: int) -> tuple[int, int]:
        """The span, extended over ignored non-ASCII letters at its ends."""
        if self._ascii_only:
            while start > 0 and _left_out(self.caption[start - 1]):
                start -= 1
            while end < len(self.caption) and _left_out(self.caption[end]):
                end += 1
        return start, end


def _fold(text: str, ascii_only: bool) -> list[tuple[str, int, int]]:
    """Folded characters, each with the span of the cluster it came from."""
    folded: list[tuple[str, int, int]] = []
    for match in regex.finditer(r"\X", text):  # what a reader sees as one character
        (start, end), cluster = match.span(), match[0]
        if ascii_only:
            cluster = "".join(character for character in cluster if character.isascii())
        if not cluster.isspace():
            characters = _composed(_composed(cluster).casefold())
            folded += [(character, start, end) for character in characters]
        elif folded and folded[-1][0] == " ":
            folded[-1] = " ", folded[-1][1], end
        else:
            folded.append((" ", start, end))
    return folded


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _joined(before: str, after: str) -> bool:
    """Whether two characters may be of one word."""
    if _UNSPACED.match(before) or _UNSPACED.match(after):
        return False
    return _in_word(before) and _in_word(after)


def _in_word(character: str) -> bool:
    return _WORD.match(character) is not None


def _left_out(character: str) -> bool:
    return not character.isascii() and _in_word(character)
