"""Graded sentence pairs and their Spearman correlation with an encoder's cosine similarities."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import SightlineError
from sightline.user_files import read_lines
from sightline.wording import counted
from train.evaluate.cosines import cosine
from train.evaluate.results import EvaluationSet

Encode = Callable[[Sequence[str]], np.ndarray]
"""Sentences → float [n, d], in their order; `Embedder.encode` is one."""

HEADER = ("score", "sentence1", "sentence2")

# Cosines of equal vectors differ only by rounding; ranking them would score noise.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class GradedPairs:
    """Pairs of sentences with a gold similarity; `gold` is float64 [n], usually 0 to 5."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: np.ndarray

    @classmethod
    def of(cls, name: str, file: Path, rows: Iterable[tuple[int, Sequence[str]]]) -> GradedPairs:
        """The pairs of a file.

        Args:
            rows: number of the line; gold score and the two sentences, which are split on
                whitespace and joined with single spaces, as SentEval's are.

        Raises:
            SightlineError: a score that is not a finite number (names ``file`` and the line).
        """
        first, second, gold = [], [], []
        for number, (score, left, right) in rows:
            gold.append(_parse_score(score, file, number))
            first.append(squeeze(left))
            second.append(squeeze(right))
        return cls(name, tuple(first), tuple(second), np.array(gold, dtype=np.float64))

    def __len__(self) -> int:
        return len(self.gold)

    @property
    def distinct(self) -> list[str]:
        """Every sentence once, in the order of its first appearance."""
        return list(dict.fromkeys((*self.first, *self.second)))

    @property
    def sha256(self) -> str:
        """Digest of the gold scores and sentences in their order, without the name."""
        digest = hashlib.sha256(self.gold.astype("<f8").tobytes())
        for side in (self.first, self.second):
            digest.update("\n".join((str(len(side)), *side)).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Correlation:
    """Spearman ×100, or None with the `reason` why it is undefined."""

    spearman: float | None
    reason: str | None = None


def load_pairs(path: str | Path) -> GradedPairs:
    """Graded pairs from a TSV file: UTF-8, header `score<TAB>sentence1<TAB>sentence2`.

    Raises:
        SightlineError: the file is missing, empty or not UTF-8, its header differs, or a line has
            the wrong number of columns or a score that is not finite (the line is named).
    """
    file = Path(path)
    return GradedPairs.of(file.stem, file, _rows_of_pairs(file))


def _rows_of_pairs(file: Path) -> Iterator[tuple[int, list[str]]]:
    """The number and the columns of each line after the header; nothing is quoted."""
    header = "<TAB>".join(HEADER)
    first, *lines = read_lines(file, f"a TSV file with the header {header}") or [""]
    if tuple(first.split("\t")) != HEADER:
        raise SightlineError(
            f"{file}, line 1: found {first[:80] or 'nothing'!r}, expected the header {header}; "
            "add it"
        )
    if not lines:
        raise SightlineError(f"{file}: a header and no pairs; expected one per line after it")
    for number, line in enumerate(lines, start=2):
        columns = line.split("\t")
        if len(columns) != len(HEADER):
            raise SightlineError(
                f"{file}, line {number}: {len(columns)} tab-separated columns, expected "
                f"{len(HEADER)} ({', '.join(HEADER)}); fix or remove the line"
            )
        yield number, columns


def evaluate_pairs(encode: Encode, pairs: GradedPairs) -> Correlation:
    """Spearman ×100 of the cosine similarities with the gold scores of one set."""
    return correlate(pair_cosines(encode, [pairs])[0], pairs.gold)


def pair_cosines(encode: Encode, sets: Sequence[GradedPairs]) -> list[np.ndarray]:
    """Cosine of each pair of each set, float64 [n] each; NaN where an embedding is zero.

    All sentences of all sets are encoded in one call of ``encode``.
    """
    sides = [side for pairs in sets for side in (pairs.first, pairs.second)]
    embeddings = np.asarray(encode([text for side in sides for text in side]))
    parts = np.split(embeddings, np.cumsum([len(side) for side in sides])[:-1])
    return [cosine(*both) for both in zip(parts[::2], parts[1::2], strict=True)]


def set_of_pairs(parts: Sequence[GradedPairs]) -> EvaluationSet:
    """What a score over these ``parts`` was measured on."""
    return EvaluationSet.of(sum(map(len, parts)), *(pairs.sha256 for pairs in parts))


def sentences_of(sets: Sequence[GradedPairs]) -> Iterator[str]:
    """Both sides of every pair of every set."""
    return (text for pairs in sets for side in (pairs.first, pairs.second) for text in side)


def correlate(cosines: np.ndarray, gold: np.ndarray) -> Correlation:
    """Spearman's rank correlation ×100 of two float [n], ties given their mean rank."""
    reason = why_undefined(gold)
    if reason is not None:
        return Correlation(None, reason)
    if broken := int((~np.isfinite(cosines)).sum()):
        reason = f"{broken} of {len(gold)} pairs have an embedding that is zero or not finite"
    elif np.ptp(cosines) <= _ROUNDING:
        reason = "every pair has the same cosine: the embeddings are constant"
    if reason is not None:
        return Correlation(None, reason)
    from scipy.stats import spearmanr  # takes a second

    result: Any = spearmanr(cosines, gold)
    return Correlation(100.0 * float(result.statistic))


def why_undefined(gold: np.ndarray) -> str | None:
    """Why no model has a correlation with these gold scores; None if one may."""
    if len(gold) < 2:
        return f"{counted(len(gold), 'pair')}; a correlation needs two"
    if np.ptp(gold) == 0:
        return f"all {len(gold):,} pairs have the score {gold[0]:g}"
    return None


def squeeze(sentence: str) -> str:
    """Split on whitespace and join with single spaces, as SentEval does."""
    return " ".join(sentence.split())


def _parse_score(text: str, file: Path, number: int) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise SightlineError(
            f"{file}, line {number}: score {text[:40]!r} is not a number; "
            "expected one such as 3.5; fix or remove the line"
        )
    return score
