"""Names, configurations and devices: what there is, and one error for what there is not."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError
from tiny_models import clip_config

from pipeline.encoders.build_encoder import (
    IMAGE_FAMILIES,
    RESNETS,
    TEXT_FAMILIES,
    build_image_encoder,
    build_text_encoder,
    named_encoder,
)
from pipeline.encoders.encoder_config import EncoderConfig, parse_weights
from pipeline.encoders.torchvision_resnet import DIMS
from sightline.devices import computing
from sightline.errors import SightlineError


def test_names_find_their_family(tmp_path) -> None:
    assert named_encoder("resnet50", "random:0").family == "torchvision"
    assert named_encoder("ViT-B-32", "pretrained:openai").family == "open_clip"
    assert named_encoder("ViT-L/14", "random:0", "text").family == "open_clip"
    assert named_encoder(clip_config(tmp_path), "random:0").family == "open_clip"
    teacher = named_encoder("org/bert", "pretrained", "teacher", pooling="mean", max_length=64)
    assert (teacher.family, teacher.pooling, teacher.max_length) == ("transformers", "mean", 64)
    assert tuple(DIMS) == RESNETS
    assert {*IMAGE_FAMILIES, *TEXT_FAMILIES} == {"torchvision", "open_clip", "transformers"}


@pytest.mark.parametrize(
    ("name", "kind", "nearest"),
    [("resnet51", "image", "resnet50"), ("vit-b-32", "image", "ViT-B-32"),
     ("ViT-B32", "text", "ViT-B-32")],
)  # fmt: skip
def test_an_unknown_name_lists_what_there_is(name: str, kind, nearest: str) -> None:
    with pytest.raises(SightlineError) as caught:
        named_encoder(name, "random:0", kind)
    message = str(caught.value)
    assert f"unknown {kind} encoder {name!r} (did you mean {nearest}" in message
    assert "ViT-L-14" in message
    assert ("resnet152" in message) == (kind == "image")


def test_a_resnet_encodes_no_texts() -> None:
    with pytest.raises(SightlineError, match="unknown text encoder 'resnet50'"):
        named_encoder("resnet50", "random:0", "text")
    config = EncoderConfig(family="torchvision", model="resnet18", weights="random:0")
    with pytest.raises(SightlineError, match="does not encode texts; families that do: open_clip"):
        build_text_encoder(config, torch.device("cpu"), "fp32")
    config = EncoderConfig(family="transformers", model="x", weights="pretrained")
    with pytest.raises(SightlineError, match="does not encode images"):
        build_image_encoder(config, torch.device("cpu"), "fp32")


def test_forms_of_weights() -> None:
    assert parse_weights("pretrained:openai").value == "openai"
    assert parse_weights("file:a:b.pt").value == "a:b.pt"
    assert parse_weights("random:17").seed == 17
    for wrong in ("", "openai", "file:", "random", "random:x", "random:-1", "Pretrained:x"):
        with pytest.raises(ValueError, match="are no weights; write pretrained:TAG"):
            parse_weights(wrong)
    with pytest.raises(SightlineError, match="resnet18: weights: 'openai' are no weights"):
        named_encoder("resnet18", "openai")


def test_options_that_mean_nothing_are_refused() -> None:
    with pytest.raises(SightlineError, match="pooling mean nothing to family 'torchvision'"):
        named_encoder("resnet18", "random:0", pooling="mean")
    for fields in (
        {"family": "open_clip", "model": "ViT-B-32", "crop": 64},
        {"family": "transformers", "model": "x", "resize": 64},
        {"family": "torchvision", "model": "resnet18", "croop": 64},
        {"family": "keras", "model": "x"},
    ):
        with pytest.raises(ValidationError):
            EncoderConfig.model_validate({"weights": "random:0", **fields})


def test_fp32_on_cuda_means_no_tf32_and_flags_are_put_back() -> None:
    cudnn = torch.backends.cudnn
    before = (cudnn.allow_tf32, cudnn.deterministic, torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision("high")
    try:
        with computing(torch.device("cuda"), "fp32"):
            assert not cudnn.allow_tf32
            assert cudnn.deterministic
            assert torch.get_float32_matmul_precision() == "highest"
            assert torch.is_inference_mode_enabled()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before[2])
    after = (cudnn.allow_tf32, cudnn.deterministic, torch.get_float32_matmul_precision())
    assert after == before


def test_configurations_import_nothing_heavy() -> None:
    code = (
        "import sys, pipeline.encoders.encoder_config, pipeline.encoders.build_encoder; "
        "print([m for m in ('torch', 'torchvision', 'open_clip', 'transformers') "
        "if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
