"""Flickr30k, COCO, sentences and the registry of kinds."""

from __future__ import annotations

import json

import pytest
from made import column
from pydantic import ValidationError

from pipeline.datasets.kinds import KINDS, prepare, source_type
from pipeline.datasets.pairs import CocoSource, Flickr30kSource
from pipeline.datasets.sentences import SentencesSource
from sightline.errors import SightlineError

TOKENS = "".join(f"{n}.jpg#{k}\tcaption {n} {k}\n" for n in (11, 22, 33) for k in range(5))


@pytest.fixture
def images(make_images):
    return make_images(["11.jpg", "22.jpg", "33.jpg"])


def karpathy(**changes):
    entry = {"filename": "11.jpg", "split": "train", "sentences": [{"raw": "Eins."}]}
    other = {"filename": "22.jpg", "split": "val", "sentences": [{"raw": "Zwei."}]}
    return json.dumps({"images": [{**entry, **changes}, other]})


def test_flickr30k_with_entities_lists(images, make_file, tmp_path):
    numbers = {"train": 11, "val": 22, "test": 33}
    lists = {name: make_file(f"{name}.txt", f"{number}\n") for name, number in numbers.items()}
    source = Flickr30kSource(images=images, captions=make_file("c.token", TOKENS), splits=lists)
    report = prepare("flickr30k", source, tmp_path / "out")
    assert column(tmp_path / "out", "split") == ["train", "dev", "test"]
    assert report.counts["captions"] == 15
    assert not report.problems


def test_flickr30k_with_karpathys_file(images, make_file, tmp_path):
    source = Flickr30kSource(images=images, karpathy=make_file("k.json", karpathy()))
    report = prepare("flickr30k", source, tmp_path / "out")
    assert column(tmp_path / "out", "split") == ["train", "dev", ""]
    assert column(tmp_path / "out", "text", "captions") == ["Eins.", "Zwei."]
    assert report.problems == {"images_without_caption": ["33.jpg"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "images: is missing; expected Karpathy's"),
        ("{", r"not JSON \(EOF .* at line 1 column 1\)"),
        (karpathy(split=3), r"images\[0\].split: found 3, expected a valid string"),
        (karpathy(split="later"), "unknown split 'later'"),
        (karpathy(sentences=[1, 2]), r"images\[0\].sentences\[0\]: found 1, .* \(1 more such"),
        (karpathy(sentences=7), r"images\[0\].sentences: found 7, expected a valid"),
        (karpathy(sentences=[{"raw": "\ud83d"}]), "not JSON .*half a surrogate pair"),
        (karpathy(sentences=[{"raw": "\x1b[1m"}]), r"raw: contains the control character U\+001B"),
        (karpathy(filename=""), r"images\[0\].filename: is empty"),
        (json.dumps({"images": [{"filename": "a", "split": "train"}]}), "contains no captions"),
        (karpathy(imgid=7).replace("7", "7" * 5000), "not JSON .*number out of range"),
    ],
)
def test_flickr30k_refuses_another_json(images, make_file, tmp_path, content, message):
    source = Flickr30kSource(images=images, karpathy=make_file("k.json", content))
    with pytest.raises(SightlineError, match=message):
        prepare("flickr30k", source, tmp_path / "out")


def coco(*annotations):
    images = [{"id": 1, "file_name": "11.jpg"}, {"id": 2, "file_name": "22.jpg"}]
    said = [{"id": n, "image_id": image, "caption": text} for n, image, text in annotations]
    return json.dumps({"images": images, "annotations": said})


def test_coco_takes_one_file_per_split(make_images, make_file, tmp_path):
    images = make_images(["train/11.jpg", "train/22.jpg", "val/33.jpg", "other/44.jpg"])
    second = {
        "images": [{"id": 3, "file_name": "33.jpg"}],
        "annotations": [{"id": 9, "image_id": 3, "caption": " c\n"}],
    }
    captions = {
        "train": make_file("a.json", coco((5, 1, "a"), (6, 7, "b"))),
        "val": make_file("b.json", json.dumps(second)),
    }
    source = CocoSource(images=images, folders=["train", "val"], captions=captions)
    report = prepare("coco", source, tmp_path / "out")
    ids = column(tmp_path / "out", "caption_id", "captions")
    assert ids == ["train/11.jpg#5", "val/33.jpg#9"]
    assert column(tmp_path / "out", "split", "captions") == ["train", "dev"]
    assert column(tmp_path / "out", "text", "captions") == ["a", "c"]
    assert report.counts["captions_trimmed"] == 1
    assert report.problems == {
        "captions_without_image": ["image_id 7#6"],
        "images_without_caption": ["train/22.jpg"],
    }


COCO = {"train": "11.jpg", "restval": "22.jpg", "val": "33.jpg", "test": "44.jpg"}


