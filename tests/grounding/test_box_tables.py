"""Tables of boxes that somebody else made: their formats, their faults, and what is left out."""

from __future__ import annotations

import csv
import json
import pickle
import re
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import torch
from cures import EXTRACT, OBJECTS, PHRASE_TOKENS, PREPARE, TOKENS, TRAIN, run, write_inputs
from flat_tables import rows_with_keys
from ground_data import DataSet, write_phrases
from PIL import Image
from shown_commands import ROOT

from pipeline.grounding.annotations import open_annotations
from pipeline.grounding.box_tables import BoxTable
from pipeline.grounding.drawn_boxes import PhraseBoxes
from pipeline.grounding.protocols import Dropped, Grounded
from sightline.cache.groundings import read_phrases
from sightline.cache.rle import encode_mask, run_lengths
from sightline.errors import SightlineError

RED, BOAT = "A red dog runs after a blue ball.", "a boat, and a boat behind it"
ROW = {"image": "7.png", "caption": RED, "phrase": "a red dog", "box": [4, 5, 20, 10]}
PIXELS = np.zeros((16, 24), dtype=bool)
PIXELS[5:10, 4:20] = True
"""The mask of that box, in an image of 24 × 16 pixels."""


@pytest.fixture
def data(tmp_path):
    data = DataSet(tmp_path / "data")
    data.add("7.png", RED, BOAT, size=(16, 24))
    data.add("8.png", RED, size=(16, 24))
    return data


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A table of these rows in the format that the suffix names; of CSV, lists are JSON."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".arrow":
        feather.write_feather(pa.Table.from_pylist(rows), str(path))
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writerow(rows[0])
            for row in rows:
                values = (json.dumps(v) if isinstance(v, list | dict) else v for v in row.values())
                writer.writerow(values)
    return path


class Opened:
    """A table that was matched to a data set: its remarks and its answers."""

    def __init__(
        self,
        data: DataSet,
        path: Path,
        box_format: Any = "xyxy",
        *,
        masks: bool = False,
        choice: Any = "all",
        strict: bool = False,
    ) -> None:
        self._units = data.units(choice)
        self.table = open_annotations(path, box_format, strict)
        assert isinstance(self.table, BoxTable)
        self.remarks = self.table.match(self._units, masks)

    def answer(self, name: str, text: str) -> tuple[list[Grounded], list[Dropped]]:
        captions = [caption for unit in self._units for caption in unit.captions]
        (caption,) = [c for c in captions if (c.image_id, c.text) == (name, text)]
        image = torch.zeros(3, 16, 24, dtype=torch.uint8)
        return self.table.ground([image], [caption])[0]

    def found(self, name: str = "7.png", text: str = RED) -> list[tuple[str, list[list[float]]]]:
        """Phrases and boxes, of an answer without drops."""
        phrases, dropped = self.answer(name, text)
        assert dropped == []
        return [(phrase.phrase, phrase.boxes.tolist()) for phrase in phrases]

    def reasons(self, text: str = RED) -> list[str]:
        phrases, dropped = self.answer("7.png", text)
        assert phrases == []
        return [drop.reason for drop in dropped]


