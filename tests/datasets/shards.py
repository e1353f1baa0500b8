"""Small tars for the tests of WebDataset shards, and the bytes of small images."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

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


def write_tar(path: Path, members: Members, form: int = tarfile.PAX_FORMAT) -> Path:
    """Write an uncompressed tar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in members:
            data = content.encode() if isinstance(content, str) else content
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.mtime = 1_700_000_000.25  # pyright: ignore[reportAttributeAccessIssue]
            tar.addfile(member, io.BytesIO(data))
    return path