@pytest.mark.parametrize("restval", [False, True])
def test_coco_takes_karpathys_splits(make_images, make_file, tmp_path, restval):
    images = make_images([f"val2014/{name}" for name in COCO.values()])
    entries = [
        {"filename": name, "split": split, "sentences": [{"raw": f"{split} one. "}, {"raw": "b"}]}
        for split, name in COCO.items()
    ]
    path = make_file("dataset_coco.json", json.dumps({"images": entries}))
    source = CocoSource(images=images, karpathy=path, restval=restval, strict=True)
    report = prepare("coco", source, tmp_path / "out")
    ids, splits = (column(tmp_path / "out", name) for name in ("image_id", "split"))
    expected = {"val2014/11.jpg": "train", "val2014/33.jpg": "dev", "val2014/44.jpg": "test"}
    expected |= {"val2014/22.jpg": "train"} if restval else {}
    assert dict(zip(ids, splits, strict=True)) == expected
    assert report.counts.get("images_left_out") == (None if restval else 1)
    ids = column(tmp_path / "out", "caption_id", "captions")
    assert ids[:2] == ["val2014/11.jpg#0", "val2014/11.jpg#1"]
    assert ("restval one." in column(tmp_path / "out", "text", "captions")) == restval


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", r"found \[\], expected an object; expected COCO's captions_"),
        ('{"images": [], "annotations": []}', "annotations: is empty; expected COCO"),
        ('{"images": [{"id": 1}], "annotations": []}', r"images\[0\].file_name: is missing"),
        (coco((1, 1, None)), r"annotations\[0\].caption: found None, expected a valid string"),
        (coco((1, 1, "a"), (1, 1, "b")), "1 duplicate caption ids"),
        (coco((1, True, "a")), r"annotations\[0\].image_id: found True, expected a whole number"),
        (coco((None, 1, "a")), r"annotations\[0\].id: found None"),
        (coco((1, 1, "\0")), r"annotations\[0\].caption: contains the control character U\+0000"),
        (coco((1, 1, "a")).replace('"id": 2', '"id": 1'), "images: several have the id 1"),
        ("[" * 100_000, "recursion limit exceeded"),
    ],
)
def test_coco_refuses_another_file(images, make_file, tmp_path, content, message):
    source = CocoSource(images=images, captions={"train": make_file("a.json", content)})
    with pytest.raises(SightlineError, match=message):
        prepare("coco", source, tmp_path / "out")


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("flickr30k", {"captions": "c"}, r"give `splits` \(the lists of Flickr30k Entities\)"),
        ("pairs", {"captions": "c", "splits": {"train": "t"}, "karpathy": "k"}, "but not both"),
        ("pairs", {"splits": {"train": "t"}}, "`captions` is missing"),
        ("pairs", {"images": None, "captions": "c"}, "no image folder is given"),
        ("pairs", {"images": "", "captions": "c"}, "no image folder is given"),
        ("coco", {}, "give `captions`"),
        ("coco", {"captions": {"train": "a"}, "karpathy": "k"}, "but not both"),
        ("coco", {"captions": {"train": "a"}, "restval": True}, "is a split of `karpathy`"),
        ("huggingface", {"name": "a/b", "path": "x"}, "not both"),
        ("huggingface", {"revision": "main"}, "give its `name`"),
        ("huggingface", {"splits": {"train": "a"}, "split_column": "b"}, "not both"),
        ("huggingface", {"splits": {"train": "a", "test": "a"}}, "takes 'a' for 2 splits"),
        ("webdataset", {"splits": {"train": "a"}, "shards": "a"}, "but not both"),
        *(("webdataset", {"shards": p}, "below the folder") for p in ("/d/*.tar", "../*.tar", ".")),
        ("webdataset", {"splits": {"train": "x/../../y.tar"}}, "below the folder"),
        *((kind, {"no_such_parameter": 1}, "unknown key 'no_such_parameter'") for kind in KINDS),
    ],
)
def test_contradicting_parameters_are_refused(kind, given, message):
    model = source_type(kind)
    images = {"images": "photos"} if "images" in model.model_fields and kind != "joined" else {}
    with pytest.raises(ValidationError, match=message):
        model.model_validate(images | given)


def test_sentences_keep_order_and_duplicates(make_file, tmp_path):
    path = make_file("s.txt", "\ufeff One \r\n\n  \nTwo\u2028x\nOne\n")
    report = prepare("sentences", SentencesSource(path=path), tmp_path / "out")
    assert column(tmp_path / "out", "text", "sentences") == ["One", "Two\u2028x", "One"]
    assert report.counts == {
        "sentences_trimmed": 1,
        "sentences": 3,
        "blank_lines": 2,
        "distinct_sentences": 2,
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n \n", "no sentence"),
        (b"ok\n\xff\n", "line 2: the byte 0xff"),
        ("\u200b\n\u2060\n", "no sentence"),
    ],
)
def test_sentences_refuse_an_empty_or_broken_file(make_file, tmp_path, content, message):
    with pytest.raises(SightlineError, match=message):
        prepare("sentences", SentencesSource(path=make_file("s.txt", content)), tmp_path / "out")


def test_an_unknown_kind_lists_the_available_ones():
    with pytest.raises(SightlineError, match=r"did you mean 'coco'\? \(available: coco, flickr"):
        source_type("cocoo")
