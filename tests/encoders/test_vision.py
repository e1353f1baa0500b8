"""Vision models of transformers, against the library's own processors and models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from image_files import photograph
from tiny_encoder import make_encoder
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoTokenizer,
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    Dinov2Config,
    Dinov2Model,
    DINOv3ViTConfig,
    DINOv3ViTImageProcessor,
    DINOv3ViTModel,
    ResNetConfig,
    ResNetModel,
    SiglipConfig,
    SiglipImageProcessor,
    SiglipModel,
    ViTConfig,
    ViTImageProcessor,
    ViTModel,
)

from pipeline.encoders.config import EncoderConfig
from sightline.errors import SightlineError

CPU = torch.device("cpu")
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZE |= {"intermediate_size": 64}
IMAGE = {"image_size": 32, "patch_size": 8}
TEXT = {**SIZE, "vocab_size": 64, "max_position_embeddings": 12}
TEXT |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
TOWERS = {"text_config": TEXT, "vision_config": {**SIZE, **IMAGE}}
SQUARE = {"size": {"height": 32, "width": 32}}
MODELS = {
    "vit": (ViTModel(ViTConfig(**SIZE, **IMAGE)), ViTImageProcessor(**SQUARE)),
    "dinov2": (
        Dinov2Model(Dinov2Config(**SIZE, **IMAGE)),
        CLIPImageProcessor(size={"shortest_edge": 40}, crop_size=SQUARE["size"], resample=3),
    ),
    "dinov3": (
        DINOv3ViTModel(DINOv3ViTConfig(**SIZE, **IMAGE, num_register_tokens=4)),
        DINOv3ViTImageProcessor(**SQUARE),
    ),
    "clip": (
        CLIPModel(CLIPConfig(**TOWERS, projection_dim=24)),
        CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=SQUARE["size"]),
    ),
    "siglip": (SiglipModel(SiglipConfig(**TOWERS)), SiglipImageProcessor(**SQUARE)),
}
EXACT = 1e-5
FLOATS_FIRST = 0.02
"""DINOv3's processor does not round to 1/255 after it resized, and whether bilinear resizing does
depends on the CPU and on torchvision's version."""
ROUGH = {"dinov3", "vit"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """A folder for each model, with its image processor, and a tokenizer for texts."""
    root = tmp_path_factory.mktemp("vision")
    tokenizer = make_encoder()[1]
    for name, (model, processor) in MODELS.items():
        model.eval().save_pretrained(root / name)
        processor.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root


@pytest.fixture(scope="module")
def images() -> list[np.ndarray]:
    """uint8 [H, W, 3] of several shapes."""
    return [np.array(photograph(*size, seed=3)) for size in ((70, 50), (41, 64), (32, 32))]


def encoder(folder: Path, **parameters):
    values = {"family": "transformers", "model": str(folder), "weights": "pretrained"}
    return EncoderConfig.model_validate({**values, **parameters})


def ours(folder: Path, images: list[np.ndarray], **parameters) -> torch.Tensor:
    built = encoder(folder, **parameters).build_image(CPU, "fp32")
    pixels = [built.preprocessing(torch.from_numpy(i).permute(2, 0, 1)) for i in images]
    rows = built.encode(torch.stack(pixels))
    assert rows.shape == (len(images), built.dim)
    return rows


def theirs(folder: Path, images: list[np.ndarray]):
    """What the library's model makes of what its processor makes of the images."""
    inputs = AutoImageProcessor.from_pretrained(folder)(images, return_tensors="pt")
    model = AutoModel.from_pretrained(folder)
    towers = hasattr(model, "get_image_features")
    with torch.no_grad():
        return (model.get_image_features if towers else model)(**inputs)


@pytest.mark.parametrize("name", MODELS)
def test_a_models_configuration_is_part_of_its_rows(folders, tmp_path, name):
    before = encoder(folders / name).build_image(CPU, "fp32")
    other = shutil.copytree(folders / name, tmp_path / name)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 0.01}))
    after = encoder(other).build_image(CPU, "fp32")
    assert before.identity == after.identity
    assert before.configuration["config_sha256"] != after.configuration["config_sha256"]


