"""Images from rows of tables, written once into tar files."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

_SUFFIXES = {b"\xff\xd8\xff": ".jpg", b"\x89PNG": ".png", b"GIF8": ".gif", b"RIFF": ".webp"}
_MOST_BYTES = 512 << 20  # of a tar, before its last image


class ImageTars:
    """Writes images into ``00000.tar``, ``00001.tar`` and so on; equal images give equal files.

    Args:
        folder: made for the first image.

    Attributes:
        count, bytes: of all images.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tar: tarfile.TarFile | None = None
        self._number = -1
        self.count = 0
        self.bytes = 0

    def add(self, data: bytes) -> tuple[str, int]:
        """Append an image; returns the name of its tar and its offset there."""
        if self._tar is None or self._tar.offset > _MOST_BYTES:
            self._next()
        assert self._tar is not None
        member = tarfile.TarInfo(f"{self.count:09d}{_suffix(data)}")  # no owner, no clock
        member.size = len(data)
        self._tar.addfile(member, io.BytesIO(data))
        self.count += 1
        self.bytes += len(data)
        blocks = -(-len(data) // tarfile.BLOCKSIZE)
        return self._name, self._tar.offset - blocks * tarfile.BLOCKSIZE

    @property
    def _name(self) -> str:
        return f"{self._number:05d}.tar"

    def _next(self) -> None:
        self.close()
        self._number += 1
        self._folder.mkdir(exist_ok=True)
        self._tar = tarfile.open(self._folder / self._name, "x", format=tarfile.USTAR_FORMAT)  # noqa: SIM115

    def close(self) -> None:
        """Finish the last tar."""
        if self._tar is not None:
            self._tar.close()
            self._tar = None


def _suffix(data: bytes) -> str:
    """For people who look into a tar; Sightline goes by the content."""
    return next((name for head, name in _SUFFIXES.items() if data.startswith(head)), ".bin")
