"""Grounding a data set: exact rows, only those that are missing, and one bad image is one row.

Kills, damage and histories of the sets themselves are tested in tests/cache and, for records with
their cut-outs, in test_ground_kills.py.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from flat_tables import flat
from ground_data import (
    SETTINGS,
    BoxSegmenter,
    DataSet,
    HookedBoxes,
    Killed,
    WordGrounder,
    files_of,
    run_ground,
)

from pipeline.grounding.ground import ground
from pipeline.grounding.protocols import GroundingError
from pipeline.grounding.settings import Rules
from sightline.cache import key_of_text
from sightline.cache.groundings import grounding_counts, read_grounding, read_phrases
from sightline.cache.record import FILE_NAME, read_tables_record
from sightline.cache.rle import CROP_RULE, cutout_key, decode_mask
from sightline.errors import SightlineError
from sightline.signals import Stopped


@pytest.fixture
def data(tmp_path) -> DataSet:
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

    def hook(items):
        if len(items) > count:
            raise torch.OutOfMemoryError("CUDA out of memory")

    return hook


def refusing(*names: str) -> WordGrounder:
    """A grounder that fails for these images."""

    def refuse(captions):
        for caption in captions:
            if caption.image_id in names:
                raise GroundingError(caption.image_key, "bad_annotation", "7.xml: cut short")

    return WordGrounder(refuse)


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
    class Odd(BoxSegmenter):
        """No pixel, or one in the images of 20 rows."""

        def segment(self, images, boxes):
            masks = [torch.zeros_like(each) for each in super().segment(images, boxes)]
            for image, mask in zip(images, masks, strict=True):
                mask[:, 0, 0] = image.shape[1] == 20
            return masks

    data.add("none.png", "a b")
    rules = Rules(duplicate_iou=None, max_pairs=2, min_area=2)
    run_ground(data, tmp_path / "out", segmenter=Odd(), rules=rules)
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
    run_ground(data, tmp_path / "b", settings=SETTINGS.but(batch_size=1, workers=1))
    a, b = files_of(tmp_path / "a"), files_of(tmp_path / "b")
    before, after = json.loads(a.pop(FILE_NAME)), json.loads(b.pop(FILE_NAME))
    assert a == b
    assert before["fingerprint"] == after["fingerprint"]
    assert {each["computed"]["batch_size"] for each in before["shards"]} == {SETTINGS.batch_size}
    assert {each["computed"]["batch_size"] for each in after["shards"]} == {1}


def test_a_signal_ends_it_with_one_line_that_says_what_is_kept(data, tmp_path):
    def stop(captions):
        if sum(grounder.calls) >= 2 * SETTINGS.block_rows:
            raise Stopped(signal.SIGTERM)

    grounder = WordGrounder(stop)
    with pytest.raises(Stopped) as caught:
        run_ground(data, tmp_path / "out", grounder)
    assert "out: 3 of 7 images are done and kept; rerun the same command" in str(caught.value)
    (part,) = (tmp_path / "out.run/parts").glob("part-*.parquet")
    part.write_bytes(b"short")  # then it is computed again
    assert run_ground(data, tmp_path / "out").resumed == 0
    run_ground(data, tmp_path / "clean")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "clean")


def test_leftovers_of_a_killed_process_are_swept(data, tmp_path):
    run, token = tmp_path / "out.run", "0123456789abcdef"
    parts, killed, other = run / "parts", run / f"scratch-{token}", run / f"scratch-{token[::-1]}"
    for folder in (parts, killed, other):
        folder.mkdir(parents=True)
        (folder / ".x.tmp").write_bytes(b"half a fi")
    (run / "lock").write_text(f"process 1 on host\n{token}\n")
    (parts / f"part-{'a' * 32}.parquet").write_bytes(b"half a fi")
    run_ground(data, tmp_path / "out")
    assert [path.name for path in parts.iterdir()] == [".x.tmp"]  # not of this name
    assert not killed.exists()
    assert (other / ".x.tmp").exists()


# -- out of memory -------------------------------------------------------------------------------


def computed(out: Path) -> list[dict]:
    return [shard.computed for shard in read_tables_record(out, "grounding").shards]


def test_batches_are_halved_until_they_fit_and_that_is_recorded(data, tmp_path, capsys):
    grounder = WordGrounder(at_most(2))
    summary = run_ground(data, tmp_path / "out", grounder, HookedBoxes(at_most(1)))
    assert max(grounder.calls) == 2
    assert summary.halved_to == {"grounder": 2, "segmenter": 1}
    assert "batches halved for memory: grounder 2, segmenter 1" in str(summary)
    said = capsys.readouterr().err
    assert "grounder words: out of memory with 4 captions per call; continuing with 2" in said
    for each in computed(tmp_path / "out"):
        assert each["halved_to"] == {"grounder": 2, "segmenter": 1}
        assert each["batch_size"] == SETTINGS.batch_size
        assert each["device"] == "cpu"
    run_ground(data, tmp_path / "clean")
    assert all("halved_to" not in each for each in computed(tmp_path / "clean"))
    assert rows(tmp_path / "out") == rows(tmp_path / "clean")
    commits = [read_tables_record(tmp_path / name, "grounding") for name in ("out", "clean")]
    assert commits[0].fingerprint == commits[1].fingerprint


def test_a_resumed_run_starts_with_the_smaller_batch(data, tmp_path):
    small = at_most(2)

    def dying(captions):
        small(captions)
        if sum(grounder.calls) >= 6:  # in the second block
            raise Killed

    grounder = WordGrounder(dying)
    with pytest.raises(Killed):
        run_ground(data, tmp_path / "out", grounder)
    assert not (tmp_path / "out").exists()
    again = WordGrounder()
    summary = run_ground(data, tmp_path / "out", again)
    assert summary.resumed == SETTINGS.block_rows
    assert max(again.calls) == 2
    assert summary.halved_to == {"grounder": 2}
    run_ground(data, tmp_path / "whole", WordGrounder(small))
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert computed(tmp_path / "out")[0]["halved_to"]


# -- failures ------------------------------------------------------------------------------------


def test_failed_images_cost_their_own_rows_and_are_reground_only_on_request(data, tmp_path):
    out, failures = tmp_path / "out", tmp_path / "out.run/failures.jsonl"
    bad = data.folder / "images/bad.png"
    bad.write_bytes(b"no image at all")
    data.captions["bad.png"] = ["a red dog"]
    data.add("dot.png", "the dot", size=(1, 1))
    assert run_ground(data, out, refusing("2.png", "4.png")).failed == 3
    assert grounding_counts(out)["pairs"] == 5 * 7 + 2
    keys = {unit.place.path.name: unit.unit_key for unit in data.units()}
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
    summary = run_ground(data, out, mended, settings=SETTINGS.but(retry_failed=True))
    assert sum(mended.calls) == 2 * 2  # two captions each
    assert (summary.computed, summary.failed) == (3, 1)
    assert len(failures.read_text().splitlines()) == 1
    run_ground(data, tmp_path / "whole")
    assert rows(out) == rows(tmp_path / "whole")


def test_too_many_failures_are_an_error_after_the_good_ones_are_published(data, tmp_path):
    (data.folder / "images/0.png").write_bytes(b"x")
    strict = SETTINGS.but(max_failed=0.1)
    with pytest.raises(SightlineError, match=r"1 of 7 images failed.*\n.*0\.png"):
        run_ground(data, tmp_path / "out", settings=strict)
    assert read_phrases(tmp_path / "out").num_rows == 6 * 7
    (tmp_path / "out.run/failures.jsonl").unlink()  # as where the records were pulled
    with pytest.raises(SightlineError, match=r"1 of 7 images failed"):
        run_ground(data, tmp_path / "out", settings=strict)


def test_masks_of_the_wrong_size_or_number_cost_their_own_rows(data, tmp_path):
    class Wrong(BoxSegmenter):
        def segment(self, images, boxes):
            masks = super().segment(images, boxes)
            for i, image in enumerate(images):
                if image.shape[1] == 20:
                    masks[i] = masks[i][:, :-1]
                elif image.shape[1] == 30:
                    masks[i] = masks[i][1:]
            return masks

    data.add("large.png", size=(30, 16))
    run_ground(data, tmp_path / "out", segmenter=Wrong())
    images, failed = read_grounding(tmp_path / "out")
    assert list(failed.values()) == ["wrong_size"] * 5
    assert images.num_rows == 3


def test_an_error_about_no_image_of_the_batch_ends_the_run(data, tmp_path):
    def refuse(captions):
        raise GroundingError(b"x" * 32, "bad_annotation", "of another image")

    with pytest.raises(GroundingError, match="of another image"):
        run_ground(data, tmp_path / "out", WordGrounder(refuse))


def test_boxes_without_masks_need_a_segmenter(data, tmp_path):
    strict = SETTINGS.but(max_failed=0.0)
    with pytest.raises(SightlineError, match="choose a segmenter"):
        ground(data.units(), WordGrounder(), None, Rules(), tmp_path / "out", strict)


def test_no_caption_is_an_error(tmp_path):
    with pytest.raises(SightlineError, match="no captions to ground"):
        ground([], WordGrounder(), None, Rules(), tmp_path / "out", SETTINGS)