FORMATS = ("parquet", "arrow", "json", "jsonl", "csv", "tsv")


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_same(data, tmp_path, suffix):
    rows = [
        {**ROW, "char_start": 0, "char_end": 9, "score": 0.5},
        {**ROW, "phrase": "a blue ball", "char_start": 21, "char_end": 32, "score": 0.25},
    ]
    opened = Opened(data, write(tmp_path / f"boxes.{suffix}", rows))
    box = [[4, 5, 20, 10]]
    assert opened.found() == [("A red dog", box), ("a blue ball", box)]
    assert [p.scores.tolist() for p in opened.answer("7.png", RED)[0]] == [[0.5], [0.25]]
    assert opened.answer("7.png", RED)[0][0].masks is None
    assert opened.reasons(BOAT) == ["no_phrase"]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize(
    ("box_format", "box"),
    [
        ("xyxy", [4, 5, 20, 10]),
        ("xywh", [4, 5, 16, 5]),
        ("rel_xyxy", [4 / 24, 5 / 16, 20 / 24, 10 / 16]),
        ("rel_xywh", [4 / 24, 5 / 16, 16 / 24, 5 / 16]),
    ],
)
def test_each_form_of_a_box_as_setting_and_as_column(data, tmp_path, suffix, box_format, box):
    path = tmp_path / f"boxes.{suffix}"
    opened = Opened(data, write(path, [{**ROW, "box": box}]), box_format)
    np.testing.assert_allclose(opened.found()[0][1], [[4, 5, 20, 10]], rtol=1e-6)
    other = "xywh" if box_format == "xyxy" else "xyxy"
    for setting in (None, other):  # the column goes first
        path = write(path, [{**ROW, "box": box, "box_format": box_format}])
        np.testing.assert_allclose(Opened(data, path, setting).found()[0][1], [[4, 5, 20, 10]])


MASKS = {
    "polygon": [[4, 5, 20, 5, 20, 10, 4, 10]],
    "two polygons": [[4, 5, 10, 5, 10, 10, 4, 10], [10, 5, 20, 5, 20, 10, 10, 10]],
    "compressed": encode_mask(PIXELS),
    "uncompressed": {"size": [16, 24], "counts": run_lengths(PIXELS)},
}


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks_in_each_form_of_coco(data, tmp_path, suffix, mask):
    path = write(tmp_path / f"boxes.{suffix}", [{**ROW, "mask": mask}])
    (phrase,), _ = Opened(data, path, masks=True).answer("7.png", RED)
    assert phrase.masks is not None
    np.testing.assert_array_equal(phrase.masks[0].numpy(), PIXELS)


def test_a_polygon_covers_the_pixels_whose_centres_it_contains(data, tmp_path):
    mask = [[0, 0, 24, 0, 0, 16]]  # half of the image
    path = write(tmp_path / "boxes.jsonl", [{**ROW, "mask": mask}])
    (phrase,), _ = Opened(data, path, masks=True).answer("7.png", RED)
    assert phrase.masks is not None
    y, x = np.mgrid[:16, :24] + 0.5
    inside = x / 24 + y / 16
    clear = abs(inside - 1) > 1e-9
    np.testing.assert_array_equal(phrase.masks[0].numpy()[clear], (inside < 1)[clear])


def test_usual_names_of_columns_ids_of_captions_and_rows_of_one_phrase(data, tmp_path):
    row = {"file_name": "photos/7.png", "caption_id": "7.png#0", "phrase": "a red dog"}
    rows = [{**row, "bbox": [1, 2, 3, 4]}, {**row, "bbox": [2, 2, 3, 4]}]
    opened = Opened(data, write(tmp_path / "boxes.json", rows))
    assert opened.found() == [("A red dog", [[1, 2, 3, 4], [2, 2, 3, 4]])]
    assert any("'bbox' read as box" in remark for remark in opened.remarks)
    assert any("'photos/' before all names left out" in remark for remark in opened.remarks)
    rows = [{**row, "image_id": "7.png", "box": [1, 2, 3, 4]} for row in rows]
    for row in rows:
        del row["file_name"], row["bbox"]
    assert Opened(data, write(tmp_path / "boxes.csv", rows)).found()[0][0] == "A red dog"


@pytest.mark.parametrize("name", ["7.png", "train/7"])
def test_images_are_named_by_their_files_or_their_ids(data, tmp_path, name):
    units, ids = data.units("all"), {f"{i}.png": f"train/{i}" for i in range(9)}

    def renamed(table: pa.Table) -> pa.Table:
        column = pa.array([ids.get(each, each) for each in table["image_id"].to_pylist()])
        return table.set_column(table.column_names.index("image_id"), "image_id", column)

    units = replace(units, images=renamed(units.images), captions=renamed(units.captions))
    table = open_annotations(write(tmp_path / "boxes.jsonl", [{**ROW, "image": name}]), "xyxy")
    assert isinstance(table, BoxTable)
    assert not [note for note in table.match(units, masks=False) if "not in the data set" in note]


