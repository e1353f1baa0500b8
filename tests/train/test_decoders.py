"""Decoders as students: the last token, a prompt, adapters in place of all weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from process_runs import run_processes
from safetensors.torch import load_file
from tiny_encoder import make_decoder
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from training_world import KillAfter, Killed, World, assert_alike, assert_equal, silent, weights_of
from transformers import PreTrainedTokenizerFast

from pipeline.tokenize_texts import texts_of, tokenize
from sightline.errors import SightlineError
from sightline.models.sentence_transformers_folder import token_ids
from train.embed import Embedder
from train.run_spec import RunSpec, StudentConfig
from train.student import add_adapters, load_student, merged
from train.train_run import train_run

PROMPT = "describe the picture: "
LORA: dict[str, Any] = {"lora_rank": 4, "lora_alpha": 8.0}
SENTENCES = ["a red circle", "There is a Square, and it is BLUE", "one", "the circle " * 60]
LENGTH = 24


@pytest.fixture(scope="module")
def qwen(world: World, tmp_path_factory) -> Path:
    """A tiny Qwen3 with a byte-level tokenizer that ends a text, padding on the left."""
    folder = tmp_path_factory.mktemp("decoder") / "qwen"
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    special = ["<|endoftext|>", "<|im_end|>"]
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=330, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts_of([world.root]).to_pylist(), trainer)
    tokenizer.post_processor = TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    whole = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        padding_side="left",
        model_max_length=64,
    )
    make_decoder(len(whole), 16).save_pretrained(folder)
    whole.save_pretrained(folder)
    for name, prompt in (("tokens", ""), ("prompted", PROMPT)):
        texts = texts_of([world.root])
        tokenize(texts, folder, LENGTH, folder.parent / name, prompt=prompt)
    return folder


def spec_of(world: World, qwen: Path, out: Path, prompt: str = "", **student: Any) -> RunSpec:
    tokens = qwen.parent / ("prompted" if prompt else "tokens")
    return world.spec(
        out,
        "mcse",
        tokens=tokens,
        student={
            **{"model": str(qwen), "pooling": "lasttoken", "max_length": LENGTH},
            **{"prompt": prompt, **student},
        },
        train={"max_steps": 6, "eval_steps": 2, "learning_rate": 1e-2},
    )


def of_sentence_transformers(folder: Path) -> np.ndarray:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu").encode(SENTENCES)


@pytest.mark.parametrize(
    ("prompt", "student"), [("", {}), (PROMPT, {}), ("", LORA), (PROMPT, LORA)], ids=str
)
def test_the_export_is_the_trained_decoder(world, qwen, tmp_path, prompt, student):
    spec = spec_of(world, qwen, tmp_path / "run", prompt, **student)
    summary = train_run(spec, say=silent)
    assert summary.student["pooling"] == "lasttoken"
    folder = tmp_path / "run/model"
    theirs = of_sentence_transformers(folder)
    embedder = Embedder.load(folder, device="cpu")
    assert (embedder.pooling, embedder.prompt) == ("lasttoken", prompt)
    np.testing.assert_allclose(embedder.encode(SENTENCES), theirs, atol=1e-5)
    before = Embedder.load(qwen, "lasttoken", device="cpu").encode(SENTENCES)
    assert np.abs(before - theirs).max() > 1e-2
    # no adapter is left in the folder, and its weights are those of the class
    assert set(load_file(folder / "model.safetensors")) == set(
        load_file(qwen / "model.safetensors")
    )
    assert not list(folder.glob("adapter*"))
    card = (folder / "README.md").read_text()
    assert ("of rank 4 were trained" in card) == bool(student)
    assert ("'describe the picture: '" in card) == bool(prompt)
    code = card.partition("Without sentence-transformers:")[2].split("```")[1]
    names_of: dict[str, Any] = {}
    exec(code.removeprefix("python\n").replace("path/to/this/folder", str(folder)), names_of)
    alone = embedder.encode(["A dog runs on the beach."])
    np.testing.assert_allclose(names_of["embeddings"].numpy(), alone, atol=1e-5)
    settings = json.loads((folder / "config_sentence_transformers.json").read_text())
    assert settings["prompts"] == ({"trained": prompt} if prompt else {})


def test_prompts_are_of_training_too(world, qwen, tmp_path):
    """A text's ids begin with the prompt's; other tokens, phrases and students are refused."""
    from transformers import AutoTokenizer

    spec = spec_of(world, qwen, tmp_path / "run", PROMPT)
    from train.data import TrainingData
    from train.objectives import make_objective

    data = TrainingData(spec, make_objective("mcse", spec.parameters))
    tokenizer = AutoTokenizer.from_pretrained(qwen)
    begins = token_ids(tokenizer, [PROMPT], LENGTH)[0][:5]
    assert data[0].sentences.input_ids[:, :5].tolist() == [begins] * len(data[0])
    without = spec.model_copy(
        update={"student": StudentConfig(**{**spec.student.model_dump(), "prompt": ""})}
    )
    message = r"made with the prompt 'describe the picture: ', but the student's is ''"
    with pytest.raises(SightlineError, match=message):
        train_run(without, say=silent)


def test_a_checkpoint_has_the_adapters_alone_and_resumes_bit_for_bit(world, qwen, tmp_path):
    student = {**LORA, "lora_dropout": 0.2, "lora_modules": ("q_proj", "down_proj")}
    train_run(spec_of(world, qwen, tmp_path / "whole", **student), say=silent)
    spec = spec_of(world, qwen, tmp_path / "run", **student)
    with pytest.raises(Killed):
        train_run(spec, say=silent, callbacks=[KillAfter(5)])
    for file in (tmp_path / "run/checkpoints").rglob("*.safetensors"):
        of_encoder = [name for name in load_file(file) if name.startswith("encoder.")]
        assert len(of_encoder) == 2 * 2 * 2  # layers, modules, matrices
        assert all(".lora_" in name for name in of_encoder)
    summary = train_run(spec, say=silent)
    assert_equal(weights_of(tmp_path / "whole"), weights_of(tmp_path / "run"))
    kept = load_file(tmp_path / "run/heads.safetensors").values()
    adapters = 2 * 4 * ((16 + 16) + (32 + 16))
    assert summary.trained_parameters == adapters + sum(each.numel() for each in kept)


@pytest.mark.slow
def test_two_processes_train_adapters_as_one_does(world, qwen, tmp_path):
    train_run(spec_of(world, qwen, tmp_path / "one", **LORA), say=silent)
    (outcome,) = run_processes([spec_of(world, qwen, tmp_path / "two", **LORA)])
    assert outcome.codes == [0, 0], outcome.said
    assert_alike(weights_of(tmp_path / "one"), weights_of(tmp_path / "two"), 1e-3)


def test_adapters_are_of_any_encoder_and_merge_into_its_weights(world):
    config = StudentConfig(model=str(world.student), pooling="mean", lora_rank=2)
    encoder = load_student(config)[0].model
    trained = [name for name, weight in encoder.named_parameters() if weight.requires_grad]
    assert trained
    assert all(".lora_" in name for name in trained)
    with torch.no_grad():
        for name, weight in encoder.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1)
    ids = torch.arange(4)[None]
    whole = merged(encoder.eval())
    torch.testing.assert_close(
        whole(input_ids=ids).last_hidden_state, encoder(input_ids=ids).last_hidden_state
    )
    plain = load_student(config.model_copy(update={"lora_rank": None}))[0].model
    assert whole.state_dict().keys() == plain.state_dict().keys()
    assert merged(plain) is plain
    assert any("lora_" in name for name in encoder.state_dict())  # the original keeps its own


def test_what_cannot_be_adapted_is_one_error(world, qwen, tmp_path, monkeypatch):
    spec = spec_of(world, qwen, tmp_path / "run", lora_rank=2, lora_modules=("query",))
    expected = "lora_modules names query, but the linear layers of this qwen3 are called down_proj"
    with pytest.raises(SightlineError, match=expected):
        train_run(spec, say=silent)
    encoder = load_student(StudentConfig(model=str(qwen), pooling="mean"))[0].model
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        SightlineError, match=r"peft is not installed, but lora_rank needs it; run: .*\[lora\]"
    ):
        add_adapters(encoder, StudentConfig(model=str(qwen), lora_rank=2))


def test_the_first_token_of_a_decoder_is_refused(world, qwen, tmp_path):
    spec = spec_of(world, qwen, tmp_path / "run", pooling="cls")
    with pytest.raises(SightlineError, match=r"reads the first token, .*give mean or lasttoken"):
        train_run(spec, say=silent)


def test_a_folder_that_leaves_its_prompt_out_of_pooling_is_refused(world, qwen, tmp_path):
    train_run(spec_of(world, qwen, tmp_path / "run", PROMPT), say=silent)
    file = tmp_path / "run/model/1_Pooling/config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "include_prompt": False}))
    with pytest.raises(SightlineError, match="leaves the tokens of a prompt out"):
        Embedder.load(tmp_path / "run/model")
