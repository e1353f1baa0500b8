"""Token sets: every text of a data set, tokenised once per student."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sightline.cache.errors import CacheError
from sightline.cache.keys import Keys, KeyTable, as_keys, raise_missing, unique_sorted
from sightline.cache.manifest import TOKENS, key_array, key_column
from sightline.cache.ranges import ranges
from sightline.cache.tables import read_single, write_single


@dataclass(frozen=True)
class TokenHeader:
    """Settings that a token set was made with.

    Attributes:
        student: name or folder name of the student model.
        tokenizer_sha256: digest of the tokenizer's serialised form.
        max_length: longest row, special tokens included.
        pad_token_id: id that pads a batch.
        vocabulary_size: number of ids.
        weights: the student's initial weights, so that training, which depends on this set,
            notices new weights under an old name; see `pipeline.tokenize_texts.weights_identity`.
    """

    student: str
    tokenizer_sha256: str
    max_length: int
    pad_token_id: int
    vocabulary_size: int
    weights: str = ""


class TokenSet:
    """Pre-tokenised texts, looked up by content key and gathered as ragged rows."""

    def __init__(
        self, path: Path, header: TokenHeader, keys: Keys, ids: NDArray[np.int32], offsets: NDArray
    ) -> None:
        self.path = path
        self.header = header
        self._table = KeyTable(keys)
        self._ids = ids
        self._offsets = offsets

    @classmethod
    def open(cls, path: Path | str) -> TokenSet:
        """Open the token set in folder ``path``.

        Raises:
            CacheError: it is missing, damaged, or not a token set.
        """
        file, table, header = read_single(Path(path), "tokens", TokenHeader)
        keys = key_column(table.column("key"))
        lists = table.column("input_ids").combine_chunks()
        if isinstance(lists, pa.ChunkedArray):
            lists = lists.chunk(0) if lists.num_chunks else pa.array([], TOKENS.field(1).type)
        if lists.null_count or lists.values.null_count:
            raise CacheError(f"{file}: rows without token ids; rerun `sightline tokens`")
        ids = np.from_dlpack(lists.values).astype(np.int32, copy=False)
        if len(ids) and (ids.min() < 0 or ids.max() >= header.vocabulary_size):
            raise CacheError(
                f"{file}: token ids {ids.min()} to {ids.max()} are outside the vocabulary of "
                f"{header.vocabulary_size}; rerun `sightline tokens`"
            )
        return cls(file, header, keys, ids, np.from_dlpack(lists.offsets).astype(np.int64))

    @property
    def max_length(self) -> int:
        """Longest row, special tokens included."""
        return self.header.max_length

    @property
    def tokenizer_sha256(self) -> str:
        """Digest of the tokenizer that made the ids."""
        return self.header.tokenizer_sha256

    @property
    def pad_token_id(self) -> int:
        """Id that pads a batch."""
        return self.header.pad_token_id

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Token count of every row: int32 [len(self)]."""
        return np.diff(self._offsets).astype(np.int32)

    def __len__(self) -> int:
        return len(self._table.keys)

    def rows(self, keys: Keys | Sequence[bytes]) -> NDArray[np.int64]:
        """Row of each key: int64 [n].

        Raises:
            MissingKeys: some texts were never tokenised; reports how many, with examples.
        """
        keys = as_keys(keys)
        rows = self._table.find(keys)
        raise_missing(self.path, keys, rows, "run `sightline tokens` over this data set")
        return rows

    def gather(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Concatenated token ids of ``rows``, and their lengths: int32 [sum], int32 [n]."""
        starts = self._offsets[rows]
        lengths = self._offsets[rows + 1] - starts
        return self._ids[ranges(starts, lengths)], lengths.astype(np.int32)


def write_tokens(
    folder: Path, header: TokenHeader, keys: Keys, input_ids: Sequence[Sequence[int]]
) -> int:
    """Write a token set; repeated keys are kept once. Returns the number of distinct texts."""
    order = unique_sorted(keys)
    ids = pa.array([input_ids[i] for i in order], TOKENS.field("input_ids").type)
    columns = {"key": key_array(keys[order]), "input_ids": ids}
    write_single(folder, "tokens", header, pa.table(columns, schema=TOKENS), {"texts": len(order)})
    return len(order)
