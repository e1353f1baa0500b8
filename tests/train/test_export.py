"""What goes out is what was scored, also where a student's folder says more than its weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    BertTokenizer,
    GPT2Config,
    GPT2Model,
    T5Config,
)

from sightline.errors import SightlineError
from sightline.models.sentence_transformers_folder import Recipe
from train import export
from train.embed import Embedder
from train.export import PROBES, check_export, export_model
from train.run_spec import StudentConfig
from train.student import load_student, recipe_of

TEXT = "a black dog runs on the beach two children play in snow and white stone wall"
WORDS = [*dict.fromkeys(TEXT.split())]


def student(folder: Path, *, cased: bool = False, side: str = "right", pooler: bool = True) -> Path:
    """A BERT of two layers with a word-level vocabulary, as `save_pretrained` writes it."""
    folder.mkdir()
    letters = "abcdefghijklmnopqrstuvwxyz."
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = dict.fromkeys([*special, *WORDS, *letters, *(f"##{letter}" for letter in letters)])
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    tokenizer = BertTokenizer(
        str(folder / "vocab.txt"),
        do_lower_case=not cased,
        model_max_length=64,
        padding_side=side,
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        initializer_range=0.15,
    )
    BertModel(config, add_pooling_layer=pooler).save_pretrained(folder)
    return folder


def as_sentence_transformer(
    folder: Path, pooling: str | None = "mean", settings: str = "sentence_bert_config.json", **more
) -> Path:
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(modules)
    ]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / settings).write_text(
        json.dumps({"max_seq_length": 16, "do_lower_case": False, **more})
    )
    if pooling is not None:
        (folder / "1_Pooling").mkdir()
        config = {"pooling_mode_cls_token": pooling == "cls", "word_embedding_dimension": 32}
        config |= {"pooling_mode_mean_tokens": pooling == "mean"}
        (folder / "1_Pooling/config.json").write_text(json.dumps(config))
    return folder


def loaded(folder: Path, pooling: str | None = None) -> tuple[Embedder, nn.Module | None]:
    return load_student(StudentConfig.model_validate({"model": str(folder), "pooling": pooling}))


def exported(folder: Path, out: Path, **settings: object) -> Embedder:
    config = StudentConfig.model_validate({"model": str(folder), **settings})
    trained, pooler = load_student(config)
    export_model(out, trained, "A card.\n", recipe_of(config)[0], pooler)
    check_export(out, trained)
    return trained


def test_the_folders_own_pooling_and_length_are_followed_and_exported(tmp_path):
    folder = as_sentence_transformer(student(tmp_path / "base"))
    trained = exported(folder, tmp_path / "out")
    assert (trained.pooling, trained.max_length) == ("mean", 16)
    ours = Embedder.load(tmp_path / "out", device="cpu")
    assert (ours.pooling, ours.max_length) == ("mean", 16)
    theirs = Embedder.load(folder, device="cpu")
    np.testing.assert_allclose(ours.encode(PROBES), theirs.encode(PROBES), atol=1e-6)
    config = StudentConfig.model_validate({"model": str(folder), "pooling": "cls"})
    assert [recipe.pooling for recipe in recipe_of(config)] == ["cls", "mean"]  # which the run says


PROMPTS = {"query": "a white dog ", "document": ""}


def described(folder: Path) -> dict[str, object]:
    return json.loads((folder / "config_sentence_transformers.json").read_text())


def as_described(folder: Path, *more: str, **settings: object) -> Path:
    """A folder with modules after the pooling, prompts and a similarity."""
    as_sentence_transformer(folder)
    modules = json.loads((folder / "modules.json").read_text())
    for kind in more:
        number = len(modules)
        modules.append(
            {"idx": number, "name": str(number), "path": f"{number}_{kind}", "type": kind}
        )
    (folder / "modules.json").write_text(json.dumps(modules))
    described = {"prompts": PROMPTS, "default_prompt_name": "query", **settings}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(described))
    return folder


@pytest.mark.parametrize(
    ("prompt", "default", "prompts"),
    [
        (None, "query", PROMPTS),
        ("", None, PROMPTS),
        ("two ", "trained", {**PROMPTS, "trained": "two "}),
    ],
)
def test_prompts_normalisation_and_similarity_go_out(tmp_path, prompt, default, prompts):
    folder = as_described(student(tmp_path / "base"), "Normalize", similarity_fn_name="dot")
    trained = exported(folder, tmp_path / "out", prompt=prompt)
    assert trained.prompt == prompts.get(default, "")
    out = described(tmp_path / "out")
    assert (out["prompts"], out["default_prompt_name"]) == (prompts, default)
    assert out["similarity_fn_name"] == "dot"
    ours = Embedder.load(tmp_path / "out", device="cpu").encode(PROBES)
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(ours, trained.encode(PROBES), atol=1e-6)
    if prompt is None:
        theirs = Embedder.load(folder, device="cpu").encode(PROBES)
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("module", ["Dense", "LayerNorm", "WeightedLayerPooling"])
def test_another_module_is_refused_or_left_out_by_another_pooling(tmp_path, module):
    folder = as_described(student(tmp_path / "base"), module, "Normalize")
    with pytest.raises(SightlineError, match=rf"base: modules\.json lists a {module} module"):
        loaded(folder)
    trained = exported(folder, tmp_path / "out", pooling="cls")
    assert (trained.pooling, trained.normalize, trained.prompt) == ("cls", False, "a white dog ")
    used, own = recipe_of(StudentConfig.model_validate({"model": str(folder), "pooling": "cls"}))
    assert (used.modules, own.modules) == ((), ("Pooling", module, "Normalize"))


def test_a_prompt_that_the_folder_does_not_pool_is_refused_unless_left_out(tmp_path):
    folder = as_described(student(tmp_path / "base"))
    config = json.loads((folder / "1_Pooling/config.json").read_text())
    (folder / "1_Pooling/config.json").write_text(json.dumps({**config, "include_prompt": False}))
    for prompt in (None, "two "):
        settings = {"model": str(folder), "prompt": prompt}
        with pytest.raises(SightlineError, match="leaves the tokens of a prompt out"):
            load_student(StudentConfig.model_validate(settings))
    assert exported(folder, tmp_path / "out", prompt="").prompt == ""


def test_a_prompt_that_leaves_no_room_for_a_text_is_refused(tmp_path):
    folder = as_sentence_transformer(student(tmp_path / "base"), max_seq_length=None)
    long = "a black dog runs on " * 2  # 10 tokens and 2 special ones
    for length, fits in ((12, False), (13, True)):
        config = StudentConfig.model_validate(
            {"model": str(folder), "prompt": long, "max_length": length}
        )
        if fits:
            assert load_student(config)[0].prompt == long
            continue
        message = (
            r"base: the prompt has 12 tokens, special tokens included, and of a text only 12 are "
            r"read, so all texts would be alike; raise max_length \(`--max-length`\) above 12, or"
        )
        with pytest.raises(SightlineError, match=message):
            load_student(config)
    config = StudentConfig.model_validate({"model": str(folder), "prompt": long * 40})
    with pytest.raises(SightlineError, match=r"shorten the prompt: the encoder has positions for"):
        load_student(config)


@pytest.mark.parametrize(
    "name",
    ["sentence_roberta_config.json", "sentence_xlm-roberta_config.json"],
)
def test_settings_under_every_name_that_is_still_read(tmp_path, name):
    folder = as_sentence_transformer(student(tmp_path / "base"), settings=name)
    assert exported(folder, tmp_path / "out").max_length == 16


def test_lower_casing_goes_out(tmp_path):
    folder = student(tmp_path / "base", cased=True)
    as_sentence_transformer(folder, do_lower_case=True)
    trained = exported(folder, tmp_path / "out")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.tokenize("A Black DOG") == ["a", "black", "dog"]
    rows = trained.encode(["A BLACK DOG", "a black dog"])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-5)


def test_an_export_pads_on_the_right(tmp_path):
    exported(student(tmp_path / "base", side="left"), tmp_path / "out")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").padding_side == "right"


def test_every_place_of_a_length_says_the_same(tmp_path):
    folder = as_sentence_transformer(student(tmp_path / "base"))
    file = folder / "tokenizer.json"
    backend = Tokenizer.from_file(str(file))
    backend.enable_truncation(7)
    backend.enable_padding(length=7)
    backend.save(str(file))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    text = json.dumps({**config, "max_length": 7, "model_max_length": 9})
    (folder / "tokenizer_config.json").write_text(text)
    exported(folder, tmp_path / "out")
    backend = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json"))
    assert backend.truncation["max_length"] == 16
    assert backend.padding["length"] is None
    one, other = backend.encode_batch(["a dog", "a dog " * 40])
    assert len(one.ids) == len(other.ids) == 16
    settings = json.loads((tmp_path / "out/tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 16
    assert "max_length" not in settings
    bert = json.loads((tmp_path / "out/sentence_bert_config.json").read_text())
    assert bert["max_seq_length"] == 16


def test_the_pooler_goes_out_as_it_came_in(tmp_path):
    folder = student(tmp_path / "base")
    trained, _ = loaded(folder)
    assert trained.model.pooler is None  # it is not trained
    exported(folder, tmp_path / "out")
    before, after = (load_file(place / "model.safetensors") for place in (folder, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert torch.equal(before["pooler.dense.weight"], after["pooler.dense.weight"])
    _, report = AutoModel.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    exported(student(tmp_path / "without", pooler=False), tmp_path / "none")
    assert "pooler.dense.weight" not in load_file(tmp_path / "none/model.safetensors")


@pytest.mark.parametrize("installed", [True, False])
def test_an_export_that_embeds_otherwise_is_refused(tmp_path, monkeypatch, installed):
    monkeypatch.setattr(export, "find_spec", lambda name: installed or None)
    trained, pooler = loaded(student(tmp_path / "base"))
    export_model(tmp_path / "out", trained, "A card.\n", Recipe(), pooler)
    check_export(tmp_path / "out", trained)
    config = tmp_path / "out/1_Pooling/config.json"
    swapped = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    config.write_text(json.dumps({**json.loads(config.read_text()), **swapped}))
    with pytest.raises(
        SightlineError, match=r"exported model's embedding of '.*' differs from .*checkpoint"
    ):
        check_export(tmp_path / "out", trained)


@pytest.mark.parametrize("name", ["bert-base-uncased", "hf:", "a::b"])
def test_a_folder_is_itself_whatever_its_name_means_to_a_library(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    trained = exported(student(Path(name, "base")), Path(name, "out"))
    ours = Embedder.load(Path(name, "out"), device="cpu")
    np.testing.assert_allclose(ours.encode(PROBES), trained.encode(PROBES), atol=1e-6)


# ---- recipes that cannot be followed ------------------------------------------------------------


def test_a_pooling_that_is_named_but_not_there_is_an_error(tmp_path):
    folder = as_sentence_transformer(student(tmp_path / "base"), pooling=None)
    message = r"base: modules\.json lists a Pooling module, but 1_Pooling/config\.json is not here"
    for load in (loaded, Embedder.load):
        with pytest.raises(SightlineError, match=message):
            load(folder)
    assert loaded(folder, "cls")[0].pooling == "cls"
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"word_embedding_dimension": 32}')
    with pytest.raises(SightlineError, match="names no pooling_mode"):
        loaded(folder)


def test_a_token_without_an_embedding_is_one_error(tmp_path):
    folder = student(tmp_path / "base")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = len(tokenizer)
    tokenizer.add_tokens(["[NAME]"])
    tokenizer.save_pretrained(folder)
    message = rf"knows {rows + 1} tokens, its embeddings hold {rows} \(\[NAME\] is {rows}\)"
    with pytest.raises(SightlineError, match=message):
        load_student(StudentConfig.model_validate({"model": str(folder)}))
    with pytest.raises(SightlineError, match=message):
        Embedder.load(folder, "mean")


def test_the_first_token_of_a_decoder_and_an_encoder_decoder_are_refused(tmp_path):
    folder = student(tmp_path / "gpt")
    torch.manual_seed(0)
    shape = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    rows = len(AutoTokenizer.from_pretrained(folder))
    (folder / "model.safetensors").unlink()
    GPT2Model(GPT2Config(vocab_size=rows, **shape)).save_pretrained(folder)
    with pytest.raises(SightlineError, match="gpt2 decoder has seen no other; give mean"):
        Embedder.load(folder, "cls")
    with pytest.raises(SightlineError, match="gpt2 decoder has seen no other; give mean"):
        load_student(StudentConfig.model_validate({"model": str(folder)}))
    assert Embedder.load(folder, "mean").encode(["a dog"]).shape == (1, 16)
    T5Config(vocab_size=rows, d_model=16).save_pretrained(folder)
    with pytest.raises(SightlineError, match="a 't5' model is not a text encoder"):
        Embedder.load(folder, "mean")
