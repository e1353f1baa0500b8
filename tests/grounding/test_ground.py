"""Grounding a data set: exact rows, only those that are missing, and one bad image is one row.

Then cut-outs: lossless, with the mask as alpha, cropped to the mask, made once. Kills, damage and
histories of the sets themselves are tested in tests/cache and, for records with their cut-outs, in
test_ground_kills.py.
"""

from __future__ import annotations

import io
import json
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from flat_tables import flat, rows_with_keys
from ground_data import BATCH, BLOCK, DataSet, HookedBoxes, WordGrounder, files_of, run_ground
from PIL import Image

from pipeline.extract import decode
from pipeline.extract.run_options import RunOptions
from pipeline.extract.runner import SetSummary, run
from pipeline.grounding import cutouts
from pipeline.grounding.block_grounder import BlockGrounder
from pipeline.grounding.ground import grounding_job
from pipeline.grounding.grounding_settings import Rules
from pipeline.grounding.protocols import GroundingError
from pipeline.grounding.segmenters.box import BoxSegmenter
from sightline.cache import key_of_file, key_of_text
from sightline.cache.cutout_identity import CROP_RULE, cutout_key
from sightline.cache.groundings import grounding_counts, read_grounding, read_phrases
from sightline.cache.record import FILE_NAME, read_record
from sightline.cache.rle import decode_mask
from sightline.errors import SightlineError
from sightline.machine.signals import Stopped


@pytest.fixture
def data(tmp_path):
    """Seven images of two sizes, with two captions each."""
    data = DataSet(tmp_path / "data")
    for i in range(7):
        data.add(f"{i}.png", size=(20 + i % 2, 16))
    return data


def rows(out: Path) -> list[list[str]]:
    """Rows in canonical order, for comparing sets with different histories."""
    return [
        sorted(map(repr, flat(out, kind).to_pylist())) for kind in ("images", "phrases", "drops")
    ]


def at_most(count: int):
    """A hook that has room for ``count`` items."""

    def hook(items, *others):
        if len(items) > count:
            raise torch.OutOfMemoryError("CUDA out of memory")

    return hook


def test_every_record_is_exact(data, tmp_path):
    summary = run_ground(data, tmp_path / "out")
    texts = {key_of_text(t): t for texts in data.captions.values() for t in texts}
    table = read_phrases(tmp_path / "out")
    counts = grounding_counts(summary.folder)
    assert table.num_rows == counts["pairs"] == 7 * (6 + 1)
    for row in table.to_pylist():
        text = texts[row["caption_key"]]
        assert text[row["char_start"] : row["char_end"]] == row["phrase"]
        size, runs = row["mask"]["size"], row["mask"]["counts"]
        mask = decode_mask(size, runs)
        x0, y0, x1, y1 = (int(edge) for edge in row["box"])
        assert mask[y0:y1, x0:x1].all()
        assert mask.sum() == (y1 - y0) * (x1 - x0)
        assert row["cutout_key"] == cutout_key(row["image_key"], size, runs, CROP_RULE)
    assert counts["captions"] == 14
    assert "7.0 per image" in str(summary)


def test_longest_selects_the_caption_that_training_uses(data, tmp_path):
    run_ground(data, tmp_path / "out", choice="longest")
    counts = grounding_counts(tmp_path / "out")
    assert (counts["captions"], counts["pairs"]) == (7, 42)


def test_what_rules_and_masks_drop_is_counted(data, tmp_path):
    def no_pixel_or_one_in_images_of_20_rows(images, masks):
        for image, mask in zip(images, masks, strict=True):
            mask[:] = False
            mask[:, 0, 0] = image.shape[1] == 20

    data.add("none.png", "a b")
    rules = Rules(duplicate_iou=None, max_pairs=2, min_area=2)
    boxes = HookedBoxes(no_pixel_or_one_in_images_of_20_rows)
    run_ground(data, tmp_path / "out", segmenter=boxes, rules=rules)
    counts = grounding_counts(tmp_path / "out")
    assert counts["pairs"] == 0
    dropped = counts["dropped"]
    assert (dropped["no_phrase"], dropped["too_many"]) == (1, 7 * 4)
    assert (dropped["empty_mask"], dropped["too_small"]) == (3 * 3, 4 * 3)
    drops = flat(tmp_path / "out", "drops").to_pylist()
    assert {drop["reason"] for drop in drops} == dropped.keys()


