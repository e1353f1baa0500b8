"""Small folders of images and caption files for the tests of the data sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from PIL import Image


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def make_images(tmp_path: Path) -> Callable[..., Path]:
    """Writes distinct images of 3 × 2 pixels and returns their folder."""

    def make(names: Iterable[str], folder: str = "images") -> Path:
        root = tmp_path / folder
        for number, name in enumerate(names):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (3, 2), (37 * number % 256, number // 256, 7)).save(path)
        return root

    return make


@pytest.fixture
def make_file(tmp_path: Path) -> Callable[[str, str | bytes], Path]:
    """Writes a file of text or bytes and returns its path."""

    def make(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
        return path

    return make


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def saved(folder: Path) -> Path:
    from saved_tables import save, table  # which need the library

    return save(folder, train=table(range(5)), validation=table(range(5, 8)))
