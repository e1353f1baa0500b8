"""Decoders as teachers: last token, instructions, prompts, as in sentence-transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tiny_encoder import make_encoder
from torch.nn.functional import normalize
from transformers import Qwen3Config, Qwen3Model

from pipeline.encoders.config import EncoderConfig
from sightline.errors import SightlineError
from train.embed import Embedder

sentence_transformers = pytest.importorskip("sentence_transformers")

CPU = torch.device("cpu")
QUERY = "a dog sits near the house "
TEXTS = ["a big dog runs", "tree", "the small red square sits under the big blue tree " * 2, ""]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A sentence-transformers folder around a tiny Qwen3, padded on the left."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    place = tmp_path_factory.mktemp("qwen")
    tokenizer = make_encoder()[1]
    tokenizer.padding_side = "left"
    tokenizer.model_max_length = 24
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=64,
            initializer_range=0.3,
        )
        Qwen3Model(config).save_pretrained(place / "bare")
    tokenizer.save_pretrained(place / "bare")
    transformer = Transformer(str(place / "bare"))
    pooling = Pooling(config.hidden_size, pooling_mode="lasttoken")
    whole = SentenceTransformer(modules=[transformer, pooling, Normalize()], device="cpu")
    whole.prompts = {"query": QUERY, "document": ""}
    whole.save(str(place / "whole"))
    return place / "whole"


def teacher(folder: Path, **fields: object):
    values = {"family": "transformers", "model": str(folder), "weights": "pretrained", **fields}
    return EncoderConfig.model_validate(values).build_text(CPU, "fp32")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"prompt_name": "query"}, {"prompt_name": "query"}),
        ({"prompt": "the tree: "}, {"prompt": "the tree: "}),
    ],
    ids=["plain", "named", "instruction"],
)
def test_rows_are_those_of_sentence_transformers(folder, ours, theirs):
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    texts = TEXTS[:3]
    expected = torch.from_numpy(model.encode(texts, **theirs))
    built = teacher(folder, **ours)
    rows = torch.from_numpy(built.encode_all(texts, batch_size=2))
    torch.testing.assert_close(normalize(rows), expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(rows.norm(dim=1), torch.ones(3))  # stored as the encoder gave them
    assert built.preprocessing["pooling"] == "lasttoken"
    prompt = QUERY if "prompt_name" in ours else ours.get("prompt")
    assert built.preprocessing.get("prompt") == prompt


def test_a_row_does_not_depend_on_its_batch(folder):
    built = teacher(folder)
    full = "a big dog " * 5  # 16 tokens: nothing is padded
    alone = built.encode([full] * 3, 32)[0]
    assert torch.equal(built.encode(["tree", full, "a dog"], 32)[1], alone)


def test_a_prompt_is_part_of_the_fingerprint_and_an_unknown_one_is_refused(folder):
    assert "prompt" not in teacher(folder).preprocessing
    with pytest.raises(SightlineError, match="unknown prompt 'qurey'; did you mean 'query'"):
        teacher(folder, prompt_name="qurey")
    with pytest.raises(SightlineError, match="prompt and prompt_name are both given"):
        teacher(folder, prompt_name="query", prompt="x")


def test_an_empty_prompt_replaces_the_one_of_the_folder(folder, tmp_path):
    own = shutil.copytree(folder, tmp_path / "own")
    file = own / "config_sentence_transformers.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"default_prompt_name": "query"}))
    assert teacher(own).preprocessing["prompt"] == QUERY
    assert "prompt" not in teacher(own, prompt="").preprocessing


def test_an_evaluation_says_that_it_does_not_pool_the_last_token(folder):
    with pytest.raises(SightlineError, match="pools the last token"):
        Embedder.load(folder)
