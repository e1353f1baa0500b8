"""Pairs: images are matched to captions and splits; mismatches are counted, listed or rejected."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import unicodedata
from pathlib import Path

import pytest
from command_line import sightline
from packed import column, rows
from PIL import Image

from pipeline.datasets import images
from pipeline.datasets.pairs import CocoSource, Flickr30kSource, PairsSource
from pipeline.datasets.prepare import prepare as prepare_source
from pipeline.datasets.source import DatasetError


@pytest.fixture
def two_images(make_images):
    return make_images(["b.jpg", "sub/a.png"])


@pytest.fixture
def prepare(make_file, out):
    """Prepares images with the captions in a text into ``out``; splits are texts as well."""

    def run(images: Path, captions: str, form: str = "token", chosen=None, **given):
        given["captions"] = make_file(f"c.{form}", captions)
        if "splits" in given:
            lists = given["splits"].items()
            given["splits"] = {name: make_file(f"{name}.txt", text) for name, text in lists}
        if chosen is not None:
            given["splits"] = chosen
        return prepare_source(PairsSource(images=images, **given), out)

    return run


def test_manifests_hold_every_image_and_caption(two_images, prepare, out):
    report = prepare(two_images, "b.jpg#0\t One. \nb.jpg#1\tTwo\na.png#0\tThree\na.png#1\t  \n")
    images = rows(out)
    assert [image["image_id"] for image in images] == ["b.jpg", "sub/a.png"]
    assert images[0]["key"] == hashlib.sha256((two_images / "b.jpg").read_bytes()).digest()
    assert (images[0]["width"], images[0]["height"]) == (3, 2)
    assert rows(out, "captions") == [
        {"caption_id": "b.jpg#0", "image_id": "b.jpg", "text": "One.", "split": ""},
        {"caption_id": "b.jpg#1", "image_id": "b.jpg", "text": "Two", "split": ""},
        {"caption_id": "sub/a.png#0", "image_id": "sub/a.png", "text": "Three", "split": ""},
    ]
    assert report.counts["captions"] == 3
    assert report.problems == {"empty_captions": ["sub/a.png#1"]}
    assert report.counts["captions_trimmed"] == 1  # the one that has nothing else is left out
    assert "white space around 1 captions left out; their key is" in report.summary()
    written = json.loads((out / "dataset.json").read_text("utf-8"))
    assert written["counts"]["captions_trimmed"] == 1


def test_images_of_which_none_has_a_split_are_said_to_be_trained_on(two_images, prepare):
    note = "no image has a split: all are trained on, none is left to evaluate"
    captions = "b.jpg#0\tOne\na.png#0\tTwo\n"
    assert prepare(two_images, captions).notes == [note]
    assert note not in prepare(two_images, captions, splits={"test": "b.jpg\n"}).notes


def test_captions_without_a_number_are_numbered_within_their_image(two_images, prepare, out):
    report = prepare(two_images, "image,caption\nb.jpg,x\nsub/a.png,y\nb.jpg,\nb.jpg,z\n", "csv")
    ids = column(out, "caption_id", "captions")
    assert ids == ["b.jpg#0", "sub/a.png#0", "b.jpg#2"]  # the empty one kept its number
    assert report.problems == {"empty_captions": ["b.jpg#1"]}


def test_odd_names_find_their_image(make_images, prepare, out):
    names = ["a b.jpg", "a\tb.jpg", "a,b.jpg", "日本 ünï.jpg"]
    lines = [json.dumps({"image": name, "caption": "text"}) for name in names]
    prepare(make_images(names), "\n".join(lines), "jsonl")
    assert column(out, "image_id", "captions") == names


@pytest.mark.parametrize(("stored", "other"), [("NFC", "NFD"), ("NFD", "NFC")])
def test_composed_and_decomposed_letters_are_the_same_name(make_images, prepare, stored, other):
    images = make_images([unicodedata.normalize(stored, "ü.jpg")])
    report = prepare(images, unicodedata.normalize(other, "ü.jpg") + "#0\ttext\n")
    assert report.counts["captions"] == 1


def test_mismatches_are_counted_and_listed(make_images, prepare, out, tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.datasets.source.MOST_LISTED", 3)
    images = make_images(["a.jpg", "b.jpg", "b.png", "lonely.jpg", "x/twice.jpg", "y/twice.jpg"])
    named = ["a.jpg#0\tone", "gone.jpg#0\ttwo", "twice.jpg#0\tthree", "b#0\tfour", "b.png#0\tfive"]
    report = prepare(images, "\n".join(named), splits={"train": "a.jpg\nnever.jpg\n"})
    assert report.problems == {
        "split_entries_without_image": ["never.jpg"],
        "captions_without_image": ["gone.jpg#0"],
        "captions_of_ambiguous_image": [
            "twice.jpg#0 (x/twice.jpg or y/twice.jpg)",
            "b#0 (b.jpg or b.png)",
        ],
        "images_without_caption": ["b.jpg", "lonely.jpg", "x/twice.jpg"],
    }
    assert report.problem_counts["images_without_caption"] == 4
    record = (out / "dataset.json").read_text("utf-8")
    assert json.loads(record)["problems"] == report.problems
    assert str(tmp_path) not in record


def test_strict_makes_mismatches_errors_and_writes_nothing(two_images, prepare, out):
    with pytest.raises(DatasetError) as error:
        prepare(two_images, "b.jpg#0\tone\ngone.jpg#0\ttwo\n", strict=True)
    assert "captions without image: 1 (gone.jpg#0)" in str(error.value)
    assert "images without caption: 1 (sub/a.png)" in str(error.value)
    assert not out.exists()


KARPATHY = [{"filename": "b.jpg", "split": "train"}, {"filename": "a.png", "split": "val"}]
PLAIN = "b.jpg#7\tone\na.png#0\ttwo\n"


@pytest.mark.parametrize("where", ["lists", "column", "karpathy"])
def test_splits_come_from_lists_a_column_or_karpathys_file(
    two_images, prepare, make_file, out, where
):
    if where == "lists":
        prepare(two_images, PLAIN, splits={"train": "b.jpg\r\n\r\n", "val": " a\t\n"})
    elif where == "column":
        prepare(two_images, "image\tcaption\tsplit\nb.jpg\tone\ttrain\na.png\ttwo\tval\n", "tsv")
    else:
        karpathy = make_file("dataset.json", json.dumps({"images": KARPATHY}))
        prepare(two_images, PLAIN, karpathy=karpathy)
    assert column(out, "split") == column(out, "split", "captions") == ["train", "dev"]
    assert column(out, "text", "captions") == ["one", "two"]


def test_sentences_are_the_distinct_training_captions(two_images, prepare, out):
    lines = ["b.jpg#0\tsame", "b.jpg#1\tother", "b.jpg#2\tsame", "a.png#0\theld out"]
    prepare(two_images, "\n".join(lines), splits={"train": "b.jpg", "test": "a"})
    assert column(out, "text", "sentences") == ["same", "other"]


ONE = "b.jpg#0\tone\n"
TWICE = "image,caption,caption_id\nb.jpg,x,7\na.png,y,8\nb.jpg,z,7\n"


@pytest.mark.parametrize(
    ("form", "text", "splits", "message"),
    [
        ("csv", TWICE, {}, r"'7' \(lines 2 and 4"),
        ("csv", "image,caption,split\nb.jpg,x,train\nb.jpg,y,dev\n", {}, "'train' and 'dev'"),
        ("tsv", "image\tcaption\n", {}, "contains no captions"),
        ("csv", "image,caption,split\nb.jpg,x,trian\n", {}, "unknown split 'trian'"),
        ("csv", "image,caption\nc.jpg,x\nd.jpg,y\n", {}, "none of its 2 captions names an image"),
        ("csv", "image,caption,split\nb.jpg,x,train\n", {"train": "b.jpg\n"}, "use one of them"),
        ("token", ONE + "b.jpg#0\ttwo\n", {}, "1 duplicate caption ids.*lines 1 and 2"),
        ("token", ONE, {"train": "b.jpg\n", "test": "b.jpg\n"}, "splits 'train' and 'test'"),
        ("token", ONE, {"train": '["a.jpg", "b.jpg"]'}, "none of the 1 entries of lists of splits"),
    ],
)
def test_contradictions_are_errors(two_images, prepare, form, text, splits, message):
    with pytest.raises(DatasetError, match=message):
        prepare(two_images, text, form, **({"splits": splits} if splits else {}))


def test_linked_folders_are_followed_once_and_hidden_ones_are_not(make_images, prepare, out):
    images = make_images(["a.jpg", ".hidden/b.jpg", ".c.jpg", "real/d.jpg"])
    elsewhere = make_images(["e.jpg", "deep/f.jpg"], "elsewhere")
    (images / "linked").symlink_to(elsewhere)
    (images / "also").symlink_to(images / "real")  # found under its own name
    (elsewhere / "loop").symlink_to(images)
    report = prepare(images, "a.jpg#0\tone\nf.jpg#0\ttwo\n")
    names = ["a.jpg", "linked/deep/f.jpg", "linked/e.jpg", "real/d.jpg"]
    assert column(out, "image_id") == names
    assert report.counts["files_ignored"] == 1
    assert report.ignored == {"hidden": 1, "hidden folders": 1}


def test_an_image_folder_that_is_missing_empty_or_has_an_unprintable_name(prepare, make_images):
    folder = make_images([])
    with pytest.raises(DatasetError, match="no such image folder"):
        prepare(folder, ONE)
    folder.mkdir()
    (folder / "notes.txt").write_text("no picture")
    with pytest.raises(DatasetError, match=r"no images in this folder \(1 other files"):
        prepare(folder, ONE)
    make_images(["b.jpg", "\x1b[31m.jpg"])
    with pytest.raises(DatasetError, match=r"'\\x1b\[31m\.jpg' contains the control .* U\+001B"):
        prepare(folder, ONE)


def test_damaged_images_stay_in_the_manifest_with_size_zero(make_images, prepare, out):
    images = make_images(["a.jpg", "cut.jpg"])
    (images / "empty.jpg").write_bytes(b"")
    (images / "text.jpg").write_text("not a picture")
    (images / "cut.jpg").write_bytes((images / "cut.jpg").read_bytes()[:10])
    report = prepare(images, "a.jpg#0\tone\n")
    assert report.problems["unreadable_images"] == ["cut.jpg", "empty.jpg", "text.jpg"]
    assert [(row["width"], row["height"]) for row in rows(out)] == [(3, 2), (0, 0), (0, 0), (0, 0)]


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ESTALE])
@pytest.mark.parametrize("when", ["opened", "read"])
def test_an_image_that_could_not_be_read_just_now_is_not_damaged(
    two_images, prepare, out, monkeypatch, number, when
):
    class Failing(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            raise OSError(number, os.strerror(number))

    opened = images.opened

    def open_(place, state):
        if not str(place).endswith("a.png"):
            return opened(place, state)
        if when == "opened":
            raise OSError(number, os.strerror(number), place)
        return Failing()

    monkeypatch.setattr(images, "opened", open_)
    message = r"1 of 2 images could not be read, such as sub/a\.png \(cannot be read just now \("
    with pytest.raises(DatasetError, match=message):
        prepare(two_images, "b.jpg#0\tOne\n")
    assert not (out / "images.parquet").exists()
    monkeypatch.undo()
    report = prepare(two_images, "b.jpg#0\tOne\n")
    assert "unreadable_images" not in report.problems


def test_sizes_are_read_from_headers_and_of_the_upright_image(prepare, out, tmp_path, monkeypatch):
    images = tmp_path / "images"
    images.mkdir()
    header = b"P6 60000 60000 255\n"  # 3.6 thousand million pixels, by its header
    (images / "bomb.ppm").write_bytes(header + b"\0" * 30)
    exif = Image.Exif()
    for turn in range(1, 9):
        exif[0x0112] = turn
        Image.new("RGB", (30, 20)).save(images / f"turned{turn}.jpg", exif=exif)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    prepare(images, "bomb.ppm#0\tone\n")
    sizes = [(row["width"], row["height"]) for row in rows(out)]
    assert sizes == [(60000, 60000), *[(30, 20)] * 4, *[(20, 30)] * 4]
    assert Image.MAX_IMAGE_PIXELS == 1000


INVISIBLE = ["\u200b\u200d", "\u2060 \ufeff", "\u3164", "\u2800\u00ad", "\ufe0f"]


def test_a_caption_that_nobody_can_see_is_empty(two_images, prepare, out):
    empty = "".join(f"b.jpg#{k}\t{text}\n" for k, text in enumerate(INVISIBLE))
    report = prepare(two_images, empty + "a.png#0\t\u200e👩\u200d🚒\n")
    assert report.problems["empty_captions"] == [f"b.jpg#{k}" for k in range(len(INVISIBLE))]
    assert column(out, "text", "captions") == ["\u200e👩\u200d🚒"]
    with pytest.raises(DatasetError, match=r"no usable caption \(empty captions: 5"):
        prepare(two_images, empty)


def test_white_space_around_an_image_name_is_left_out_and_said(two_images, prepare, out):
    report = prepare(two_images, " IMAGE,Caption\nb.jpg ,x\n sub/a.png,y\nb.jpg,z\n", "csv")
    assert column(out, "image_id", "captions") == ["b.jpg", "sub/a.png", "b.jpg"]
    assert report.notes == [
        "c.csv: column ' IMAGE' read as image",
        "c.csv: column 'Caption' read as caption",
        "white space around 2 image names left out, such as 'b.jpg '",
        "no image has a split: all are trained on, none is left to evaluate",
    ]
    assert all(note in report.summary() for note in report.notes)


def test_the_command_says_where_every_problem_is_listed(two_images, make_file, out, capsys):
    captions = make_file("c.token", ONE)
    words = [f"--images={two_images}", f"--captions={captions}", "--out", out]
    assert sightline("prepare", "pairs", *words) == 0
    assert f"all are listed in {out / 'dataset.json'}" in capsys.readouterr().out


def test_flickr30k_has_its_splits_from_lists_or_with_its_captions_from_karpathy(
    make_images, make_file, out
):
    images = make_images(["11.jpg", "22.jpg", "33.jpg"])
    lists = {name: make_file(name, f"{n}\n") for name, n in (("train", 11), ("val", 22))}
    captions = make_file("c.token", "".join(f"{n}.jpg#0\ta caption\n" for n in (11, 22, 33)))
    source = Flickr30kSource(images=images, captions=captions, splits=lists)
    assert not prepare_source(source, out).problems
    assert column(out, "split") == ["train", "dev", ""]
    entries = [("11.jpg", "test", "Eins."), ("22.jpg", "val", "Zwei.")]
    listed = [{"filename": n, "split": s, "sentences": [{"raw": t}]} for n, s, t in entries]
    karpathy = make_file("k.json", json.dumps({"images": listed}))
    report = prepare_source(Flickr30kSource(images=images, karpathy=karpathy), out)
    assert column(out, "split") == ["test", "dev", ""]
    assert column(out, "text", "captions") == ["Eins.", "Zwei."]
    assert report.problems == {"images_without_caption": ["33.jpg"]}


def test_coco_takes_one_file_per_split(make_images, make_file, out):
    def coco(images: dict[int, str], *captions: tuple[int, int, str]) -> str:
        names = [{"id": n, "file_name": name} for n, name in images.items()]
        said = [{"id": n, "image_id": image, "caption": text} for n, image, text in captions]
        return json.dumps({"images": names, "annotations": said})

    images = make_images(["train/11.jpg", "train/22.jpg", "val/33.jpg", "other/44.jpg"])
    first = make_file("a.json", coco({1: "11.jpg", 2: "22.jpg"}, (5, 1, "a"), (6, 7, "b")))
    second = make_file("b.json", coco({3: "33.jpg"}, (9, 3, " c\n")))
    given = {"images": images, "folders": ["train", "val"]}
    source = CocoSource(captions={"train": first, "val": second}, **given)
    report = prepare_source(source, out)
    assert column(out, "caption_id", "captions") == ["train/11.jpg#5", "val/33.jpg#9"]
    assert column(out, "split", "captions") == ["train", "dev"]
    assert column(out, "text", "captions") == ["a", "c"]
    assert report.counts["captions_trimmed"] == 1
    assert report.problems == {
        "captions_without_image": ["image_id 7#6"],
        "images_without_caption": ["train/22.jpg"],
    }
    twice = make_file("c.json", coco({1: "11.jpg"}, (1, 1, "a"), (1, 1, "b")))
    with pytest.raises(DatasetError, match=r"1 duplicate caption ids, the first is '.*#1'; give"):
        prepare_source(CocoSource(captions={"train": twice}, **given), out)


COCO = {"train": "11.jpg", "restval": "22.jpg", "val": "33.jpg", "test": "44.jpg"}


@pytest.mark.parametrize("restval", [False, True])
def test_coco_takes_karpathys_splits(make_images, make_file, out, restval):
    images = make_images([f"val2014/{name}" for name in COCO.values()])
    entries = [
        {"filename": name, "split": split, "sentences": [{"raw": f"{split} one. "}, {"raw": "b"}]}
        for split, name in COCO.items()
    ]
    path = make_file("dataset_coco.json", json.dumps({"images": entries}))
    source = CocoSource(images=images, karpathy=path, restval=restval, strict=True)
    report = prepare_source(source, out)
    expected = {"val2014/11.jpg": "train", "val2014/33.jpg": "dev", "val2014/44.jpg": "test"}
    expected |= {"val2014/22.jpg": "train"} if restval else {}
    assert {row["image_id"]: row["split"] for row in rows(out)} == expected
    assert report.counts.get("images_left_out") == (None if restval else 1)
    ids = column(out, "caption_id", "captions")
    assert ids[:2] == ["val2014/11.jpg#0", "val2014/11.jpg#1"]
    assert ("restval one." in column(out, "text", "captions")) == restval


FLICKR8K = {
    "images": "7218b187abc121ed82c989b7667d16cc72ecc9b0aee4b6e9aad10f62f47c463f",
    "captions": "ef85ef7559e52496af477425653d776647e84f0d5c5bd03d1a524ee37747c329",
    "sentences": "8165b1b0e9f7125adab1f2f2fd24ea70e239ded6b1e48b79d2cc3b3a4362969a",
}
"""SHA-256 of the rows of its 8,091 photographs and 40,455 captions, as JSON lines."""


def test_the_manifests_of_flickr8k_are_as_they_always_were(shared_data, out):
    folder = shared_data / "flickr8k"
    lists = {name: folder / f"Flickr_8k.{name}Images.txt" for name in ("train", "dev", "test")}
    source = PairsSource(
        images=folder / "images_224", captions=folder / "Flickr8k.token.txt", splits=lists
    )
    assert prepare_source(source, out).problems == {}
    digests = {}
    for name in FLICKR8K:
        digest = hashlib.sha256()
        for row in rows(out, name):
            digest.update(json.dumps(row, default=bytes.hex, sort_keys=True).encode() + b"\n")
        digests[name] = digest.hexdigest()
    assert digests == FLICKR8K


def test_a_chosen_image_stays_beside_one_of_its_name_in_another_split(make_images, prepare, out):
    images = make_images(["a/1.jpg", "b/1.jpg", "a/2.jpg"])
    lines = ["image,caption,split", "a/1.jpg,x,train", "b/1.jpg,y,test", "a/2.jpg,z,train"]
    prepare(images, "\n".join(lines), "csv", chosen={"test": ["test"]})
    assert column(out, "image_id", "captions") == ["b/1.jpg"]
    assert "a/2.jpg" not in column(out, "image_id")


def test_images_of_splits_that_are_left_out_alone_are_refused(make_images, prepare):
    lines = "image,caption,split\n1.jpg,x,train\n2.jpg,y,test\n"
    with pytest.raises(DatasetError, match=r"images: all of its 1 images are of splits that are"):
        prepare(make_images(["1.jpg"]), lines, "csv", chosen={"test": ["test"]})


def test_folders_of_coco_lie_below_its_images():
    for folder in ("../a", "/a"):
        with pytest.raises(ValueError, match="expected a pattern below the folder `images`"):
            CocoSource(images="coco", folders=[folder], captions={"train": "a.json"})
