"""The page headers of a Parquet file, which give its expanded size before expansion.

No reader checks the sizes in a file's footer. Readers allocate memory by the header of each page:
`PageHeader` of the Apache Parquet format, in Apache Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow.parquet as pq

_HEADER_BYTES = 64 << 10
_DEPTH = 8
_VARINT_BITS = 63
_UNCOMPRESSED_SIZE, _COMPRESSED_SIZE = 2, 3  # fields of PageHeader …
_DATA, _DICTIONARY, _DATA_V2 = 5, 7, 8
_NUM_VALUES = 1  # … and of the nested header specific to the page type


@dataclass(frozen=True)
class Page:
    """The size in bytes once expanded and the number of values that a page header declares."""

    bytes: int
    values: int


def pages(file: BinaryIO, chunk: pq.ColumnChunkMetaData) -> Iterator[Page]:
    """Every page of a column chunk.

    Raises:
        ValueError: the headers are not valid Parquet, or point outside the chunk.
    """
    if chunk.num_values < 1:
        return  # never read
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < at:
        at = chunk.dictionary_page_offset
    end = at + chunk.total_compressed_size
    while at < end:
        file.seek(at)
        compact = _Compact(file.read(min(_HEADER_BYTES, end - at)))
        header = compact.struct()
        size, stored = header.get(_UNCOMPRESSED_SIZE), header.get(_COMPRESSED_SIZE)
        told = [header[name] for name in (_DATA, _DICTIONARY, _DATA_V2) if name in header]
        values = told[0].get(_NUM_VALUES) if len(told) == 1 else None
        match size, stored, values:
            case int(), int(), int() if min(size, stored, values) >= 0:
                yield Page(size, values)
            case _:
                raise ValueError(f"the header of the page at byte {at:,} is damaged")
        at += compact.at + stored
    if at != end:
        raise ValueError("a page ends outside its column")


class _Compact:
    """Reads structs in Thrift's compact protocol from ``data``."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Field number → value; values other than numbers and structs become None."""
        if depth > _DEPTH:
            raise ValueError("a page header is nested too deeply")
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._zigzag()
            found[number] = self._value(head & 15, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        match kind:
            case 1 | 2:  # true, false
                return kind == 1
            case 3:  # a byte
                return self._byte()
            case 4 | 5 | 6:  # integers
                return self._zigzag()
            case 7:  # a double
                return self._skip(8)
            case 8:  # bytes
                return self._skip(self._varint())
            case 12:
                return self.struct(depth + 1)
        raise ValueError(f"a page header contains a value of kind {kind}")

    def _skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise ValueError("a page header is truncated")

    def _byte(self) -> int:
        self._skip(1)
        return self._data[self.at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > _VARINT_BITS:
                raise ValueError("a page header contains an unterminated number")
        return value | byte << shift

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
