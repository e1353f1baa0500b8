"""The stage on real photographs and their captions, with tiny models of the true classes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from ground_data import BoxSegmenter
from tiny_grounders import save_dino, save_florence
from tiny_sam2 import configuration, hf_config
from torch import Tensor

from pipeline.datasets.kinds import prepare
from pipeline.datasets.pairs import PairsSource
from pipeline.extract.settings import RunSettings
from pipeline.grounding.captioned_images import units_of
from pipeline.grounding.chunker import noun_phrases
from pipeline.grounding.ground import ground
from pipeline.grounding.protocols import Answer, Caption, Grounded
from pipeline.grounding.settings import (
    Florence2Settings,
    GroundingDinoSettings,
    Rules,
    Sam2HfSettings,
    Sam2Settings,
)
from sightline.cache import CAPTIONS, IMAGES, key_of_text, read_manifest
from sightline.cache.groundings import grounding_counts, read_phrases
from sightline.cache.prepared import PreparedDataset


@pytest.fixture(scope="module")
def photographs(shared_data, tmp_path_factory):
    """Manifests of 300 photographs, and their folder."""
    source = shared_data / "flickr8k"
    folder = tmp_path_factory.mktemp("photographs") / "flickr8k"
    images = source / "images_full"
    given = PairsSource(images=images, captions=source / "Flickr8k.token.txt")
    prepare("pairs", given, folder)
    return folder, images


@pytest.fixture(params=["florence2", "grounding-dino"])
def grounder(request, tmp_path):
    if request.param == "florence2":
        model = str(save_florence(tmp_path / "model"))
        settings = Florence2Settings(family="florence2", model=model, beams=1, max_length=16)
    else:
        model = str(save_dino(tmp_path / "model"))
        settings = GroundingDinoSettings(
            family="grounding-dino", model=model, box_threshold=0, text_threshold=0
        )
    return settings.build(torch.device("cpu"), "fp32")


class PhraseGrounder:
    """Every noun phrase has two boxes, which depend on its position in the caption."""

    name = "phrases"

    def describe(self) -> dict[str, object]:
        return {"family": self.name}

    def ground(self, images: Sequence[Tensor], captions: Sequence[Caption]) -> list[Answer]:
        return [(self._found(i, c.text), []) for i, c in zip(images, captions, strict=True)]

    def _found(self, image: Tensor, text: str) -> list[Grounded]:
        height, width = image.shape[1:]
        edges = torch.tensor([width, height, width, height])
        found = []
        for place, span in enumerate(noun_phrases(text)):
            left, top = 0.13 * place % 0.6, 0.07 * place % 0.6
            shares = torch.tensor([[left, top, left + 0.4, top + 0.3], [0.1, 0.0, 1.0, 0.9]])
            found.append(Grounded(text[slice(*span)], *span, shares * edges, torch.ones(2)))
        return found


COUNTS = [24, pytest.param(300, marks=pytest.mark.slow)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("family", ["sam2", "sam2-hf"])
def test_masks_of_photographs_without_a_failure(photographs, family, tmp_path, count):
    folder, images = photographs
    if family == "sam2":
        pytest.importorskip("sam2", reason="the sam2 package is not installed")
        model = str(configuration(tmp_path))
        settings = Sam2Settings(model=model, weights="random:0")
    else:
        hf_config().save_pretrained(tmp_path / "model")
        model = str(tmp_path / "model")
        settings = Sam2HfSettings(family="sam2-hf", model=model, weights="random:0")
    segmenter = settings.build(torch.device("cpu"), "fp32")
    units = units_of(PreparedDataset(folder, images), "longest")
    units = units[:count]
    rules, how = Rules(boxes="union", duplicate_iou=None), RunSettings(batch_size=16, max_failed=0)
    summary = ground(units, PhraseGrounder(), segmenter, rules, tmp_path / "out", how)
    assert grounding_counts(summary.folder)["images"] == count
    assert grounding_counts(summary.folder)["failed"] == 0
    texts = [caption.text for unit in units for caption in unit.captions]
    phrases = sum(len(noun_phrases(text)) for text in texts)
    empty = grounding_counts(summary.folder)["dropped"].pop(
        "empty_mask", 0
    )  # the weights are random
    assert grounding_counts(summary.folder)["dropped"] == {}
    assert grounding_counts(summary.folder)["pairs"] == phrases - empty > 2 * count
    manifest = read_manifest(folder / "images.parquet", IMAGES).to_pylist()
    sizes = {row["key"]: [row["height"], row["width"]] for row in manifest}
    for row in read_phrases(tmp_path / "out").to_pylist():
        assert row["mask"]["size"] == sizes[row["image_key"]]


@pytest.mark.parametrize("count", COUNTS)
def test_photographs_without_a_failure(photographs, grounder, tmp_path, count):
    folder, images = photographs
    units = units_of(PreparedDataset(folder, images), "longest")
    units = units[:count]
    settings = RunSettings(batch_size=32, max_failed=0)
    summary = ground(units, grounder, BoxSegmenter(), Rules(), tmp_path / "out", settings)
    assert (
        grounding_counts(summary.folder)["images"]
        == grounding_counts(summary.folder)["captions"]
        == count
    )
    assert grounding_counts(summary.folder)["failed"] == 0
    if grounder.name == "grounding-dino":  # Florence-2 with random weights writes no phrase
        assert grounding_counts(summary.folder)["pairs"] > count
    else:
        assert sum(grounding_counts(summary.folder)["dropped"].values()) >= count
    texts = read_manifest(folder / "captions.parquet", CAPTIONS)["text"].to_pylist()
    texts = {key_of_text(text): text for text in texts}
    for row in read_phrases(tmp_path / "out").to_pylist():
        text = texts[row["caption_key"]]
        assert text[row["char_start"] : row["char_end"]] == row["phrase"]
