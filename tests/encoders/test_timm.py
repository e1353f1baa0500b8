"""timm's backbones: the same rows as timm's own model and transform, whatever their weights."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import timm
import torch
from image_files import photograph
from safetensors.torch import save_file
from timm.data.config import resolve_model_data_config
from timm.data.transforms import ResizeKeepRatio, str_to_interp_mode
from timm.data.transforms_factory import create_transform

from pipeline.encoders.encoder import ImageEncoder
from pipeline.encoders.names import named_encoder
from sightline.errors import SightlineError

CPU = torch.device("cpu")
COMMIT = "c" * 40
KINDS = {
    "test_efficientnet": 256,  # convolutions, pooled
    "test_vit": 64,  # a transformer, [CLS]
    "test_convnext": 64,  # a norm after the pooling
    "mobilenetv3_small_050": 1024,  # a layer between the pooling and the classifier
    "deit_tiny_distilled_patch16_224": 192,  # two classifiers
}


def ours(model: str, weights: str, **fields: Any) -> ImageEncoder:
    return named_encoder(f"timm:{model}", weights, **fields).build_image(CPU, "fp32")


def pixels(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def as_input(encoder: ImageEncoder, image: np.ndarray) -> torch.Tensor:
    return encoder.preprocessing(torch.from_numpy(image).permute(2, 0, 1))[None]


def seeded(model: str) -> Any:
    torch.manual_seed(1)
    return timm.create_model(model, pretrained=False).eval()


@pytest.mark.parametrize(("name", "dim"), KINDS.items())
def test_rows_are_what_timm_gives_its_classifier(name, dim):
    encoder, theirs = ours(name, "random:1"), seeded(name)
    images = as_input(encoder, pixels(300, 400))
    with torch.no_grad():
        expected = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
    assert encoder.dim == expected.shape[1] == dim
    assert torch.allclose(encoder.encode(images), expected, atol=1e-5)
    assert encoder.identity.name == f"timm/{name}"
    assert encoder.identity.untrained
    assert encoder.identity.source == "random:1"


@pytest.mark.parametrize("overlay", [{}, {"crop_mode": "squash"}, {"crop_mode": "border"}])
@pytest.mark.parametrize("crop_pct", [0.9, 1.0])
@pytest.mark.parametrize("size", [(3, 160, 160), (3, 96, 160)])
@pytest.mark.parametrize("image", [(300, 401), (401, 300), (40, 30), (500, 90)])
def test_pixels_are_those_of_timms_transform(monkeypatch, overlay, crop_pct, size, image):
    """Within two levels of 256: our kernel resizes on uint8, Pillow's has other last bits."""
    whole = {"crop_pct": crop_pct, "input_size": size, "mean": (0.5, 0.5, 0.5), **overlay}
    create = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda *a, **k: create(*a, **k, pretrained_cfg_overlay=whole)
    )
    encoder = ours("test_efficientnet", "random:0")
    data = resolve_model_data_config(seeded("test_efficientnet"))
    smooth = photograph(*image)
    transform: Any = create_transform(**data)
    if isinstance(resize := transform.transforms[0], ResizeKeepRatio):
        resize.interpolation = str_to_interp_mode(data["interpolation"])  # timm 1.0.30 forgets it
    theirs = transform(smooth)
    got = as_input(encoder, np.array(smooth))[0]
    assert got.shape == theirs.shape == size
    levels = (got - theirs).abs() * torch.tensor(data["std"])[:, None, None] * 255
    assert levels.max() < 2.5
    assert encoder.preprocessing.mean == (0.5, 0.5, 0.5)
    assert encoder.preprocessing.describe()["resize"] == [int(s / crop_pct) for s in size[1:]]


def saved(folder: Path, changes: Mapping[str, torch.Tensor] = MappingProxyType({})) -> Path:
    state = {**seeded("test_vit").state_dict(), **changes}
    save_file(
        {name: tensor.contiguous() for name, tensor in state.items()}, folder / "w.safetensors"
    )
    return folder / "w.safetensors"


