"""Encoders in the layouts of published folders: the same rows as of those transformers writes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from published_folders import WEIGHTS, add_tensors, edit, in_half
from safetensors.torch import load_file
from test_vision import MODELS, SQUARE, encoder, ours
from tiny_encoder import make_encoder
from tiny_models import bert_folder
from transformers import DINOv3ConvNextConfig, DINOv3ConvNextModel, DINOv3ViTImageProcessor

CPU = torch.device("cpu")
PIXELS = [torch.arange(40 * 50 * 3).reshape(40, 50, 3).to(torch.uint8).numpy()]
POSITIONS = torch.arange(40)[None]


@pytest.fixture
def saved(tmp_path) -> Any:
    def save(name: str) -> Path:
        for part in (*MODELS[name], make_encoder()[1]):
            part.save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


def texts(folder: Path, **fields: object) -> torch.Tensor:
    built = encoder(folder, **fields).build_text(CPU, "fp32")
    return built.encode(["a dog"], built.lengths(["a dog"])[0])


@pytest.mark.parametrize("name", MODELS)
def test_image_processors_under_their_older_names(saved, name):
    folder = saved(name)
    file, expected = folder / "preprocessor_config.json", ours(folder, PIXELS)
    values = json.loads(file.read_text())
    now = values.pop("image_processor_type")
    old = now.replace("ImageProcessor", "FeatureExtractor")
    for key, kind in (("image_processor_type", f"{now}Fast"), ("feature_extractor_type", old)):
        file.write_text(json.dumps({**values, key: kind}))
        assert torch.equal(ours(folder, PIXELS), expected)


def test_clip_as_openai_published_it(saved):
    folder = saved("clip")
    images, words = ours(folder, PIXELS), texts(folder)
    values = json.loads((folder / "preprocessor_config.json").read_text())
    kept = ("do_center_crop", "do_normalize", "do_resize", "image_mean", "image_std", "resample")
    old = {"crop_size": 32, "size": 32, "feature_extractor_type": "CLIPFeatureExtractor"}
    old |= {key: values[key] for key in kept}
    (folder / "preprocessor_config.json").write_text(json.dumps(old))
    add_tensors(
        folder,
        {
            "text_model.embeddings.position_ids": POSITIONS[:, :12].clone(),
            "vision_model.embeddings.position_ids": POSITIONS[:, :17].clone(),
        },
    )
    # where a tensor begins in the file decides how the CPU reads it, and so its last bits
    assert torch.allclose(ours(folder, PIXELS), images, atol=1e-6)
    assert torch.allclose(texts(folder), words, atol=1e-6)
    in_half(folder)
    assert torch.allclose(ours(folder, PIXELS), images, atol=0.02)


def test_siglip_2_of_a_fixed_size_is_a_siglip(saved):
    folder = saved("siglip")
    images, words = ours(folder, PIXELS), texts(folder)
    edit(folder / "preprocessor_config.json", {"processor_class": "SiglipProcessor"})
    edit(folder / "config.json", {"torch_dtype": "float32"}, ("dtype",))
    assert torch.equal(ours(folder, PIXELS), images)
    assert torch.equal(texts(folder), words)


def test_dinov3_convnext(tmp_path):
    config = DINOv3ConvNextConfig(hidden_sizes=[8, 8, 16, 16], depths=[1] * 4, image_size=32)
    DINOv3ConvNextModel(config).save_pretrained(tmp_path)
    DINOv3ViTImageProcessor(**SQUARE).save_pretrained(tmp_path)
    assert ours(tmp_path, PIXELS).shape == (1, 16)


@pytest.mark.parametrize("teacher", ["simcse", "diffcse"])
def test_teachers_pickled_under_the_names_of_their_papers(tmp_path, teacher):
    plain = bert_folder(tmp_path / "plain")
    folder = shutil.copytree(plain, tmp_path / teacher)
    tensors = load_file(folder / WEIGHTS) | {"embeddings.position_ids": POSITIONS}
    if teacher == "diffcse":
        tensors = {f"bert.{k}": v for k, v in tensors.items() if "pooler" not in k}
        tensors |= {"mlp.net.0.weight": torch.zeros(3, 3), "lm_head.bias": torch.zeros(3)}
        tensors["discriminator.bert.embeddings.word_embeddings.weight"] = torch.zeros(11, 32)
        edit(folder / "config.json", {"architectures": ["BertForCL"]})
    torch.save(tensors, folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    (folder / "tokenizer.json").unlink()
    assert torch.equal(texts(folder, pooling="cls"), texts(plain, pooling="cls"))
