"""Pairs: images are matched to captions and splits; mismatches are counted, listed or rejected."""

from __future__ import annotations

import hashlib
import json
import os
import unicodedata

import pytest
from PIL import Image
from pydantic import ValidationError

from pipeline.datasets.kinds import prepare as prepare_source
from pipeline.datasets.pairs import PairsSource
from pipeline.datasets.source import DatasetError
from sightline.cache.manifest import CAPTIONS, IMAGES, SENTENCES, read_manifest
from sightline.errors import SightlineError


def prepare(source, out):
    return prepare_source("pairs", source, out)


def rows(folder, name, schema):
    return read_manifest(folder / f"{name}.parquet", schema).to_pylist()


@pytest.fixture
def two_images(make_images):
    return make_images(["b.jpg", "sub/a.png"])


def test_manifests_hold_every_image_and_caption(two_images, make_file, tmp_path):
    captions = make_file("c.token", "b.jpg#0\t One. \nb.jpg#1\tTwo\na.png#0\tThree\n")
    report = prepare(PairsSource(images=two_images, captions=captions), tmp_path / "out")
    images = rows(tmp_path / "out", "images", IMAGES)
    assert [image["image_id"] for image in images] == ["b.jpg", "sub/a.png"]
    assert images[0]["key"] == hashlib.sha256((two_images / "b.jpg").read_bytes()).digest()
    assert (images[0]["width"], images[0]["height"]) == (3, 2)
    assert rows(tmp_path / "out", "captions", CAPTIONS) == [
        {"caption_id": "b.jpg#0", "image_id": "b.jpg", "text": "One.", "split": ""},
        {"caption_id": "b.jpg#1", "image_id": "b.jpg", "text": "Two", "split": ""},
        {"caption_id": "sub/a.png#0", "image_id": "sub/a.png", "text": "Three", "split": ""},
    ]
    assert report.counts["captions"] == 3
    assert not report.problems


def test_trimmed_white_space_is_counted_and_said(two_images, make_file, tmp_path):
    captions = make_file("c.token", "b.jpg#0\t One. \nb.jpg#1\tTwo\na.png#0\t  \n")
    report = prepare(PairsSource(images=two_images, captions=captions), tmp_path / "out")
    assert report.counts["captions_trimmed"] == 1  # the one that has nothing else is left out
    assert "white space around 1 captions left out; their key is" in report.summary()
    written = json.loads((tmp_path / "out" / "dataset.json").read_text("utf-8"))
    assert written["counts"]["captions_trimmed"] == 1


def test_captions_without_a_number_are_numbered_within_their_image(two_images, make_file, tmp_path):
    captions = make_file("c.csv", "image,caption\nb.jpg,x\nsub/a.png,y\nb.jpg,\nb.jpg,z\n")
    report = prepare(PairsSource(images=two_images, captions=captions), tmp_path / "out")
    ids = [row["caption_id"] for row in rows(tmp_path / "out", "captions", CAPTIONS)]
    assert ids == ["b.jpg#0", "sub/a.png#0", "b.jpg#2"]  # the empty one kept its number
    assert report.problems == {"empty_captions": ["b.jpg#1"]}


@pytest.mark.parametrize("name", ["a b.jpg", "a,b.jpg", "a\tb.jpg", "日本 ünï.jpg"])
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_odd_names_find_their_image(make_images, make_file, tmp_path, name, form):
    text = {
        "csv": f'image,caption\n"{name}",text\n',
        "jsonl": json.dumps({"image": name, "caption": "text"}),
    }[form]
    source = PairsSource(images=make_images([name]), captions=make_file(f"c.{form}", text))
    prepare(source, tmp_path / "out")
    assert rows(tmp_path / "out", "captions", CAPTIONS)[0]["image_id"] == name


@pytest.mark.parametrize("stored", ["NFC", "NFD"])
def test_composed_and_decomposed_letters_are_the_same_name(
    make_images, make_file, tmp_path, stored
):
    images = make_images([unicodedata.normalize(stored, "ü.jpg")])
    other = "NFD" if stored == "NFC" else "NFC"
    captions = make_file("c.token", unicodedata.normalize(other, "ü.jpg") + "#0\ttext\n")
    assert prepare(PairsSource(images=images, captions=captions), tmp_path / "o").counts["captions"]


def test_a_pipe_in_place_of_the_captions_is_refused(two_images, tmp_path):
    os.mkfifo(tmp_path / "c.token")  # reading it would block
    source = PairsSource(images=two_images, captions=tmp_path / "c.token")
    with pytest.raises(SightlineError, match="not a file, but a folder, a pipe or a device"):
        prepare(source, tmp_path / "out")


