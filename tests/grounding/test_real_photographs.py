"""The stage on real photographs and their captions, with tiny models of the true classes."""

from __future__ import annotations

import pytest
import torch
from ground_data import BoxSegmenter
from tiny_grounders import save_dino, save_florence

from pipeline.cache import CAPTIONS, key_of_text, read_manifest
from pipeline.cache.records import read_phrases
from pipeline.datasets.pairs import PairsSource
from pipeline.datasets.registry import prepare
from pipeline.grounding.config import Florence2Settings, GroundingDinoSettings, Rules
from pipeline.grounding.registry import build_grounder
from pipeline.grounding.run import ground
from pipeline.grounding.units import units_of
from pipeline.grounding.worker import GroundSettings


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
    return build_grounder(settings, torch.device("cpu"), "fp32")


@pytest.mark.parametrize("count", [24, pytest.param(300, marks=pytest.mark.slow)])
def test_photographs_without_a_failure(photographs, grounder, tmp_path, count):
    folder, images = photographs
    units = units_of(folder / "images.parquet", folder / "captions.parquet", images, "longest")
    units = units[:count]
    settings = GroundSettings(batch_size=32, max_failed=0)
    summary = ground(units, grounder, BoxSegmenter(), Rules(), tmp_path / "out", settings)
    assert summary.counts["images"] == summary.counts["captions"] == count
    assert summary.counts["failed"] == 0
    if grounder.name == "grounding-dino":  # Florence-2 with random weights writes no phrase
        assert summary.counts["pairs"] > count
    else:
        assert sum(summary.counts["dropped"].values()) >= count
    texts = read_manifest(folder / "captions.parquet", CAPTIONS)["text"].to_pylist()
    texts = {key_of_text(text): text for text in texts}
    for row in read_phrases(tmp_path / "out").to_pylist():
        text = texts[row["caption_key"]]
        assert text[row["char_start"] : row["char_end"]] == row["phrase"]
