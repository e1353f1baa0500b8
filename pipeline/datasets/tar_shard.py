"""Uncompressed tar files: where the bytes of each member are, without unpacking anything."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from pipeline.datasets.source import DatasetError

_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class Member(NamedTuple):
    """A plain file in a tar.

    Attributes:
        name: its path in the tar, without a leading ``./``.
        offset: start of its bytes in the tar.
        length: in bytes.
    """

    name: str
    offset: int
    length: int


class TarShard:
    """One uncompressed tar file, read member by member.

    ```python
    with TarShard(path) as shard:
        for member in shard:
            data = shard.read(member)
    print(shard.fault)
    ```

    Attributes:
        fault: why the file was read only in part, once all members have been; else empty.
        odd_names: members left out because their name leads out of the tar, or is not text.
        others: the number of members that are not plain files, folders aside.

    Raises:
        DatasetError: no such file, or not an uncompressed tar.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault = ""
        self.odd_names: list[str] = []
        self.others = 0

    def __enter__(self) -> Self:
        if not self.path.is_file():
            raise DatasetError(f"{self.path}: no such file; check the path")
        self._file = self.path.open("rb")
        self._size = os.fstat(self._file.fileno()).st_size
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def __iter__(self) -> Iterator[Member]:
        if not self._size:
            self.fault = "has 0 bytes"
            return
        try:
            tar = tarfile.open(fileobj=self._file, mode="r:")  # noqa: SIM115
        except (tarfile.TarError, OSError, ValueError) as error:
            raise DatasetError(
                f"{self.path}: not an uncompressed tar file ({error}); check `shards`, and "
                "decompress .tar.gz first: in a compressed one no image has a place of its own"
            ) from None
        last = ""
        try:
            while (member := tar.next()) is not None:
                tar.members.clear()  # pyright: ignore[reportAttributeAccessIssue]
                last = _shown(member.name)
                if not 0 <= member.size <= self._size - member.offset_data:
                    self.fault = f"ends in the middle of {last}"
                    return
                if found := self._plain(member):
                    yield found
        except (tarfile.TarError, OSError, ValueError, MemoryError) as error:
            self.fault = f"cannot be read after {last} ({error})"
            return
        self.fault = self._fault_of_the_end(tar.offset, last)

    def read(self, member: Member) -> bytes:
        """The bytes of a member."""
        return os.pread(self._file.fileno(), member.length, member.offset)

    def _plain(self, member: tarfile.TarInfo) -> Member | None:
        if member.isdir():
            return None
        if not member.isreg() or member.issparse():
            self.others += 1
            return None
        name = _inside(member.name)
        if not name:
            self.odd_names.append(_shown(member.name))
            return None
        return Member(name, member.offset_data, member.size)

    def _fault_of_the_end(self, at: int, last: str) -> str:
        """What is wrong behind the last member: tarfile ends in silence at a cut or damage."""
        after = f"after {last}" if last else "at its start"
        end = os.pread(self._file.fileno(), tarfile.BLOCKSIZE, at)
        if not end:
            return f"has no end {after}: the rest may be missing"
        if any(end):
            return f"cannot be read {after} (damaged header)"
        while block := os.pread(self._file.fileno(), 1 << 20, at):
            if any(block):
                return f"has more bytes behind its end {after}, such as a second tar"
            at += len(block)
        return ""


def _inside(name: str) -> str:
    """The plain form of a name; empty if it leads out of the tar's folder, or is not text."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or _NOT_IN_NAMES.search(name):
        return ""
    return "/".join(parts)


def _shown(name: str) -> str:
    """A member's name, without anything that a terminal would obey."""
    return ascii(name)[1:-1] if not (name.isprintable() and name.isascii()) else name
