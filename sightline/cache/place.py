"""Where an image's bytes are: a whole file, or a range in an archive that stays packed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from sightline.cache.errors import CacheError


class Place(NamedTuple):
    """Where an image's bytes are; shown in messages as `shard.tar[1024:+500]`.

    Attributes:
        path: the file.
        offset: start of the image in it, in bytes; None: the file is the image.
        length: its length in bytes; None if ``offset`` is None.
    """

    path: Path
    offset: int | None = None
    length: int | None = None

    def below(self, root: Path) -> Place:
        """This place, with its path resolved against ``root``."""
        return self._replace(path=root / self.path)

    def __str__(self) -> str:
        if self.offset is None:
            return str(self.path)
        return f"{self.path}[{self.offset}:+{self.length}]"


def places_of(manifest: Path, images: pa.Table) -> list[Place]:
    """The place of each image, relative to the image folder, as in the manifest.

    Does not check that the bytes exist; reading them does.

    Args:
        manifest: the file that ``images`` was read from, for messages.
        images: table of the schema `sightline.cache.manifest.IMAGES`.

    Raises:
        CacheError: a row has an offset without a length, or the other way round.
    """
    columns = (images[name].to_pylist() for name in ("image_id", *Place._fields))
    places: list[Place] = []
    for row, (image_id, path, offset, length) in enumerate(zip(*columns, strict=True)):
        if (offset is None) != (length is None):
            raise CacheError(
                f"{manifest}: row {row}: image {image_id!r} has offset {_shown(offset)} and "
                f"length {_shown(length)}, expected two numbers, or both null if the file is the "
                "image; recreate the file"
            )
        places.append(Place(Path(path), offset, length))
    return places


def whole_files(count: int) -> dict[str, pa.Array]:
    """The columns ``offset`` and ``length`` for ``count`` images in separate files."""
    return {name: pa.nulls(count, pa.int64()) for name in ("offset", "length")}


def _shown(number: int | None) -> str:
    return "null" if number is None else str(number)
