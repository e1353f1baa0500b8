"""open_clip's two towers: its own features, from a name or from a config file."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path

import open_clip
import pytest
import torch
from safetensors.torch import save_file
from tiny_models import CLIP, clip_config

from pipeline.encoders import clip
from pipeline.encoders.config import EncoderConfig
from pipeline.encoders.frozen_model import FrozenModel
from sightline.errors import SightlineError

CPU = torch.device("cpu")
TEXTS = ["a red circle", "", "two blue squares beside a star " * 5, "猫"]


def config(model: str, weights: str, **fields: object) -> EncoderConfig:
    return EncoderConfig.model_validate(
        {"family": "open_clip", "model": model, "weights": weights, **fields}
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[str, Path, torch.nn.Module]:
    """(config, weights, the model itself) of a tiny CLIP."""
    folder = tmp_path_factory.mktemp("clip")
    torch.manual_seed(4)
    architecture = {k: v for k, v in CLIP.items() if k != "preprocess_cfg"}
    model = open_clip.CLIP(**architecture).eval()
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "c.safetensors")
    return clip_config(folder), folder / "c.safetensors", model


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_the_towers_give_what_open_clip_gives(trained, images: torch.Tensor) -> None:
    path, weights, model = trained
    image = config(path, f"file:{weights}").build_image(CPU, "fp32")
    text = config(path, f"file:{weights}").build_text(CPU, "fp32")
    tokens = open_clip.SimpleTokenizer(context_length=12)(TEXTS)
    with torch.inference_mode():
        torch.testing.assert_close(image.encode(images), model.encode_image(images))
        torch.testing.assert_close(text.encode(TEXTS, 12), model.encode_text(tokens))
    assert image.dim == text.dim == image.encode(images).shape[1] == 24
    assert text.lengths(TEXTS) == [12] * 4
    norms = image.encode(images).norm(dim=1)
    assert not torch.allclose(norms, torch.ones(4))
    with pytest.raises(ValueError, match="takes 12 only"):
        text.encode(TEXTS, 16)


def test_both_towers_have_one_identity_and_its_preprocessing(trained) -> None:
    path, weights, _ = trained
    image = config(path, f"file:{weights}").build_image(CPU, "fp32")
    text = config(path, f"file:{weights}").build_text(CPU, "fp32")
    assert image.identity == text.identity
    assert image.identity.name.startswith("open_clip/clip@")
    assert image.identity.source == "file:c.safetensors"
    preprocessing = image.preprocessing
    assert preprocessing.mean == (0.4, 0.5, 0.6)
    assert preprocessing.std == open_clip.OPENAI_DATASET_STD
    assert (preprocessing.crop, preprocessing.interpolation) == ((32, 32), "bilinear")
    described = text.preprocessing
    assert json.loads(json.dumps(described)) == described
    assert described["context_length"] == 12
    other = config(path, f"file:{weights}", interpolation="bicubic").build_image(CPU, "fp32")
    assert other.preprocessing.interpolation == "bicubic"


def test_only_the_tower_in_use_is_kept(tmp_path: Path, monkeypatch) -> None:
    path, kept = clip_config(tmp_path), []

    def freeze(model: torch.nn.Module, *arguments, **options) -> FrozenModel:
        kept.append({name.partition(".")[0] for name, _ in model.named_parameters()})
        return FrozenModel(model, *arguments, **options)

    monkeypatch.setattr(clip, "FrozenModel", freeze)
    config(path, "random:0").build_text(CPU, "fp32")
    config(path, "random:0").build_image(CPU, "fp32")
    text, image = kept
    assert "visual" in image - text
    assert "token_embedding" in text - image


def test_random_weights_are_silent_and_repeatable(tmp_path: Path, monkeypatch, capfd) -> None:
    path = clip_config(tmp_path)
    # As in a program that never set logging up: its first message would install a handler.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = config(path, "random:3").build_image(CPU, "fp32").identity
    assert first.untrained
    assert first == config(path, "random:3").build_image(CPU, "fp32").identity
    other = config(path, "random:4").build_image(CPU, "fp32").identity
    assert first.weights_sha256 != other.weights_sha256
    assert capfd.readouterr().err == ""
    assert logging.getLogger().handlers == []
    assert logging.root.manager.disable == logging.NOTSET


def test_another_architecture_is_another_name(tmp_path: Path) -> None:
    first = config(clip_config(tmp_path), "random:3").build_image(CPU, "fp32").identity
    heads = {**CLIP["vision_cfg"], "head_width": 8}  # the same weights, other features
    path = clip_config(tmp_path, vision_cfg=heads)
    second = config(path, "random:3").build_image(CPU, "fp32").identity
    assert first.weights_sha256 == second.weights_sha256
    assert first.name != second.name


def test_vit_b_32_by_name() -> None:
    encoder = config("ViT-B-32", "random:0").build_image(CPU, "fp32")
    assert encoder.identity.name == "open_clip/ViT-B-32"
    assert encoder.dim == 512
    preprocessing = encoder.preprocessing
    assert (preprocessing.crop, preprocessing.interpolation) == ((224, 224), "bicubic")
    assert preprocessing.mean == open_clip.OPENAI_DATASET_MEAN
    assert encoder.encode(torch.zeros(1, 3, 224, 224)).shape == (1, 512)


def test_mistakes_are_one_error_each(tmp_path: Path, trained) -> None:
    path, weights, _ = trained
    wider = clip_config(tmp_path, embed_dim=25)
    broken = tmp_path / "broken.json"
    broken.write_text('{"embed_dim": 3}')
    few_tokens = tmp_path / "few.json"
    few_tokens.write_text(json.dumps({**CLIP, "text_cfg": {**CLIP["text_cfg"], "vocab_size": 9}}))
    foreign = tmp_path / "foreign.json"
    foreign_text = {**CLIP["text_cfg"], "hf_tokenizer_name": "nobody/no-tokenizer"}
    foreign.write_text(json.dumps({**CLIP, "text_cfg": foreign_text}))
    cases = [
        (wider, f"file:{weights}", "c.safetensors does not fit .*text_projection is"),
        (str(broken), "random:0", "vision_cfg, text_cfg missing"),
        (str(tmp_path / "gone.json"), "random:0", "no such file"),
        (path, "pretrained:openai", "no published weights"),
        (str(few_tokens), "random:0", "set text_cfg.vocab_size to 49408"),
        (str(foreign), "random:0", "tokenizer 'nobody/no-tokenizer' cannot be fetched"),
        ("ViT-B-32", "pretrained:openai", "use model 'ViT-B-32-quickgelu'"),
        ("ViT-B-32", "pretrained", "needs the tag of its weights; published tags: .*laion2b"),
        ("ViT-B-23", "random:0", "unknown open_clip model 'ViT-B-23'.*ViT-B-32"),
    ]
    for model, spec, words in cases:
        with pytest.raises(SightlineError, match=words):
            config(model, spec).build_text(CPU, "fp32")


def test_unavailable_published_weights(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SightlineError) as caught:
        config("ViT-B-32", "pretrained:laion2b_s34b_b79k").build_image(CPU, "fp32")
    message = str(caught.value)
    assert message.startswith("ViT-B-32: its weights 'laion2b_s34b_b79k' cannot be fetched")
    assert "No substitute was loaded" in message
