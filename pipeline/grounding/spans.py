"""Find a phrase in its caption: case and white space folded, whole words, exact spans."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import regex


class SpanFinder:
    """Finds the spans of one caption's phrases; a second mention gets the second occurrence.

    Letters are compared by Unicode case folding and composed form, runs of white space as one
    space. A span starts and ends at a word boundary, never between a letter and its combining
    marks or inside an emoji sequence.

    Args:
        caption: spans count its characters.
        ascii_only: ignore non-ASCII characters in the comparison; for labels stripped of them. A
            span still covers whole words.
    """

    def __init__(self, caption: str, *, ascii_only: bool = False) -> None:
        self.caption = caption
        self._ascii_only = ascii_only
        self._folded = _fold(caption, ascii_only)
        self._resume: dict[str, int] = {}

    def find(self, label: str) -> tuple[int, int] | None:
        """Span (start, end) of the next occurrence of ``label``, or None if there is none left."""
        wanted = _fold(label, self._ascii_only).text.strip(" ")
        if not wanted:
            return None
        start = self._resume.get(wanted, 0)
        while (start := self._folded.text.find(wanted, start)) >= 0:
            end = start + len(wanted)
            if self._folded.separates(start) and self._folded.separates(end):
                self._resume[wanted] = end
                return self._widened(self._folded.starts[start], self._folded.ends[end - 1])
            start += 1
        return None

    def reason(self, label: str) -> str:
        """Why `find` gave no span for ``label``."""
        if _fold(label, self._ascii_only).text.strip(" ") in self._resume:
            return "named more often than the caption has it"
        return "not in the caption"

    def _widened(self, start: int, end: int) -> tuple[int, int]:
        """The span, extended over ignored non-ASCII letters at its ends."""
        if self._ascii_only:
            while start > 0 and _left_out(self.caption[start - 1]):
                start -= 1
            while end < len(self.caption) and _left_out(self.caption[end]):
                end += 1
        return start, end


@dataclass(frozen=True)
class _Folded:
    """A folded text, and for each of its characters the cluster it came from, as a span."""

    text: str
    starts: list[int]
    ends: list[int]

    def separates(self, at: int) -> bool:
        """Whether the position before character ``at`` is between two clusters and two words."""
        if at in (0, len(self.text)):
            return True
        if self.starts[at] == self.starts[at - 1]:
            return False
        return not (_in_word(self.text[at - 1]) and _in_word(self.text[at]))


def _fold(text: str, ascii_only: bool) -> _Folded:
    characters: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    for match in regex.finditer(r"\X", text):  # what a reader sees as one character
        (start, end), cluster = match.span(), match[0]
        if ascii_only:
            cluster = "".join(character for character in cluster if character.isascii())
        folded = " " if cluster.isspace() else _composed(_composed(cluster).casefold())
        if folded == " " and characters and characters[-1] == " ":
            ends[-1] = end
            continue
        characters.extend(folded)
        starts.extend([start] * len(folded))
        ends.extend([end] * len(folded))
    return _Folded("".join(characters), starts, ends)


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_" or unicodedata.category(character)[0] == "M"


def _left_out(character: str) -> bool:
    return not character.isascii() and _in_word(character)
