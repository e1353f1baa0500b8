"""Token sets: the texts of data sets, tokenised once for a student."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass as checked_dataclass

from sightline.cache.keys import Keys, as_keys, raise_missing
from sightline.cache.record import SetRecord, TableSpec
from sightline.cache.remote_sets import local_set
from sightline.cache.rows import Rows, require_rows
from sightline.cache.table_sets import (
    EXACTLY,
    described,
    header_of,
    int32_array,
    lists_of,
    ranges,
    write_rows,
)
from sightline.cache.tables import TOKENS
from sightline.cache.verify import snapshot, sound_rows
from sightline.errors import CacheError


@checked_dataclass(frozen=True, config=EXACTLY)
class TokenHeader:
    """Settings that a token set was made with.

    Attributes:
        tokenizer_sha256: digest of the tokenizer's serialised form.
        max_length: longest row, special tokens included.
        pad_token_id: id that pads a batch.
        vocabulary_size: number of ids.
        prompt: text before every text.
    """

    tokenizer_sha256: str
    max_length: int
    pad_token_id: int
    vocabulary_size: int
    prompt: str = ""


@dataclass(frozen=True, eq=False)
class TokenSet:
    """Texts of a data set, tokenised once per student, gathered as ragged rows."""

    path: Path
    record: SetRecord[TableSpec]
    header: TokenHeader
    _rows: Rows
    _ids: NDArray[np.int32]
    _offsets: NDArray[np.int64]

    @classmethod
    def open(cls, path: Path | str) -> TokenSet:
        """Open the token set in folder ``path``, or at its URL."""
        path = local_set(path)
        return snapshot(path, lambda record: cls._of(path, record), "tokens")

    @classmethod
    def _of(cls, path: Path, record: SetRecord[TableSpec]) -> TokenSet:
        rows, _ = sound_rows(path, record)
        header = header_of(path, record, TokenHeader, "sightline tokens")
        lists, offsets = lists_of(rows, "input_ids")
        ids = int32_array(lists)
        if len(ids) and (ids.min() < 0 or ids.max() >= header.vocabulary_size):
            raise CacheError(
                f"{path}: token ids {ids.min()} to {ids.max()} are outside the vocabulary of "
                f"{header.vocabulary_size}; delete it and rerun `sightline tokens`"
            )
        return cls(path, record, header, rows, ids, offsets)

    @property
    def keys(self) -> Keys:
        """Keys of the texts, strictly increasing as byte strings: uint8 [n, 32]."""
        return self._rows.keys

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Token count of every row: int32 [len(self)]."""
        return np.diff(self._offsets).astype(np.int32)

    def __len__(self) -> int:
        return len(self._rows)

    def rows(self, keys: Keys | Sequence[bytes]) -> NDArray[np.int64]:
        """Row of each key: int64 [n].

        Raises:
            MissingKeys: some texts were never tokenised; reports how many, with examples.
        """
        keys = as_keys(keys)
        rows = self._rows.find(keys)
        raise_missing(self.path, keys, rows, "run `sightline tokens` over this data set")
        return rows

    def gather(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Concatenated token ids of ``rows``, and their lengths: int32 [sum], int32 [n].

        Raises:
            IndexError: as in `FeatureSet.gather`.
        """
        require_rows(self.path, rows)
        starts = self._offsets[rows]
        lengths = self._offsets[rows + 1] - starts
        return self._ids[ranges(starts, lengths)], lengths.astype(np.int32)


def write_tokens(
    folder: Path, header: TokenHeader, keys: Keys, input_ids: Sequence[Sequence[int]]
) -> int:
    """Write a token set; repeated keys are kept once. Returns the number of distinct texts."""
    spec = TableSpec(kind="tokens", description=described(header))
    return write_rows(folder, spec, keys, pa.table([pa.array(input_ids)], TOKENS))