def test_a_caption_of_an_equal_image_is_found_by_either_name(data, tmp_path):
    copy = data.folder / "images/copy.png"
    copy.write_bytes((data.folder / "images/7.png").read_bytes())
    data.captions["copy.png"] = [RED]
    path = write(tmp_path / "boxes.jsonl", [{**ROW, "image": "copy.png"}])
    assert Opened(data, path).found("7.png")[0][0] == "A red dog"


def test_a_span_is_of_the_caption_as_it_was_before_prepare_trimmed_it(data, tmp_path):
    span = {"char_start": 2, "char_end": 8, "phrase": "a boat"}
    row = {**ROW, "caption": f"  {BOAT} ", **span}
    opened = Opened(data, write(tmp_path / "boxes.jsonl", [row]))
    (phrase,), _ = opened.answer("7.png", BOAT)
    assert (phrase.char_start, phrase.char_end, phrase.phrase) == (0, 6, "a boat")
    row |= {"char_start": 13, "char_end": len(row["caption"]), "phrase": " a boat behind it "}
    (phrase,), _ = Opened(data, write(tmp_path / "boxes.jsonl", [row])).answer("7.png", BOAT)
    assert (phrase.char_start, phrase.char_end) == (12, len(BOAT))
    assert phrase.phrase == "a boat behind it"
    # with an id, nobody knows what was trimmed: words that stand there once are meant
    row = {**ROW, "caption_id": "7.png#0", "char_start": 2, "char_end": 11}
    del row["caption"]
    assert Opened(data, write(tmp_path / "boxes.jsonl", [row])).found()[0][0] == "A red dog"
    row |= {"char_start": 9, "char_end": 15, "phrase": "a boat", "caption_id": "7.png#1"}
    opened = Opened(data, write(tmp_path / "boxes.jsonl", [row]))
    assert opened.reasons(BOAT) == ["not_in_caption"]


def test_words_that_stand_twice_need_a_span_and_words_that_do_not_are_drops(data, tmp_path):
    row = {**ROW, "caption": BOAT, "phrase": "a boat"}
    path = tmp_path / "boxes.jsonl"
    opened = Opened(data, write(path, [row, {**row, "phrase": "a ship"}]))
    assert opened.reasons(BOAT) == ["ambiguous", "not_in_caption"]
    spans = [{"char_start": 0, "char_end": 6}, {"char_start": 12, "char_end": 18}]
    opened = Opened(data, write(path, [{**row, **span} for span in spans]))
    assert [(p.char_start, p.phrase) for p in opened.answer("7.png", BOAT)[0]] == [
        (0, "a boat"),
        (12, "a boat"),
    ]


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "three numbers": ({"box": [1, 2, 3]}, "row 2: box: found [1, 2, 3], expected four numbers"),
    "no number": ({"box": [1, 2, 3, "x"]}, "row 2: box: found [1, 2, 3, 'x'], expected four num"),
    "not finite": ({"box": [1, 2, 3, float("nan")]}, "row 2: box: found [1, 2, 3, nan], expected"),
    "text": ({"box": "1 2 3 4"}, "row 2: box: found '1 2 3 4', expected four numbers, such as [4"),
    "no box": ({"box": None}, "row 2: box: is missing"),
    "format": ({"box_format": "cxcywh"}, "row 2: box_format: found 'cxcywh', expected 'xyxy', 'x"),
    "relative": (
        {"box_format": "rel_xyxy"},
        "row 2: box: found (4.0, 5.0, 20.0, 10.0), expected edges from 0 to 1, since its box_form",
    ),
    "no image": ({"image": ""}, "row 2: image: is missing"),
    "no caption": ({"caption": None}, "row 2: caption: is missing"),
    "no phrase": ({"phrase": " "}, "row 2: phrase: is empty"),
    "score": ({"score": 1.5}, "row 2: score: found 1.5, expected less than or equal to 1"),
    "half a span": ({"char_end": None}, "row 2: one of char_start and char_end is missing"),
    "far": ({"char_start": 2**31}, "row 2: char_start: found 2147483648, expected less than"),
    "negative": ({"char_start": -1}, "row 2: char_start: found -1, expected greater than or equal"),
    "wrong span": (
        {"char_start": 2, "char_end": 11},
        "row 2: char_start: the caption reads 'red dog r' from 2 to 11, expected the phrase, 'a re",
    ),
    "odd polygon": ({"mask": [[1, 2, 3, 4, 5, 6, 7]]}, "row 2: mask: found [[1, 2, 3, 4, 5, 6, "),
    "far polygon": ({"mask": [[0, 0, 1, 1, 1e300, 0]]}, "row 2: mask: found [[0, 0, 1, 1, 1e+300"),
    "no mask": ({"mask": None}, "row 2: mask: is missing"),
    "counts": ({"mask": {"size": [16, 24], "counts": -1}}, "row 2: mask: found {'counts': -1, 's"),
}


