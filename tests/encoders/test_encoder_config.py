"""Names, configurations and devices: valid ones, and one error for each invalid one."""

from __future__ import annotations

import re

import pytest
import torch
from pydantic import ValidationError
from tiny_models import clip_config

from pipeline.encoders.config import EncoderConfig, named_encoder, parse_weights
from sightline.devices import computing
from sightline.errors import SightlineError


def test_names_find_their_family(tmp_path) -> None:
    assert named_encoder("resnet50", "random:0").family == "torchvision"
    assert named_encoder("ViT-B-32", "pretrained:openai").family == "open_clip"
    assert named_encoder("ViT-L/14", "random:0", "text").family == "open_clip"
    assert named_encoder(clip_config(tmp_path), "random:0").family == "open_clip"
    teacher = named_encoder("org/bert", "pretrained", "teacher", pooling="mean", max_length=64)
    assert (teacher.family, teacher.pooling, teacher.max_length) == ("transformers", "mean", 64)
    for named in ("open_clip:resnet50", "torchvision:resnet18", "transformers:a/b"):
        config = named_encoder(named, "random:0")
        assert f"{config.family}:{config.model}" == named


@pytest.mark.parametrize(
    ("name", "kind", "nearest"),
    [("resnet51", "image", "resnet50"), ("vit-b-32", "image", "ViT-B-32"),
     ("ViT-B32", "text", "ViT-B-32")],
)  # fmt: skip
def test_an_unknown_name_lists_the_available_ones(name: str, kind, nearest: str) -> None:
    with pytest.raises(SightlineError) as caught:
        named_encoder(name, "random:0", kind)
    message = str(caught.value)
    assert f"unknown {kind} encoder {name!r} (did you mean {nearest}" in message
    assert "ViT-L-14" in message
    assert ("resnet152" in message) == (kind == "image")


def test_a_resnet_encodes_no_texts() -> None:
    with pytest.raises(SightlineError, match="unknown text encoder 'resnet50'"):
        named_encoder("resnet50", "random:0", "text")
    config = named_encoder("resnet18", "random:0")
    with pytest.raises(SightlineError, match="does not encode texts; families that do: open_clip"):
        config.build_text(torch.device("cpu"), "fp32")


def test_forms_of_weights() -> None:
    assert parse_weights("pretrained:openai").value == "openai"
    assert parse_weights("file:a:b.pt").value == "a:b.pt"
    assert parse_weights("random:17").seed == 17
    for wrong in ("", "openai", "file:", "random", "random:x", "random:-1", "Pretrained:x"):
        with pytest.raises(ValueError, match="are not valid weights; write pretrained:TAG"):
            parse_weights(wrong)
    with pytest.raises(SightlineError, match="resnet18: weights: 'openai' are not valid weights"):
        named_encoder("resnet18", "openai")


def test_options_that_do_not_apply_are_refused() -> None:
    with pytest.raises(
        SightlineError, match=r"unknown key 'pooling'.*available: compile, crop, family"
    ):
        named_encoder("resnet18", "random:0", pooling="mean")
    for fields, message in (
        ({"family": "open_clip", "model": "ViT-B-32", "crop": 64}, "unknown key 'crop'"),
        ({"family": "transformers", "model": "x", "resize": 64}, "unknown key 'resize'"),
        ({"family": "torchvision", "model": "resnet18", "croop": 64}, "did you mean 'crop'"),
        ({"family": "torchvsion", "model": "x"}, "encoder family 'torchvsion'; did you mean 'torc"),
        ({"model": "x"}, "is missing; there are torchvision, open_clip, transformers"),
    ):
        with pytest.raises(ValidationError, match=re.escape(message)):
            EncoderConfig.model_validate({"weights": "random:0", **fields})
    with pytest.raises(ValidationError, match="found str, expected a mapping with a `family`"):
        EncoderConfig.model_validate("ViT-B-32")


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
