"""Segmenters: rectangles, and SAM 2 by two back ends that must agree."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from safetensors.torch import save_file
from tiny_grounders import pictures
from tiny_sam2 import SIZE, as_transformers, configuration, hf_config
from torch import Tensor

from pipeline.grounding.segmenters.box import BoxSegmenter
from pipeline.grounding.segmenters.prompted import BOXES, PromptedSegmenter
from pipeline.grounding.settings import SegmenterSettings
from sightline.errors import SightlineError

CPU = torch.device("cpu")


def settings(**given: object) -> Any:
    return TypeAdapter(SegmenterSettings).validate_python(given)


def build(**given: object) -> PromptedSegmenter:
    segmenter = settings(**given).build(CPU, "fp32")
    assert isinstance(segmenter, PromptedSegmenter)
    return segmenter


def boxes_of(image: Tensor, count: int, seed: int) -> Tensor:
    height, width = image.shape[1:]
    draw = torch.Generator().manual_seed(seed)
    corner, extent = torch.rand(2, count, 2, generator=draw)
    first = corner * 0.6
    both = torch.cat([first, first + 0.1 + extent * 0.3], dim=1)
    return both * torch.tensor([width, height, width, height])


@pytest.fixture(scope="module")
def batch() -> tuple[list[Tensor], list[Tensor]]:
    """Four images of three sizes; the third has no box."""
    images = pictures((90, 130), (200, 60), (64, 64), (90, 130))
    counts = enumerate((3, 1, 0, 5))
    return images, [boxes_of(images[i], count, i) for i, count in counts]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The tiny SAM 2 with one set of random weights, for both back ends."""
    pytest.importorskip("sam2", reason="the sam2 package is not installed")
    from transformers import Sam2Model

    from pipeline.grounding.segmenters.sam2 import _instantiate

    folder = tmp_path_factory.mktemp("sam2")
    model = _instantiate(configuration(folder))
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():  # as they are drawn, many weights are 0, which would hide a wrong name
        for name, tensor in sorted(model.state_dict().items()):
            scale = 0.1 if tensor.ndim < 2 else tensor[0].numel() ** -0.5
            level = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            tensor.copy_(level + torch.randn(tensor.shape, generator=draw) * scale)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save_file(state, folder / "tiny.safetensors")
    torch.save({"model": state}, folder / "tiny.pt")  # as Meta's checkpoints are
    twin = Sam2Model(hf_config())
    twin.load_state_dict(as_transformers(state))  # every name, and no other
    twin.save_pretrained(folder / "hf")
    return folder


@pytest.fixture(scope="module")
def sam2(folder) -> PromptedSegmenter:
    return build(family="sam2", model=str(folder / "tiny.yaml"), weights=f"file:{folder}/tiny.pt")


@pytest.fixture(scope="module")
def sam2_hf(folder) -> PromptedSegmenter:
    return build(family="sam2-hf", model=str(folder / "hf"))


def test_a_box_covers_the_pixels_whose_centres_it_holds():
    image = torch.zeros(3, 4, 6, dtype=torch.uint8)
    boxes = torch.tensor([[1.0, 1, 3, 4], [0.4, 0, 1.6, 1], [-9, -9, 99, 99], [2.6, 1, 3.4, 2]])
    masks = BoxSegmenter().segment([image, image], [boxes, boxes[:0]])
    assert masks[0].sum(dim=(1, 2)).tolist() == [6, 2, 24, 0]
    assert masks[0][0].nonzero().tolist() == [[1, 1], [1, 2], [2, 1], [2, 2], [3, 1], [3, 2]]
    assert masks[1].shape == (0, 4, 6)
    assert masks[0].dtype == torch.bool


def test_masks_of_annotations_are_not_computed():
    assert settings(family="annotations").build(CPU, "fp32") is None


@pytest.mark.parametrize("family", ["sam2", "sam2_hf"])
def test_a_batch_equals_one_by_one(family, batch, request):
    segmenter: PromptedSegmenter = request.getfixturevalue(family)
    images, boxes = batch
    together, masks = segmenter.logits(images, boxes), segmenter.segment(images, boxes)
    assert [mask.shape for mask in masks] == [
        (len(some), *image.shape[1:]) for image, some in zip(images, boxes, strict=True)
    ]
    asked = [i for i, some in enumerate(boxes) if len(some)]
    for i, logits in zip(asked, together, strict=True):
        alone = [segmenter.logits([images[i]], [box[None]])[0] for box in boxes[i]]
        torch.testing.assert_close(torch.cat(alone), logits, atol=2e-5, rtol=1e-4)
        one = [segmenter.segment([images[i]], [box[None]])[0] for box in boxes[i]]
        assert (torch.cat(one) == masks[i]).float().mean() > 0.9999
    shares = torch.cat([mask.float().mean(dim=(1, 2)) for mask in masks])
    assert ((shares > 0.01) & (shares < 0.99)).any(), "masks of one value would prove nothing"


def test_both_back_ends_give_the_same_masks_from_the_same_weights(sam2, sam2_hf, batch):
    images, boxes = batch
    for ours, theirs in zip(sam2.logits(*batch), sam2_hf.logits(*batch), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-4)
    for a, b in zip(sam2.segment(images, boxes), sam2_hf.segment(images, boxes), strict=True):
        assert (a == b).float().mean() > 0.9999 if a.numel() else a.shape == b.shape