def test_a_file_is_loaded_by_name_and_its_classifier_is_dropped(tmp_path):
    many = {"head.weight": torch.ones(7, 64), "head.bias": torch.ones(7)}
    file = saved(tmp_path, many)
    encoder = ours("test_vit", f"file:{file}")
    images = as_input(encoder, pixels(160, 160))
    theirs = seeded("test_vit")
    with torch.no_grad():
        expected = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
    assert torch.allclose(encoder.encode(images), expected, atol=1e-6)
    assert encoder.identity.source == "file:w.safetensors"
    assert not encoder.identity.untrained
    assert encoder.identity.weights_sha256 == ours("test_vit", "random:1").identity.weights_sha256


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"blocks.0.other": torch.ones(1)}, r"1 unexpected \(blocks.0.other\)"),
        ({"norm.weight": torch.ones(3)}, r"norm.weight is \[3\], expected \[64\]"),
    ],
)
def test_a_file_with_other_names_or_shapes_is_refused(tmp_path, changes, fault):
    with pytest.raises(SightlineError, match=f"does not fit test_vit: .*{fault}"):
        ours("test_vit", f"file:{saved(tmp_path, changes)}")


def test_published_weights_have_a_tag_and_a_commit(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "cache/models--timm--test_vit.r160_in1k"
    (place / "refs").mkdir(parents=True)
    (place / "refs/main").write_text(COMMIT)
    (place / "snapshots" / COMMIT).mkdir(parents=True)
    file = saved(tmp_path)
    shutil.copy(file, place / "snapshots" / COMMIT / "model.safetensors")
    encoder = ours("test_vit", "pretrained:r160_in1k")
    assert encoder.identity.source == "pretrained:r160_in1k"
    assert encoder.identity.revision == COMMIT
    assert (
        encoder.identity.weights_sha256 == ours("test_vit", f"file:{file}").identity.weights_sha256
    )
    damaged = saved(tmp_path, {"norm.weight": torch.ones(3)})
    shutil.copy(damaged, place / "snapshots" / COMMIT / "model.safetensors")
    with pytest.raises(SightlineError, match=r"its weights 'r160_in1k' do not fit .*norm"):
        ours("test_vit", "pretrained:r160_in1k")


@pytest.mark.parametrize(
    ("model", "weights", "fault"),
    [
        ("hf-hub:timm/resnet18", "random:0", "not a name of timm's own models"),
        ("local-dir:here", "random:0", "not a name of timm's own models"),
        (
            "resnet18.a1_in1k",
            "pretrained",
            "the model 'resnet18' with weights 'pretrained:a1_in1k'",
        ),
        ("resnet81", "random:0", r"there are resnet18, .* more; timm.list_models\(\)"),
        ("resnet18", "pretrained", "needs the tag of its weights; use pretrained: .*a1_in1k"),
        ("botnet50ts_256", "pretrained", "has no published weights; use file:PATH or random:SEED"),
        ("resnet18", "pretrained:no", "has no weights 'no'; use pretrained: .*a1_in1k"),
        ("resnet18", "pretrained:a1_in1k", "its weights 'a1_in1k' cannot be fetched"),
    ],
)
def test_what_timm_does_not_have_is_said(tmp_path, monkeypatch, model, weights, fault):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SightlineError, match=fault):
        ours(model, weights)


@pytest.mark.parametrize(
    ("overlay", "fault"),
    [
        ({"crop_mode": "tight"}, "crop mode 'tight' and filter 'bicubic'; expected center"),
        ({"interpolation": "lanczos"}, "filter 'lanczos'; expected"),
        ({"crop_mode": "border", "mean": (0.4, 0.5, 0.6)}, "frames its images in its mean colour"),
    ],
)
def test_a_transform_that_we_do_not_have_is_refused(monkeypatch, overlay, fault):
    create = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda *a, **k: create(*a, **k, pretrained_cfg_overlay=overlay)
    )
    with pytest.raises(SightlineError, match=fault):
        ours("test_vit", "random:0")


def test_what_changes_a_row_changes_the_fingerprint_and_nothing_else():
    plain, same = ours("test_vit", "random:0"), ours("test_vit", "random:0", channels_last=True)
    assert same.preprocessing == plain.preprocessing
    assert same.options == ("channels last",)
    other = ours("test_vit", "random:0", interpolation="bilinear", mean=(0.1, 0.2, 0.3))
    assert other.preprocessing.interpolation == "bilinear"
    assert other.preprocessing.mean == (0.1, 0.2, 0.3)
