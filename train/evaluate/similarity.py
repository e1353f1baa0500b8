"""Graded sentence pairs and their Spearman correlation with an encoder's cosine similarities."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from sightline.errors import SightlineError
from sightline.tables.outside_columns import OutsideTable, Wanted, choose
from sightline.tables.outside_tables import open_table
from sightline.user_files import Name, refusal, short, should_be
from sightline.wording import counted
from train.evaluate.ranking import cosine
from train.evaluate.results import EvaluationSet

Encode = Callable[[Sequence[str]], np.ndarray]
"""Sentences → float [n, d], in their order; `Embedder.encode` is one."""

HEADER = ("score", "sentence1", "sentence2")
EXPECTED = (
    f"a table with the columns {', '.join(HEADER)}: TSV, CSV, JSON lines, JSON, Parquet or Arrow"
)
_OF_SENTEVAL = (
    "Of SentEval's files, give the folder `downstream`, to `sightline evaluate sts` or as a dev set"
)
_ROW = TypeAdapter(tuple[Annotated[str | float, should_be("a number")], Name, Name])

# Cosines of equal vectors differ only by rounding; ranking them would score noise.
_ROUNDING = 1e-12


@dataclass(frozen=True)
class GradedPairs:
    """Pairs of sentences with a gold similarity; `gold` is float64 [n], usually 0 to 5.

    Attributes:
        notes: what was read otherwise than its file says.
    """

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    gold: np.ndarray
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        file: Path,
        rows: Iterable[tuple[int | str, Sequence[Any]]],
        unit: str = "line",
    ) -> GradedPairs:
        """The pairs of a file.

        Args:
            rows: number; gold score and the two sentences, which are split on whitespace and
                joined with single spaces, as SentEval's are.
            unit: what a row is called in errors.

        Raises:
            SightlineError: no pair, or a score that is not a finite number (names the row).
        """
        first, second, gold = [], [], []
        for number, (score, left, right) in rows:
            gold.append(_parse_score(score, file, number, unit))
            first.append(squeeze(left))
            second.append(squeeze(right))
        if not gold:
            raise SightlineError(f"{file}: no pairs; expected one {unit} for each")
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
    """Graded pairs from a table with the columns score, sentence1 and sentence2, among others.

    Raises:
        SightlineError: the file is missing, empty or damaged, a column is not there, or a row has
            the wrong number of columns, no text or a score that is not finite (the row is named).
    """
    file = Path(path)
    table = open_table(file, EXPECTED, HEADER)
    try:
        chosen = choose(table, {name: Wanted(setting=None) for name in HEADER})
    except SightlineError as error:
        raise SightlineError(f"{error}. {_OF_SENTEVAL}") from None
    rows = _rows_of_pairs(table, [chosen[name][0] for name in HEADER])
    pairs = GradedPairs.of(file.stem, file, rows, table.unit)
    return replace(pairs, notes=tuple(table.notes))


def _rows_of_pairs(table: OutsideTable, columns: Sequence[str]) -> Iterator[tuple[int | str, Any]]:
    for number, row in table.read(columns):
        try:
            yield number, _ROW.validate_python(row)
        except ValidationError as error:
            raise refusal(
                table.path,
                error,
                lambda loc, at=f"{table.unit} {number}": f"{at}: {columns[int(loc[0])]}",
                f"; fix or remove the {table.unit}",
            ) from None


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


def _parse_score(text: str | float, file: Path, number: int | str, unit: str) -> float:
    try:
        score = float(text)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise SightlineError(
            f"{file}, {unit} {number}: score {short(text)} is not a number; "
            f"expected one such as 3.5; fix or remove the {unit}"
        )
    return score