@pytest.mark.parametrize("change", FAULTS.values(), ids=FAULTS)
def test_a_wrong_value_is_named_with_its_row_and_column(data, tmp_path, change):
    changes, says = change
    right = {**ROW, "char_start": 0, "char_end": 9, "box_format": "xyxy", "score": 1.0}
    right["mask"] = MASKS["polygon"]
    wrong = {**right, **changes}
    rows = [right, wrong, {**right, "image": "8.png"}, wrong]
    opened = Opened(data, write(tmp_path / "boxes.json", rows), None, masks=True)
    assert opened.found() == [("A red dog", [[4, 5, 20, 10]])]
    (note,) = opened.remarks
    assert re.match(f"2 damaged rows left out, the first: .*/boxes.json: {re.escape(says)}", note)
    with pytest.raises(SightlineError, match=f"2 damaged rows, the first: .*{re.escape(says)}"):
        Opened(data, tmp_path / "boxes.json", None, masks=True, strict=True)
    path = write(tmp_path / "boxes.json", [wrong, wrong])
    with pytest.raises(SightlineError, match=f"boxes.json: {re.escape(says.replace('2', '1', 1))}"):
        Opened(data, path, None, masks=True)


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
@pytest.mark.parametrize("bad", [[5, 5, 35, 40], [5, 5], []])
def test_a_polygon_of_less_than_three_points_covers_nothing(data, tmp_path, suffix, bad):
    rows = [{**ROW, "mask": [*MASKS["polygon"], bad]}]
    path = write(tmp_path / f"boxes.{suffix}", rows)
    (phrase,), _ = Opened(data, path, masks=True).answer("7.png", RED)
    assert phrase.masks is not None
    np.testing.assert_array_equal(phrase.masks[0].numpy(), PIXELS)
    path = write(tmp_path / f"boxes.{suffix}", [{**ROW, "mask": [bad]}])
    (phrase,), _ = Opened(data, path, masks=True).answer("7.png", RED)
    assert phrase.masks is not None
    assert not phrase.masks.any()


def test_a_column_that_only_later_objects_have_is_not_overlooked(data, tmp_path):
    path = write(tmp_path / "boxes.jsonl", [ROW, {**ROW, "char_start": 0, "char_end": 9}])
    with pytest.raises(SightlineError, match=r"line 2: has 'char_start', which the first"):
        Opened(data, path)


@pytest.mark.parametrize(
    ("mask", "code"),
    [
        (encode_mask(PIXELS.T), "wrong_size"),
        ({"size": [16, 24], "counts": "07"}, "bad_mask"),
        ({"size": [16, 24], "counts": [3, 4]}, "bad_mask"),
    ],
)
def test_a_mask_that_does_not_fit_costs_its_image_and_names_its_row(data, tmp_path, mask, code):
    path = write(tmp_path / "boxes.jsonl", [{**ROW, "mask": mask}])
    opened = Opened(data, path, masks=True)
    with pytest.raises(SightlineError, match=r"boxes\.jsonl: row 1: ") as error:
        opened.answer("7.png", RED)
    assert getattr(error.value, "code", None) == code


