"""The journal: finished rows in fsynced, checksummed blocks, so that a kill loses one at most."""

from __future__ import annotations

import json
import os
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from pipeline.cache.keys import KEY_BYTES, Keys
from sightline.files import write_all

_MAGIC = b"SLJRNL01"
_HEAD = struct.Struct("<8sQ32s")  # magic, payload length, BLAKE3 of the payload


@dataclass(frozen=True)
class Block:
    """Finished rows in the journal file.

    Attributes:
        keys: uint8 [n, 32].
        offset: where the first row's numbers start in the file, in bytes; the others follow.
        failed: key → error code of the rows that could not be computed.
        batch_size: rows that were computed in one call, padding included.
    """

    keys: Keys
    offset: int
    failed: dict[bytes, str]
    batch_size: int


class Journal:
    """An append-only file of blocks that all belong to one fingerprint.

    Opening it reads back every whole block and cuts off a torn or damaged tail. Rows stay in the
    file; `rows` reads them back.
    """

    def __init__(self, path: Path, fingerprint: str, dim: int, dtype: np.dtype) -> None:
        self._path = path
        self._row_bytes = dim * dtype.itemsize
        self._dtype = dtype
        self._head = json.dumps({"fingerprint": fingerprint, "dim": dim}).encode()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.blocks, self._end = self._read()
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._file = os.open(path, flags, 0o666)
        try:
            os.ftruncate(self._file, self._end)
            if not self._end:
                self._write(self._head)
        except BaseException:
            os.close(self._file)
            raise

    def append(
        self, keys: Keys, features: NDArray, failed: dict[bytes, str], batch_size: int
    ) -> None:
        """Write one block durably; it counts once this returns.

        Args:
            keys: uint8 [n, 32].
            features: [n, dim], cast to the storage dtype.
            failed: key → error code.
            batch_size: rows that were computed in one call, padding included.

        Raises:
            OSError: the disk is full or failing; earlier blocks stand.
        """
        about = {
            "rows": len(keys),
            "failed": {key.hex(): code for key, code in failed.items()},
            "batch_size": batch_size,
        }
        text = json.dumps(about).encode()
        lead = struct.pack("<I", len(text)) + text + keys.tobytes()
        offset = self._end + _HEAD.size + len(lead)
        self._write(lead + np.ascontiguousarray(features, dtype=self._dtype).tobytes())
        self.blocks.append(Block(keys, offset, failed, batch_size))

    def offsets(self) -> NDArray[np.int64]:
        """Byte offset of every finished row, in the order of the blocks' keys: int64 [n]."""
        parts = [
            block.offset + self._row_bytes * np.arange(len(block.keys)) for block in self.blocks
        ]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def rows(self, offsets: NDArray[np.int64]) -> NDArray:
        """The rows that start at ``offsets``, as stored: [n, dim]."""
        data = np.memmap(self._path, dtype=np.uint8, mode="r")
        starts = as_strided(
            np.asarray(data),
            (len(data) - self._row_bytes + 1, self._row_bytes),
            (1, 1),
            writeable=False,
        )
        return starts[offsets].view(self._dtype)

    def close(self) -> None:
        os.close(self._file)

    def _write(self, payload: bytes) -> None:
        head = _HEAD.pack(_MAGIC, len(payload), blake3(payload).digest())
        try:
            write_all(self._file, head + payload, self._end)
            os.fsync(self._file)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._file, self._end)  # room on a full disk, for what comes next
            raise
        self._end += len(head) + len(payload)

    def _read(self) -> tuple[list[Block], int]:
        """Blocks of a journal of this fingerprint, and where the last whole one ends."""
        if not self._path.is_file() or self._path.stat().st_size < _HEAD.size:
            return [], 0
        data = np.memmap(self._path, dtype=np.uint8, mode="r")
        blocks: list[Block] = []
        at = end = 0
        while at + _HEAD.size <= len(data):
            magic, length, checksum = _HEAD.unpack(data[at : at + _HEAD.size].tobytes())
            start, at = at + _HEAD.size, at + _HEAD.size + length
            if magic != _MAGIC or at > len(data):
                break
            payload = data[start:at]
            if blake3(payload.data).digest() != checksum:
                break
            if end == 0 and payload.tobytes() != self._head:
                return [], 0  # a journal of another encoder: nothing of it can be used
            if end:
                try:
                    blocks.append(_parse(payload, start))
                except (ValueError, KeyError, TypeError, struct.error):
                    break  # whole, but not of this version
            end = at
        return blocks, end


def _parse(payload: NDArray[np.uint8], start: int) -> Block:
    (length,) = struct.unpack("<I", payload[:4].tobytes())
    about = json.loads(payload[4 : 4 + length].tobytes())
    middle = 4 + length + about["rows"] * KEY_BYTES
    keys = np.array(payload[4 + length : middle]).reshape(-1, KEY_BYTES)
    failed = {bytes.fromhex(key): code for key, code in about["failed"].items()}
    return Block(keys, start + middle, failed, int(about["batch_size"]))
