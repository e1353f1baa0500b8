"""The images of a data set in tar files, for a manifest with places."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from sightline.cache import IMAGES, read_manifest, write_manifest

SHARDS = 2


def archive(manifest: Path, root: Path, folder: Path) -> None:
    """Pack the files of ``manifest`` into uncompressed tar files below ``folder / "images"``.

    ``folder / "images.parquet"`` becomes the manifest of the same images in there.
    """
    rows: list[dict[str, Any]] = read_manifest(manifest, IMAGES).to_pylist()
    shards = folder / "images" / "shards"
    shards.mkdir(parents=True)
    for number in range(SHARDS):
        name = f"{number:05d}.tar"
        some = rows[number::SHARDS]
        with tarfile.open(shards / name, "w") as tar:
            for row in some:
                tar.add(root / row["path"], arcname=row["path"])
        with tarfile.open(shards / name) as tar:
            for row in some:
                member = tar.getmember(row["path"])
                row |= {"path": f"shards/{name}", "offset": member.offset_data}
                row |= {"length": member.size}
    write_rows(folder, rows)


def write_rows(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write the images manifest of ``folder``."""
    write_manifest(folder / "images.parquet", pa.Table.from_pylist(rows, schema=IMAGES), IMAGES)
