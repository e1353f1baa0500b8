"""Photographs that the features of others describe."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Six photographs, one of them in a folder and one a copy of another."""
    folder = tmp_path / "photos"
    (folder / "more").mkdir(parents=True)
    for i in range(5):
        Image.new("RGB", (8, 8), (40 * i, 10, 10)).save(folder / f"{i}.png")
    shutil.copy(folder / "1.png", folder / "more/copy.png")
    return folder
