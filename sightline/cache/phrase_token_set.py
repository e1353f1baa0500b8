"""Phrase tokens: token spans of the phrases of a caption, for one student."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sightline.cache.errors import CacheError
from sightline.cache.keys import Keys, KeyTable, as_keys, key_of_bytes, sort_order
from sightline.cache.manifest import PHRASE_TOKENS, key_array, key_column
from sightline.cache.ranges import ranges
from sightline.cache.tables import read_single, write_single


@dataclass(frozen=True)
class PhraseTokenHeader:
    """Settings that phrase tokens were made with.

    Attributes:
        student: name or folder name of the student model.
        tokenizer_sha256: digest of the tokenizer's serialised form, as in its token set.
        max_length: longest row of the token set, special tokens included.
        phrases: number of input phrases.
        dropped: reason → number of phrases without a row here.
    """

    student: str
    tokenizer_sha256: str
    max_length: int
    phrases: int
    dropped: dict[str, int] = field(default_factory=dict)


_AGAIN = "rerun `sightline phrase-tokens`"


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


class PhraseTokens:
    """Token spans of phrases and the objects they name, looked up by image and caption."""

    def __init__(
        self,
        path: Path,
        header: PhraseTokenHeader,
        pairs: Keys,
        first: NDArray[np.int64],
        rows: RaggedPhrases,
    ) -> None:
        self.path = path
        self.header = header
        self._table = KeyTable(pairs)
        self._first = first
        self._rows = rows

    @classmethod
    def open(cls, path: Path | str) -> PhraseTokens:
        """Open the phrase tokens in folder ``path``.

        Raises:
            CacheError: they are missing, damaged, or not phrase tokens.
        """
        file, table, header = read_single(Path(path), "phrase-tokens", PhraseTokenHeader)
        keys = key_column(table.column("pair_key"))
        starts, ends = (
            table.column(name).to_numpy().astype(np.int32) for name in ("token_start", "token_end")
        )
        sound = (starts >= 0) & (ends > starts) & (ends <= header.max_length)
        if not sound.all():
            row = int(np.flatnonzero(~sound)[0])
            raise CacheError(
                f"{file}: row {row} has tokens {starts[row]} to {ends[row]} of at most "
                f"{header.max_length}; {_AGAIN}"
            )
        changes = np.ones(len(keys), dtype=bool)
        changes[1:] = (keys[1:] != keys[:-1]).any(axis=1)
        first = np.append(np.flatnonzero(changes), len(keys)).astype(np.int64)
        pairs = keys[first[:-1]]
        if len(pairs) > 1 and (np.diff(sort_order(pairs)) != 1).any():
            raise CacheError(f"{file}: rows are not sorted; {_AGAIN}")
        cutouts = key_column(table.column("cutout_key"))
        return cls(file, header, pairs, first, RaggedPhrases(first, starts, ends, cutouts))

    def __len__(self) -> int:
        """Number of phrases."""
        return len(self._rows.starts)

    def of_pairs(self, image_keys: Keys, caption_keys: Keys) -> RaggedPhrases:
        """The phrases of pairs (image_keys[i], caption_keys[i]); a pair may have none.

        Args:
            image_keys, caption_keys: uint8 [n, 32].
        """
        found = self._table.find(pair_keys(image_keys, caption_keys))
        known = found >= 0
        begin = np.where(known, self._first[np.maximum(found, 0)], 0) if len(self) else found * 0
        counts = np.where(known, self._first[found + 1] - begin, 0) if len(self) else found * 0
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        index = ranges(begin, counts)
        rows = self._rows
        return RaggedPhrases(offsets, rows.starts[index], rows.ends[index], rows.cutouts[index])


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
    columns = {
        "pair_key": key_array(pairs[order]),
        "token_start": pa.array(np.asarray(starts, dtype=np.int32)[order]),
        "token_end": pa.array(np.asarray(ends, dtype=np.int32)[order]),
        "cutout_key": key_array(cutouts[order]),
    }
    table = pa.table(columns, schema=PHRASE_TOKENS)
    write_single(folder, "phrase-tokens", header, table, {"phrases": len(order)})
