"""Weights cast once, memory layouts and compilation: near fp32, and told apart in the record."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from tiny_models import bert_folder, clip_config

from pipeline.encoders.frozen_model import cast_weights
from pipeline.encoders.names import named_encoder
from pipeline.extract.encode_missing import precision_rule
from sightline.errors import SightlineError

CPU = torch.device("cpu")
BOUND = 0.999
"""Smallest cosine between rows in bf16 or fp16 and in fp32."""
TEXTS = ["a cat runs", "red dog", "a", "the cat sits a dog runs red " * 3]


@pytest.fixture(scope="module")
def images() -> torch.Tensor:
    return torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Weights of a ResNet-18 with statistics that bfloat16 cannot hold exactly."""
    torch.manual_seed(1)
    model = torchvision.models.resnet18(weights=None)
    for _ in range(3):
        model(torch.randn(8, 3, 32, 32) * 1.7 + 0.3)
    path = tmp_path_factory.mktemp("weights") / "resnet.safetensors"
    save_file(model.state_dict(), path)
    return f"file:{path}"


FAMILIES = ["resnet", "clip image", "clip text", "teacher"]


@pytest.fixture(scope="module")
def build(resnet: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Any]:
    """Family and precision → its encoder."""
    folder = tmp_path_factory.mktemp("models")
    clip, bert = clip_config(folder), bert_folder(folder / "bert")
    builders = {
        "resnet": named_encoder("resnet18", resnet).build_image,
        "clip image": named_encoder(clip, "random:0").build_image,
        "clip text": named_encoder(clip, "random:0", "text").build_text,
        "teacher": named_encoder(str(bert), "pretrained", "teacher", pooling="mean").build_text,
    }
    return cache(lambda family, precision: builders[family](CPU, precision))


def rows_of(encoder: Any, images: torch.Tensor) -> torch.Tensor:
    if not hasattr(encoder, "lengths"):
        return encoder.encode(images)
    return encoder.encode(TEXTS, max(encoder.lengths(TEXTS)))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_cast_weights_are_as_near_to_fp32_as_autocast(family, precision, build, images):
    encoder = build(family, "fp32")
    exact, lowered = rows_of(encoder, images), rows_of(build(family, precision), images)
    assert lowered.dtype == torch.float32
    assert not torch.equal(lowered, exact)
    distance = 1 - torch.cosine_similarity(lowered, exact).min()
    assert distance < 1 - BOUND
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16
    with torch.autocast("cpu", dtype=dtype):
        usual = 1 - torch.cosine_similarity(rows_of(encoder, images), exact).min()
    assert distance < 3 * usual + 5e-5  # rounding alone, as residuals are bfloat16 as well


def test_weights_are_cast_and_batch_normalisation_is_not_and_the_record_names_the_rule(build):
    encoder = build("resnet", "bf16")
    model = encoder.encode.model
    assert model.conv1.weight.dtype == torch.bfloat16
    assert model.bn1.weight.dtype == model.bn1.running_var.dtype == torch.float32
    assert model.bn1.num_batches_tracked.dtype == torch.int64
    assert not model.conv1.weight.requires_grad
    assert precision_rule(encoder, "bf16") == "bf16, weights cast"
    assert precision_rule(encoder, "fp32") == "fp32"
    autocast = replace(encoder, casts_weights=False)  # an encoder from elsewhere
    assert precision_rule(autocast, "bf16") == "bf16"


def test_buffers_are_kept_where_asked_and_weights_beyond_float16_refused():
    layer = torch.nn.Linear(2, 2)
    layer.register_buffer("table", torch.tensor([1 / 3]))
    kept = cast_weights(copy.deepcopy(layer), torch.bfloat16, buffers=False)
    assert (kept.table.dtype, kept.weight.dtype) == (torch.float32, torch.bfloat16)
    torch.nn.init.constant_(layer.weight, 70_000.0)
    with pytest.raises(SightlineError, match=r"'weight' has values up to 7e\+04, which float16"):
        cast_weights(copy.deepcopy(layer), torch.float16)
    cast = cast_weights(layer, torch.bfloat16)
    assert cast.table.dtype == torch.bfloat16
    assert cast.weight.isfinite().all()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_row_depends_on_itself_alone(family, precision, build, images):
    encoder, order = build(family, precision), [2, 0, 3, 1]
    if hasattr(encoder, "lengths"):
        length = max(encoder.lengths(TEXTS))
        batches = [TEXTS, [TEXTS[i] for i in order], ["", "", TEXTS[2], ""]]
        rows, turned, alone = (encoder.encode(texts, length) for texts in batches)
    else:
        padded = torch.zeros_like(images)
        padded[2] = images[2]
        rows, turned, alone = map(encoder.encode, (images, images[order], padded))
    assert torch.equal(turned, rows[order])
    assert torch.equal(alone[2], rows[2])


def test_channels_last_changes_no_more_than_rounding(images, tmp_path):
    tower = {"image_size": 32, "layers": [1, 1, 1, 1], "width": 8, "head_width": 8}
    path = clip_config(tmp_path, vision_cfg=tower, embed_dim=32)
    usual = named_encoder(path, "random:0").build_image(CPU, "fp32")
    other = named_encoder(path, "random:0", channels_last=True).build_image(CPU, "fp32")
    assert (usual.options, other.options) == ((), ("channels last",))
    assert other.encode.input(images).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(other.encode(images), usual.encode(images), rtol=1e-3, atol=1e-5)


def test_what_cannot_be_compiled_is_one_error(monkeypatch, images, tmp_path):
    from torch._dynamo.exc import TorchDynamoException

    def fails(*inputs: object, **options: object) -> None:
        raise TorchDynamoException("no C++ compiler\nand much more")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fails)
    config = named_encoder(clip_config(tmp_path), "random:0").model_copy(update={"compile": True})
    with pytest.raises(SightlineError, match=r"torch.compile failed on cpu \(no C\+\+ compiler\)"):
        config.build_image(CPU, "fp32").encode(images)


@pytest.mark.slow
def test_a_compiled_model_gives_the_rows_of_the_eager_one(resnet, images, tmp_path):
    clip = clip_config(tmp_path)
    for name, weights in (("resnet18", resnet), (clip, "random:0")):
        usual = named_encoder(name, weights).build_image(CPU, "fp32")
        compiled = named_encoder(name, weights, compile=True).build_image(CPU, "fp32")
        assert "compiled" in compiled.options
        rows = compiled.encode(images)
        assert torch.cosine_similarity(rows, usual.encode(images)).min() > 0.9999
        assert torch.equal(compiled.encode(images), rows)