def test_masks_are_those_of_metas_own_predictor(sam2, batch):
    from sam2.sam2_image_predictor import SAM2ImagePredictor

    predictor = SAM2ImagePredictor(sam2._backend._model)
    predictor._bb_feat_sizes = [(SIZE // n, SIZE // n) for n in (4, 8, 16)]  # fixed for 1,024 there
    images, boxes = batch
    for image, some, masks in zip(images, boxes, sam2.segment(images, boxes), strict=True):
        if len(some):
            predictor.set_image(image.permute(1, 2, 0).numpy())
            theirs, _, _ = predictor.predict(box=some.numpy(), multimask_output=False)
            expected = torch.from_numpy(theirs).reshape(masks.shape) > 0
            assert (masks == expected).float().mean() > 0.9999


def test_more_boxes_than_a_pass_takes(sam2_hf):
    (image,) = pictures((30, 40))
    boxes = boxes_of(image, BOXES + 3, 6)
    masks = sam2_hf.segment([image], [boxes])[0]
    assert masks.shape == (BOXES + 3, 30, 40)
    last = sam2_hf.segment([image], [boxes[-1:]])[0]
    assert (masks[-1:] == last).float().mean() > 0.999


def test_no_box_and_one_pixel(sam2_hf):
    (dot,) = pictures((1, 1))
    assert sam2_hf.segment([dot], [torch.zeros(0, 4)])[0].shape == (0, 1, 1)
    assert sam2_hf.segment([dot], [torch.tensor([[0.0, 0, 1, 1]])])[0].shape == (1, 1, 1)
    assert sam2_hf.segment([], []) == []


def test_every_format_of_weights_is_the_same_model(folder, sam2, sam2_hf):
    tiny = str(folder / "tiny.yaml")
    other = build(family="sam2", model=tiny, weights=f"file:{folder}/tiny.safetensors")
    described, from_other = sam2.describe(), other.describe()
    assert described["weights_sha256"] == from_other["weights_sha256"]
    assert described["source"] == "file:tiny.pt"
    assert described["untrained"] is False
    assert str(folder) not in json.dumps([described, sam2_hf.describe()])
    drawn = [build(family="sam2", model=tiny, weights=f"random:{i}") for i in (0, 0, 1)]
    digests = [each.describe()["weights_sha256"] for each in drawn]
    assert digests[0] == digests[1] != digests[2]
    assert drawn[0].describe()["untrained"] is True


def test_sam2_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "sam2", None)
    with pytest.raises(SightlineError) as caught:
        build(family="sam2", weights="random:0")
    install = "SAM2_BUILD_CUDA=0 pip install --no-build-isolation 'sightline[grounding]'"
    assert f"sam2 is not installed, but the segmenter sam2 needs it; run: {install}" in str(
        caught.value
    )


def test_a_checkpoint_of_another_model(folder, tmp_path):
    from transformers import BertConfig

    other = tmp_path / "other.safetensors"
    save_file({"encoder.weight": torch.zeros(3)}, other)
    for family, model in (("sam2", "tiny.yaml"), ("sam2-hf", "hf")):
        with pytest.raises(SightlineError, match=r"other\.safetensors does not fit .*1 unexpected"):
            build(family=family, model=str(folder / model), weights=f"file:{other}")
    BertConfig().save_pretrained(tmp_path / "bert")
    with pytest.raises(SightlineError, match="this is a checkpoint of 'bert', expected a SAM 2"):
        build(family="sam2-hf", model=str(tmp_path / "bert"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: {_target_: os.system, command: 'touch hacked'}", "names os.system"),
        ("other: 1", "not a sam2 configuration"),
        ("model: [", "not a sam2 configuration"),
        ("- 1", "not a sam2 configuration"),
        ("model: {_target_: sam2.modeling.sam2_base.Nobody}", "not a sam2 configuration"),
    ],
)
def test_invalid_configurations(tmp_path, text, message):
    pytest.importorskip("sam2", reason="the sam2 package is not installed")
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(SightlineError, match=message):
        build(family="sam2", model=str(tmp_path / "mine.yaml"), weights="random:0")


def test_names_without_a_model_or_weights(folder):
    with pytest.raises(SightlineError, match=r"no such sam2 model; use sam2-hiera-tiny"):
        build(family="sam2", model="sam2.1-hiera-huge", weights="random:0")
    with pytest.raises(SightlineError, match="has no published weights"):
        build(family="sam2", model=str(folder / "tiny.yaml"))


def test_published_weights_that_cannot_be_reached(folder, monkeypatch, tmp_path):
    monkeypatch.setattr("pipeline.grounding.segmenters.sam2._instantiate", lambda path: None)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(SightlineError, match=r"sam2\.1-hiera-large: its weights cannot be fetched"):
        build(family="sam2")


def test_invalid_settings():
    with pytest.raises(ValidationError, match="not valid weights"):
        settings(family="sam2", weights="mine.pt")
    with pytest.raises(ValidationError, match="model"):
        settings(family="box", model="x")
    with pytest.raises(ValidationError, match="sam3"):
        settings(family="sam3")