@pytest.mark.parametrize("name", MODELS)
def test_features_are_the_librarys(folders, images, name):
    expected = theirs(folders / name, images).pooler_output
    error = (ours(folders / name, images) - expected).abs().max()
    assert error < (FLOATS_FIRST if name in ROUGH else EXACT)
    at_size = [images[2]]  # nothing to resize, so nothing to round
    expected = theirs(folders / name, at_size).pooler_output
    assert torch.allclose(ours(folders / name, at_size), expected, atol=EXACT)


@pytest.mark.parametrize("name", ["vit", "dinov3", "siglip"])
def test_the_mean_is_that_of_the_patches(folders, images, name):
    images = [images[2]]
    tokens = theirs(folders / name, images).last_hidden_state
    assert tokens.shape[1] == 16 + {"vit": 1, "dinov3": 5, "siglip": 0}[name]
    rows = ours(folders / name, images, pooling="mean")
    assert torch.allclose(rows, tokens[:, -16:].mean(dim=1), atol=EXACT)


def test_pooling_is_part_of_a_models_name(folders):
    names = [
        encoder(folders / "vit", **more).build_image(CPU, "fp32").identity.name
        for more in ({}, {"pooling": "pooler"}, {"pooling": "cls"})
    ]
    assert names == ["transformers/vit", "transformers/vit", "transformers/vit@cls"]


def test_a_model_of_the_hub_is_known_by_its_commit(folders, tmp_path, monkeypatch):
    cache, commit = tmp_path / "snapshots/2026/hub", "c" * 40  # as on a file server
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    place = cache / "models--papers--clip"
    shutil.copytree(folders / "clip", place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs/main").write_text(commit)
    here = encoder(folders / "clip").build_image(CPU, "fp32").identity
    for weights in ("pretrained", "pretrained:main", f"pretrained:{commit}"):
        there = encoder(Path("papers/clip"), weights=weights)
        towers = (there.build_image(CPU, "fp32"), there.build_text(CPU, "fp32"))
        assert {(t.identity.name, t.identity.revision) for t in towers} == {
            ("transformers/papers/clip", commit)
        }
        assert {t.identity.weights_sha256 for t in towers} == {here.weights_sha256}
    assert here.revision == ""


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_a_text_tower_is_in_the_space_of_its_images(folders, name):
    texts = ["a dog", "two dogs on the green grass"]
    built = encoder(folders / name).build_text(CPU, "fp32")
    tokenizer = AutoTokenizer.from_pretrained(folders / name)
    inputs = tokenizer(texts, padding="max_length", truncation=True, max_length=12)
    model = AutoModel.from_pretrained(folders / name)
    with torch.no_grad():
        tensors = {k: torch.tensor(v) for k, v in inputs.items() if k != "token_type_ids"}
        expected = model.get_text_features(**tensors).pooler_output
    assert torch.allclose(built.encode(texts, 12), expected, atol=EXACT)
    assert built.lengths(texts) == [12, 12]
    assert built.dim == encoder(folders / name).build_image(CPU, "fp32").dim


def test_a_checkpoint_without_a_pooler_says_which_pooling_it_has(folders, tmp_path):
    ViTModel(ViTConfig(**SIZE, **IMAGE), add_pooling_layer=False).save_pretrained(tmp_path)
    ViTImageProcessor(**SQUARE).save_pretrained(tmp_path)
    with pytest.raises(SightlineError, match="no pooler; use pooling cls or mean"):
        encoder(tmp_path).build_image(CPU, "fp32")
    assert encoder(tmp_path, pooling="cls").build_image(CPU, "fp32").dim == 32


UNCROPPED = {"size": {"shortest_edge": 32}, "do_center_crop": False}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (UNCROPPED, "do_center_crop False"),
        ({**UNCROPPED, "crop_size": 32}, "do_center_crop False"),
        ({"resample": 1}, "resample 1"),
        ({"rescale_factor": 0.5}, "rescale_factor 0.5"),
        ({"do_resize": False}, "expected height and width"),
    ],
)
def test_a_processor_that_does_something_else_is_refused(folders, tmp_path, values, message):
    folder = shutil.copytree(folders / "vit", tmp_path / "vit")
    ViTImageProcessor(**{**SQUARE, **values}).save_pretrained(folder)
    with pytest.raises(SightlineError, match=message):
        encoder(folder).build_image(CPU, "fp32")