def test_columns_that_lack(data, tmp_path):
    path = tmp_path / "boxes.csv"
    for name in ROW:
        rows = [{k: v for k, v in ROW.items() if k != name}]
        with pytest.raises(SightlineError, match=rf"expected {name} \(or .*call one '{name}'"):
            Opened(data, write(path, rows))
    with pytest.raises(SightlineError, match=r"'bbox' may be corners, or a corner and a size"):
        Opened(data, write(path, [{**rows[0], "bbox": [4, 5, 20, 10]}]), None)
    assert Opened(data, write(path, [ROW]), None).found() == [("A red dog", [[4, 5, 20, 10]])]
    with pytest.raises(SightlineError, match=r"has no column 'mask'"):
        Opened(data, path, masks=True)
    with pytest.raises(SightlineError, match=r"all its boxes lie between 0 and 1"):
        Opened(data, write(path, [{**ROW, "box": [0.1, 0.1, 0.9, 1]}]))
    path.write_text("image,caption,phrase,box\n")
    with pytest.raises(SightlineError, match=r"has no rows"):
        Opened(data, path)


def test_boxes_of_folders_that_are_not_here_are_of_no_image(data, tmp_path):
    (data.folder / "images/a").mkdir()
    data.add("a/9.png", RED)
    path, there = tmp_path / "boxes.jsonl", {**ROW, "image": "a/9.png"}
    with pytest.raises(SightlineError, match=r"1 image name .* 'b/9\.png', end like .* 'a/9\.png'"):
        Opened(data, write(path, [{**ROW, "image": "b/9.png"}]))
    opened = Opened(data, write(path, [there, {**there, "image": "b/9.png", "box": [0, 0, 9, 9]}]))
    assert opened.found("a/9.png") == [("A red dog", [[4, 5, 20, 10]])]
    others = [{**ROW, "image": f"{folder}/7.png"} for folder in ("data/images", "data/photos")]
    opened = Opened(data, write(path, [{**others[1], "box": [0, 0, 9, 9]}, others[0]]))
    assert opened.found() == [("A red dog", [[4, 5, 20, 10]])]  # the images' own folder counts
    opened = Opened(data, write(path, [{**ROW, "image": "9", "box": [0, 0, 9, 9]}, ROW]))
    assert opened.remarks == ["boxes.jsonl: 1 image name matched by less than a path"]


def test_what_is_left_out_is_counted_and_nothing_left_names_both_sides(data, tmp_path):
    (data.folder / "images/a").mkdir()
    (data.folder / "images/b").mkdir()
    data.add("a/9.png", BOAT)
    data.add("b/9.png", BOAT)
    others = [
        {**ROW, "image": "9.png"},
        {**ROW, "image": "no.png"},
        {**ROW, "caption": "Nobody said so."},
        {**ROW, "caption": BOAT, "phrase": "a boat"},
    ]
    path = write(tmp_path / "boxes.csv", [ROW, *others])
    assert Opened(data, path, choice="longest").remarks == [
        "boxes.csv: 1 of 5 boxes are of images that are not in the data set, such as 'no.png' in "
        "line 4",
        "boxes.csv: 1 of 5 boxes are of images whose name several files have (write paths), such "
        "as '9.png' in line 3",
        "boxes.csv: 1 of 5 boxes are of captions that the data set does not have, such as '7.png' "
        "in line 5",
        "boxes.csv: 1 of 5 boxes are of captions that only `captions=all` grounds, such as '7.png' "
        "in line 6",
    ]
    with pytest.raises(SightlineError) as error:
        Opened(data, write(path, others), choice="longest")
    for name in ("'9.png'", "'no.png'", "'7.png'", "'a/9.png'", "Nobody said so", RED[:12]):
        assert name in str(error.value)


