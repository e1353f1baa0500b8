"""Finished rows of a run that is not published yet: a durable file for each block of them."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors.numpy import save

from pipeline.cache.keys import KEY_BYTES, Keys
from sightline.files import fsync_folder, remove_leftovers, write_bytes

FOLDER = "blocks"
_NAME = re.compile(r"block-([0-9a-f]{32})\.safetensors")
_FORMAT = "sightline.block/1"


@dataclass(frozen=True)
class Block:
    """Finished rows in one file.

    Attributes:
        path: of the file.
        keys: uint8 [n, 32].
        offset: where the first row's numbers start in the file, in bytes; the others follow.
        failed: key → error code of the rows that could not be computed.
        batch_size: rows that were computed in one call, padding included.
    """

    path: Path
    keys: Keys
    offset: int
    failed: dict[bytes, str]
    batch_size: int


class FinishedBlocks:
    """The blocks in a run folder, in safetensors files that are named by the BLAKE3 of their bytes.

    Opening it reads back every block of this fingerprint, whichever plan it was made for. Others,
    and files that are not as they were written, are removed: nothing of them can be used.

    Attributes:
        blocks: in the order of their file names, then as they were added.
        damaged: names of files that were not as they were written.
    """

    def __init__(
        self,
        run_folder: Path,
        fingerprint: str,
        dim: int,
        dtype: np.dtype,
        abandoned: tuple[str, ...] = (),
    ) -> None:
        self._folder = run_folder / FOLDER
        self._fingerprint = fingerprint
        self._dim, self._dtype = dim, dtype
        self._folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(self._folder, abandoned)
        self.blocks: list[Block] = []
        self.damaged: list[str] = []
        for path in sorted(self._folder.iterdir()):
            if _NAME.fullmatch(path.name):
                self._read(path)

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
            "format": _FORMAT,
            "fingerprint": self._fingerprint,
            "failed": {key.hex(): code for key, code in sorted(failed.items())},
            "batch_size": batch_size,
        }
        tensors = {
            "keys": np.ascontiguousarray(keys),
            "features": np.ascontiguousarray(features, dtype=self._dtype),
        }
        data = save(tensors, {"sightline": json.dumps(about)})
        path = self._folder / f"block-{blake3(data).hexdigest()[:32]}.safetensors"
        write_bytes(path, data)
        header, start = _header(data)
        offset = start + header["features"]["data_offsets"][0]
        self.blocks.append(Block(path, keys, offset, failed, batch_size))

    def gather(self, numbers: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray:
        """Row ``rows[i]`` of block ``numbers[i]``, as stored: [n, dim]."""
        found = np.empty((len(rows), self._dim), dtype=self._dtype)
        order = np.argsort(numbers, kind="stable")
        edges = np.flatnonzero(np.diff(numbers[order])) + 1
        for here in np.split(order, edges) if len(order) else []:
            block = self.blocks[numbers[here[0]]]
            found[here] = np.memmap(
                block.path,
                dtype=self._dtype,
                mode="r",
                offset=block.offset,
                shape=(len(block.keys), self._dim),
            )[rows[here]]
        return found

    def clear(self) -> None:
        """Remove every block: they are published, or of no use."""
        for path in self._folder.iterdir():
            if _NAME.fullmatch(path.name):
                path.unlink()
        fsync_folder(self._folder)
        with suppress(OSError):  # it holds something else
            self._folder.rmdir()
        self.blocks = []

    def _read(self, path: Path) -> None:
        data = path.read_bytes()
        if f"block-{blake3(data).hexdigest()[:32]}.safetensors" != path.name:
            self.damaged.append(path.name)
            path.unlink()
            return
        header, start = _header(data)
        about = json.loads(header["__metadata__"]["sightline"])
        if about["format"] != _FORMAT or about["fingerprint"] != self._fingerprint:
            path.unlink()
            return
        size = header["keys"]["shape"][0] * KEY_BYTES
        at = start + header["keys"]["data_offsets"][0]
        keys = np.frombuffer(data, np.uint8, size, at).reshape(-1, KEY_BYTES)
        failed = {bytes.fromhex(key): code for key, code in about["failed"].items()}
        offset = start + header["features"]["data_offsets"][0]
        block = Block(path, keys.copy(), offset, failed, int(about["batch_size"]))
        self.blocks.append(block)


def _header(data: bytes) -> tuple[dict, int]:
    """What safetensors says of its tensors, and where their bytes begin.

    A file begins with the length of the header as a little-endian u64, then has it as JSON.
    """
    start = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:start]), start
