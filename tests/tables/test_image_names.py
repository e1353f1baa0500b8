"""One rule finds the image that a file of others names."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from sightline.errors import SightlineError
from sightline.tables.image_names import AMBIGUOUS, UNKNOWN, ImageNames, contradict

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
        ("elsewhere/1.png", UNKNOWN),
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
        ("file:///data/a%20dog.jpg", UNKNOWN),
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
    assert found(paths, [*names, "0.png"])[0] == [*[UNKNOWN] * 5, "0.png"]
    assert found(paths, [*names, "0.png"], folder=Path("my/photos"))[0] == [*paths, "0.png"]


def test_the_split_of_a_row_chooses_among_files_of_one_name():
    paths = ["train/0.jpg", "val2014/0.jpg", "test/1.jpg"]
    assert found(paths, ["0.jpg"], "dev")[0] == ["val2014/0.jpg"]
    assert found(paths, ["0.jpg"], "train")[0] == ["train/0.jpg"]
    assert found(paths, ["0.jpg"], "test")[0] == [AMBIGUOUS]
    assert found(paths, ["0"], "dev")[0] == ["val2014/0.jpg"]
    assert ImageNames(paths).of_file([]).candidates("0.jpg") == paths[:2]


def test_a_name_of_one_split_is_no_image_of_another():
    for folder in ("photos/val", "val/images", "val2014"):
        with pytest.raises(SightlineError, match=r"'coco/train/0.png' is of the split train, but"):
            found(["0.png"], ["coco/train/0.png"], folder=Path(folder))
    for path, folder in (("val/0.png", None), ("test2014/0.png", Path("coco"))):
        assert found([path], ["coco/train/0.png"], folder=folder)[0] == [UNKNOWN]
    assert found(["0.png"], ["dev/mine/0.png"], folder=Path("val/mine"))[0] == ["0.png"]
    assert found(["0.png"], ["coco/train/0.png"], folder=Path("train2017"))[0] == ["0.png"]


HERE = Path("/home/me/frames")
V1, V2 = "video1/0.png", "video2/0.png"


@pytest.mark.parametrize(
    ("paths", "folder", "names", "expected"),
    [
        # folders agree from the end: over all of the name's …
        (["a/b/1.png"], None, ["b/1.png", "b/1", "x.png"], ["a/b/1.png", "a/b/1.png", UNKNOWN]),
        (["1.png"], HERE, ["frames/1.png", "me/frames/1.png"], ["1.png", "1.png"]),
        (["1.png"], HERE, ["/home/me/frames/1.png", "frames/2.png"], ["1.png", UNKNOWN]),
        (["1.png"], "s3://b/photos", ["photos/1.png", "b/1.png"], ["1.png", UNKNOWN]),
        (["1.png"], "https://h/my%20photos", ["my photos/1.png", "u/1.png"], ["1.png", UNKNOWN]),
        # … or over all of the image's below the images' folder, at least one
        ([V1], HERE, [f"/data/{V1}", f"/data/{V2}"], [V1, UNKNOWN]),
        (["a/b/1.png"], None, ["x/a/b/1.png", "y/b/1.png"], ["a/b/1.png", UNKNOWN]),
        (["1.png"], HERE, ["a/frames/1.png", "b/2.png"], [UNKNOWN, UNKNOWN]),
        # the longest agreement wins
        (["a/1.png", "b/a/1.png"], None, ["x/b/a/1.png", "q.png"], ["b/a/1.png", UNKNOWN]),
        (["1.png", "a/1.png"], None, ["x/a/1.png", "x/1.png"], ["a/1.png", "1.png"]),
        (["a/1.png", "b/1.png"], None, ["x/b/1.png", "x/c/1.png"], ["b/1.png", UNKNOWN]),
        (["a/b/1.png", "c/b/1.png"], None, ["b/1.png", "c.png"], [AMBIGUOUS, UNKNOWN]),
        # folders that contradict never fit, also by a stem or a number, or alone in their file
        (["a/1.png"], None, ["b/1.png"], [UNKNOWN]),
        (["a/007.png"], None, ["b/7", "b/007", "a/7"], [UNKNOWN, UNKNOWN, "a/007.png"]),
        (["a/007.png", "b/7.png"], None, ["a/7", "b/007"], ["a/007.png", "b/7.png"]),
        # a beginning that all names share; what is left then has no folders
        (["1.png", "007.png"], HERE, ["/x/y/1", "/x/y/7"], ["1.png", "007.png"]),
        (["1.png", "2.png"], HERE, ["/up/1/1.png", "/up/2/2.png"], [UNKNOWN, UNKNOWN]),
        (["a/1.png", "2.png"], HERE, ["/x/1.png", "/x/2.png"], [UNKNOWN, "2.png"]),
        (["1.png"], HERE / "video1", [f"/x/frames/{v}/1.png" for v in ("video1", "video2")],
         ["1.png", UNKNOWN]),
        # of a URL the path counts, its host as a beginning
        (["a b/1.png"], None, ["https://h/x/a%20b/1.png?w=3#top", "q"], ["a b/1.png", UNKNOWN]),
        (["a b/1.png"], None, ["s3://bucket/a b/1.png", "q"], ["a b/1.png", UNKNOWN]),
        (["a b/1.png"], None, ["my/a%20b/1.png", "q"], ["a b/1.png", UNKNOWN]),
        (["1.png"], None, ["https://h/photos%2F1.png"], ["1.png"]),
        (["x/1.png", "2.png"], None, ["https://h/1.png", "https://h/2.png"], ["x/1.png", "2.png"]),
        (["1.png", "2.png"], None, ["https://h/1.png", "https://g/2.png"], [UNKNOWN, UNKNOWN]),
        (["a%20b.png", "a b.png"], None, ["http://h/a%20b.png"], ["a b.png"]),
        # separators, and folders that a path leaves again
        ([V1, V2], None, ["C:\\f\\video1\\0.png", "video2\\0.png"], [V1, V2]),
        ([V1], None, [".//video1/./0.png", "video3/../video1/0.png"], [V1, V1]),
        ([V1, "1.png"], None, ["../../frames/video1/0.png", "1.png"], [V1, "1.png"]),
        (["1.png", "2.png"], None, ["../1.png", "2.png"], [UNKNOWN, "2.png"]),
        (["1.png"], None, ["/1.png", "2.png"], ["1.png", UNKNOWN]),
        # suffixes, stems with dots, numbers
        (["1.JPG"], None, ["1.jpg", "1"], [UNKNOWN, "1.JPG"]),
        (["a.b.c.jpg", "a.b.jpg"], None, ["a.b.c", "a.b", "a"], ["a.b.c.jpg", "a.b.jpg", UNKNOWN]),
        (["123.jpg", "000123.jpg"], None, ["123", "0123", "000123"],
         ["123.jpg", AMBIGUOUS, "000123.jpg"]),
        (["0.jpg", "a0.jpg"], None, ["000", "00a0"], ["0.jpg", UNKNOWN]),
        # composed and decomposed letters: as it stands first
        (["\u00fc/1.png"], None, ["x/u\u0308/1.png", "q"], ["\u00fc/1.png", UNKNOWN]),
        (["\u00fc.png", "u\u0308.png"], None, ["\u00fc.png", "u\u0308.png", "./\u00fc.png"],
         ["\u00fc.png", "u\u0308.png", AMBIGUOUS]),
        # one image is not that of names in several folders: the one that fits best has it
        (["cam/0.png"], HERE / "video1", ["video1/cam/0.png", "video2/cam/0.png"],
         ["cam/0.png", UNKNOWN]),
        (["cam/0.png"], HERE, ["video1/cam/0.png", "video2/cam/0.png"], [UNKNOWN, UNKNOWN]),
        (["cam/0.png"], HERE, ["video1/cam/0.png", "video1/cam/0"], ["cam/0.png", "cam/0.png"]),
        (["a/1.png"], None, ["a/1.png", "other/a/1.png"], ["a/1.png", UNKNOWN]),
        (["a/1.png"], None, ["1.png", "a/1.png"], [UNKNOWN, "a/1.png"]),
        (["a/1.png"], None, ["/data/a/1.png", "a/1.png"], ["a/1.png", "a/1.png"]),
        (["a/1.png"], HERE, ["frames/a/1.png", "a/1.png"], ["a/1.png", "a/1.png"]),
        (["a/1.png", "b/1.png"], None, ["1.png", "a/1.png"], [AMBIGUOUS, "a/1.png"]),
        (["x/1.png"], None, ["https://h/x/1.png", "https://g/x/1.png"], ["x/1.png", "x/1.png"]),
        (["x/1.png"], None, ["https://h/a/x/1.png", "https://g/b/x/1.png"], [UNKNOWN, UNKNOWN]),
    ],
)  # fmt: skip
def test_names_fit_by_whole_folders_from_the_end(paths, folder, names, expected):
    assert found(paths, names, folder=folder)[0] == expected
    assert found(paths, names[::-1], folder=folder)[0] == expected[::-1]


def test_ids_and_paths_as_they_stand_go_before_folders_that_fit():
    images = ImageNames(["a/1.png", "b/1.png"], Path("b"), ids=["b/1.png", "x"])
    of_file = images.of_file(["b/1.png", "a/1.png", "x"])
    assert [of_file.find(name) for name in ("b/1.png", "a/1.png", "x", "1.png")] == [0, 0, 1, -2]


def test_a_folder_counts_as_it_is_given_and_as_its_links_lead(tmp_path):
    (tmp_path / "video1").mkdir()
    (tmp_path / "video2").symlink_to(tmp_path / "video1")
    names = ["video1/0.png", "video2/0.png", "video3/0.png"]
    for folder in ("video1", "video2"):
        rows = [f"{name}" for name in found(["0.png"], names, folder=tmp_path / folder)[0]]
        assert [name for name, row in zip(names, rows, strict=True) if row == "0.png"] == [
            f"{folder}/0.png"
        ]
    (tmp_path / "now").symlink_to(tmp_path / "video1")
    assert found(["0.png"], names, folder=tmp_path / "now")[0] == ["0.png", UNKNOWN, UNKNOWN]


def test_the_split_of_an_image_is_its_last_folder_or_the_one_above_images():
    paths = ["train/images/0.jpg", "val/images/0.jpg", "dev/cats/1.jpg", "test/cats/1.jpg"]
    paths += ["images/train/2.jpg", "images/val2017/2.jpg"]
    for name, split, path in (
        ("0.jpg", "dev", paths[1]),
        ("0", "train", paths[0]),
        ("1.jpg", "test", AMBIGUOUS),
        ("2.jpg", "dev", paths[5]),
        ("images/0.jpg", "train", paths[0]),
    ):
        assert found(paths, [name], split)[0] == [path]
    assert found(["images/0.jpg"], ["train/images/0.jpg"], folder=Path("val"))[0] == [UNKNOWN]


def test_a_name_in_two_splits_is_the_image_of_the_one_that_is_here():
    paths = ["train/0.jpg", "val/1.jpg", "2.jpg"]
    names = ["0.jpg", "0.jpg", "1", "1", "2", "2"]
    splits = ["train", "dev", "test", "dev", "train", "dev"]
    of_file = ImageNames(paths).of_file(names, splits)
    rows = [of_file.find(*row) for row in zip(names, splits, strict=True)]
    assert rows == [0, UNKNOWN, UNKNOWN, 1, 2, 2]


def test_names_of_less_than_a_path_and_of_other_folders_are_said():
    paths = ["a/1.png", "a/002.png", "3.png"]
    names = ["a/1.png", "a/2", "3", "b/1.png", "c/2", "4.png"]
    of_file = ImageNames(paths).of_file(names)
    assert [of_file.find(name) for name in names] == [0, 1, 2, UNKNOWN, UNKNOWN, UNKNOWN]
    assert of_file.shortened == {"a/2", "3"}
    assert of_file.elsewhere == {"b/1.png": "a/1.png", "c/2": "a/002.png"}
    short, remedy = of_file.remarks()
    assert short == "2 image names matched by less than a path"
    assert "such as 'b/1.png', end like the path of one in another folder, 'a/1.png'" in remedy
    assert ImageNames(paths).of_file(paths).remarks() == []


def test_beginnings_contradict_unless_one_ends_in_the_other():
    assert contradict("video1/", "/data/video2/")
    assert not contradict("", "video2/")
    assert not contradict("photos/", "C:\\my\\photos\\")


def test_many_folders_of_the_same_names_take_no_longer():
    paths = [f"{video}/{frame}.png" for video in range(300) for frame in range(100)]
    names = [f"/data/frames/{path}" for path in paths]
    images = ImageNames(paths)
    looks = 0

    def counted(*given, **more):
        nonlocal looks
        looks += 1
        return type(images).ending_in(images, *given, **more)

    images.ending_in = counted
    of_file = images.of_file(names)
    assert [of_file.find(name) for name in names] == [*range(len(paths))]
    assert looks < 12 * len(names)


def test_folders_that_differ_in_case_are_two():
    rows, _ = found(["A/1.jpg", "b/2.jpg"], ["a/1.jpg", "b/2.jpg"])
    assert rows == [UNKNOWN, "b/2.jpg"]
    assert contradict("a/", "A/")