def test_boxes_that_reach_far_beyond_their_image_are_counted(data, tmp_path):
    rows = [ROW, {**ROW, "box": [4, 5, 25, 17]}, {**ROW, "box": [40, 50, 200, 100]}]
    opened = Opened(data, write(tmp_path / "boxes.jsonl", [*rows, {**ROW, "image": "no.png"}]))
    assert opened.remarks[-1] == (
        "boxes.jsonl: 1 of 4 boxes are of images beyond whose edges they reach, which cuts them "
        "(were they drawn at another size?), such as '7.png' in line 3"
    )


def test_annotations_that_are_no_table_of_boxes_are_sent_to_the_docs(data, tmp_path):
    shapes = [{"label": "dog", "points": [[1, 2], [3, 4]], "shape_type": "rectangle"}]
    (tmp_path / "7.json").write_text(json.dumps({"shapes": shapes, "imagePath": "7.png"}))
    for path in (tmp_path / "7.json", write(tmp_path / "voc.csv", [{"filename": "7.png", "x": 1}])):
        with pytest.raises(SightlineError, match=r"docs/grounding\.md shows how to make such rows"):
            Opened(data, path)


def test_what_others_write_is_recognised(data, tmp_path):
    def says(path: Path, content: Any) -> str:
        path.write_text(json.dumps(content))
        with pytest.raises(SightlineError) as error:
            Opened(data, path)
        return str(error.value)

    instances = {"images": [{}], "annotations": [{}], "categories": [{}]}
    assert "boxes have categories" in says(tmp_path / "instances_train2017.json", instances)
    regions = [{"id": 1, "regions": [{"phrase": "a dog", "x": 1}]}]
    assert "several phrases of one" in says(tmp_path / "region_descriptions.json", regions)
    for protocol in (0, 2):
        path = tmp_path / "refs(unc).p"
        path.write_bytes(pickle.dumps([{"ref_id": 1}], protocol=protocol))
        with pytest.raises(SightlineError, match=r"refs\(unc\).p: a pickle; expected boxes"):
            Opened(data, path)
    with zipfile.ZipFile(tmp_path / "annotations.zip", "w") as archive:
        archive.writestr("Annotations/7.xml", "<annotation/>")
    with pytest.raises(SightlineError, match=r"a zip archive; expected .*unpack it: `unzip "):
        Opened(data, tmp_path / "annotations.zip")


def test_the_fingerprint_has_the_files_digest_and_the_form_of_its_boxes(tmp_path):
    def description(box_format: Any = "xyxy") -> dict[str, object]:
        return open_annotations(tmp_path / "boxes.csv", box_format).describe()

    write(tmp_path / "boxes.csv", [ROW])
    first = description()
    assert first["format"] == "boxes"
    assert description("xywh") != first
    write(tmp_path / "boxes.csv", [ROW, ROW])
    assert description() != first


def test_a_manifest_is_still_read_as_one_and_its_boxes_have_one_form(data, tmp_path):
    path = write_phrases(data, tmp_path / "phrases.parquet")
    assert type(open_annotations(path)) is PhraseBoxes
    with pytest.raises(SightlineError, match=r"leave out `grounder.box_format`"):
        open_annotations(path, "xyxy")


