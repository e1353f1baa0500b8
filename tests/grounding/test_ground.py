"""The stage `ground`: exact records, incremental, crash-safe, and one bad image is one row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from flat_tables import flat
from ground_data import (
    SETTINGS,
    BoxSegmenter,
    DataSet,
    WordGrounder,
    files_of,
    run_ground,
)
from PIL import Image

from pipeline.grounding.ground import ground
from pipeline.grounding.protocols import GroundingError
from pipeline.grounding.settings import Rules
from sightline.cache import CacheError, key_of_file, key_of_text
from sightline.cache.compact import collect, garbage
from sightline.cache.groundings import grounding_counts, read_grounding, read_phrases
from sightline.cache.record import FILE_NAME, read_tables_record
from sightline.cache.rle import CROP_RULE, cutout_key, decode_mask
from sightline.cache.verify import verify
from sightline.digest import digest
from sightline.errors import BusyError, SightlineError
from sightline.signals import Stopped


@pytest.fixture
def data(tmp_path) -> DataSet:
    data = DataSet(tmp_path / "data")
    for i in range(7):
        data.add(f"{i}.png", size=(20 + i % 2, 16))
    return data


def rows(out: Path, kind: str) -> list[str]:
    """Rows in canonical order, for comparing sets with different histories."""
    return sorted(map(repr, flat(out, kind).to_pylist()))


def test_every_record_is_exact(data, tmp_path):
    summary = run_ground(data, tmp_path / "out")
    texts = {key_of_text(t): t for texts in data.captions.values() for t in texts}
    table = read_phrases(tmp_path / "out")
    assert table.num_rows == grounding_counts(summary.folder)["pairs"] == 7 * (6 + 1)
    for row in table.to_pylist():
        text = texts[row["caption_key"]]
        assert text[row["char_start"] : row["char_end"]] == row["phrase"]
        mask = decode_mask(row["mask"]["size"], row["mask"]["counts"])
        x0, y0, x1, y1 = (int(edge) for edge in row["box"])
        assert mask[y0:y1, x0:x1].all()
        assert mask.sum() == (y1 - y0) * (x1 - x0)
        size, counts = row["mask"]["size"], row["mask"]["counts"]
        assert row["cutout_key"] == cutout_key(row["image_key"], size, counts, CROP_RULE)
    assert grounding_counts(summary.folder)["captions"] == 14
    assert "7.0 per image" in str(summary)


def test_longest_selects_the_caption_that_training_uses(data, tmp_path):
    summary = run_ground(data, tmp_path / "out", choice="longest")
    assert grounding_counts(summary.folder)["captions"] == 7
    assert grounding_counts(summary.folder)["pairs"] == 42


def test_a_caption_without_a_phrase_and_a_rule_are_counted(data, tmp_path):
    data.add("none.png", "a b")
    summary = run_ground(data, tmp_path / "out", rules=Rules(duplicate_iou=None, max_pairs=2))
    assert grounding_counts(summary.folder)["dropped"] == {"no_phrase": 1, "too_many": 7 * 4}
    drops = flat(tmp_path / "out", "drops").to_pylist()
    assert {drop["reason"] for drop in drops} == {"no_phrase", "too_many"}


def test_a_second_run_computes_nothing_and_leaves_the_same_bytes(data, tmp_path):
    run_ground(data, tmp_path / "out")
    before = files_of(tmp_path / "out")
    grounder = WordGrounder()
    summary = run_ground(data, tmp_path / "out", grounder)
    assert grounder.calls == []
    assert files_of(tmp_path / "out") == before
    assert "nothing to compute" in str(summary)


def test_only_new_images_are_grounded_and_removed_ones_are_dropped(data, tmp_path):
    run_ground(data, tmp_path / "out")
    data.add("new.png")
    data.captions["1.png"] = ["another caption of this image"]
    del data.captions["0.png"]
    grounder = WordGrounder()
    summary = run_ground(data, tmp_path / "out", grounder)
    assert sum(grounder.calls) == 2 + 1
    assert summary.computed == 2
    run_ground(data, tmp_path / "clean")
    for kind in ("images", "phrases", "drops"):
        assert rows(tmp_path / "out", kind) == rows(tmp_path / "clean", kind)
    named = {file.name for file in read_tables_record(tmp_path / "out", "grounding").files}
    assert verify(tmp_path / "out") == []
    superseded = garbage(tmp_path / "out").files
    assert set(files_of(tmp_path / "out")) == named | {FILE_NAME, "set.json.next", *superseded}
    assert superseded.keys() <= collect(tmp_path / "out").files.keys()
    named = {file.name for file in read_tables_record(tmp_path / "out", "grounding").files}
    assert set(files_of(tmp_path / "out")) == named | {FILE_NAME}


def test_renaming_an_image_grounds_nothing(data, tmp_path):
    run_ground(data, tmp_path / "out")
    (data.folder / "images/3.png").rename(data.folder / "images/z.png")
    data.captions["z.png"] = data.captions.pop("3.png")
    grounder = WordGrounder()
    run_ground(data, tmp_path / "out", grounder)
    assert grounder.calls == []


def test_different_rules_reground_everything(data, tmp_path):
    run_ground(data, tmp_path / "out")
    summary = run_ground(data, tmp_path / "out", rules=Rules(min_score=0.5))
    assert summary.computed == 7
    assert grounding_counts(summary.folder)["dropped"]["low_score"] > 0


def test_batch_size_and_workers_change_no_byte_of_a_table(data, tmp_path):
    run_ground(data, tmp_path / "a")
    run_ground(data, tmp_path / "b", settings=SETTINGS.but(batch_size=1, workers=1))
    a, b = files_of(tmp_path / "a"), files_of(tmp_path / "b")
    before, after = json.loads(a.pop(FILE_NAME)), json.loads(b.pop(FILE_NAME))
    assert a == b
    assert before["fingerprint"] == after["fingerprint"]
    assert {each["computed"]["batch_size"] for each in before["shards"]} == {SETTINGS.batch_size}
    assert {each["computed"]["batch_size"] for each in after["shards"]} == {1}


class Killed(BaseException):
    """Represents the end of the process."""


def test_killed_at_any_write_and_run_again_it_leaves_the_same_bytes(data, tmp_path, monkeypatch):
    run_ground(data, tmp_path / "whole")
    expected = files_of(tmp_path / "whole")
    replace = Path.replace
    left = -1

    def dying(function):
        def call(path, *args, **kwargs):
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return function(path, *args, **kwargs)

        return call

    monkeypatch.setattr(Path, "replace", dying(replace))
    deaths = 0
    for boundary in range(1000):
        out = tmp_path / f"out-{boundary}"
        left = boundary
        grounder = WordGrounder()
        try:
            run_ground(data, out, grounder)
        except Killed:
            deaths += 1
            left = -1
            again = WordGrounder()
            run_ground(data, out, again)
            # never more than the block that was at work is repeated
            assert sum(grounder.calls) + sum(again.calls) <= 14 + 2 * SETTINGS.block_rows
            assert files_of(out) == expected
        else:
            break
    assert deaths > 3 * 2 + 3  # each block, moving it, and the commit


DYING = """
from sightline.cache.prepared import PreparedDataset
import os, signal, sys
from pathlib import Path
from ground_data import SETTINGS, BoxSegmenter, WordGrounder
from pipeline.grounding.settings import Rules
from pipeline.grounding.ground import ground
from pipeline.grounding.captioned_images import units_of

