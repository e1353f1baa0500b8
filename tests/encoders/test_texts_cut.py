"""Texts longer than a model takes are counted, by every kind of text encoder and every command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_encoder import make_encoder
from tiny_models import CLIP, bert_folder, clip_config

from pipeline.encoders.config import EncoderConfig
from pipeline.encoders.encoder import TextEncoder
from sightline.cache.compact import compact
from sightline.cache.record import read_record

WORDS = ["red", "dog", "cat", "a"]
TEXTS = [
    "",
    *(" ".join((WORDS * 20)[:n]) for n in (1, 7, 8, 9, 10, 11, 12, 13, 30, 37, 38, 39, 60)),
]
TEXTS += ["&amp;" * 12, "é" * 9, "日" * 8, " " * 200, "a" * 200, "\u200b" * 99, "ﷺ ﷺ"]

PRETRAINED = {"weights": "pretrained"}


def bert(folder: Path, **more) -> dict:
    return {
        "family": "transformers",
        "model": str(bert_folder(folder / "bert")),
        **PRETRAINED,
        **more,
    }


def siglip(folder: Path) -> dict:
    from transformers import SiglipConfig, SiglipModel

    size = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    size |= {"intermediate_size": 24}
    tokenizer = make_encoder()[1]
    text = {**size, "vocab_size": len(tokenizer), "max_position_embeddings": 12}
    vision = {**size, "image_size": 16, "patch_size": 8}
    model = SiglipModel(SiglipConfig(text_config=text, vision_config=vision))
    for part in (model, tokenizer):
        part.save_pretrained(folder / "siglip")
    return {"family": "transformers", "model": str(folder / "siglip"), **PRETRAINED}


def open_clip(folder: Path, **text: object) -> dict:
    config = clip_config(folder, text_cfg={**CLIP["text_cfg"], **text})
    return {"family": "open_clip", "model": config, "weights": "random:0"}


def hugging_face(folder: Path, **more) -> dict:
    name = str(bert_folder(folder / "bert"))
    tower = {"hf_model_name": name, "hf_proj_type": "linear", "hf_pooler_type": "mean_pooler"}
    return open_clip(folder, hf_tokenizer_name=name, **tower, **more)


KINDS: dict[str, Callable[[Path], dict]] = {
    "teacher": bert,
    "teacher with a prompt": lambda folder: bert(folder, prompt="a red cat: ", max_length=9),
    "transformers": siglip,
    "open_clip": open_clip,
    "open_clip, tokenizer of transformers": hugging_face,
}


def built(kind: str, folder: Path) -> TextEncoder:
    return EncoderConfig.model_validate(KINDS[kind](folder)).build_text(torch.device("cpu"), "fp32")


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_is_cut_if_its_row_does_not_depend_on_its_end(tmp_path, kind):
    """What is behind the last token that is read cannot change the row."""
    encoder = built(kind, tmp_path)
    assert encoder.count_cut is not None
    ends = ["", " dog", " cat cat"]
    for text in TEXTS[1:14]:
        rows = encoder.encode_all([text + end for end in ends])
        assert bool((rows == rows[0]).all()) == bool(encoder.count_cut([text + " dog"])), text
    assert encoder.count_cut(TEXTS) == sum(encoder.count_cut([text]) for text in TEXTS)
    assert encoder.count_cut([]) == 0


def test_the_command_the_record_and_cache_info_say_how_many_were_cut(tmp_path, said, monkeypatch):
    monkeypatch.chdir(tmp_path)
    clip = clip_config(tmp_path, **CLIP)
    Path("texts").write_text("\n".join(TEXTS[1:9]))
    words = ["extract", "text", "--data", "texts", "--encoder", clip, "--weights", "random:0"]
    words += ["--out", "set"]

    def cut(count: int, of: int) -> None:
        code, shown, err = said(*words)
        assert code == 0, err
        told = f"{count} of {of} texts are longer than 12 tokens and cut" if count else ""
        assert told in shown
        assert json.loads(Path("set/set.json").read_text()).get("cut", 0) == count
        assert told in said("cache", "info", "set")[1]
        assert json.loads(said("cache", "info", "set", "--json")[1])["cut"] == count
        compact(Path("set"))
        assert read_record(Path("set")).cut == count

    cut(3, 8)
    cut(3, 8)  # nothing to compute
    Path("texts").write_text("\n".join(TEXTS[1:11]))
    cut(5, 10)
    Path("texts").write_text("\n".join(TEXTS[1:8]))
    cut(2, 7)
    Path("texts").write_text("\n".join(TEXTS[1:4]))
    cut(0, 3)


def test_tokens_say_how_many_were_cut(tmp_path, said, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bert_folder(tmp_path / "student")
    words = ["tokens", "--data", "texts", "--student", "student", "--max-length", "12"]

    def cut(texts: list[str], count: int) -> None:
        Path("texts").write_text("\n".join(texts))
        code, shown, err = said(*words, "--out", "tokens")
        assert code == 0, err
        assert read_record(Path("tokens")).cut == count
        assert ("longer than 12 tokens and cut" in shown) == bool(count)

    cut(TEXTS[1:8], 2)
    cut(TEXTS[1:11], 5)
    cut(TEXTS[1:11], 5)
    cut(TEXTS[1:9], 3)
    cut(TEXTS[1:4], 0)