def test_only_what_is_missing_is_grounded(data, tmp_path):
    out = tmp_path / "out"
    run_ground(data, out)
    before, idle = files_of(out), WordGrounder()
    assert "nothing to compute" in str(run_ground(data, out, idle))
    assert idle.calls == []
    assert files_of(out) == before
    (data.folder / "images/3.png").rename(data.folder / "images/z.png")
    data.captions["z.png"] = data.captions.pop("3.png")  # another name, and nothing else
    data.add("new.png")
    data.captions["1.png"] = ["another caption of this image"]
    del data.captions["0.png"]
    grounder = WordGrounder()
    assert run_ground(data, out, grounder).computed == 2
    assert sum(grounder.calls) == 2 + 1
    run_ground(data, tmp_path / "clean")
    assert rows(out) == rows(tmp_path / "clean")
    assert run_ground(data, out, rules=Rules(min_score=0.5)).computed == 7
    assert grounding_counts(out)["dropped"]["low_score"] > 0


def test_batch_size_and_workers_change_no_byte_of_a_table(data, tmp_path):
    run_ground(data, tmp_path / "a")
    run_ground(data, tmp_path / "b", batch_size=1, workers=1)
    a, b = files_of(tmp_path / "a"), files_of(tmp_path / "b")
    before, after = json.loads(a.pop(FILE_NAME)), json.loads(b.pop(FILE_NAME))
    assert a == b
    assert before["fingerprint"] == after["fingerprint"]
    assert {each["computed"]["batch_size"] for each in before["shards"]} == {BATCH}
    assert {each["computed"]["batch_size"] for each in after["shards"]} == {1}


def test_batches_are_halved_until_they_fit_and_a_resumed_run_starts_with_those(
    data, tmp_path, capsys
):
    small = at_most(2)

    def dying(captions):
        small(captions)
        if sum(grounder.calls) >= 6:  # in the second block
            raise Stopped(signal.SIGTERM)

    grounder, out, halved = WordGrounder(dying), tmp_path / "out", {"grounder": 2, "segmenter": 1}
    kept = "out: 3 of 7 images are done and kept; rerun the same command"
    with pytest.raises(Stopped, match=kept):
        run_ground(data, out, grounder, HookedBoxes(at_most(1)))
    said = capsys.readouterr().err
    assert "grounder words: out of memory with 4 captions per call; continuing with 2" in said
    assert not out.exists()
    again = WordGrounder()
    summary = run_ground(data, out, again)
    assert summary.resumed == BLOCK
    assert max(again.calls) == 2
    assert summary.halved_to == halved
    assert "batches halved for memory: grounder 2, segmenter 1" in str(summary)
    run_ground(data, tmp_path / "whole", WordGrounder(small), HookedBoxes(at_most(1)))
    assert files_of(out) == files_of(tmp_path / "whole")
    run_ground(data, tmp_path / "clean")
    commits = [read_record(tmp_path / name) for name in ("out", "clean")]
    for shard in commits[0].shards:
        assert shard.computed["halved_to"] == halved
        assert shard.computed["batch_size"] == BATCH
        assert shard.computed["device"] == "cpu"
    assert all("halved_to" not in shard.computed for shard in commits[1].shards)
    assert commits[0].fingerprint == commits[1].fingerprint
    assert rows(out) == rows(tmp_path / "clean")


# -- failures ------------------------------------------------------------------------------------


