"""Small encoders with random weights and a small SentEval folder, made on the fly."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_senteval import write_senteval
from tiny_encoder import make_encoder


@pytest.fixture(scope="session")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain Hugging Face folder."""
    folder = tmp_path_factory.mktemp("encoder")
    model, tokenizer = make_encoder()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def roberta_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain Hugging Face folder of a RoBERTa, whose positions begin after the padding's."""
    folder = tmp_path_factory.mktemp("roberta")
    model, tokenizer = make_encoder("roberta")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def senteval(tmp_path: Path) -> Path:
    """SentEval's layout with three scored pairs in every subset, and one that is not scored."""
    return write_senteval(tmp_path / "downstream")
