"""Images packed into tars, and what `prepare` wrote, read as extraction does."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from pipeline.extract.decode import load_image
from pipeline.extract.inputs import inputs_of
from sightline.cache import manifest

Members = Iterable[tuple[str, bytes | str]]


def picture(number: int, form: str = "PNG") -> bytes:
    """An image of 3 × 2 pixels; every number below 65,536 gives different bytes."""
    out = io.BytesIO()
    Image.new("RGB", (3, 2), (number % 256, number // 256, 7)).save(out, form)
    return out.getvalue()


def sample(key: str, number: int, caption: str = "") -> list[tuple[str, bytes | str]]:
    """The members of a sample, as img2dataset writes them."""
    text = caption or f"caption {number}"
    return [(f"{key}.png", picture(number)), (f"{key}.txt", text)]


def samples(*numbers: int) -> list[tuple[str, bytes | str]]:
    return [member for number in numbers for member in sample(str(number), number)]


def write_tar(path: Path, members: Members, form: int = tarfile.PAX_FORMAT) -> Path:
    """Write an uncompressed tar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in members:
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mtime = 1_700_000_000.25
            tar.addfile(member, io.BytesIO(data))
    return path


def rows(out: Path, name: str = "images") -> list[dict[str, Any]]:
    schema = getattr(manifest, name.upper())
    return manifest.read_manifest(out / f"{name}.parquet", schema).to_pylist()


def column(out: Path, field: str, name: str = "images") -> list[Any]:
    return [row[field] for row in rows(out, name)]


def texts(out: Path) -> dict[str, str]:
    """Caption id → text."""
    return {row["caption_id"]: row["text"] for row in rows(out, "captions")}


def load_all(out: Path) -> list[Any]:
    """Every image of the data set, whose bytes must have the digest in the manifest."""
    return [load_image(entry.place, entry.key) for entry in inputs_of("image", out).entries]
