"""Phrase tokens: token spans of phrases and the objects that they name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass as checked_dataclass

from sightline.cache.keys import Keys, as_keys, key_of_bytes, sort_order
from sightline.cache.manifest import key_array, key_column
from sightline.cache.record import SetRecord, TableSpec
from sightline.cache.remote_sets import local_set
from sightline.cache.rows import Rows
from sightline.cache.table_sets import (
    EXACTLY,
    described,
    header_of,
    int32_array,
    lists_of,
    ranges,
    write_rows,
)
from sightline.cache.tables import PHRASE_TOKENS
from sightline.cache.verify import snapshot, sound_rows
from sightline.errors import CacheError


@checked_dataclass(frozen=True, config=EXACTLY)
class PhraseTokenHeader:
    """Settings that phrase tokens were made with.

    Attributes:
        tokenizer_sha256: digest of the tokenizer's serialised form, as in its token set.
        max_length: longest row of the token set, special tokens included.
        phrases: number of input phrases.
        dropped: reason → number of phrases without a row here.
        prompt: text before every caption.
    """

    tokenizer_sha256: str
    max_length: int
    phrases: int
    dropped: dict[str, int] = field(default_factory=dict)
    prompt: str = ""


@dataclass(frozen=True)
class RaggedPhrases:
    """The phrases of several pairs, one after the other.

    Attributes:
        offsets: int64 [n + 1]; those of pair i are offsets[i] … offsets[i + 1] − 1.
        starts, ends: int32 [m]: the phrase's tokens are starts … ends − 1 of its caption's row in
            the token set, including special tokens.
        cutouts: uint8 [m, 32], keys of the objects.
    """

    offsets: NDArray[np.int64]
    starts: NDArray[np.int32]
    ends: NDArray[np.int32]
    cutouts: Keys


@dataclass(frozen=True, eq=False)
class PhraseTokens:
    """Token spans of phrases and the objects they name, looked up by image and caption."""

    path: Path
    record: SetRecord[TableSpec]
    header: PhraseTokenHeader
    _rows: Rows
    _phrases: RaggedPhrases

    @classmethod
    def open(cls, path: Path | str) -> PhraseTokens:
        """Open the phrase tokens in folder ``path``, or at its URL."""
        path = local_set(path)
        return snapshot(path, lambda record: cls._of(path, record), "phrase-tokens")

    @classmethod
    def _of(cls, path: Path, record: SetRecord[TableSpec]) -> PhraseTokens:
        rows, _ = sound_rows(path, record)
        header = header_of(path, record, PhraseTokenHeader, "sightline tokens --phrases")
        lists, offsets = lists_of(rows, "phrases")
        starts, ends, cutouts = lists.flatten()
        starts, ends = int32_array(starts), int32_array(ends)
        wrong = np.flatnonzero((starts < 0) | (ends <= starts) | (ends > header.max_length))
        if len(wrong):
            raise CacheError(
                f"{path}: phrase {wrong[0]} has tokens {starts[wrong[0]]} to {ends[wrong[0]]} of "
                f"at most {header.max_length}; delete them and rerun `sightline tokens --phrases`"
            )
        phrases = RaggedPhrases(offsets, starts, ends, key_column(cutouts))
        return cls(path, record, header, rows, phrases)

    def __len__(self) -> int:
        """Number of phrases."""
        return len(self._phrases.starts)

    def of_pairs(self, image_keys: Keys, caption_keys: Keys) -> RaggedPhrases:
        """The phrases of pairs (image_keys[i], caption_keys[i]); a pair may have none.

        Args:
            image_keys, caption_keys: uint8 [n, 32].
        """
        pairs, every = self._rows.find(pair_keys(image_keys, caption_keys)), self._phrases
        begin = np.where(pairs >= 0, every.offsets[pairs], 0)
        counts = np.where(pairs >= 0, every.offsets[pairs + 1] - begin, 0)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        index = ranges(begin, counts)
        return RaggedPhrases(offsets, every.starts[index], every.ends[index], every.cutouts[index])


def pair_keys(image_keys: Keys, caption_keys: Keys) -> Keys:
    """Keys of pairs, SHA-256 of image key + caption key: uint8 [n, 32]."""
    both = np.concatenate([image_keys, caption_keys], axis=1)
    return as_keys([key_of_bytes(pair.tobytes()) for pair in both])


def write_phrase_tokens(
    folder: Path,
    header: PhraseTokenHeader,
    pairs: Keys,
    cutouts: Keys,
    starts: Sequence[int],
    ends: Sequence[int],
) -> None:
    """Write phrase tokens; the phrases of a pair keep their order.

    Args:
        pairs: uint8 [m, 32], see `pair_keys`.
        cutouts: uint8 [m, 32].
        starts, ends: [m] token spans.
    """
    order = sort_order(pairs)
    keys = pairs[order]
    first = np.ones(len(keys), dtype=bool)
    first[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    offsets = np.append(np.flatnonzero(first), len(keys))
    spans = [pa.array(np.asarray(column, dtype=np.int32)[order]) for column in (starts, ends)]
    names = ["token_start", "token_end", "cutout_key"]
    phrases = pa.StructArray.from_arrays([*spans, key_array(cutouts[order])], names)
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), phrases)
    spec = TableSpec(kind="phrase-tokens", description=described(header))
    write_rows(folder, spec, keys[first], pa.table([lists], PHRASE_TOKENS))
