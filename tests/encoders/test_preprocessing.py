"""Preprocessing: open_clip's and torchvision's own transforms, within one level of 255."""

from __future__ import annotations

import json

import numpy as np
import open_clip
import pytest
import torch
from image_files import photograph
from open_clip.transform import PreprocessCfg, image_transform_v2
from torchvision.models import ResNet50_Weights

from pipeline.encoders.preprocessing import IMAGENET_MEAN, IMAGENET_STD, ImagePreprocessing

SIZES = [(500, 375), (375, 500), (333, 500), (40, 31), (224, 224), (1000, 60)]


def tensor(image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.mark.parametrize("mode", ["shortest", "longest", "squash"])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", SIZES)
def test_like_open_clips_transform(mode, interpolation, size):
    cfg = PreprocessCfg(size=32, resize_mode=mode, interpolation=interpolation)
    mine = ImagePreprocessing(
        resize=(32, 32),
        crop=(32, 32),
        interpolation=interpolation,
        mean=open_clip.OPENAI_DATASET_MEAN,
        std=open_clip.OPENAI_DATASET_STD,
        resize_mode=mode,
    )
    image = photograph(*size)
    theirs = image_transform_v2(cfg, is_train=False)(image)
    ours = mine(tensor(image))
    assert ours.shape == theirs.shape == (3, 32, 32)
    assert ours.dtype == torch.float32
    levels = (ours - theirs).abs() * torch.tensor(mine.std).view(3, 1, 1) * 255
    # torch's integer kernel rounds between its two passes as Pillow's does, elsewhere at times.
    assert levels.max() <= 2.01
    assert levels.mean() <= 0.1


def test_like_torchvisions_transform_for_resnet():
    mine = ImagePreprocessing((256, 256), (224, 224), "bilinear", IMAGENET_MEAN, IMAGENET_STD)
    transform = ResNet50_Weights.IMAGENET1K_V1.transforms()
    for size in SIZES:
        image = photograph(*size)
        difference = (mine(tensor(image)) - transform(image)).abs() * mine.std[0] * 255
        assert difference.max() <= 2.1, size
        assert difference.mean() <= 0.1, size


def test_the_description_names_every_decision():
    mine = ImagePreprocessing((256, 256), (224, 224), "bilinear", IMAGENET_MEAN, IMAGENET_STD)
    described = mine.describe()
    assert json.loads(json.dumps(described)) == described
    for change in (
        {"resize": (255, 255)},
        {"crop": (223, 223)},
        {"interpolation": "bicubic"},
        {"mean": (0.5, 0.5, 0.5)},
        {"std": (0.5, 0.5, 0.5)},
        {"resize_mode": "squash"},
        {"fill": 1},
        {"decoder": "another"},
    ):
        assert ImagePreprocessing(**{**vars(mine), **change}).describe() != described
    assert "white" in str(described["decoder"])