def test_failed_images_cost_their_own_rows_and_are_reground_only_on_request(data, tmp_path):
    def refuse_two(captions):
        for caption in captions:
            if caption.image_id in ("2.png", "4.png"):
                raise GroundingError(caption.image_key, "bad_annotation", "7.xml: cut short")

    out, failures = tmp_path / "out", tmp_path / "out.run/failures.jsonl"
    bad = data.folder / "images/bad.png"
    bad.write_bytes(b"no image at all")
    data.captions["bad.png"] = ["a red dog"]
    data.add("dot.png", "the dot", size=(1, 1))
    assert run_ground(data, out, WordGrounder(refuse_two)).failed == 3
    assert grounding_counts(out)["pairs"] == 5 * 7 + 2
    keys = {Path(unit.place.path).name: unit.unit_key for unit in data.units()}
    refused = {keys["2.png"]: "bad_annotation", keys["4.png"]: "bad_annotation"}
    assert read_grounding(out)[1] == {keys["bad.png"]: "undecodable", **refused}
    listed = failures.read_text()
    assert {json.loads(line)["path"] for line in listed.splitlines()} == {
        str(bad.with_name(name)) for name in ("bad.png", "2.png", "4.png")
    }
    assert "7.xml: cut short" in listed
    idle = WordGrounder()
    assert "3 failed" in str(run_ground(data, out, idle))
    assert (idle.calls, failures.read_text()) == ([], listed)
    mended = WordGrounder()
    summary = run_ground(data, out, mended, retry_failed=True)
    assert sum(mended.calls) == 2 * 2  # two captions each
    assert (summary.computed, summary.failed) == (3, 1)
    assert len(failures.read_text().splitlines()) == 1
    run_ground(data, tmp_path / "whole")
    assert rows(out) == rows(tmp_path / "whole")
    failures.unlink()  # as where the records were pulled
    with pytest.raises(SightlineError, match=r"1 of 9 images failed"):
        run_ground(data, out, max_failed=0.1)


def test_bad_images_cost_the_good_ones_of_their_call_one_more_and_no_others_any(data, tmp_path):
    bad = ("1.png", "3.png", "5.png")

    def refuse(captions):
        asked.extend(caption.image_id for caption in captions)
        for caption in captions:
            if caption.image_id in bad:
                raise GroundingError(caption.image_key, "bad_annotation", "7.xml: cut short")

    for name in data.captions:
        data.captions[name] = ["a red dog"]
    data.captions["6.png"] = [f"dog number {i}" for i in range(5)]
    asked: list[str] = []

    def grounded(hook=None):
        blocks = BlockGrounder(WordGrounder(hook), BoxSegmenter(), Rules(), 4, 2)
        for calls in blocks.calls:
            calls.begin(4, None)
        return blocks.ground(data.units(), lambda count: None)

    table, failures = grounded(refuse)
    assert [failure["path"][-5:] for failure in failures.values()] == list(bad)
    # calls of images 0 to 3 with two bad ones, of 4, 5 and two captions of 6, of its other three
    assert Counter(asked) == {**dict.fromkeys(data.captions, 2), "6.png": 2 + 2 + 3}
    good = [key_of_file(data.folder / "images" / name) for name in data.captions if name not in bad]
    every, _ = grounded()
    assert table.to_pylist() == [row for row in every.to_pylist() if row["image_key"] in good]


@pytest.mark.parametrize("count", [0, 5])
def test_a_grounder_with_too_few_or_too_many_answers_is_named(data, tmp_path, monkeypatch, count):
    monkeypatch.setattr(WordGrounder, "ground", lambda self, images, captions: [([], [])] * count)
    with pytest.raises(SightlineError, match=rf"WordGrounder: ground, .* {count} .* 4 captions"):
        run_ground(data, tmp_path / "out")


def test_masks_of_the_wrong_size_cost_their_own_rows(data, tmp_path):
    def spoil(images, masks):
        for i, image in enumerate(images):
            if image.shape[1] == 20:
                masks[i] = masks[i][:, :-1]

    with pytest.raises(SightlineError) as refused:
        run_ground(data, tmp_path / "out", segmenter=HookedBoxes(spoil), max_failed=0.5)
    assert "Let masks have the size of their images, and rerun with --retry-fa" in str(
        refused.value
    )
    assert "remove these files" not in str(refused.value)
    images, failed = read_grounding(tmp_path / "out")
    assert list(failed.values()) == ["wrong_size"] * 4
    assert images.num_rows == 3
    run_ground(data, tmp_path / "out", max_failed=0, retry_failed=True)
    images, failed = read_grounding(tmp_path / "out")
    assert (images.num_rows, failed) == (7, {})


def test_what_is_no_fault_of_an_image_ends_the_run(data, tmp_path):
    def refuse(captions):
        raise GroundingError(b"x" * 32, "bad_annotation", "of another image")

    out, batches = tmp_path / "out", {"batch_size": BATCH, "block_images": BLOCK, "workers": 2}
    with pytest.raises(GroundingError, match="of another image"):
        run_ground(data, out, WordGrounder(refuse))
    maskless = grounding_job(data.units(), WordGrounder(), None, Rules(), out, **batches)
    with pytest.raises(SightlineError, match="choose a segmenter"):
        run(maskless, 0)
    with pytest.raises(SightlineError, match="no captions to ground"):
        grounding_job([], WordGrounder(), None, Rules(), out, **batches)


