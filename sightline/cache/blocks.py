"""Finished rows of an unpublished run, one durable file per block."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors.numpy import save

from sightline.cache.failures import Failure
from sightline.cache.keys import KEY_BYTES, Keys
from sightline.files import fsync_folder, remove_leftovers, write_bytes

FOLDER = "blocks"
_NAME = re.compile(r"block-([0-9a-f]{32})\.safetensors")
_FORMAT = "sightline.block/2"
_DTYPES = {"U8": "u1", "F16": "<f2", "F32": "<f4"}


@dataclass(frozen=True)
class Block:
    """Finished rows in one file.

    Attributes:
        path: path of the file.
        keys: uint8 [n, 32] of the computed rows.
        failed: key → code, path and reason of failed rows.
        computed: device, library versions and sizes used to compute them.
        places: name → dtype, shape and offset in bytes of each tensor.
    """

    path: Path
    keys: Keys
    failed: dict[bytes, Failure]
    computed: dict[str, Any]
    places: dict[str, tuple[np.dtype, tuple[int, ...], int]]

    def tensor(self, name: str) -> NDArray:
        """One tensor, memory-mapped."""
        dtype, shape, offset = self.places[name]
        return np.memmap(self.path, dtype=dtype, mode="r", offset=offset, shape=shape)


class FinishedBlocks:
    """The blocks in a run folder: safetensors files named by the BLAKE3 of their bytes.

    Opening it loads every block with this fingerprint, regardless of its plan.

    Args:
        run_folder: parent of the block folder.
        fingerprint: fingerprint of the rows.
        abandoned: tokens of killed processes, whose unfinished files are removed.
        alone: no other process writes here, so unusable files are removed: those with a different
            fingerprint, and damaged ones.
        looks: only read what there is; nothing is made or removed.

    Attributes:
        blocks: sorted by file name, then in the order added or found.
        damaged: names of damaged files.
    """

    def __init__(
        self,
        run_folder: Path,
        fingerprint: str,
        abandoned: tuple[str, ...] = (),
        *,
        alone: bool = True,
        looks: bool = False,
    ) -> None:
        self._folder = run_folder / FOLDER
        self._fingerprint = fingerprint
        if not looks:
            self._folder.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self._folder, abandoned)
        self.blocks: list[Block] = []
        self.damaged: list[str] = []
        self._seen: set[str] = set()
        for path in self._new() if not looks or self._folder.is_dir() else ():
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                if looks:  # the run beside has published
                    continue
                raise
            whole = f"block-{blake3(data).hexdigest()[:32]}.safetensors" == path.name
            if not whole:
                self.damaged.append(path.name)
            elif self._take(path):
                continue
            if alone and not looks:
                path.unlink()

    def append(
        self,
        keys: Keys,
        tensors: Mapping[str, NDArray],
        failed: dict[bytes, Failure],
        computed: Mapping[str, Any],
    ) -> None:
        """Write one block durably; it is complete once this returns.

        Args:
            keys: uint8 [n, 32] of the computed rows.
            tensors: the results, little-endian.
            failed: key → code, path and reason of failed rows.
            computed: how the rows were computed, as in `Block`.

        Raises:
            OSError: the disk is full or failing; earlier blocks remain.
        """
        about = {
            "format": _FORMAT,
            "fingerprint": self._fingerprint,
            "failed": {key.hex(): failed[key] for key in sorted(failed)},
            "computed": dict(computed),
        }
        every = {"keys": np.ascontiguousarray(keys), **tensors}
        data = save(every, {"sightline": json.dumps(about)})
        path = self._folder / f"block-{blake3(data).hexdigest()[:32]}.safetensors"
        write_bytes(path, data)
        self._take(path)

    def refresh(self) -> None:
        """Load blocks that other workers have finished in the meantime."""
        for path in self._new():
            self._take(path)

    def clear(self) -> None:
        """Remove every block: published or unusable."""
        for path in self._folder.iterdir():
            if _NAME.fullmatch(path.name):
                path.unlink()
        fsync_folder(self._folder)
        self.leave()
        self.blocks = []

    def leave(self) -> None:
        """Remove the folder if it is empty."""
        with suppress(OSError):
            self._folder.rmdir()

    def _new(self) -> Iterator[Path]:
        for path in sorted(self._folder.iterdir()):
            if path.name not in self._seen and _NAME.fullmatch(path.name):
                self._seen.add(path.name)
                yield path

    def _take(self, path: Path) -> bool:
        """Whether the file holds a block with this fingerprint; if so, record it."""
        try:
            block = _read(path, self._fingerprint)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            block = None  # truncated, missing, or not one of our files
        self._seen.add(path.name)
        if block is not None:
            self.blocks.append(block)
        return block is not None


def rows_in_blocks(run_folder: Path) -> int:
    """How many rows are in finished blocks, failed ones included."""
    try:
        paths = [path for path in (run_folder / FOLDER).iterdir() if _NAME.fullmatch(path.name)]
    except OSError:
        return 0
    return sum(map(_rows_in, paths))


@cache
def _rows_in(path: Path) -> int:
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        failed = json.loads(header["__metadata__"]["sightline"])["failed"]
        return header["keys"]["shape"][0] + len(failed)
    except (OSError, ValueError, KeyError):
        return 0


def _read(path: Path, fingerprint: str) -> Block | None:
    """The parsed file header, if the file has this fingerprint.

    A safetensors file starts with the header length as a little-endian u64, followed by the
    header as JSON and the tensors.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > path.stat().st_size:
            raise ValueError("truncated")
        header = json.loads(file.read(size))
        about = json.loads(header.pop("__metadata__")["sightline"])
        if about["format"] != _FORMAT or about["fingerprint"] != fingerprint:
            return None
        places = {
            name: (
                np.dtype(_DTYPES[each["dtype"]]),
                tuple(each["shape"]),
                8 + size + each["data_offsets"][0],
            )
            for name, each in header.items()
        }
        _, (rows, _), start = places["keys"]
        file.seek(start)
        keys = np.frombuffer(file.read(rows * KEY_BYTES), np.uint8).reshape(rows, KEY_BYTES)
    failed = {bytes.fromhex(key): each for key, each in about["failed"].items()}
    return Block(path, keys, failed, about["computed"], places)