def die(captions):
    if len(grounder.calls) == 3:  # in the second block
        os.kill(os.getpid(), signal.SIGKILL)

folder, grounder = Path(sys.argv[1]), WordGrounder(die)
units = units_of(PreparedDataset(folder, folder / "images"), "all")
ground(units, grounder, BoxSegmenter(), Rules(duplicate_iou=None), Path(sys.argv[2]), SETTINGS)
"""


def test_after_sigkill_it_resumes_at_its_current_block(data, tmp_path):
    data.write()
    arguments = [sys.executable, "-c", DYING, str(data.folder), str(tmp_path / "out")]
    here = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    died = subprocess.run(arguments, env=here, capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert not (tmp_path / "out").exists()
    summary = run_ground(data, tmp_path / "out")
    assert summary.resumed == SETTINGS.block_rows
    run_ground(data, tmp_path / "whole")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_a_signal_ends_it_with_one_line_that_says_what_is_kept(data, tmp_path):
    def stop(captions):
        if sum(grounder.calls) >= 2 * SETTINGS.block_rows:
            raise Stopped(signal.SIGTERM)

    grounder = WordGrounder(stop)
    with pytest.raises(Stopped) as caught:
        run_ground(data, tmp_path / "out", grounder)
    assert "out: 3 of 7 images are done and kept; rerun the same command" in str(caught.value)
    assert run_ground(data, tmp_path / "out").resumed == SETTINGS.block_rows


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


def test_a_part_with_a_damaged_file_is_recomputed(data, tmp_path):
    def stop(captions):
        if len(grounder.calls) == 2:  # which is the first block
            raise Killed

    grounder = WordGrounder(stop)
    with pytest.raises(Killed):
        run_ground(data, tmp_path / "out", grounder)
    (file,) = (tmp_path / "out.run/parts").glob("part-*.parquet")
    file.write_bytes(b"short")
    run_ground(data, tmp_path / "out")
    run_ground(data, tmp_path / "clean")
    assert files_of(tmp_path / "out") == files_of(tmp_path / "clean")


def test_one_run_at_a_time(data, tmp_path):
    script = (
        "import sys; from pathlib import Path; from sightline.lock import WriterLock\n"
        "with WriterLock(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "out.run")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BusyError):
            run_ground(data, tmp_path / "out")
    finally:
        holder.communicate("")


# -- failures -----------------------------------------------------------------------------------


def test_one_bad_image_is_one_error_row(data, tmp_path):
    path = data.folder / "images/bad.png"
    path.write_bytes(b"no image at all")
    data.captions["bad.png"] = ["a red dog"]
    Image.new("1", (12_000, 9_000)).save(data.folder / "images/huge.png")
    data.captions["huge.png"] = ["a red dog"]
    data.add("dot.png", "the dot", size=(1, 1))
    summary = run_ground(data, tmp_path / "out")
    assert grounding_counts(summary.folder)["failed"] == 2
    images, failed = read_grounding(tmp_path / "out")
    units = {str(unit.place): unit.unit_key for unit in data.units()}
    assert failed == {
        units[str(path)]: "undecodable",
        units[str(data.folder / "images/huge.png")]: "too_many_pixels",
    }
    assert key_of_file(data.folder / "images/dot.png") in images["image_key"].to_pylist()
    lines = (tmp_path / "out.run/failures.jsonl").read_text().splitlines()
    listed = {json.loads(line)["path"] for line in lines}
    assert listed == {str(path), str(data.folder / "images/huge.png")}
    assert "2 failed" in str(run_ground(data, tmp_path / "out"))
    assert (tmp_path / "out.run/failures.jsonl").read_text().splitlines() == lines


def test_too_many_failures_are_an_error_after_the_good_ones_are_published(data, tmp_path):
    (data.folder / "images/0.png").write_bytes(b"x")
    strict = SETTINGS.but(max_failed=0.1)
    with pytest.raises(SightlineError, match=r"1 of 7 images failed.*\n.*0\.png"):
        run_ground(data, tmp_path / "out", settings=strict)
    assert read_phrases(tmp_path / "out").num_rows == 6 * 7
    (tmp_path / "out.run/failures.jsonl").unlink()  # as where the records were pulled
    with pytest.raises(SightlineError, match=r"1 of 7 images failed"):
        run_ground(data, tmp_path / "out", settings=strict)


def test_an_image_that_the_grounder_refuses_costs_its_own_row(data, tmp_path):
    def refuse(captions):
        for caption in captions:
            if caption.image_id in ("2.png", "3.png"):
                raise GroundingError(caption.image_key, "bad_annotation", "7.xml: cut short")

    summary = run_ground(data, tmp_path / "out", WordGrounder(refuse))
    assert grounding_counts(summary.folder)["failed"] == 2
    assert grounding_counts(summary.folder)["pairs"] == 5 * 7
    assert "7.xml: cut short" in (tmp_path / "out.run/failures.jsonl").read_text()


def test_a_mask_of_the_wrong_size_costs_its_own_row(data, tmp_path):
    class Wrong(BoxSegmenter):
        def _masks(self, image, boxes):
            masks = super()._masks(image, boxes)
            return masks[:, :-1] if image.shape[1] == 20 else masks

    summary = run_ground(data, tmp_path / "out", segmenter=Wrong())
    assert grounding_counts(summary.folder)["failed"] == 4
    images, failed = read_grounding(tmp_path / "out")
    assert set(failed.values()) == {"wrong_size"}
    assert images.num_rows == 3


def test_empty_and_small_masks_are_drops(data, tmp_path):
    class Nothing(BoxSegmenter):
        def _masks(self, image, boxes):
            masks = torch.zeros_like(super()._masks(image, boxes))
            masks[:, 0, 0] = image.shape[1] == 20
            return masks

    rules = Rules(duplicate_iou=None, min_area=2)
    summary = run_ground(data, tmp_path / "out", segmenter=Nothing(), rules=rules)
    assert grounding_counts(summary.folder)["pairs"] == 0
    assert grounding_counts(summary.folder)["dropped"]["empty_mask"] > 0
    assert grounding_counts(summary.folder)["dropped"]["too_small"] > 0


def test_boxes_without_masks_need_a_segmenter(data, tmp_path):
    strict = SETTINGS.but(max_failed=0.0)
    with pytest.raises(SightlineError, match="choose a segmenter"):
        ground(data.units(), WordGrounder(), None, Rules(), tmp_path / "out", strict)


def test_no_caption_is_an_error(tmp_path):
    with pytest.raises(SightlineError, match="no captions to ground"):
        ground([], WordGrounder(), None, Rules(), tmp_path / "out", SETTINGS)


# -- damaged and hostile sets -------------------------------------------------------------------


def test_a_changed_commit_point_is_refused_and_recreated(data, tmp_path):
    run_ground(data, tmp_path / "out")
    commit = tmp_path / "out" / FILE_NAME
    good = commit.read_text()
    for bad in (good.replace('"shards"', '"shreds"'), good[:-40], "[]", ""):
        commit.write_text(bad)
        with pytest.raises(CacheError, match="rerun its stage"):
            read_phrases(tmp_path / "out")
    with pytest.raises(SightlineError, match="not a Sightline record"):
        run_ground(data, tmp_path / "out")
    commit.write_text(good[:-40])
    run_ground(data, tmp_path / "out")
    assert commit.read_text() == good


def test_a_table_outside_of_the_folder_is_never_read(data, tmp_path):
    run_ground(data, tmp_path / "out")
    commit = tmp_path / "out" / FILE_NAME
    body = json.loads(commit.read_text())
    del body["digest"]
    body["shards"][0]["name"] = "../secret.parquet"
    commit.write_text(json.dumps({**body, "digest": digest(body)}))
    with pytest.raises(CacheError, match=r"shards\.0\.name"):
        read_phrases(tmp_path / "out")


def test_a_missing_shard_is_named_and_its_images_are_reground(data, tmp_path):
    run_ground(data, tmp_path / "out")
    before = rows(tmp_path / "out", "phrases")
    next((tmp_path / "out").glob("shard-*")).unlink()
    with pytest.raises(CacheError, match=r"shard-.*missing"):
        read_phrases(tmp_path / "out")
    assert run_ground(data, tmp_path / "out").computed in (1, SETTINGS.block_rows)
    assert rows(tmp_path / "out", "phrases") == before
    with pytest.raises(CacheError, match="nothing: no grounding here"):
        flat(tmp_path / "nothing", "phrases")
