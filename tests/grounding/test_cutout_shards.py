"""Cut-outs: lossless, with the mask as alpha, cropped to the mask, made once."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from flat_tables import rows_with_keys
from ground_data import DataSet, files_of, run_ground
from PIL import Image

from pipeline.extract.settings import RunSettings
from pipeline.grounding.cutouts import write_cutouts
from sightline.cache.groundings import read_phrases
from sightline.cache.record import FILE_NAME
from sightline.cache.rle import decode_mask
from sightline.errors import SightlineError


@pytest.fixture
def data(tmp_path) -> DataSet:
    data = DataSet(tmp_path / "data")
    for i in range(5):
        data.add(f"{i}.png")
    return data


SMALL = RunSettings(block_rows=12, shard_rows=20)


def cut(data: DataSet, records: Path, out: Path) -> int:
    paths = {unit.key: unit.place for unit in data.units()}
    return write_cutouts(records, paths, out, SMALL).record.rows


def test_a_cutout_is_the_box_of_its_image_with_the_mask_as_alpha(data, tmp_path):
    run_ground(data, tmp_path / "out")
    count = cut(data, tmp_path / "out", tmp_path / "cut")
    cutouts = {r["key"]: r for r in rows_with_keys(tmp_path / "cut", "cutouts").to_pylist()}
    paths = {unit.key: unit.place for unit in data.units()}
    phrases = read_phrases(tmp_path / "out").to_pylist()
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
    run_ground(data, tmp_path / "out")
    cut(data, tmp_path / "out", tmp_path / "cut")
    before = files_of(tmp_path / "cut")
    for path in data.folder.glob("images/*.png"):  # what stands is not made again
        path.rename(path.with_suffix(".away"))
    write_cutouts(tmp_path / "out", {}, tmp_path / "cut", SMALL)
    assert files_of(tmp_path / "cut") == before
    for path in data.folder.glob("images/*.away"):
        path.rename(path.with_suffix(".png"))
    cut(data, tmp_path / "out", tmp_path / "again")
    assert files_of(tmp_path / "again") == before
    del data.captions["0.png"]
    run_ground(data, tmp_path / "out")
    cut(data, tmp_path / "out", tmp_path / "cut")
    run_ground(data, tmp_path / "clean")
    cut(data, tmp_path / "clean", tmp_path / "clean-cut")
    keys = [
        sorted(rows_with_keys(tmp_path / name, "cutouts")["key"].to_pylist())
        for name in ("cut", "clean-cut")
    ]
    assert keys[0] == keys[1]


def test_a_grounding_and_its_cutouts_are_two_folders(data, tmp_path):
    run_ground(data, tmp_path / "out")
    before = files_of(tmp_path / "out")
    with pytest.raises(SightlineError, match="out: holds a grounding of kind grounding"):
        cut(data, tmp_path / "out", tmp_path / "out")
    assert files_of(tmp_path / "out") == before


def test_a_killed_run_resumes_to_the_same_bytes(data, tmp_path, monkeypatch):
    run_ground(data, tmp_path / "out")
    cut(data, tmp_path / "out", tmp_path / "whole")
    replace = Path.replace
    left = -1

    class Killed(BaseException):
        pass

    def dying(path, target):
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        return replace(path, target)

    data.write()
    paths = {unit.key: unit.place for unit in data.units()}
    monkeypatch.setattr(Path, "replace", dying)
    deaths = 0
    for boundary in range(100):
        out = tmp_path / f"cut-{boundary}"
        left = boundary
        try:
            write_cutouts(tmp_path / "out", paths, out, SMALL)
        except Killed:
            deaths += 1
            left = -1
            write_cutouts(tmp_path / "out", paths, out, SMALL)
            assert files_of(out) == files_of(tmp_path / "whole")
        else:
            break
    assert deaths >= 2 * 2 + 2


def test_a_missing_image_is_named_with_what_to_do(data, tmp_path):
    run_ground(data, tmp_path / "out")
    paths = {unit.key: unit.place for unit in data.units()}
    (data.folder / "images/0.png").unlink()
    with pytest.raises(SightlineError, match=r"6 of \d+ objects failed(.|\n)*0\.png: no such file"):
        write_cutouts(tmp_path / "out", paths, tmp_path / "cut", SMALL)
    with pytest.raises(SightlineError, match="images that the data set does not have"):
        write_cutouts(tmp_path / "out", {}, tmp_path / "other", SMALL)


def test_a_photograph_that_cannot_be_read_costs_its_own_cutouts(data, tmp_path):
    run_ground(data, tmp_path / "out")
    paths = {unit.key: unit.place for unit in data.units()}
    photograph = data.folder / "images/0.png"
    photograph.rename(tmp_path / "away.png")
    lenient, again = (SMALL.but(max_failed=1.0, retry_failed=retry) for retry in (False, True))
    summary = write_cutouts(tmp_path / "out", paths, tmp_path / "cut", lenient)
    assert (summary.failed, summary.record.rows) == (6, 24)
    assert write_cutouts(tmp_path / "out", paths, tmp_path / "cut", lenient).computed == 0
    (tmp_path / "away.png").rename(photograph)
    summary = write_cutouts(tmp_path / "out", paths, tmp_path / "cut", again)
    assert (summary.computed, summary.failed, summary.record.rows) == (6, 0, 30)


def test_a_damaged_commit_point_of_cutouts_is_recreated(data, tmp_path):
    run_ground(data, tmp_path / "out")
    cut(data, tmp_path / "out", tmp_path / "cut")
    commit = tmp_path / "cut" / FILE_NAME
    good = commit.read_text()
    for strange in ("", "[]"):
        commit.write_text(strange)
        with pytest.raises(SightlineError, match="not a Sightline record"):
            cut(data, tmp_path / "out", tmp_path / "cut")
    for bad in (good[:-40], good.replace('"cutouts"', '"cutout"')):
        commit.write_text(bad)
        cut(data, tmp_path / "out", tmp_path / "cut")
        assert commit.read_text() == good
