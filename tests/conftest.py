"""Shared by all tests: real data if it is available, and single-threaded, offline libraries."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable, Iterator
from ctypes import CDLL
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

if TYPE_CHECKING:
    from chromium import Chromium

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


def pytest_configure() -> None:
    """Let processes that tests start receive Ctrl-C, also if this one runs in the background.

    A shell lets it ignore SIGINT then, which a program that is started inherits.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a GPU where there is none; run the rooms of long tests first.

    Otherwise a worker would get one of them last, when the others have nothing left to do.
    """
    items.sort(key=lambda item: item.path.as_posix(), reverse=True)  # train first, cache last
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs CUDA"))


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """Nothing waits for the disk, since no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="module", autouse=True)
def _memory_given_back() -> Iterator[None]:
    """A worker gives back what the models of a file held; commands in its process keep the heap."""
    yield
    if trim := getattr(CDLL(None), "malloc_trim", None):  # glibc's alone
        trim(0)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real photographs, captions and evaluation sets; skips if there is none."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real data (../shared/data) is not on this machine")
    return SHARED_DATA


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """A real browser; skips if there is none."""
    from chromium import BINARY, Chromium

    if BINARY is None:
        pytest.skip("no Chromium on this machine")
    found = Chromium(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `sightline WORDS`: its exit code, standard output and standard error."""
    from command_line import sightline

    def run(*words: object) -> tuple[int, str, str]:
        code = sightline(*words)
        found = capsys.readouterr()
        assert "Traceback" not in found.err
        return code, found.out, found.err

    return run


@pytest.fixture
def run_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs an example in an empty folder, as `python examples/NAME WORDS` does."""
    folder = Path(__file__).parents[1] / "examples"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(folder)

    def script(name: str, *words: object) -> None:
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(folder / name), run_name="__main__")

    return script
