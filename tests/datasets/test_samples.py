"""Samples: one reading of a cell, whatever the source; and what sources of other packages yield."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from caption_reading import read_captions
from packed import column, picture, texts

from pipeline.datasets.caption_images import write_named
from pipeline.datasets.huggingface import HuggingFaceSource
from pipeline.datasets.images import scan_images
from pipeline.datasets.pairs import CocoSource, PairsSource
from pipeline.datasets.prepare import prepare
from pipeline.datasets.samples import Placed, Sample
from pipeline.datasets.source import PrepareReport
from pipeline.datasets.table_rows import write_held
from sightline.cache.keys import key_of_bytes
from sightline.errors import SightlineError

NAMES = ["0.png", "1.png", "2.png"]


def labels(names, *, of="split"):
    """The metadata of a file in which `datasets` keeps a column of class labels."""
    features = {of: {"names": names, "_type": "ClassLabel"}}
    return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}


@pytest.mark.parametrize("kind", ["pairs", "huggingface"])
def test_a_cell_means_the_same_to_both_readers_of_tables(make_images, folder, out, kind):
    images = make_images([*NAMES, "3.png"])
    table = pa.table(
        {
            "image": ["0.png", None, "1.png", "2.png", "https://example.org/9.png", "3.png"],
            "caption": [["a", ""], ["b"], None, ["c\x07"], ["d"], []],
            "caption_id": [["x", "y"], ["z"], ["n"], ["c"], ["u"], []],
            "split": pa.array([0, 0, 1, 2, 0, -1]),
        }
    )
    pq.write_table(table.replace_schema_metadata(labels(["train", "val", "test"])), folder / "a")
    if kind == "pairs":
        source = PairsSource(images=images, captions=folder / "a")
    else:
        columns = {"split_column": "split", "caption_id_column": "caption_id"}
        source = HuggingFaceSource(path=folder / "a", images=images, **columns)
    report = prepare(source, out)
    assert texts(out) == {"x": "a", "c": "c"}
    assert column(out, "split")[:3] == ["train", "dev", "test"]
    counts = dict(report.problem_counts)
    assert counts.pop("images_without_caption") == 2
    assert counts == {
        "captions_without_their_control_characters": 1,
        "empty_captions": 2,
        "rows_without_image": 1,
        "urls_in_place_of_images": 1,
    }


@pytest.mark.parametrize("form", ["karpathy", "coco", "json"])
def test_a_control_character_is_lost_and_counted_in_json_of_every_form(
    make_images, make_file, out, form
):
    images, said = make_images(NAMES[:2]), ["c\x07", "a"]
    if form == "karpathy":
        each = [{"raw": text} for text in said]
        held = [
            {"filename": n, "split": "train", "sentences": [t]}
            for n, t in zip(NAMES, each, strict=False)
        ]
        file = make_file("k.json", json.dumps({"images": held}))
        source = PairsSource(images=images, karpathy=file)
    elif form == "coco":
        held = [{"id": n, "file_name": NAMES[n]} for n in range(2)]
        of = [{"id": n, "image_id": n, "caption": said[n]} for n in range(2)]
        file = make_file("c.json", json.dumps({"images": held, "annotations": of}))
        source = CocoSource(images=images, captions={"train": file})
    else:
        rows = [{"image": n, "caption": t} for n, t in zip(NAMES, said, strict=False)]
        source = PairsSource(images=images, captions=make_file("t.json", json.dumps(rows)))
    report = prepare(source, out)
    assert column(out, "text", "captions") == ["c", "a"]
    assert report.problem_counts == {"captions_without_their_control_characters": 1}


@pytest.mark.parametrize(
    "cells",
    [
        pa.array([{"bytes": None, "path": name} for name in NAMES]),
        pa.array([[name] for name in NAMES]),
        pa.array([[{"path": name}] for name in NAMES]),
    ],
    ids=["bytes: null", "list of one", "list of one object"],
)
def test_an_image_that_is_named_in_an_object_or_alone_in_a_list(make_images, folder, out, cells):
    table = pa.table({"image": cells, "caption": ["a", "b", "c"]})
    pq.write_table(table, folder / "a.parquet")
    prepare(HuggingFaceSource(path=folder / "a.parquet", images=make_images(NAMES)), out)
    assert column(out, "path") == NAMES


def test_class_labels_that_are_not_used_are_mentioned(folder, out):
    columns = {"image": [picture(0)], "caption": ["a"], "split": [1]}
    table = pa.table(columns).replace_schema_metadata(labels(["train", "val"]))
    pq.write_table(table, folder / "a.parquet")
    report = prepare(HuggingFaceSource(path=folder / "a.parquet"), out)
    assert any("column 'split' (val) is not used" in guess for guess in report.guesses)
    pq.write_table(pa.table(columns), folder / "a.parquet")
    with pytest.raises(SightlineError, match="column 'split' is int64, expected a string"):
        prepare(HuggingFaceSource(path=folder / "a.parquet", split_column="split"), out)


def test_lines_of_flickr_are_read_whatever_the_file_is_called(make_file):
    captions = read_captions(make_file("captions.csv", "0.png#0\tA dog, red\n0.png#1\tA cat\n"))
    assert (captions.images, captions.numbers) == (["0.png"] * 2, ["0", "1"])
    assert captions.remarks == ["captions.csv: read as lines `name.jpg#k<TAB>caption`"]


def test_one_damaged_annotation_among_many_is_counted(make_images, make_file, out):
    said = [
        {"id": 1, "image_id": 0, "caption": "a"},
        {"id": 2, "image_id": 0, "caption": None},
        {"id": 3, "caption": "c"},
        7,
        {"id": 5, "image_id": 1, "caption": "b"},
    ]
    content = {
        "images": [{"id": n, "file_name": f"{n}.png"} for n in range(2)],
        "annotations": said,
    }
    file = make_file("c.json", json.dumps(content))
    source = {"images": make_images(NAMES[:2]), "captions": {"train": file}}
    report = prepare(CocoSource(**source), out)
    assert texts(out) == {"0.png#1": "a", "1.png#5": "b"}
    assert report.problem_counts == {"unusable_captions": 3}
    first, *_ = report.problems["unusable_captions"]
    assert first == f"{file}: annotations[1].caption: found None, expected a valid string"
    with pytest.raises(SightlineError, match=r"strict .*\n.*unusable captions: 3"):
        prepare(CocoSource(**source, strict=True), out)


def test_one_damaged_sentence_of_karpathy_keeps_the_numbers_of_the_others(
    make_images, make_file, out
):
    entry = {"filename": "0.png", "split": "train", "sentences": [{"raw": "a"}, {}, {"raw": "c"}]}
    file = make_file("k.json", json.dumps({"images": [entry]}))
    report = prepare(PairsSource(images=make_images(NAMES[:1]), karpathy=file), out)
    assert texts(out) == {"0.png#0": "a", "0.png#2": "c"}
    assert report.problem_counts == {"unusable_captions": 1}


@pytest.mark.parametrize("given", ["caption", ".Caption"])
def test_texts_of_any_suffix_lie_beside_the_images(make_images, out, given):
    folder = make_images(NAMES[:2])
    (folder / "0.caption").write_text("a dog\n")
    report = prepare(PairsSource(images=folder, beside=given), out)
    assert texts(out) == {"0.png#0": "a dog"}
    assert not report.ignored
    with pytest.raises(ValueError, match=r"found 'jpg', expected the suffix"):
        PairsSource(images=folder, beside="jpg")


def image_folder(make_images):
    """Images with a table in the folder of each split, whose names are the same."""
    names = {"train": (0, 1), "validation": (0,), "test": (0,)}
    root = make_images([f"{split}/{n}.png" for split, some in names.items() for n in some])
    for split, some in names.items():
        rows = [{"file_name": f"{n}.png", "text": f"{n} of {split}"} for n in some]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (root / split / "metadata.jsonl").write_text(lines)
    return root


def test_an_image_folder_has_a_table_in_each_split(make_images, out):
    root = image_folder(make_images)
    prepare(PairsSource(images=root, captions=root), out)
    assert texts(out) == {
        "train/0.png#0": "0 of train",
        "train/1.png#0": "1 of train",
        "validation/0.png#0": "0 of validation",
        "test/0.png#0": "0 of test",
    }
    assert column(out, "split") == ["test", "train", "train", "dev"]


def test_a_row_of_an_image_folder_without_a_name_stays_one(make_images, out):
    root = image_folder(make_images)
    with (root / "train/metadata.jsonl").open("a") as file:
        file.write('{"file_name": null, "text": "a"}\n')
        file.write('{"file_name": "https://example.org/0.png", "text": "b"}\n')
    report = prepare(PairsSource(images=root, captions=root), out)
    assert report.problem_counts == {"rows_without_image": 1, "urls_in_place_of_images": 1}
    assert len(texts(out)) == 4


def test_names_of_a_table_among_the_images_are_looked_for_beside_it_first(make_images, out):
    root = image_folder(make_images)
    (root / "train/metadata.jsonl").write_text(
        '{"file_name": "0.png", "text": "a"}\n{"file_name": "test/0.png", "text": "b"}\n'
    )
    prepare(PairsSource(images=root, captions=root / "train/metadata.jsonl"), out)
    assert texts(out) == {"train/0.png#0": "a", "test/0.png#0": "b"}


def test_image_folders_elsewhere_are_one_error(make_images, folder, out):
    root = image_folder(make_images)
    with pytest.raises(SightlineError, match=r"name images beside them; give this folder"):
        prepare(PairsSource(images=make_images(["9.png"], "other"), captions=root), out)


# --- samples of another package


def test_samples_that_name_their_images(make_images, folder):
    report, root = PrepareReport("pairs"), make_images(NAMES)
    samples = [
        Sample(1, "0.png", ["a", "b"], "train", ids=["x", "y"]),
        Sample(2, "1.png", ["c"], None, ids=["z"]),
        Sample(3, "2.png", ["d"], "test", ids=["w"]),
    ]
    images = scan_images(root, report)
    write_named(folder, images, samples, report, where="album", root=root)
    assert texts(folder) == {"x": "a", "y": "b", "w": "d"}
    assert column(folder, "split") == ["train", "", "test"]
    assert report.counts["rows_of_other_splits"] == 1
    samples.append(Sample(4, "2.png", ["e"]))
    with pytest.raises(SightlineError, match="album: 3 of 4 captions have ids; give them for all"):
        write_named(folder, images, samples, report, where="album", root=root)
    with pytest.raises(SightlineError, match="album: contains no captions"):
        write_named(folder, images, [], report, where="album", root=root)


def test_samples_that_hold_their_images_or_know_where_they_lie(folder):
    report, data = PrepareReport("huggingface"), [picture(n) for n in range(3)]
    (folder / "images").mkdir()
    (folder / "images/packed").write_bytes(data[1] + data[2])
    placed = [
        Placed("packed", key_of_bytes(each), (3, 2), start, len(each))
        for each, start in ((data[1], 0), (data[2], len(data[1])))
    ]
    files = [
        ("one", "a", [Sample(1, data[0], ["a"], "train"), Sample(2, placed[0], ["b"], "train")]),
        ("two", "", [Sample(1, placed[1], ["c", "d"], numbers=["7", "9"])]),
    ]
    write_held(folder, files, report, where="own", unit="files")
    assert texts(folder) == {"a/0#0": "a", "a/1#0": "b", "0#7": "c", "0#9": "d"}
    assert report.shards == {
        "one": {"images": 2, "captions": 2},
        "two": {"images": 1, "captions": 2},
    }
    assert column(folder, "path") == ["00000.tar", "packed", "packed"]
    assert column(folder, "offset")[1:] == [0, len(data[1])]
    assert column(folder, "key") == [key_of_bytes(each) for each in data]