def test_mismatches_are_counted_and_listed(make_images, make_file, tmp_path):
    images = make_images(["a.jpg", "b.jpg", "b.png", "lonely.jpg", "x/twice.jpg", "y/twice.jpg"])
    named = ["a.jpg#0\tone", "gone.jpg#0\ttwo", "twice.jpg#0\tthree", "b#0\tfour", "b.png#0\tfive"]
    captions = make_file("c.token", "\n".join(named))
    splits = {"train": make_file("train.txt", "a.jpg\nnever.jpg\n")}
    source = PairsSource(images=images, captions=captions, splits=splits)
    report = prepare(source, tmp_path / "out")
    assert report.problems == {
        "split_entries_without_image": ["never.jpg"],
        "captions_without_image": ["gone.jpg#0"],
        "captions_of_ambiguous_image": ["twice.jpg#0", "b#0"],
        "images_without_caption": ["b.jpg", "lonely.jpg", "x/twice.jpg", "y/twice.jpg"],
    }
    assert report.problem_counts["images_without_caption"] == 4
    written = json.loads((tmp_path / "out" / "dataset.json").read_text("utf-8"))
    assert written["problems"] == report.problems
    assert str(tmp_path) not in (tmp_path / "out" / "dataset.json").read_text("utf-8")


def test_strict_makes_mismatches_errors_and_writes_nothing(two_images, make_file, tmp_path):
    captions = make_file("c.token", "b.jpg#0\tone\ngone.jpg#0\ttwo\n")
    source = PairsSource(images=two_images, captions=captions, strict=True)
    with pytest.raises(DatasetError) as error:
        prepare(source, tmp_path / "out")
    assert "captions without image: 1 (gone.jpg#0)" in str(error.value)
    assert "images without caption: 1 (sub/a.png)" in str(error.value)
    assert not (tmp_path / "out").exists()


def test_split_lists_name_the_split_and_val_is_dev(two_images, make_file, tmp_path):
    captions = make_file("c.token", "b.jpg#0\tone\na.png#0\ttwo\n")
    splits = {"train": make_file("tr.txt", "b.jpg\r\n\r\n"), "val": make_file("v.txt", "a\n")}
    prepare(PairsSource(images=two_images, captions=captions, splits=splits), tmp_path / "out")
    assert [r["split"] for r in rows(tmp_path / "out", "images", IMAGES)] == ["train", "dev"]
    assert [r["split"] for r in rows(tmp_path / "out", "captions", CAPTIONS)] == ["train", "dev"]


def test_sentences_are_the_distinct_training_captions(two_images, make_file, tmp_path):
    lines = ["b.jpg#0\tsame", "b.jpg#1\tother", "b.jpg#2\tsame", "a.png#0\theld out"]
    captions = make_file("c.token", "\n".join(lines))
    splits = {"train": make_file("tr.txt", "b.jpg"), "test": make_file("te.txt", "a")}
    prepare(PairsSource(images=two_images, captions=captions, splits=splits), tmp_path / "out")
    texts = [row["text"] for row in rows(tmp_path / "out", "sentences", SENTENCES)]
    assert texts == ["same", "other"]


def test_split_column_names_the_split(two_images, make_file, tmp_path):
    captions = make_file("c.tsv", "image\tcaption\tsplit\nb.jpg\tone\ttest\na.png\ttwo\tval\n")
    prepare(PairsSource(images=two_images, captions=captions), tmp_path / "out")
    assert [r["split"] for r in rows(tmp_path / "out", "images", IMAGES)] == ["test", "dev"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image,caption,caption_id\nb.jpg,x,7\na.png,y,8\nb.jpg,z,7\n", "'7' (lines 2 and 4)"),
        ("image,caption,split\nb.jpg,x,train\nb.jpg,y,dev\n", "'b.jpg' is in the splits 'train' and 'dev'"),
        ("image,caption,split\nb.jpg,x,trian\n", "unknown split 'trian'"),
        ("image,caption\nc.jpg,x\nd.jpg,y\n", "none of its 2 captions names an image"),
    ],
)
def test_contradictions_in_the_captions_are_errors(two_images, make_file, tmp_path, text, message):
    source = PairsSource(images=two_images, captions=make_file("c.csv", text))
    with pytest.raises(DatasetError) as error:
        prepare(source, tmp_path / "out")
    assert message in str(error.value)


