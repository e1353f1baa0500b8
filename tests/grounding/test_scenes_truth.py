"""Drawn scenes through `annotations`: every record and every cut-out matches the drawing."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from flat_tables import rows_with_keys
from PIL import Image

from pipeline.datasets.kinds import prepare
from pipeline.datasets.scenes import ScenesSource
from pipeline.datasets.scenes.draw import box_of, draw, png
from pipeline.datasets.scenes.scene import random_scene, stream
from pipeline.encoders.preprocessing import IMAGENET_MEAN, IMAGENET_STD, ImagePreprocessing
from pipeline.extract.inputs import CutoutRules, objects_of_phrases
from pipeline.extract.objects import CutoutPreprocessing, ObjectReader
from pipeline.extract.settings import RunSettings
from pipeline.grounding.ground import ground_dataset
from pipeline.grounding.settings import GroundingSettings
from sightline.cache import CAPTIONS, PHRASES, key_of_bytes, key_of_text, read_manifest
from sightline.cache.groundings import grounding_counts, read_phrases
from sightline.cache.prepared import PreparedDataset
from sightline.cache.rle import decode_mask

FILL = (124, 116, 104)
COUNT, EDGE, SEED = 30, 64, 5
SCENES = {"scenes": COUNT, "image_size": EDGE, "seed": SEED, "sentences": 5}
PAIRS = {"train_pairs": 5, "dev_pairs": 5, "test_pairs": 5}


class Drawn:
    """Images and masks of the scenes, redrawn, and the folder of their data set."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        random = stream(SEED, "scenes")
        self.pixels: dict[bytes, np.ndarray] = {}
        self.masks: dict[bytes, list[np.ndarray]] = {}
        for _ in range(COUNT):
            pixels, masks = draw(random_scene(random), EDGE)
            key = key_of_bytes(png(pixels))
            self.pixels[key], self.masks[key] = pixels, masks


@pytest.fixture(scope="module")
def drawn(tmp_path_factory) -> Drawn:
    """Scenes, and their grounding by the true phrases in ``out`` and ``cut``."""
    folder = tmp_path_factory.mktemp("scenes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pipeline.datasets.scenes.build.write_models", lambda *arguments: None)
        prepare("scenes", ScenesSource.model_validate({**SCENES, **PAIRS}), folder / "data")
    data = folder / "data"
    settings = GroundingSettings.model_validate(
        {
            "captions": "all",
            "grounder": {"family": "annotations", "path": data / "phrases.parquet"},
            "segmenter": {"family": "annotations"},
            "rules": {"duplicate_iou": None},
            "block_images": 7,
        }
    )
    prepared, how = PreparedDataset(data, data / "images"), RunSettings(max_failed=0)
    summary = ground_dataset(prepared, settings, folder / "out", folder / "cut", how)
    assert grounding_counts(summary.folder)["dropped"] == {}
    assert grounding_counts(summary.folder)["images"] == COUNT
    return Drawn(folder)


def records(drawn: Drawn) -> list[dict]:
    found = read_phrases(drawn.folder / "out").to_pylist()
    assert len(found) > 2 * COUNT
    return found


def test_every_record_is_a_true_one_and_none_is_missing(drawn):
    truth = read_manifest(drawn.folder / "data/phrases.parquet", PHRASES).to_pylist()
    assert sorted(map(repr, records(drawn))) == sorted(map(repr, truth))


def test_every_span_reads_exactly_the_phrase(drawn):
    captions = read_manifest(drawn.folder / "data/captions.parquet", CAPTIONS)["text"].to_pylist()
    texts = {key_of_text(text): text for text in captions}
    for row in records(drawn):
        assert texts[row["caption_key"]][row["char_start"] : row["char_end"]] == row["phrase"]
        assert row["phrase"] == row["phrase"].strip() != ""


def test_boxes_and_masks_are_those_that_were_drawn(drawn):
    for row in records(drawn):
        mask = decode_mask(row["mask"]["size"], row["mask"]["counts"])
        assert any(np.array_equal(mask, each) for each in drawn.masks[row["image_key"]])
        assert row["box"] == box_of(mask)


def test_cutouts_on_the_fill_colour_are_the_rendered_objects_pixel_for_pixel(drawn):
    table = rows_with_keys(drawn.folder / "cut", "cutouts").to_pylist()
    cutouts = {row["key"]: row["png"] for row in table}
    found = records(drawn)
    assert cutouts.keys() == {row["cutout_key"] for row in found}
    for row in found:
        mask = decode_mask(row["mask"]["size"], row["mask"]["counts"])
        expected = np.where(mask[..., None], drawn.pixels[row["image_key"]], np.uint8(FILL))
        with Image.open(io.BytesIO(cutouts[row["cutout_key"]])) as cutout:
            canvas = Image.new("RGB", (EDGE, EDGE), FILL)
            x0, y0, _, _ = map(int, row["box"])
            canvas.paste(cutout, (x0, y0), mask=cutout)
        np.testing.assert_array_equal(np.array(canvas), expected)


def test_what_an_encoder_sees_is_the_rendered_object_on_its_mean_colour(drawn):
    rows = {row["cutout_key"]: row for row in records(drawn)}
    data = drawn.folder / "data"
    for entry in objects_of_phrases(drawn.folder / "out", PreparedDataset(data, data / "images")):
        row = rows[entry.key]
        x0, y0, x1, y1 = map(int, row["box"])
        edge = max(x1 - x0, y1 - y0)  # no resize: an input of the object's own size
        image = ImagePreprocessing(
            (edge, edge), (edge, edge), "bilinear", IMAGENET_MEAN, IMAGENET_STD
        )
        preprocessing = CutoutPreprocessing(image, CutoutRules(margin=0))
        seen = preprocessing.normalised(ObjectReader(preprocessing)(entry))
        mask = decode_mask(row["mask"]["size"], row["mask"]["counts"])[y0:y1, x0:x1]
        pixels = drawn.pixels[row["image_key"]][y0:y1, x0:x1]
        mean, std = torch.tensor(IMAGENET_MEAN), torch.tensor(IMAGENET_STD)
        expected = torch.zeros(edge, edge, 3)  # the mean colour, normalised
        top, left = (edge - mask.shape[0]) // 2, (edge - mask.shape[1]) // 2
        inside = expected[top : top + mask.shape[0], left : left + mask.shape[1]]
        inside[torch.from_numpy(mask)] = (torch.from_numpy(pixels[mask]) / 255 - mean) / std
        torch.testing.assert_close(seen, expected.permute(2, 0, 1), rtol=0, atol=2e-6)
