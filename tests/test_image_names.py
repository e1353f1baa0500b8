"""One rule finds the image that a file of others names."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from sightline.errors import SightlineError
from sightline.image_names import AMBIGUOUS, UNKNOWN, ImageNames

PATHS = ["0.png", "a/1.png", "a/b.c.jpg", "train/7.jpg", "val/7.jpg", "café.jpg"]
PATHS += ["000000000042.jpg", "a dog.jpg", "100%25.jpg", "back\\slash.jpg"]


def found(paths, names, split="", folder=None):
    images = ImageNames(paths, folder)
    of_file = images.of_file(names)
    rows = [of_file.find(name, split) for name in names]
    return [paths[row] if row >= 0 else row for row in rows], of_file.beginning


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("0.png", "0.png"),
        ("./0.png", "0.png"),
        ("a/1.png", "a/1.png"),
        ("a\\1.png", "a/1.png"),
        ("1.png", "a/1.png"),
        ("elsewhere/1.png", "a/1.png"),
        ("1", "a/1.png"),
        ("b.c", "a/b.c.jpg"),
        (unicodedata.normalize("NFD", "café.jpg"), "café.jpg"),
        ("2.png", UNKNOWN),
        ("", UNKNOWN),
        ("7.jpg", AMBIGUOUS),
        ("7", AMBIGUOUS),
        ("train/7.jpg", "train/7.jpg"),
        ("coco/val/7.jpg", "val/7.jpg"),
        ("42", "000000000042.jpg"),
        ("042.jpg", UNKNOWN),
        ("a%20dog.jpg", "a dog.jpg"),
        ("file:///data/a%20dog.jpg", "a dog.jpg"),
        ("100%25.jpg", "100%25.jpg"),
        ("back\\slash.jpg", "back\\slash.jpg"),
    ],
)
def test_a_name_is_a_path_or_one_files_name(name, path):
    assert found(PATHS, [name, "0.png"])[0] == [path, "0.png"]


@pytest.mark.parametrize(
    "beginning",
    ["photos/", "/data/upload/1/", "C:\\photos\\", "/home/some one/photos/train/", "../"],
)
def test_a_beginning_that_all_names_share_is_dropped(beginning):
    paths = ["x/0.png", "y/0.png", "y/1.png"]
    names = [beginning + path for path in paths]
    rows, dropped = found(paths, names)
    assert rows == paths
    assert dropped.replace("/", "\\") == beginning.replace("/", "\\")


def test_nothing_is_dropped_of_names_that_are_paths():
    assert found(["a/0.png", "a/1.png", "0.png"], ["a/0.png", "a/1.png"])[1] == ""


def test_a_path_as_it_stands_goes_before_what_is_left_without_the_beginning():
    paths = ["a/0.png", "0.png", "1.png", "2.png"]
    found_paths, beginning = found(paths, ["a/0.png", "a/1.png", "a/2.png"])
    assert (found_paths, beginning) == (["a/0.png", "1.png", "2.png"], "a/")


def test_one_strange_name_costs_itself():
    paths = [f"{n}.png" for n in range(5)]
    names = [f"photos/{path}" for path in paths]
    assert found(paths, [*names, "photos/9.png"])[0] == [*paths, UNKNOWN]
    assert found(paths, [*names, "0.png"])[0] == [*paths, "0.png"]


def test_the_split_of_a_row_chooses_among_files_of_one_name():
    paths = ["train/0.jpg", "val2014/0.jpg", "test/1.jpg"]
    assert found(paths, ["0.jpg"], "dev")[0] == ["val2014/0.jpg"]
    assert found(paths, ["0.jpg"], "train")[0] == ["train/0.jpg"]
    assert found(paths, ["0.jpg"], "test")[0] == [AMBIGUOUS]
    assert found(paths, ["0"], "dev")[0] == ["val2014/0.jpg"]
    assert ImageNames(paths).of_file([]).candidates("0.jpg") == paths[:2]


@pytest.mark.parametrize(
    ("paths", "folder"),
    [(["0.png"], Path("photos/val")), (["val/0.png"], None), (["test2014/0.png"], Path("coco"))],
)
def test_a_name_of_one_split_is_no_image_of_another(paths, folder):
    with pytest.raises(SightlineError, match=r"'coco/train/0.png' is of the split train, but"):
        found(paths, ["coco/train/0.png"], folder=folder)
    assert found(["0.png"], ["coco/train/0.png"], folder=Path("train2017"))[0] == ["0.png"]
