"""Token sets: filled like any set, so that only new texts are tokenised."""

from __future__ import annotations

import shutil

import pytest
import torch
from set_oracle import expect_sound
from tiny_encoder import make_encoder
from transformers import AutoTokenizer

from pipeline.tokenize_texts import tokenize
from sightline.cache import TokenSet, keys_of_texts
from sightline.models import sentence_transformers_folder

WORDS = ["dog", "red", "tree", "house"]
TEXTS = [
    f"a {first} {second} near the {third}" for first in WORDS for second in WORDS for third in WORDS
]


@pytest.fixture
def student(tmp_path):
    for part in make_encoder():
        part.save_pretrained(tmp_path / "student")
    return tmp_path / "student"


@pytest.fixture
def tokenised(monkeypatch):
    """The texts that were tokenised, in order."""
    seen: list[str] = []
    token_ids = sentence_transformers_folder.token_ids

    def counting(tokenizer, texts, max_length):
        seen.extend(texts)
        return token_ids(tokenizer, texts, max_length)

    monkeypatch.setattr(sentence_transformers_folder, "token_ids", counting)
    return seen


def test_ten_new_texts_tokenise_ten_texts(tmp_path, student, tokenised):
    out, texts = tmp_path / "tokens", [*dict.fromkeys(TEXTS)]
    assert tokenize([*texts[:40], *texts[:5]], student, 16, out) == 40
    assert sorted(tokenised) == sorted(texts[:40])
    tokenised.clear()
    assert tokenize(texts[:50], student, 16, out) == 50
    assert sorted(tokenised) == sorted(texts[40:50])
    tokenised.clear()
    assert tokenize(texts[10:50], student, 16, out) == 40
    assert tokenised == []
    expect_sound(out)
    tokenize(texts[10:50], student, 16, tmp_path / "clean")
    grown, clean = TokenSet.open(out), TokenSet.open(tmp_path / "clean")
    assert grown.record.content_digest == clean.record.content_digest
    keys = keys_of_texts(texts[10:50])
    ids = [tokens.gather(tokens.rows(keys))[0].tolist() for tokens in (grown, clean)]
    assert ids[0] == ids[1]


def test_another_length_tokenises_everything_again(tmp_path, student, tokenised):
    texts = [*dict.fromkeys(TEXTS)][:12]
    tokenize(texts, student, 16, tmp_path / "tokens")
    tokenised.clear()
    tokenize(texts, student, 8, tmp_path / "tokens")
    assert set(tokenised) == set(texts)
    assert TokenSet.open(tmp_path / "tokens").lengths.max() <= 8


def test_a_token_set_is_named_by_the_tokenizer_the_length_and_the_prompt_alone(tmp_path, student):
    def made(source=student, length=16, prompt=None) -> str:
        """Digest of a token set; in a folder of its own, for it has no other tokens to keep."""
        out = tmp_path / f"tokens-{len([*tmp_path.iterdir()])}"
        tokenize(TEXTS[:3], source, length, out, prompt=prompt)
        return TokenSet.open(out).record.content_digest

    before = made()
    copy = shutil.copytree(student, tmp_path / "elsewhere")
    model, _ = make_encoder()
    torch.nn.init.normal_(next(model.parameters()))
    model.save_pretrained(copy)  # other weights
    assert made(copy) == before
    assert len({before, made(length=17), made(prompt="a "), made(prompt="the ")}) == 4
    tokenizer = AutoTokenizer.from_pretrained(copy)
    tokenizer.add_tokens(["a red"])
    tokenizer.save_pretrained(copy)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(copy)
    assert made(copy) != before
