"""Preprocessing: whole images as open_clip and torchvision do, and objects cut out of them."""

from __future__ import annotations

import json

import numpy as np
import open_clip
import pytest
import torch
from image_files import photograph
from open_clip.transform import PreprocessCfg, image_transform_v2
from torch import Tensor
from torchvision.models import ResNet50_Weights

from pipeline.datasets.scenes.scene import Placed, Scene, Thing, draw
from pipeline.encoders.preprocessing import IMAGENET_MEAN, IMAGENET_STD, ImagePreprocessing
from pipeline.extract.decode import ImageError
from pipeline.extract.objects import CutoutPreprocessing, cut_out
from pipeline.extract.settings import CutoutRules

SIZES = [(500, 375), (375, 500), (333, 500), (40, 31), (224, 224), (1000, 60)]
RESNET = ImagePreprocessing((256, 256), (224, 224), "bilinear", IMAGENET_MEAN, IMAGENET_STD)


def tensor(image) -> Tensor:
    """uint8 [3, H, W]."""
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
    transform = ResNet50_Weights.IMAGENET1K_V1.transforms()
    for size in SIZES:
        image = photograph(*size)
        difference = (RESNET(tensor(image)) - transform(image)).abs() * RESNET.std[0] * 255
        assert difference.max() <= 2.1, size
        assert difference.mean() <= 0.1, size


def test_the_description_names_every_decision():
    described = RESNET.describe()
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
        assert ImagePreprocessing(**{**vars(RESNET), **change}).describe() != described
    assert "white" in str(described["decoder"])


MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
COLOURS = {"mean": MEAN, "white": (1.0,) * 3, "black": (0.0,) * 3}


