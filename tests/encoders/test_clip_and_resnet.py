"""open_clip's two towers and torchvision's ResNets: their own features, and what was loaded."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path

import open_clip
import pytest
import torch
import torchvision
from safetensors.torch import save_file
from tiny_models import CLIP, clip_config

from pipeline.encoders.config import EncoderConfig
from pipeline.encoders.frozen_model import FrozenModel
from sightline.errors import SightlineError

CPU = torch.device("cpu")
TEXTS = ["a red circle", "", "two blue squares beside a star " * 5, "猫"]


def config(model: str, weights: str, **fields: object) -> EncoderConfig:
    family = "torchvision" if model.startswith("resnet") else "open_clip"
    return EncoderConfig.model_validate(
        {"family": family, "model": model, "weights": weights, **fields}
    )


def image_tower(model: str, weights: str, **fields: object):
    return config(model, weights, **fields).build_image(CPU, "fp32")


def resnet(weights: str, **fields: object):
    return image_tower("resnet18", weights, **fields)


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
def checkpoint(tmp_path_factory) -> tuple[Path, torch.nn.Module]:
    """A ResNet-18 with a different number of classes and non-trivial BatchNorm statistics."""
    torch.manual_seed(1)
    model = torchvision.models.resnet18(weights=None, num_classes=7)
    model(torch.randn(8, 3, 32, 32))
    path = tmp_path_factory.mktemp("weights") / "resnet.safetensors"
    save_file(model.state_dict(), path)
    return path, model.eval()


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def test_the_towers_give_what_open_clip_gives(trained, images):
    path, weights, model = trained
    image = image_tower(path, f"file:{weights}")
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


def test_both_towers_have_one_identity_and_its_preprocessing(trained):
    path, weights, _ = trained
    image = image_tower(path, f"file:{weights}")
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
    other = image_tower(path, f"file:{weights}", interpolation="bicubic")
    assert other.preprocessing.interpolation == "bicubic"


def test_only_the_tower_in_use_is_kept(tmp_path, monkeypatch):
    path, kept = clip_config(tmp_path), []

    def freeze(model: torch.nn.Module, *arguments, **options) -> FrozenModel:
        kept.append({name.partition(".")[0] for name, _ in model.named_parameters()})
        return FrozenModel(model, *arguments, **options)

    monkeypatch.setattr("pipeline.encoders.frozen_model.FrozenModel", freeze)
    config(path, "random:0").build_text(CPU, "fp32")
    config(path, "random:0").build_image(CPU, "fp32")
    text, image = kept
    assert "visual" in image - text
    assert "token_embedding" in text - image


def test_random_weights_are_silent_and_repeatable(tmp_path, monkeypatch, capfd):
    # As in a program that never set logging up: its first message would install a handler.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    for model in (clip_config(tmp_path), "resnet18"):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            first = image_tower(model, "random:3").identity
        assert first.untrained
        assert first.source == "random:3"
        assert first == image_tower(model, "random:3").identity
        assert first.weights_sha256 != image_tower(model, "random:4").identity.weights_sha256
    assert capfd.readouterr().err == ""
    assert logging.getLogger().handlers == []
    assert logging.root.manager.disable == logging.NOTSET


def test_another_architecture_is_another_name(tmp_path):
    first = image_tower(clip_config(tmp_path), "random:3").identity
    heads = {**CLIP["vision_cfg"], "head_width": 8}  # the same weights, other features
    second = image_tower(clip_config(tmp_path, vision_cfg=heads), "random:3").identity
    assert first.weights_sha256 == second.weights_sha256
    assert first.name != second.name


def test_a_clip_by_its_name():
    encoder = image_tower("ViT-S-32-alt", "random:0")
    assert encoder.identity.name == "open_clip/ViT-S-32-alt"
    assert encoder.dim == 256
    preprocessing = encoder.preprocessing
    assert (preprocessing.crop, preprocessing.interpolation) == ((224, 224), "bicubic")
    assert preprocessing.mean == open_clip.OPENAI_DATASET_MEAN
    assert encoder.encode(torch.zeros(1, 3, 224, 224)).shape == (1, 256)


def test_mistakes_of_a_clip_are_one_error_each(tmp_path, trained):
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
        (
            "ViT-B-32",
            "pretrained",
            "needs the tag of its weights; use pretrained: .*laion2b",
        ),
        ("ViT-B-23", "random:0", "unknown open_clip model 'ViT-B-23'.*ViT-B-32"),
    ]
    for model, spec, words in cases:
        with pytest.raises(SightlineError, match=words):
            config(model, spec).build_text(CPU, "fp32")


def test_features_of_a_resnet_are_its_global_average_pooling(checkpoint, images):
    path, model = checkpoint
    encoder = resnet(f"file:{path}")
    assert encoder.identity.name == "torchvision/resnet18"
    assert encoder.identity.source == "file:resnet.safetensors"
    assert not encoder.identity.untrained
    with torch.inference_mode():
        x = model.maxpool(model.relu(model.bn1(model.conv1(images))))
        x = model.layer4(model.layer3(model.layer2(model.layer1(x))))
        expected = x.mean(dim=(2, 3))
    features = encoder.encode(images)
    assert encoder.dim == features.shape[1] == 512
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)


def test_preprocessing_of_a_resnet_defaults_to_the_papers():
    for given, resize, crop, interpolation in (
        ({}, 256, 224, "bilinear"),
        ({"crop": 64, "interpolation": "bicubic"}, 64, 64, "bicubic"),
        ({"resize": 288}, 288, 288, "bilinear"),
    ):
        found = resnet("random:0", **given).preprocessing
        assert (found.resize, found.crop) == ((resize, resize), (crop, crop))
        assert found.interpolation == interpolation
    with pytest.raises(SightlineError, match="crop 65 is larger than resize 64"):
        resnet("random:0", resize=64, crop=65)


def test_weights_of_another_model_do_not_fit_a_resnet(tmp_path):
    save_file({"x": torch.ones(1)}, tmp_path / "x.safetensors")
    with pytest.raises(SightlineError, match=r"x\.safetensors does not fit resnet18.*unexpected"):
        resnet(f"file:{tmp_path / 'x.safetensors'}")


@pytest.mark.parametrize(
    ("model", "tag"), [("ViT-B-32", "laion2b_s34b_b79k"), ("resnet18", "IMAGENET1K_V1")]
)
def test_unavailable_published_weights(tmp_path, monkeypatch, capsys, model, tag):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nothing listens there
    with pytest.raises(SightlineError) as caught:
        image_tower(model, f"pretrained:{tag}")
    message = str(caught.value)
    assert message.startswith(f"{model}: its weights {tag!r} cannot be fetched: not cached here")
    assert "No substitute was loaded" in message
    assert capsys.readouterr().out == ""  # which belongs to results


def test_published_weights_of_a_resnet_from_the_cache(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    tag = torchvision.models.ResNet18_Weights.DEFAULT
    cached = tmp_path / "hub" / "checkpoints" / Path(tag.url).name
    cached.parent.mkdir(parents=True)
    path, model = checkpoint
    torch.save(model.state_dict(), cached)
    identity = resnet("pretrained:DEFAULT").identity
    assert identity.source == f"pretrained:{tag.name}"
    assert identity.revision == cached.stem
    assert not identity.untrained
    # the same as in another kind of file
    assert identity.weights_sha256 == resnet(f"file:{path}").identity.weights_sha256
    with pytest.raises(SightlineError, match="has no weights 'V9'; use pretrained: with one of IM"):
        resnet("pretrained:V9")
