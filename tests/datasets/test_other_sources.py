"""Flickr30k, COCO, sentences and the registry of kinds."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from pipeline.datasets.coco import CocoSource
from pipeline.datasets.kinds import KINDS, prepare, source_type
from pipeline.datasets.pairs import Flickr30kSource
from pipeline.datasets.sentences import SentencesSource
from sightline.cache.manifest import CAPTIONS, IMAGES, SENTENCES, read_manifest
from sightline.errors import SightlineError

TOKENS = "".join(f"{n}.jpg#{k}\tcaption {n} {k}\n" for n in (11, 22, 33) for k in range(5))


@pytest.fixture
def images(make_images):
    return make_images(["11.jpg", "22.jpg", "33.jpg"])


def columns(folder, name, schema):
    return read_manifest(folder / f"{name}.parquet", schema).to_pydict()


def karpathy(**changes):
    entry = {"filename": "11.jpg", "split": "train", "sentences": [{"raw": "Eins."}]}
    other = {"filename": "22.jpg", "split": "val", "sentences": [{"raw": "Zwei."}]}
    return json.dumps({"images": [{**entry, **changes}, other]})


def test_flickr30k_with_entities_lists(images, make_file, tmp_path):
    lists = {
        name: make_file(f"{name}.txt", f"{number}\n")
        for name, number in (("train", 11), ("val", 22), ("test", 33))
    }
    source = Flickr30kSource(images=images, captions=make_file("c.token", TOKENS), splits=lists)
    report = prepare("flickr30k", source, tmp_path / "out")
    assert columns(tmp_path / "out", "images", IMAGES)["split"] == ["train", "dev", "test"]
    assert report.counts["captions"] == 15
    assert not report.problems


def test_flickr30k_with_karpathys_file(images, make_file, tmp_path):
    source = Flickr30kSource(images=images, karpathy=make_file("k.json", karpathy()))
    report = prepare("flickr30k", source, tmp_path / "out")
    assert columns(tmp_path / "out", "images", IMAGES)["split"] == ["train", "dev", ""]
    assert columns(tmp_path / "out", "captions", CAPTIONS)["text"] == ["Eins.", "Zwei."]
    assert report.problems == {"images_without_caption": ["33.jpg"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "images: is missing; expected Karpathy's"),
        ("{", r"not JSON \(EOF .* at line 1 column 1\)"),
        (karpathy(split=3), r"images\[0\].split: found 3, expected a valid string"),
        (karpathy(sentences=["x"]), r"images\[0\].sentences\[0\]: found 'x', expected"),
        (karpathy(split="later"), "unknown split 'later'"),
        (karpathy(sentences=[1, 2]), r"images\[0\].sentences\[0\]: found 1, .* \(1 more such"),
        (karpathy(sentences=7), r"images\[0\].sentences: found 7, expected a valid"),
        (karpathy(sentences=[{"raw": "\ud83d"}]), "not JSON .*half a surrogate pair"),
        (karpathy(filename="\udc00.jpg"), "not JSON .*surrogate"),
        (karpathy(filename=""), r"images\[0\].filename: is empty"),
        (karpathy(sentences=[{"raw": "\x1b[1m"}]), r"raw: contains the control character U\+001B"),
        (karpathy(imgid=7).replace("7", "7" * 5000), "not JSON .*number out of range"),
    ],
)
def test_flickr30k_refuses_another_json(images, make_file, tmp_path, content, message):
    source = Flickr30kSource(images=images, karpathy=make_file("k.json", content))
    with pytest.raises(SightlineError, match=message):
        prepare("flickr30k", source, tmp_path / "out")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"captions": "c"}, r"give `splits` \(the lists of Flickr30k Entities\)"),
        ({"captions": "c", "splits": {"train": "t"}, "karpathy": "k"}, "but not both"),
        ({"splits": {"train": "t"}}, "`captions` is missing"),
        ({"images": None, "karpathy": "k"}, "no image folder is given"),
    ],
)
def test_flickr30k_reports_missing_parameters(given, message):
    with pytest.raises(ValidationError, match=message):
        Flickr30kSource.model_validate({"images": "photos", **given})


def coco(*annotations):
    return json.dumps(
        {
            "images": [{"id": 1, "file_name": "11.jpg"}, {"id": 2, "file_name": "22.jpg"}],
            "annotations": [
                {"id": number, "image_id": image, "caption": text}
                for number, image, text in annotations
            ],
        }
    )


def test_coco_takes_one_file_per_split(make_images, make_file, tmp_path):
    images = make_images(["train/11.jpg", "train/22.jpg", "val/33.jpg", "other/44.jpg"])
    second = {
        "images": [{"id": 3, "file_name": "33.jpg"}],
        "annotations": [{"id": 9, "image_id": 3, "caption": " c\n"}],
    }
    source = CocoSource(
        images=images,
        folders=["train", "val"],
        captions={
            "train": make_file("a.json", coco((5, 1, "a"), (6, 7, "b"))),
            "val": make_file("b.json", json.dumps(second)),
        },
    )
    report = prepare("coco", source, tmp_path / "out")
    captions = columns(tmp_path / "out", "captions", CAPTIONS)
    assert captions["caption_id"] == ["train/11.jpg#5", "val/33.jpg#9"]
    assert captions["split"] == ["train", "dev"]
    assert captions["text"] == ["a", "c"]
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
    found = columns(tmp_path / "out", "images", IMAGES)
    splits = dict(zip(found["image_id"], found["split"], strict=True))
    expected = {"val2014/11.jpg": "train", "val2014/33.jpg": "dev", "val2014/44.jpg": "test"}
    assert splits == expected | ({"val2014/22.jpg": "train"} if restval else {})
    assert report.counts.get("images_left_out") == (None if restval else 1)
    captions = columns(tmp_path / "out", "captions", CAPTIONS)
    assert captions["caption_id"][:2] == ["val2014/11.jpg#0", "val2014/11.jpg#1"]
    assert "restval one." not in captions["text"] or restval


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give `captions`"),
        ({"captions": {"train": "a"}, "karpathy": "k"}, "but not both"),
        ({"captions": {"train": "a"}, "restval": True}, "`restval` is a split of `karpathy`"),
    ],
)
def test_coco_reports_contradicting_parameters(given, message):
    with pytest.raises(ValidationError, match=message):
        CocoSource.model_validate({"images": "photos", **given})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", r"found \[\], expected an object; expected COCO's captions_"),
        ('{"images": [], "annotations": []}', "annotations: is empty; expected COCO"),
        ('{"images": [{"id": 1}], "annotations": []}', r"images\[0\].file_name: is missing"),
        (coco((1, 1, None)), r"annotations\[0\].caption: found None, expected a valid string"),
        (coco((1, 1, "a"), (1, 1, "b")), "1 duplicate caption ids"),
        (coco((1, 1, "\ud83d")), "not JSON .*half a surrogate pair"),
        (coco((1, 1, "a")).replace("11.jpg", "\\udc00.jpg"), "not JSON .*surrogate"),
        (coco((7, 1, "a")).replace("7", "7" * 5000), "not JSON .*number out of range"),
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


def test_sentences_keep_order_and_duplicates(make_file, tmp_path):
    path = make_file("s.txt", "\ufeff One \r\n\n  \nTwo\u2028x\nOne\n")
    report = prepare("sentences", SentencesSource(path=path), tmp_path / "out")
    assert columns(tmp_path / "out", "sentences", SENTENCES)["text"] == ["One", "Two\u2028x", "One"]
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
        ("one\rtwo\r", "line 1: a carriage return inside the line"),
        ("one\ntwo\x07\n", r"line 2: contains the control character U\+0007"),
    ],
)
def test_sentences_refuse_an_empty_or_broken_file(make_file, tmp_path, content, message):
    with pytest.raises(SightlineError, match=message):
        prepare("sentences", SentencesSource(path=make_file("s.txt", content)), tmp_path / "out")


def test_every_kind_has_parameters_and_refuses_unknown_ones():
    for kind in KINDS:
        with pytest.raises(ValidationError, match="unknown key 'no_such_parameter'"):
            source_type(kind).model_validate({"no_such_parameter": 1})


def test_an_unknown_kind_lists_the_available_ones():
    with pytest.raises(SightlineError, match=r"did you mean 'coco'\? \(available: coco, flickr"):
        source_type("cocoo")
