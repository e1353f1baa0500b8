"""The stage on real photographs and their captions, with tiny models of the true classes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from ground_data import BoxSegmenter, WordGrounder
from tiny_grounders import save_dino, save_florence
from tiny_sam2 import configuration, hf_config

from pipeline.datasets.kinds import prepare
from pipeline.datasets.pairs import PairsSource
from pipeline.extract.settings import RunSettings
from pipeline.grounding.captioned_images import units_of
from pipeline.grounding.ground import ground
from pipeline.grounding.settings import (
    Florence2Settings,
    GroundingDinoSettings,
    Rules,
    Sam2HfSettings,
    Sam2Settings,
)
from sightline.cache import key_of_text
from sightline.cache.groundings import grounding_counts, read_phrases
from sightline.cache.prepared import PreparedDataset

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def photographs(shared_data, tmp_path_factory) -> PreparedDataset:
    source = shared_data / "flickr8k"
    folder = tmp_path_factory.mktemp("photographs") / "flickr8k"
    images = source / "images_full"
    given = PairsSource(images=images, captions=source / "Flickr8k.token.txt")
    prepare("pairs", given, folder)
    return PreparedDataset(folder, images)


def made(family: str, folder: Path):
    """A grounder or a segmenter of a family, with random weights."""
    if family == "florence2":
        settings = Florence2Settings(
            family=family, model=str(save_florence(folder)), beams=1, max_length=16
        )
    elif family == "grounding-dino":
        settings = GroundingDinoSettings(
            family=family, model=str(save_dino(folder)), box_threshold=0, text_threshold=0
        )
    elif family == "sam2":
        pytest.importorskip("sam2", reason="the sam2 package is not installed")
        folder.mkdir()
        settings = Sam2Settings(model=str(configuration(folder)), weights="random:0")
    else:
        hf_config().save_pretrained(folder)
        settings = Sam2HfSettings(family="sam2-hf", model=str(folder), weights="random:0")
    return settings.build(CPU, "fp32")


@pytest.mark.parametrize("count", [24, pytest.param(300, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", ["florence2", "grounding-dino", "sam2", "sam2-hf"])
def test_photographs_without_a_failure(photographs, family, tmp_path, count):
    units = units_of(photographs, "longest")[:count]
    model, how = made(family, tmp_path / "model"), RunSettings(batch_size=16, max_failed=0)
    grounds = family in ("florence2", "grounding-dino")
    parts = (model, BoxSegmenter()) if grounds else (WordGrounder(), model)
    ground(units, *parts, Rules(duplicate_iou=None), tmp_path / "out", how)
    counts = grounding_counts(tmp_path / "out")
    assert (counts["images"], counts["captions"], counts["failed"]) == (count, count, 0)
    if family == "florence2":  # which writes no phrase with random weights
        assert sum(counts["dropped"].values()) >= count
    else:
        assert counts["pairs"] > count
    if not grounds:
        assert counts["dropped"].keys() <= {"empty_mask", "duplicate"}
    texts = photographs.captions["text"].to_pylist()
    texts = {key_of_text(text): text for text in texts}
    rows = photographs.images.to_pylist()
    sizes = {row["key"]: [row["height"], row["width"]] for row in rows}
    for row in read_phrases(tmp_path / "out").to_pylist():
        text = texts[row["caption_key"]]
        assert text[row["char_start"] : row["char_end"]] == row["phrase"]
        assert row["mask"]["size"] == sizes[row["image_key"]]
