"""Grounders and SAM 2 in the layouts of published folders: the same answers as of today's."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from published_folders import WEIGHTS, edit, in_half, split_processor
from safetensors.torch import load_file
from tiny_grounders import captions_of, pictures, save_dino, save_florence
from tiny_sam2 import SIZE, hf_config
from transformers import (
    GroundingDinoForObjectDetection,
    MMGroundingDinoConfig,
    MMGroundingDinoForObjectDetection,
    Sam2Model,
    Sam2VideoConfig,
    Sam2VideoModel,
)

from pipeline.grounding.settings import GrounderSettings, SegmenterSettings

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """Folders as transformers writes them now."""
    root = tmp_path_factory.mktemp("saved")
    save_florence(root / "florence2")
    save_dino(root / "grounding-dino")
    save_dino(root / "mm-grounding-dino", MMGroundingDinoConfig, MMGroundingDinoForObjectDetection)
    return root


@pytest.fixture
def copy(saved, tmp_path):
    return lambda family: shutil.copytree(saved / family, tmp_path / family)


def grounded(family: str, folder: Path) -> tuple[Any, Any]:
    """The boxes of each phrase, and the digest of the weights."""
    thresholds = {"box_threshold": 0.0, "text_threshold": 0.0}
    more = {"beams": 1, "max_length": 40} if family == "florence2" else thresholds
    settings = GrounderSettings.model_validate({"family": family, "model": str(folder), **more})
    grounder = settings.build(CPU, "fp32")
    ((found, dropped),) = grounder.ground(pictures((40, 60)), captions_of(["the red dog"]))
    rows = [(each.phrase, each.boxes.tolist()) for each in found]
    return (rows, [each.reason for each in dropped]), grounder.describe()["weights_sha256"]


def test_florence2_with_an_image_processor_in_its_own_file_and_in_half(saved, copy):
    folder = copy("florence2")
    split_processor(folder)
    assert grounded("florence2", folder) == grounded("florence2", saved / "florence2")
    in_half(folder)
    answer, digest = grounded("florence2", folder)
    assert any(answer)
    assert digest != grounded("florence2", saved / "florence2")[1]


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("image_processor_type", "GroundingDinoImageProcessor"),
        ("image_processor_type", "GroundingDinoImageProcessorFast"),
        ("feature_extractor_type", "GroundingDinoFeatureExtractor"),
    ],
)
@pytest.mark.parametrize("family", ["grounding-dino", "mm-grounding-dino"])
def test_grounding_dino_without_a_processor_or_tokenizer_file(saved, copy, family, key, name):
    folder = copy(family)
    images = split_processor(folder)
    edit(images, {}, ("image_processor_type",))
    edit(images, {key: name})
    (folder / "processor_config.json").unlink()
    (folder / "tokenizer.json").unlink()
    assert grounded(family, folder) == grounded(family, saved / family)


def test_grounding_dino_in_shards_or_with_a_pickle_beside_it(saved, copy):
    folder = copy("grounding-dino")
    expected = grounded("grounding-dino", saved / "grounding-dino")
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    assert grounded("grounding-dino", folder) == expected
    (folder / "pytorch_model.bin").unlink()
    (folder / WEIGHTS).unlink()
    model = GroundingDinoForObjectDetection.from_pretrained(saved / "grounding-dino")
    model.save_pretrained(folder, max_shard_size="50KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert grounded("grounding-dino", folder) == expected


def test_llmdet_large_has_four_stages_and_five_levels(saved, copy):
    folder = copy("mm-grounding-dino")
    config = MMGroundingDinoConfig.from_pretrained(folder)
    backbone = config.backbone_config.to_dict()
    stages = {"out_features": [f"stage{i}" for i in range(1, 5)], "out_indices": [1, 2, 3, 4]}
    values = {**config.to_dict(), "backbone_config": {**backbone, **stages}}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        large = MMGroundingDinoConfig.from_dict({**values, "num_feature_levels": 5})
        MMGroundingDinoForObjectDetection(large).save_pretrained(folder)
    (phrases, _), _ = grounded("mm-grounding-dino", folder)
    assert [phrase for phrase, _ in phrases] == ["the red dog"]


def test_the_video_model_of_sam2_segments_an_image_as_its_image_model(tmp_path):
    config = hf_config().to_dict()
    parts = ("vision_config", "prompt_encoder_config", "mask_decoder_config")
    narrow = dict.fromkeys(
        (
            "memory_attention_hidden_size",
            "memory_attention_feed_forward_hidden_size",
            "memory_encoder_hidden_size",
            "mask_downsampler_embed_dim",
            "memory_fuser_embed_dim",
            "memory_fuser_intermediate_dim",
        ),
        32,
    )
    video = Sam2VideoConfig(
        **{part: config[part] for part in parts},
        **narrow,
        memory_attention_num_layers=1,
        memory_encoder_output_channels=16,
        image_size=SIZE,
    )
    Sam2VideoModel(video).save_pretrained(tmp_path / "video")
    Sam2Model.from_pretrained(tmp_path / "video").save_pretrained(tmp_path / "image")
    image, box = pictures((40, 60)), [torch.tensor([[0.0, 0, 20, 20]])]
    logits = [
        SegmenterSettings.model_validate({"family": "sam2-hf", "model": str(tmp_path / name)})
        .build(CPU, "fp32")
        .logits(image, box)[0]
        for name in ("video", "image")
    ]
    torch.testing.assert_close(*logits)