def preprocessing(edge: int, interpolation="bicubic", **rules: object) -> CutoutPreprocessing:
    """Of an encoder that would resize to 1.5 times its input and crop the centre."""
    image = ImagePreprocessing((edge * 3 // 2,) * 2, (edge, edge), interpolation, MEAN, STD)
    return CutoutPreprocessing(image, CutoutRules.model_validate(rules))


def colours(made: Tensor) -> np.ndarray:
    """The colours of an input: float [h, w, 3], 0–1."""
    shown = made * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)
    return shown.permute(1, 2, 0).numpy()


def scene(shape: str, edge: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """Pixels uint8 [edge, edge, 3] and mask of a scene of one striped thing."""
    thing = Thing(shape, "green", "big", "striped")
    pixels, (mask,) = draw(Scene((Placed(thing, 0.5, 0.5, 0.25),), ground=40), edge)
    return pixels, mask


def rectangle(top, left, height, width, colour, around) -> tuple[Tensor, np.ndarray]:
    """An image of 60 × 80 with one rectangle of `colour`, and its mask."""
    mask = np.zeros((60, 80), dtype=bool)
    mask[top : top + height, left : left + width] = True
    return tensor(np.where(mask[..., None], colour, around).astype(np.uint8)), mask


@pytest.mark.parametrize("shape", ["ring", "star", "post", "bar"])
@pytest.mark.parametrize("background", ["mean", "white", "black"])
def test_at_its_own_size_an_object_is_exactly_what_was_drawn(shape, background):
    pixels, mask = scene(shape)
    cutout = cut_out(tensor(pixels), mask)
    height, width = cutout.shape[1:]
    edge = preprocessing(8).resized(height, width)[0]
    found = colours(preprocessing(edge, background=background)(cutout))

    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    top, left = (edge - height) // 2 - rows[0], (edge - width) // 2 - columns[0]
    expected = np.full((edge, edge, 3), COLOURS[background])
    for y, x in np.argwhere(mask):
        expected[y + top, x + left] = pixels[y, x] / 255
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_mean_colour_is_exactly_zero_for_the_encoder():
    pixels, mask = scene("ring")
    for edge in (16, 32, 224):
        made = preprocessing(edge)(cut_out(tensor(pixels), mask))
        assert (made[:, 0] == 0).all()
        assert (made[:, edge // 2, edge // 2] == 0).all()  # the hole of the ring
        assert made.abs().max() > 1


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("edge", [12, 24, 32, 100])
def test_nothing_of_the_background_gets_into_the_input(interpolation, edge):
    _, mask = scene("star")
    green = np.where(mask[..., None], [0, 200, 0], [255, 0, 0]).astype(np.uint8)
    prepare = preprocessing(edge, interpolation, background="black")
    found = colours(prepare(cut_out(tensor(green), mask)))
    assert np.abs(found[..., 0]).max() < 1e-6
    assert np.abs(found[..., 2]).max() < 1e-6
    assert found[..., 1].max() > 0.7
    # a different background gives the same input, bit for bit
    other = np.where(mask[..., None], [0, 200, 0], [0, 0, 255]).astype(np.uint8)
    assert torch.equal(prepare(cut_out(tensor(green), mask)), prepare(cut_out(tensor(other), mask)))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_an_edge_mixes_the_object_with_the_fill_and_nothing_else(interpolation):
    image, mask = rectangle(10, 10, 30, 20, (51, 102, 255), around=(255, 0, 0))
    prepare = preprocessing(23, interpolation)
    found = colours(prepare(cut_out(image, mask)))
    own, mean = np.array([51, 102, 255]) / 255, np.array(MEAN)
    share = ((found - mean) @ (own - mean)) / ((own - mean) @ (own - mean))
    assert share.min() > -1e-6
    assert share.max() < 1 + 1e-6
    assert ((share > 0.1) & (share < 0.9)).any()  # an edge that does not fall on a pixel
    np.testing.assert_allclose(found, mean + share[..., None] * (own - mean), atol=2 / 255)


def test_a_bright_rim_on_white_is_never_brighter_than_white():
    image, mask = rectangle(10, 10, 30, 20, (255, 255, 255), around=(0, 0, 0))
    image[:, 11:39, 11:29] = 0  # beside which bicubic overshoots
    for edge in (23, 31, 50, 77):
        found = colours(preprocessing(edge, background="white")(cut_out(image, mask)))
        assert found.max() < 1 + 1e-6


@pytest.mark.parametrize(("margin", "edge"), [(0.0, 40), (0.1, 48), (0.25, 60), (1.0, 120)])
def test_margin_and_square(margin, edge):
    image, mask = rectangle(5, 7, 10, 40, (255, 255, 255), around=(9, 9, 9))
    assert preprocessing(8, margin=margin).resized(10, 40) == (edge, edge)
    found = colours(preprocessing(edge, margin=margin, background="black")(cut_out(image, mask)))
    lit = found.min(axis=2) > 0.5
    rows, columns = np.flatnonzero(lit.any(1)), np.flatnonzero(lit.any(0))
    assert (rows[0], rows[-1] + 1) == ((edge - 10) // 2, (edge + 10) // 2)
    assert (columns[0], columns[-1] + 1) == ((edge - 40) // 2, (edge + 40) // 2)
    assert lit.sum() == 400


def test_keep_shows_the_box_as_it_is_in_the_image():
    pixels, mask = scene("ring")
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    box = pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    cutout = cut_out(tensor(pixels), mask)
    edge = max(box.shape[:2])
    found = colours(preprocessing(edge, margin=0, background="keep")(cutout))
    np.testing.assert_allclose(found, box / 255, atol=1e-6)
    padded = preprocessing(2 * edge, margin=0.5, background="keep")(cutout)
    assert (padded[:, 0] == 0).all()  # beyond the box: the mean colour


def test_a_single_pixel_becomes_an_input():
    image, mask = rectangle(59, 79, 1, 1, (255, 255, 255), around=(0, 0, 0))
    cutout = cut_out(image, mask)
    assert cutout.tolist() == [[[255]]] * 4
    np.testing.assert_allclose(colours(preprocessing(16)(cutout)), 1, atol=1e-6)


def test_an_empty_mask_is_an_error():
    with pytest.raises(ImageError) as caught:
        cut_out(torch.zeros(3, 4, 5, dtype=torch.uint8), np.zeros((4, 5), dtype=bool))
    assert caught.value.code == "mask_empty"


def test_every_rule_is_in_the_description():
    usual = preprocessing(32).describe()
    others = [preprocessing(32, margin=0.2), preprocessing(32, background="white")]
    for other in [*others, preprocessing(32, "bilinear"), preprocessing(16)]:
        assert other.describe() != usual
    assert "resize" not in usual  # of whole images: objects are never resized by it
