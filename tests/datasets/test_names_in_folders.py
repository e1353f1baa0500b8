"""One image has one identity: what names a file in another folder is not its own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from packed import column, rows

from pipeline.datasets.pairs import CocoSource, PairsSource
from pipeline.datasets.prepare import prepare as prepare_source
from pipeline.datasets.source import DatasetError, PrepareReport

FORMS = ("csv", "token", "jsonl", "karpathy", "coco")
VIDEOS = [f"video{video}/{frame:06d}.png" for video in (1, 2) for frame in range(2)]


@pytest.fixture
def prepare(tmp_path, out):
    """Prepares images with captions of these names, each its caption, in any form."""

    def run(
        images: Path, named: dict[str, list[str]] | list[str], form: str = "csv", **given: Any
    ) -> PrepareReport:
        splits = named if isinstance(named, dict) else {"train": named}
        names = [name for of_split in splits.values() for name in of_split]
        path = tmp_path / f"said.{form}"
        if form == "coco":
            for split, of_split in splits.items():
                body = {
                    "images": [{"id": n, "file_name": name} for n, name in enumerate(of_split)],
                    "annotations": [
                        {"id": n, "image_id": n, "caption": f"{split}: {name}"}
                        for n, name in enumerate(of_split)
                    ],
                }
                (tmp_path / f"{split}.json").write_text(json.dumps(body))
            files = {split: tmp_path / f"{split}.json" for split in splits}
            return prepare_source(CocoSource(images=images, captions=files, **given), out)
        if form == "karpathy":
            entries = [
                {"filename": name, "split": split, "sentences": [{"raw": f"{split}: {name}"}]}
                for split, of_split in splits.items()
                for name in of_split
            ]
            path.write_text(json.dumps({"images": entries}))
            return prepare_source(PairsSource(images=images, karpathy=path, **given), out)
        if form == "token":
            path.write_text("".join(f"{name}#0\ttrain: {name}\n" for name in names))
        elif form == "jsonl":
            objects = [
                {"image": name, "split": split, "caption": f"{split}: {name}"}
                for split, of_split in splits.items()
                for name in of_split
            ]
            path.write_text("".join(json.dumps(line) + "\n" for line in objects))
        else:
            path.write_text("image,caption\n" + "".join(f"{n},train: {n}\n" for n in names))
        if "splits" in given:
            lists = given["splits"].items()
            given["splits"] = {name: tmp_path / f"{name}.txt" for name, _ in lists}
            for name, entries in lists:
                given["splits"][name].write_text("\n".join(entries))
        return prepare_source(PairsSource(images=images, captions=path, **given), out)

    return run


def said(out: Path) -> dict[str, str]:
    """Image → its only caption."""
    captions = rows(out, "captions")
    assert len({row["image_id"] for row in captions}) == len(captions)
    return {row["image_id"]: row["text"] for row in captions}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("start", ["", "/data/frames/", "C:\\frames\\", "s3://bucket/frames/"])
@pytest.mark.parametrize("folder", ["frames", "frames/video1"])
def test_captions_of_folders_that_are_not_here_have_no_image(
    make_images, prepare, out, form, start, folder
):
    images = make_images(VIDEOS[:2], "frames").parent / folder
    report = prepare(images, [start + name for name in VIDEOS], form)
    below = {name.removeprefix("video1/") if folder != "frames" else name for name in VIDEOS[:2]}
    texts = said(out)
    assert texts.keys() == below
    assert all(text.endswith(f"video1/{name[-10:]}") for name, text in texts.items())
    assert report.problem_counts["captions_without_image"] == 2
    assert "end like the path of one in another folder" in report.summary()
    with pytest.raises(DatasetError, match=r"without image: 2 .*write the paths from the folder"):
        prepare(images, [start + name for name in VIDEOS], form, strict=True)


def test_one_folder_of_a_data_set_with_folders_below(make_images, prepare, out):
    images = make_images(["cam/0.png"], "frames/video1")
    prepare(images, ["video2/cam/0.png", "video1/cam/0.png", "video3/cam/0.png"])
    assert said(out) == {"cam/0.png": "train: video1/cam/0.png"}
    moved = shutil.move(images, images.parents[1] / "elsewhere")
    with pytest.raises(
        DatasetError, match=r"none of its 2 captions names an image .*write its path"
    ):
        prepare(Path(moved), ["video2/cam/0.png", "video1/cam/0.png"])
    prepare(Path(moved), ["video1/cam/0.png"])
    assert said(out) == {"cam/0.png": "train: video1/cam/0.png"}


def test_files_of_several_folders_that_lie_in_one_need_their_own_paths(make_images, prepare, out):
    images = make_images(["x.png", "y.png"])
    names = ["/data/upload/1/x.png", "/data/upload/2/y.png"]
    with pytest.raises(DatasetError, match=r"1/x\.png', end like the path of one .*, 'x\.png'; w"):
        prepare(images, names)
    prepare(images, [name.rpartition("/")[2] for name in names])
    assert len(said(out)) == 2


@pytest.mark.parametrize("names", [VIDEOS[2:], [name[:-4] for name in VIDEOS[2:]]])
def test_splits_of_folders_that_are_not_here_have_no_image(make_images, prepare, out, names):
    images = make_images(VIDEOS[:2], "frames")
    with pytest.raises(DatasetError, match="none of the 2 entries of lists of splits names an im"):
        prepare(images, VIDEOS[:2], splits={"test": names})
    report = prepare(images, VIDEOS[:2], splits={"test": names, "train": VIDEOS[:1]})
    assert column(out, "split") == ["train", ""]
    assert report.problem_counts == {"split_entries_without_image": 2}


@pytest.mark.parametrize("start", ["", "/data/"])
def test_captions_and_lists_of_other_beginnings_are_refused(make_images, prepare, out, start):
    images = make_images(["0.png", "1.png"])
    captions = [f"{start}video1/{n}.png" for n in range(2)]
    lists = {"test": ["video2/0.png"], "train": ["video2/1.png"]}
    message = rf"begin with '{start}video1/', those of .*test\.txt, .*train\.txt with 'video2/'"
    with pytest.raises(DatasetError, match=message):
        prepare(images, captions, splits=lists)
    for same in ("video1/", "/home/me/data/video1/", ""):
        prepare(images, captions, splits={"test": [f"{same}0.png"], "train": [f"{same}1.png"]})
        assert column(out, "split") == ["test", "train"]


@pytest.mark.parametrize("form", ["coco", "jsonl"])
@pytest.mark.parametrize("folders", [("train", "val"), ("train2014", "val2014")])
@pytest.mark.parametrize("below", ["", "images/"])
def test_a_split_decides_among_files_of_one_name(make_images, prepare, out, form, folders, below):
    paths = [f"{folder}/{below}{n}.png" for folder in folders for n in range(2)]
    images = make_images(paths)
    names = ["0.png", "1.png"]
    report = prepare(images, {"train": names, "val": names}, form)
    assert report.problems == {}
    assert report.counts["captions_matched_by_less_than_a_path"] == 4
    assert said(out) == {
        f"{folder}/{below}{name}": f"{split}: {name}"
        for folder, split in zip(folders, ("train", "val"), strict=True)
        for name in names
    }
    assert column(out, "split") == ["train", "train", "dev", "dev"]
    shutil.rmtree(images / folders[1])
    report = prepare(images, {"train": names, "val": names}, form)
    assert set(said(out).values()) == {"train: 0.png", "train: 1.png"}
    assert column(out, "split") == ["train", "train"]
    assert report.problem_counts["captions_without_image"] == 2


def test_an_image_that_only_a_name_without_image_id_breaks_keeps_its_caption(
    make_images, make_file, out
):
    body = {
        "images": [{"id": 1, "file_name": "photos/1.png"}],
        "annotations": [{"id": n, "image_id": n, "caption": "a"} for n in (1, 2)],
    }
    files = {"train": make_file("c.json", json.dumps(body))}
    report = prepare_source(CocoSource(images=make_images(["1.png"]), captions=files), out)
    assert column(out, "image_id", "captions") == ["1.png"]
    assert report.problems == {"captions_without_image": ["image_id 2#2"]}
    files["train"].write_text(json.dumps({**body, "annotations": body["annotations"][1:]}))
    with pytest.raises(DatasetError, match="no annotation has the image_id of one of the 'images'"):
        prepare_source(CocoSource(images=make_images(["1.png"]), captions=files), out)


def test_images_of_other_splits_are_left_out_by_their_own_names(make_images, make_file, out):
    images = make_images(["train/1.png", "train/2.png", "val/2.png", "val/3.png"])
    lines = ["image,caption,split", "train/1,a,train", "train/2,b,train", "val/2.png,c,v"]
    captions = make_file("c.csv", "\n".join([*lines, "val/3.png,d,v"]))
    report = prepare_source(
        PairsSource(images=images, captions=captions, splits={"train": ["train"]}), out
    )
    assert column(out, "image_id") == ["train/1.png", "train/2.png"]
    assert (report.counts["images_left_out"], report.problems) == (2, {})


def test_what_is_matched_by_less_than_its_path_is_counted(make_images, prepare, out):
    images = make_images(["a/1.png", "a/2.png", "3.png"])
    report = prepare(images, ["a/1.png", "2.png", "3"], splits={"train": ["1", "a/2.png"]})
    assert report.counts["captions_matched_by_less_than_a_path"] == 2
    assert report.counts["split_entries_matched_by_less_than_a_path"] == 1
    assert "2 captions matched by less than a path" in report.summary()
    counts = json.loads((out / "dataset.json").read_text())["counts"]
    assert counts["captions_matched_by_less_than_a_path"] == 2
    report = prepare(images, [f"/x/{path}" for path in ("a/1.png", "a/2.png", "3.png")])
    assert not any("less" in name for name in report.counts)


def test_a_copy_without_a_split_counts_as_one_that_is_trained_on(make_images, prepare):
    images = make_images(["1.png", "2.png"])
    shutil.copy(images / "1.png", images / "copy.png")
    named = {"train": ["1.png"], "test": ["2.png"]}
    assert prepare(images, named, "jsonl").problems == {"images_without_caption": ["copy.png"]}
    shutil.copy(images / "2.png", images / "copy.png")
    problems = prepare(images, named, "jsonl").problems
    assert problems["images_in_two_splits"] == ["copy.png"]
