"""Numbers in sentences."""

from __future__ import annotations

from rich.filesize import decimal


def counted(count: int, noun: str) -> str:
    """``1 file``, ``1,240 files``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def in_bytes(count: float) -> str:
    """A number of bytes, such as ``1.2 GB``."""
    return decimal(round(count))
