"""The sentences of a map of an embedding space, and their gold groups if there are any."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sightline.errors import SightlineError
from sightline.outside import read_lines
from train.evaluate.caption_pool import read_pool
from train.evaluate.similarity import squeeze

HEADER = ("group", "sentence")


@dataclass(frozen=True)
class MapSentences:
    """Distinct sentences.

    Attributes:
        name: what they are, for figures.
        texts: n sentences.
        groups: the gold group of each, or None.
        drawn_from: how many there were before some were drawn.
    """

    name: str
    texts: tuple[str, ...]
    groups: tuple[str, ...] | None
    drawn_from: int

    @classmethod
    def draw(
        cls,
        name: str,
        texts: Sequence[str],
        limit: int,
        seed: int,
        groups: Sequence[str] | None = None,
    ) -> MapSentences:
        """At most ``limit`` of the distinct ``texts``, drawn without replacement."""
        group_of = dict(zip(texts, groups or texts, strict=True))
        every = list(group_of)
        rows = np.sort(np.random.default_rng(seed).permutation(len(every))[:limit])
        drawn = tuple(every[row] for row in rows)
        of_drawn = None if groups is None else tuple(group_of[each] for each in drawn)
        return cls(name, drawn, of_drawn, len(every))


def read_map_sentences(path: Path, limit: int, seed: int) -> MapSentences:
    """Captions of a manifest (`.parquet`), or a TSV with the header group<TAB>sentence.

    Raises:
        SightlineError: missing, malformed, empty, or a sentence in two groups.
    """
    if path.suffix == ".parquet":
        return MapSentences.draw(path.name, read_pool(path).texts, limit, seed)
    lines = read_lines(path, f"a TSV with the header {'<TAB>'.join(HEADER)}")
    if not lines or tuple(lines[0].split("\t")) != HEADER:
        raise SightlineError(
            f"{path}, line 1: found {lines[0][:80] if lines else 'nothing'!r}, expected the header "
            f"{'<TAB>'.join(HEADER)}; add it, or give a captions manifest (.parquet)"
        )
    group_of: dict[str, str] = {}
    for number, line in enumerate(lines[1:], start=2):
        columns = line.split("\t")
        if len(columns) != len(HEADER):
            raise SightlineError(
                f"{path}, line {number}: {len(columns)} tab-separated columns, expected "
                f"{len(HEADER)} ({', '.join(HEADER)}); fix or remove the line"
            )
        group, sentence = (squeeze(each) for each in columns)
        if not sentence or not group:
            raise SightlineError(
                f"{path}, line {number}: the group or the sentence is empty; fix or remove the line"
            )
        if group_of.setdefault(sentence, group) != group:
            raise SightlineError(
                f"{path}, line {number}: this sentence is in group {group!r} and, above, in "
                f"{group_of[sentence]!r}; keep one of the lines"
            )
    if not group_of:
        raise SightlineError(f"{path}: a header and no sentences; expected one per line after it")
    return MapSentences.draw(path.name, list(group_of), limit, seed, list(group_of.values()))
