"""The sets that training and evaluation read: features, tokens, tokens of phrases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import ConfigDict, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass

from sightline.arrow_arrays import number_array
from sightline.cache.file_checks import require_sound
from sightline.cache.index import read_index
from sightline.cache.keys import (
    Keys,
    as_keys,
    key_of_bytes,
    raise_missing,
    sort_order,
    unique_sorted,
)
from sightline.cache.manifest import key_array, key_column
from sightline.cache.publish import commit_rows, write_shards
from sightline.cache.record import (
    FeatureSpec,
    Provenance,
    SetRecord,
    TableKind,
    TableSpec,
    set_output,
)
from sightline.cache.remote_sets import local_set
from sightline.cache.rows import Rows, rows_of_no_file
from sightline.cache.tables import PHRASE_TOKENS, TOKENS
from sightline.cache.verify import snapshot
from sightline.errors import CacheError

H = TypeVar("H")


class FeatureSet:
    """A published feature set, open for reading.

    Rows are numbered 0 … ``len(self) - 1`` in the order of their keys. Reading is safe from several
    threads, after ``fork``, and after pickling: the other process opens the folder itself, and
    refuses other rows, which a run may have published there meanwhile.
    """

    def __init__(
        self, path: Path, record: SetRecord[FeatureSpec], rows: Rows, failed: dict[bytes, str]
    ) -> None:
        self.path = path
        self.record = record
        self.failed = failed
        """Key → error code of failed rows."""
        self._rows = rows
        self.dtype = np.dtype(record.spec.dtype).newbyteorder("<")

    @classmethod
    def open(
        cls, path: Path | str, fingerprint: str | None = None, content_digest: str | None = None
    ) -> FeatureSet:
        """Open the feature set in folder ``path``.

        The first time, every byte is read and checked; what was sound is remembered in the run
        folder until a file changes.

        Args:
            path: folder that holds ``set.json``, or its URL: ``s3://``, ``gs://``, ``https://`` or
                ``hf://datasets/OWNER/NAME@REVISION/…``; see `sightline.cache.remote_sets`.
            fingerprint: reject a set with a different fingerprint.
            content_digest: reject a set with other rows, so that row numbers stay those of a set
                that was opened before.

        Raises:
            CacheError: no such set, a different schema version, a damaged or missing file, an
                invalid layout, or another fingerprint or content than requested.
        """
        path = local_set(path)

        def read(record: SetRecord[FeatureSpec]) -> FeatureSet:
            if fingerprint is not None and record.fingerprint != fingerprint:
                raise CacheError(
                    f"{path}: fingerprint {record.fingerprint[:16]}, expected {fingerprint[:16]}: "
                    f"its rows come from {record.spec.encoder.name} "
                    f"({record.spec.encoder.source}) with different weights, preprocessing or "
                    "precision; rerun its stage"
                )
            if content_digest is not None and record.content_digest != content_digest:
                raise CacheError(
                    f"{path}: holds other rows (content {record.content_digest[:16]}) than when it "
                    f"was opened ({content_digest[:16]}): a run has published since; open it again"
                )
            rows, failed = _sound_rows(path, record)
            for number in range(len(record.shards)):
                rows.shard(number)  # one clear error now, not in the middle of a training
            return cls(path, record, rows, failed)

        return snapshot(path, read, "features")

    @property
    def dim(self) -> int:
        """Length of a row."""
        return self.record.spec.dim

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over everything that decides the value of a row."""
        return self.record.fingerprint

    @property
    def keys(self) -> Keys:
        """Keys of all rows, sorted: uint8 [len(self), 32]."""
        return self._rows.keys

    def __len__(self) -> int:
        return len(self._rows)

    def find(self, keys: Keys | Sequence[bytes]) -> NDArray[np.int64]:
        """Row of each key, or -1 if the set lacks it: int64 [n]."""
        return self._rows.find(as_keys(keys))

    def rows(self, keys: Keys | Sequence[bytes]) -> NDArray[np.int64]:
        """Row of each key: int64 [n].

        Raises:
            MissingKeys: the set lacks some of them; reports how many, examples, and how many of
                them failed during extraction.
        """
        keys = as_keys(keys)
        rows = self._rows.find(keys)
        if (rows < 0).any():
            missing = {keys[i].tobytes() for i in np.flatnonzero(rows < 0)}
            failed = missing & self.failed.keys()
            reason = "rerun its stage over this data set"
            if failed:
                code = self.failed[min(failed)]
                reason += f" ({len(failed)} of them failed before, such as {code})"
            raise_missing(self.path, keys, rows, reason)
        return rows

    def gather(self, rows: NDArray[np.int64]) -> NDArray:
        """Feature rows in the order requested: float16 or float32 [len(rows), dim], a new array.

        Values are the raw encoder output, not normalised.

        Raises:
            IndexError: a row number that the set does not have; -1 says that `find` found none.
        """
        _require_rows(self.path, rows)
        return self._rows.gather(rows)

    def take(self, keys: Keys | Sequence[bytes]) -> NDArray:
        """`rows` and `gather` in one call: [len(keys), dim]."""
        return self.gather(self.rows(keys))

    def __reduce__(self) -> tuple:
        return FeatureSet.open, (self.path, self.fingerprint, self.record.content_digest)

    def __repr__(self) -> str:
        return f"FeatureSet({str(self.path)!r}, {len(self)} × {self.dim} {self.dtype.name})"


