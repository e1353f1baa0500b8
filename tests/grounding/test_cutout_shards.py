"""Cut-outs: lossless, with the mask as alpha, cropped to the mask, made once."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from flat_tables import rows_with_keys
from ground_data import BoxSegmenter, DataSet, files_of, run_ground
from PIL import Image

from pipeline.extract.runner import SetSummary
from pipeline.extract.settings import RunSettings
from pipeline.grounding.cutouts import write_cutouts
from sightline.cache.groundings import read_phrases
from sightline.cache.rle import decode_mask
from sightline.errors import SightlineError

SMALL = RunSettings(block_rows=12, shard_rows=20)


@pytest.fixture
def data(tmp_path) -> DataSet:
    """Five images with six objects each, and their grounding in ``out``."""
    data = DataSet.of(tmp_path / "data", 5)
    run_ground(data, tmp_path / "out")
    return data


def cut(data: DataSet, records: Path, out: Path) -> SetSummary:
    return write_cutouts(records, {unit.key: unit.place for unit in data.units()}, out, SMALL)


class Pierced(BoxSegmenter):
    """The rectangle itself, with a hole at every other pixel of every other row."""

    def segment(self, images, boxes):
        masks = super().segment(images, boxes)
        for mask in masks:
            mask[:, ::2, ::2] = False
        return masks


def test_a_cutout_is_the_box_of_its_image_with_the_mask_as_alpha(data, tmp_path):
    run_ground(data, tmp_path / "pierced", segmenter=Pierced())
    summary = cut(data, tmp_path / "pierced", tmp_path / "cut")
    assert summary.record is not None
    count = summary.record.rows
    cutouts = {r["key"]: r for r in rows_with_keys(tmp_path / "cut", "cutouts").to_pylist()}
    paths = {unit.key: unit.place for unit in data.units()}
    phrases = read_phrases(tmp_path / "pierced").to_pylist()
    assert len(cutouts) == count == len({row["cutout_key"] for row in phrases})
    for row in phrases:
        cutout = cutouts[row["cutout_key"]]
        rgba = np.array(Image.open(io.BytesIO(cutout["png"])))
        image = np.array(Image.open(paths[row["image_key"]].path).convert("RGB"))
        mask = decode_mask(row["mask"]["size"], row["mask"]["counts"])
        ys, xs = np.nonzero(mask)
        box = slice(ys.min(), ys.max() + 1), slice(xs.min(), xs.max() + 1)
        assert rgba.shape[:2] == mask[box].shape == (cutout["height"], cutout["width"])
        np.testing.assert_array_equal(rgba[..., 3], mask[box] * 255)
        np.testing.assert_array_equal(rgba[..., :3], image[box])


def test_recreated_cutouts_have_the_same_bytes_and_only_new_ones_are_made(data, tmp_path):
    cut(data, tmp_path / "out", tmp_path / "cut")
    before = files_of(tmp_path / "cut")
    cut(data, tmp_path / "out", tmp_path / "again")
    assert files_of(tmp_path / "again") == before
    (data.folder / "images").rename(tmp_path / "away")
    write_cutouts(tmp_path / "out", {}, tmp_path / "cut", SMALL)  # what stands is not made again
    assert files_of(tmp_path / "cut") == before


def test_a_photograph_that_cannot_be_read_costs_its_own_cutouts(data, tmp_path):
    places = {unit.key: unit.place for unit in data.units()}
    photograph = data.folder / "images/0.png"
    photograph.rename(tmp_path / "away.png")

    def made(out: str = "cut", places=places, **changes: object) -> SetSummary:
        return write_cutouts(tmp_path / "out", places, tmp_path / out, SMALL.but(**changes))

    with pytest.raises(SightlineError, match=r"6 of \d+ objects failed(.|\n)*0\.png: no such file"):
        made("strict")
    with pytest.raises(SightlineError, match="images that the data set does not have"):
        made("strange", {})
    summary = made(max_failed=1.0)
    assert (summary.failed, summary.record.rows) == (6, 24)
    assert made(max_failed=1.0).computed == 0
    (tmp_path / "away.png").rename(photograph)
    summary = made(retry_failed=True)
    assert (summary.computed, summary.failed, summary.record.rows) == (6, 0, 30)


def test_a_photograph_of_more_pixels_than_allowed_is_not_decoded(data, tmp_path):
    places = {unit.key: unit.place for unit in data.units()}
    with pytest.raises(SightlineError, match="24 pixels; at most 1 are decoded"):
        write_cutouts(tmp_path / "out", places, tmp_path / "cut", SMALL.but(max_pixels=1))