# -- cut-outs ------------------------------------------------------------------------------------


@pytest.fixture
def five(tmp_path):
    """Five images with six objects each, and their grounding in ``out``."""
    data = DataSet.of(tmp_path / "data", 5)
    run_ground(data, tmp_path / "out")
    return data


def cut(data: DataSet, records: Path, out: Path, **changes: object) -> SetSummary:
    places = {unit.key: unit.place for unit in data.units()}
    return write_cutouts(records, places, out, **changes)


def write_cutouts(records, places, out, max_failed=0.01, **options) -> SetSummary:
    """Fill a set in small blocks and shards."""
    job = replace(cutouts.cutouts_job(records, places, out, workers=2), batch_size=12)
    return run(job, max_failed, options=RunOptions(**options), shard_rows=20)


def test_a_cutout_is_the_box_of_its_image_with_the_mask_as_alpha(five, tmp_path):
    def pierce(images, masks):
        for mask in masks:
            mask[:, ::2, ::2] = False

    run_ground(five, tmp_path / "pierced", segmenter=HookedBoxes(pierce))
    cut(five, tmp_path / "pierced", tmp_path / "cut")
    cutouts = {r["key"]: r for r in rows_with_keys(tmp_path / "cut", "cutouts").to_pylist()}
    paths = {unit.key: unit.place.path for unit in five.units()}
    phrases = read_phrases(tmp_path / "pierced").to_pylist()
    assert cutouts.keys() == {row["cutout_key"] for row in phrases}
    for row in phrases:
        cutout = cutouts[row["cutout_key"]]
        rgba = np.array(Image.open(io.BytesIO(cutout["png"])))
        image = np.array(Image.open(paths[row["image_key"]]).convert("RGB"))
        mask = decode_mask(row["mask"]["size"], row["mask"]["counts"])
        ys, xs = np.nonzero(mask)
        box = slice(ys.min(), ys.max() + 1), slice(xs.min(), xs.max() + 1)
        assert rgba.shape[:2] == mask[box].shape == (cutout["height"], cutout["width"])
        np.testing.assert_array_equal(rgba[..., 3], mask[box] * 255)
        np.testing.assert_array_equal(rgba[..., :3], image[box])


def test_recreated_cutouts_have_the_same_bytes_and_only_new_ones_are_made(five, tmp_path):
    cut(five, tmp_path / "out", tmp_path / "cut")
    before = files_of(tmp_path / "cut")
    cut(five, tmp_path / "out", tmp_path / "again")
    assert files_of(tmp_path / "again") == before
    (five.folder / "images").rename(tmp_path / "away")
    write_cutouts(tmp_path / "out", {}, tmp_path / "cut")  # what stands is not made again
    assert files_of(tmp_path / "cut") == before


def test_a_photograph_that_cannot_be_read_costs_its_own_cutouts(five, tmp_path, monkeypatch):
    out, data = tmp_path / "out", five.folder / "images"
    with monkeypatch.context() as patched:
        patched.setattr(decode, "MAX_PIXELS", 1)
        with pytest.raises(SightlineError, match="24 pixels; at most 1 are decoded"):
            cut(five, out, tmp_path / "huge")
    with pytest.raises(SightlineError, match="images that the data set does not have"):
        write_cutouts(out, {}, tmp_path / "strange")
    places = {unit.key: unit.place for unit in five.units()}
    (data / "0.png").rename(tmp_path / "away.png")

    def made(**changes: object) -> SetSummary:
        return write_cutouts(out, places, tmp_path / "cut", **changes)

    with pytest.raises(SightlineError, match=r"6 of \d+ objects failed(.|\n)*0\.png: no such file"):
        made()
    summary = made(max_failed=1.0)
    assert (summary.computed, summary.failed, summary.record.rows) == (0, 6, 24)
    (tmp_path / "away.png").rename(data / "0.png")
    summary = made(retry_failed=True)
    assert (summary.computed, summary.failed, summary.record.rows) == (6, 0, 30)