def test_duplicate_numbers_of_a_token_file_are_an_error(two_images, make_file, tmp_path):
    captions = make_file("c.token", "b.jpg#0\tone\nb.jpg#0\ttwo\n")
    with pytest.raises(DatasetError, match=r"1 duplicate caption ids.*lines 1 and 2"):
        prepare(PairsSource(images=two_images, captions=captions), tmp_path / "out")


def test_an_image_in_two_lists_is_an_error(two_images, make_file, tmp_path):
    splits = {"train": make_file("t.txt", "b.jpg\n"), "test": make_file("u.txt", "b.jpg\n")}
    captions = make_file("c.token", "b.jpg#0\tone\n")
    source = PairsSource(images=two_images, captions=captions, splits=splits)
    with pytest.raises(DatasetError, match="in the splits 'train' and 'test'"):
        prepare(source, tmp_path / "out")


def test_lists_and_a_split_column_together_are_an_error(two_images, make_file, tmp_path):
    captions = make_file("c.csv", "image,caption,split\nb.jpg,x,train\n")
    splits = {"train": make_file("t.txt", "b.jpg\n")}
    source = PairsSource(images=two_images, captions=captions, splits=splits)
    with pytest.raises(DatasetError, match="use one of them"):
        prepare(source, tmp_path / "out")


def test_linked_folders_are_followed_once_and_hidden_ones_are_not(make_images, make_file, tmp_path):
    images = make_images(["a.jpg", ".hidden/b.jpg", ".c.jpg", "real/d.jpg"])
    elsewhere = make_images(["e.jpg", "deep/f.jpg"], "elsewhere")
    (images / "linked").symlink_to(elsewhere)
    (images / "also").symlink_to(images / "real")  # found under its own name
    (elsewhere / "loop").symlink_to(images)
    captions = make_file("c.token", "a.jpg#0\tone\nf.jpg#0\ttwo\n")
    report = prepare(PairsSource(images=images, captions=captions), tmp_path / "out")
    found = rows(tmp_path / "out", "images", IMAGES)
    names = ["a.jpg", "linked/deep/f.jpg", "linked/e.jpg", "real/d.jpg"]
    assert [row["image_id"] for row in found] == names
    assert report.counts["files_ignored"] == 1


KARPATHY = {
    "images": [
        {"filename": "b.jpg", "split": "train", "sentences": [{"raw": "Eins. "}]},
        {"filename": "a.png", "split": "test", "sentences": [{"raw": "Zwei."}]},
    ]
}


@pytest.mark.parametrize("with_captions", [False, True])
def test_karpathys_file_has_splits_and_captions(two_images, make_file, tmp_path, with_captions):
    karpathy = make_file("dataset.json", json.dumps(KARPATHY))
    captions = make_file("c.token", "b.jpg#7\tOne\na.png#0\tTwo\n") if with_captions else None
    source = PairsSource(images=two_images, captions=captions, karpathy=karpathy)
    prepare(source, tmp_path / "out")
    found = rows(tmp_path / "out", "captions", CAPTIONS)
    assert [row["split"] for row in found] == ["train", "test"]
    assert [row["text"] for row in found] == (
        ["One", "Two"] if with_captions else ["Eins.", "Zwei."]
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [({}, "`captions` is missing"), ({"splits": {"train": "t"}, "karpathy": "k"}, "not both")],
)
def test_contradicting_parameters_are_refused(given, message):
    with pytest.raises(ValidationError, match=message):
        PairsSource.model_validate({"images": "photos", **given})


@pytest.mark.parametrize("exists", [False, True])
def test_a_missing_or_empty_image_folder_is_an_error(make_file, tmp_path, exists):
    folder = tmp_path / "images"
    if exists:
        folder.mkdir()
        (folder / "notes.txt").write_text("no picture")
    captions = make_file("c.token", "b.jpg#0\tone\n")
    message = r"no images in this folder \(1 other files" if exists else "no such image folder"
    with pytest.raises(DatasetError, match=message):
        prepare(PairsSource(images=folder, captions=captions), tmp_path / "out")


@pytest.mark.parametrize("value", [None, ""])
def test_no_image_folder_is_refused_with_the_reason(value):
    with pytest.raises(ValidationError, match="no image folder is given"):
        PairsSource.model_validate({"images": value, "captions": "c.token"})


def test_damaged_images_stay_in_the_manifest_with_size_zero(make_images, make_file, tmp_path):
    images = make_images(["a.jpg", "cut.jpg"])
    (images / "empty.jpg").write_bytes(b"")
    (images / "text.jpg").write_text("not a picture")
    (images / "cut.jpg").write_bytes((images / "cut.jpg").read_bytes()[:10])
    source = PairsSource(images=images, captions=make_file("c.token", "a.jpg#0\tone\n"))
    report = prepare(source, tmp_path / "out")
    assert report.problems["unreadable_images"] == ["cut.jpg", "empty.jpg", "text.jpg"]
    sizes = [(r["width"], r["height"]) for r in rows(tmp_path / "out", "images", IMAGES)]
    assert sizes == [(3, 2), (0, 0), (0, 0), (0, 0)]


