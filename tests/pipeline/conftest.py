"""What the tests of the commands work on, made once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from command_line import sightline, unboxed
from small_inputs import extracting, write_clip, write_photos


@pytest.fixture
def says(said: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Runs `sightline WORDS`, which succeeds; its standard output."""

    def run(*words: object) -> str:
        code, out, err = said(*words)
        assert code == 0, err
        return out

    return run


@pytest.fixture
def fails(said: Callable[..., tuple[int, str, str]]) -> Callable[..., str]:
    """Runs `sightline WORDS`, which ends with ``code``; its standard error, without a box."""

    def run(*words: object, code: int = 1) -> str:
        found, out, err = said(*words)
        assert found == code, out + err
        return unboxed(err)

    return run


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photographs, texts, the config of a tiny CLIP, and a set of each."""
    folder = tmp_path_factory.mktemp("made")
    write_photos(folder / "photos", 6)
    write_clip(folder)
    (folder / "texts.txt").write_text("a red bird\na boat on a lake\n\na boat on a lake\nnothing\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for kind in ("image", "text"):
            assert sightline(*extracting(kind, kind)) == 0
    return folder


@pytest.fixture
def world(
    made: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A copy of `made` to modify freely, and the current folder."""
    folder = tmp_path_factory.mktemp("w")  # short, for the sockets of decode processes
    monkeypatch.chdir(shutil.copytree(made, folder, dirs_exist_ok=True))
    return folder


@pytest.fixture
def unchanged(world: Path) -> Callable[[], AbstractContextManager[None]]:
    """A `with` block that writes nothing here, except what a reader notes of files it checked."""

    def files() -> dict[Path, tuple[int, bytes]]:
        return {
            path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in world.rglob("*")
            if path.name not in ("remembered.parquet", "image.run", "tmp")
        }

    @contextmanager
    def block() -> Iterator[None]:
        before = files()
        yield
        assert files() == before

    return block
