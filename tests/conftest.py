"""Shared by all tests: real data if it is available, and single-threaded, offline libraries."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real photographs, captions and evaluation sets; skips if there is none."""
    if not SHARED_DATA.is_dir():
        pytest.skip("the real data (../shared/data) is not on this machine")
    return SHARED_DATA