def _require_rows(path: Path, rows: NDArray) -> None:
    if len(rows) and rows.min() < 0:  # NumPy would take the last one
        raise IndexError(f"{path}: row {rows.min()}: there is no such row; -1 is a missing key")


def open_tables(
    folder: Path, kind: TableKind
) -> tuple[SetRecord[TableSpec], Rows, dict[bytes, str]]:
    """A sound set that is not of features: its record, its rows, and the codes of failed keys.

    Raises:
        CacheError: missing, damaged, or of a different kind or version.
    """
    return snapshot(folder, lambda record: (record, *_sound_rows(folder, record)), kind)


def read_rows(folder: Path, kind: TableKind) -> tuple[pa.Table, dict[bytes, str]]:
    """All rows of such a set in the order of their keys, and the codes of failed keys."""

    def read(record: SetRecord[TableSpec]) -> tuple[pa.Table, dict[bytes, str]]:
        rows, failed = _sound_rows(folder, record)
        return rows.gather(np.arange(len(rows))), failed

    return snapshot(folder, read, kind)


def _sound_rows(folder: Path, record: SetRecord) -> tuple[Rows, dict[bytes, str]]:
    """The rows of a set whose files are sound, and the codes of failed keys."""
    require_sound(folder, record)
    return read_index(folder, record)


def write_rows(folder: Path, spec: TableSpec, keys: Keys, rows: pa.Table) -> int:
    """Write a set of rows that are all there, and publish it; returns the number of its rows.

    The set holds these rows afterwards, whatever it held: the phrases of a pair may change under
    one description.

    Args:
        keys: uint8 [n, 32]; of equal keys the first counts.
        rows: n rows of the kind (`sightline.cache.tables`).
    """
    first = unique_sorted(keys)
    every = rows_of_no_file(spec, keys[first], rows.take(number_array(first)))
    with set_output(folder, kind=spec.kind) as output:
        shards = write_shards(output, every.keys, every.format.shard_rows, every)
        return commit_rows(output, [shards], {}, Provenance()).rows


_EXACTLY = ConfigDict(extra="forbid", strict=True)


@checked_dataclass(frozen=True, config=_EXACTLY)
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


def described(header: TokenHeader | PhraseTokenHeader) -> dict[str, Any]:
    """``header`` as a set's record has it: a prompt only if there is one."""
    return {name: value for name, value in asdict(header).items() if value or name != "prompt"}


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
        rows, _ = _sound_rows(path, record)
        header = _header(path, record, TokenHeader, "sightline tokens")
        lists, offsets = _lists(rows, "input_ids")
        ids = _int32(lists)
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
        _require_rows(self.path, rows)
        starts = self._offsets[rows]
        lengths = self._offsets[rows + 1] - starts
        return self._ids[ranges(starts, lengths)], lengths.astype(np.int32)


def write_tokens(
    folder: Path, header: TokenHeader, keys: Keys, input_ids: Sequence[Sequence[int]]
) -> int:
    """Write a token set; repeated keys are kept once. Returns the number of distinct texts."""
    spec = TableSpec(kind="tokens", description=described(header))
    return write_rows(folder, spec, keys, pa.table([pa.array(input_ids)], TOKENS))


@checked_dataclass(frozen=True, config=_EXACTLY)
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
        rows, _ = _sound_rows(path, record)
        header = _header(path, record, PhraseTokenHeader, "sightline tokens --phrases")
        lists, offsets = _lists(rows, "phrases")
        starts, ends, cutouts = lists.flatten()
        starts, ends = _int32(starts), _int32(ends)
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


def ranges(begin: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """begin[0] … begin[0] + counts[0] − 1, then those of 1, and so on: int64 [sum of counts]."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) + np.repeat(begin - (ends - counts), counts)


def _header(folder: Path, record: SetRecord[TableSpec], header: type[H], made_by: str) -> H:
    """The settings that a set was made with, from its record."""
    try:
        return header(**record.spec.description)
    except (TypeError, ValidationError) as error:
        raise CacheError(
            f"{folder}: described by a different version; rerun `{made_by}`"
        ) from error


def _int32(values: pa.ChunkedArray) -> NDArray[np.int32]:
    """The values of an Arrow array without nulls; those of one chunk are not copied."""
    chunks = [np.from_dlpack(chunk).astype(np.int32, copy=False) for chunk in values.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate([np.empty(0, np.int32), *chunks])


def _lists(rows: Rows, name: str) -> tuple[Any, NDArray[np.int64]]:
    """The items of all lists in a column, and where each list begins and ends: int64 [n + 1]."""
    column = rows.gather(np.arange(len(rows))).column(name)
    lengths = [np.diff(np.from_dlpack(chunk.offsets)) for chunk in column.chunks]
    items = pa.chunked_array([chunk.flatten() for chunk in column.chunks], column.type.value_type)
    return items, np.concatenate([[0], *lengths]).cumsum(dtype=np.int64)