def test_a_processor_that_does_not_normalise_is_followed(folders, images, tmp_path):
    folder = shutil.copytree(folders / "vit", tmp_path / "vit")
    ViTImageProcessor(**SQUARE, resample=3, do_normalize=False).save_pretrained(folder)
    expected = theirs(folder, images).pooler_output
    assert torch.allclose(ours(folder, images), expected, atol=EXACT)


@pytest.mark.parametrize("name", ["vit", "dinov2"])
def test_a_vision_model_is_no_teacher(folders, name):
    with pytest.raises(SightlineError, match="is not a text encoder"):
        encoder(folders / name).build_text(CPU, "fp32")


def test_what_is_not_a_vision_model_is_refused(tmp_path):
    for part in make_encoder():
        part.save_pretrained(tmp_path)
    with pytest.raises(SightlineError, match="'bert' model does not encode images"):
        encoder(tmp_path).build_image(CPU, "fp32")


@pytest.mark.parametrize("name", ["max_length", "prompt", "prompt_name", "pooling"])
def test_what_only_teachers_have_is_refused(folders, name):
    value = {"max_length": 8, "pooling": "mean"}.get(name, "query")
    config = encoder(folders / "clip", **{name: value})
    builders = [config.build_text] if name == "pooling" else [config.build_text, config.build_image]
    for build in builders:
        with pytest.raises(SightlineError, match=f"{name}: for teachers alone"):
            build(CPU, "fp32")


def test_a_tower_whose_tokenizer_gives_no_mask_gets_none(folders, tmp_path):
    folder = shutil.copytree(folders / "siglip", tmp_path / "siglip")
    tokenizer = make_encoder()[1]
    tokenizer.model_input_names = ["input_ids"]
    tokenizer.save_pretrained(folder)
    built = encoder(folder).build_text(CPU, "fp32")
    ids = tokenizer("a dog", padding="max_length", max_length=12, return_tensors="pt").input_ids
    with torch.no_grad():
        model = AutoModel.from_pretrained(folder)
        expected = model.get_text_features(input_ids=ids).pooler_output
    assert torch.allclose(built.encode(["a dog"], 12), expected, atol=EXACT)
    assert built.preprocessing["masked"] is False


RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}


def test_a_model_without_cls_before_its_patches_has_no_pooling_cls(folders, images):
    with pytest.raises(SightlineError, match=r"'siglip' model has no .CLS. .* pooler or m"):
        ours(folders / "siglip", images[-1:], pooling="cls")
    ours(folders / "siglip", images[-1:], pooling="mean")


def test_the_maps_of_a_convolutional_network_are_pooled(tmp_path, images):
    ResNetModel(ResNetConfig(**RESNET)).eval().save_pretrained(tmp_path)
    ViTImageProcessor(**SQUARE).save_pretrained(tmp_path)
    expected = theirs(tmp_path, images[-1:])
    pooled = ours(tmp_path, images[-1:])
    assert torch.allclose(pooled, expected.pooler_output.flatten(1), atol=EXACT)
    mean = ours(tmp_path, images[-1:], pooling="mean")
    assert torch.allclose(mean, expected.last_hidden_state.mean(dim=(2, 3)), atol=EXACT)
    with pytest.raises(SightlineError, match=r"'resnet' model has no .CLS."):
        ours(tmp_path, images[-1:], pooling="cls")
