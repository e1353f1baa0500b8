"""A small encoder with random weights and a small SentEval folder, made on the fly."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_senteval import write_senteval
from tiny_encoder import make_encoder


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain Hugging Face folder."""
    folder = tmp_path_factory.mktemp("encoder")
    for part in make_encoder():
        part.save_pretrained(folder)
    return folder


@pytest.fixture
def senteval(tmp_path: Path) -> Path:
    """SentEval's layout with three scored pairs in every subset, and one that is not scored."""
    return write_senteval(tmp_path / "downstream")


@pytest.fixture
def senteval_files(shared_data: Path) -> Path:
    """SentEval's real files; skips if they are not here."""
    folder = shared_data / "senteval" / "downstream"
    if not (folder / "MR").is_dir():
        pytest.skip("SentEval's files are not on this machine")
    return folder