def layout(name: str) -> str:
    """The Python of docs/grounding.md that writes this file."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/grounding.md").read_text(), re.S)
    (code,) = [block for block in blocks if name in block]
    return code


def test_the_pages_layout_of_coco(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    images = [{"id": 9, "file_name": "7.png"}, {"id": 10, "file_name": "8.png"}]
    drawn = {"image_id": 9, "bbox": [4, 5, 16, 5], "segmentation": MASKS["polygon"]}
    instances = {
        "images": images,
        "annotations": [
            {**drawn, "category_id": 1},
            {**drawn, "category_id": 2, "segmentation": MASKS["uncompressed"]},
            {**drawn, "category_id": 1, "image_id": 10},
        ],
        "categories": [{"id": 1, "name": "dog"}, {"id": 2, "name": "ball"}],
    }
    captions = [{"image_id": 9, "caption": RED}, {"image_id": 9, "caption": "dogs"}]
    Path("instances_val2017.json").write_text(json.dumps(instances))
    Path("captions_val2017.json").write_text(json.dumps({"annotations": captions}))
    exec(layout("coco.jsonl"), {})
    opened = Opened(data, Path("coco.jsonl"), None, masks=True)
    assert opened.found() == [("dog", [[4, 5, 20, 10]]), ("ball", [[4, 5, 20, 10]])]


def test_the_pages_layout_of_grit(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data.add("000000007.jpg", BOAT, size=(16, 24))
    chunk = [13.0, 19.0, 0.25, 0.5, 0.75, 1.0, 0.875]
    row = {"key": "000000007", "caption": f" {BOAT}", "noun_chunks": [chunk]}
    pq.write_table(pa.Table.from_pylist([row, {**row, "noun_chunks": []}]), "00000.parquet")
    exec(layout("grit.jsonl"), {})
    (phrase,), _ = Opened(data, Path("grit.jsonl"), "rel_xyxy").answer("000000007.jpg", BOAT)
    assert (phrase.phrase, phrase.char_start) == ("a boat", 12)
    assert phrase.boxes.tolist() == [[6, 8, 18, 16]]
    assert phrase.scores.tolist() == [0.875]


# -- the command --------------------------------------------------------------------------------


def command(*words: str) -> str:
    """`sightline ground` with boxes.csv and the segmenter `box`."""
    annotations = "--set grounder.family=annotations --set grounder.path=boxes.csv"
    more = "--set segmenter.family=box --out grounding --cutouts cutouts"
    return " ".join(("ground --data d", annotations, more, *words))


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    """Prepared photographs with two captions each, of 50 × 40 pixels or a few more."""
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)
    upright = Image.new("RGB", (50, 60))
    upright.paste((255, 0, 0), (4, 6, 30, 20))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    upright.transpose(Image.Transpose.ROTATE_90).save("photos/0.png", exif=exif)
    boxes = {"a boat": [4, 6, 30, 20], "a lake": [2, 2, 20, 36]}
    rows = [
        {"image": f"{i}.png", "caption": f"a boat on a lake {i}", "phrase": phrase, "box": box}
        for i in range(4)
        for phrase, box in boxes.items()
    ]
    write(tmp_path / "boxes.csv", [*rows, {**rows[0], "image": "no.png"}])
    assert run(PREPARE) == 0
    return tmp_path


def test_pixels_are_those_of_the_upright_image(inputs, said):
    code, out, _ = said(*command("--set grounder.box_format=xyxy").split())
    assert (code, "4 images, 4 captions, 8 pairs" in out) == (0, True)
    assert "1 of 9 boxes are of images that are not in the data set, such as 'no.png'" in out
    phrases = read_phrases("grounding").filter(pc.field("phrase") == "a boat").to_pylist()
    (turned,) = [row for row in phrases if row["mask"]["size"] == [60, 50]]
    assert turned["box"] == [4, 6, 30, 20]
    cutouts = rows_with_keys(Path("cutouts"), "cutouts").to_pylist()
    (png,) = [row["png"] for row in cutouts if row["key"] == turned["cutout_key"]]
    assert Image.open(BytesIO(png)).getcolors() == [(26 * 14, (255, 0, 0, 255))]
    assert "nothing to compute" in said(*command("--set grounder.box_format=xyxy").split())[1]


def test_mcseo_learns_from_a_table(inputs):
    train = TRAIN.replace("mcse", "mcseo", 1) + " --object-weight 1 --features object-clip="
    for step in (
        command("--set grounder.box_format=xyxy"),
        EXTRACT + "clip",
        OBJECTS + " --phrases grounding --cutouts cutouts",
        TOKENS,
        PHRASE_TOKENS,
        train + "objects --phrases phrase-tokens",
    ):
        assert run(step) == 0
    assert Path("run/run.json").is_file()