def test_a_gigantic_image_is_measured_without_being_decoded(make_file, tmp_path):
    (tmp_path / "images").mkdir()
    header = b"P6 60000 60000 255\n"  # 3.6 thousand million pixels, by its header
    (tmp_path / "images" / "bomb.ppm").write_bytes(header + b"\0" * 30)
    limit = Image.MAX_IMAGE_PIXELS
    source = PairsSource(
        images=tmp_path / "images", captions=make_file("c.token", "bomb.ppm#0\tone\n")
    )
    prepare(source, tmp_path / "out")
    assert rows(tmp_path / "out", "images", IMAGES)[0]["width"] == 60000
    assert limit == Image.MAX_IMAGE_PIXELS


def test_sizes_are_of_the_upright_image(make_file, tmp_path):
    (tmp_path / "images").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20)).save(tmp_path / "images" / "turned.jpg", exif=exif)
    source = PairsSource(
        images=tmp_path / "images", captions=make_file("c.token", "turned.jpg#0\tone\n")
    )
    prepare(source, tmp_path / "out")
    image = rows(tmp_path / "out", "images", IMAGES)[0]
    assert (image["width"], image["height"]) == (20, 30)


def test_real_photographs(shared_data, tmp_path):
    folder = shared_data / "flickr8k"
    names = sorted(path.name for path in (folder / "images_full").iterdir())
    source = PairsSource(
        images=folder / "images_full",
        captions=folder / "Flickr8k.token.txt",
        splits={"dev": folder / "Flickr_8k.devImages.txt"},
    )
    report = prepare(source, tmp_path / "out")
    assert report.counts["images"] == len(names)
    assert report.counts["captions"] == 5 * len(names)
    assert report.problem_counts["captions_without_image"] == 40_455 - 5 * len(names)


@pytest.mark.parametrize(
    "text", ["\u200b\u200d", "\u2060 \ufeff", "\u3164", "\u2800\u00ad", "\ufe0f"]
)
def test_a_caption_that_nobody_can_see_is_empty(two_images, make_file, tmp_path, text):
    captions = make_file("c.token", f"b.jpg#0\t{text}\na.png#0\t\u200e👩\u200d🚒\n")
    source = PairsSource(images=two_images, captions=captions)
    report = prepare(source, tmp_path / "out")
    assert report.problems["empty_captions"] == ["b.jpg#0"]
    (kept,) = rows(tmp_path / "out", "captions", CAPTIONS)
    assert kept["text"] == "\u200e👩\u200d🚒"
    with pytest.raises(DatasetError, match="empty captions: 1"):
        prepare(source.model_copy(update={"strict": True}), tmp_path / "strict")


def test_captions_of_which_nobody_can_see_any_are_an_error(two_images, make_file, tmp_path):
    captions = make_file("c.token", "b.jpg#0\t\u200b\nsub/a.png#0\t\u2060\n")
    with pytest.raises(DatasetError, match=r"no usable caption \(empty captions: 2"):
        prepare(PairsSource(images=two_images, captions=captions), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_white_space_around_an_image_name_is_left_out_and_said(two_images, make_file, tmp_path):
    captions = make_file("c.csv", " IMAGE,Caption\nb.jpg ,x\n sub/a.png,y\nb.jpg,z\n")
    report = prepare(PairsSource(images=two_images, captions=captions), tmp_path / "out")
    images = [row["image_id"] for row in rows(tmp_path / "out", "captions", CAPTIONS)]
    assert images == ["b.jpg", "sub/a.png", "b.jpg"]
    assert report.notes == [
        "c.csv: column ' IMAGE' read as image",
        "c.csv: column 'Caption' read as caption",
        "white space around 2 image names left out, such as 'b.jpg '",
    ]
    assert all(note in report.summary() for note in report.notes)


def test_an_image_whose_name_is_a_terminal_escape_is_refused(make_images, make_file, tmp_path):
    images = make_images(["b.jpg", "\x1b[31m.jpg"])
    captions = make_file("c.token", "b.jpg#0\tOne\n")
    with pytest.raises(DatasetError, match=r"'\\x1b\[31m\.jpg' contains the control .* U\+001B"):
        prepare(PairsSource(images=images, captions=captions), tmp_path / "out")
