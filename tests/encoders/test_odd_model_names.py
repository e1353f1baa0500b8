"""A model in a folder is that model, whatever the folder's name means to a library."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import bert_folder, clip_config

from pipeline.encoders.names import named_encoder
from sightline.models.pretrained import Pretrained

TEXTS = ["a red cat runs", "a dog sits"]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A BERT, and a CLIP in open_clip's format whose text tower it is, each with its weights."""
    folder = bert_folder(tmp_path_factory.mktemp("named") / "plain")
    hugging_face = {"hf_model_name": "plain", "hf_tokenizer_name": "plain"}
    options = {"hf_proj_type": "linear", "hf_pooler_type": "mean_pooler", "context_length": 12}
    clip_config(folder, text_cfg={**hugging_face, **options})
    return folder


@pytest.fixture
def named(model, tmp_path, monkeypatch) -> Iterator[str]:
    """Every name, in the working folder, of the folder with the models."""

    def each() -> Iterator[str]:
        for name in ("hf:", "a::b", "a*", "local-dir:x", "bert-base-uncased", "ViT-B-32"):
            shutil.copytree(model, tmp_path / name)
            config = (tmp_path / name / "clip.json").read_text()
            (tmp_path / name / "clip.json").write_text(config.replace('"plain"', f'"{name}"'))
            yield name
            shutil.rmtree(tmp_path / name)

    monkeypatch.chdir(tmp_path)
    return each()


def rows(name: str, role: str, weights: str) -> np.ndarray:
    encoder = named_encoder(name, weights, role).build_text(torch.device("cpu"), "fp32")
    lengths = encoder.lengths(TEXTS)
    return np.stack([encoder.encode([t], n)[0] for t, n in zip(TEXTS, lengths, strict=True)])


def test_transformers(model, named):
    expected = rows(str(model), "teacher", "pretrained")
    for name in named:
        source = Pretrained(name)
        assert source.title == name
        assert len(source.tokenizer()) == 11
        assert (rows(f"./{name}", "teacher", "pretrained") == expected).all(), name


def test_open_clip(named):
    expected: np.ndarray | None = None
    for name in named:
        made = rows(f"{name}/clip.json", "text", "random:0")
        expected = made if expected is None else expected
        assert (made == expected).all(), name
