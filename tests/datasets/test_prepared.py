"""A prepared folder: what a command needs of it, and that another data set never replaces it.

That no file of others is replaced, also by a run that is killed, is tested in tests/outputs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.datasets.kinds import prepare_dataset
from pipeline.datasets.source import DatasetError
from sightline.cache.prepared import RECORD, PreparedDataset, dataset_facts
from sightline.errors import SightlineError


@pytest.fixture
def folder(make_images, make_file, tmp_path, monkeypatch):
    """The folder of a prepared data set, given with relative paths."""
    monkeypatch.chdir(tmp_path)
    images = make_images(["a.png", "b.png"]).relative_to(tmp_path)
    make_file("c.token", "a.png#0\tone\nb.png#0\ttwo").relative_to(tmp_path)
    prepare_dataset("pairs", "data/mine", images=images, captions="c.token")
    return tmp_path / "data/mine", images


def test_the_record_says_where_the_images_are(folder, tmp_path, monkeypatch):
    data, images = folder
    assert json.loads((data / RECORD).read_text())["images"] == f"../../{images}"
    assert PreparedDataset.open("data/mine").image_root == images
    monkeypatch.chdir(data)
    assert PreparedDataset.open(data).image_root == tmp_path / images


def test_images_that_are_elsewhere_can_be_named(folder, tmp_path):
    data, images = folder
    (tmp_path / images).rename(tmp_path / "moved")
    assert PreparedDataset.open(data).image_root is None
    with pytest.raises(SightlineError, match=rf"{data}: its images are not here: .*{images}\. "):
        PreparedDataset.open(data).require_images()
    assert PreparedDataset.open(data, tmp_path / "moved").require_images() == tmp_path / "moved"


def test_a_record_of_another_kind_is_one_clear_error(folder):
    data, _ = folder
    (data / RECORD).write_text(json.dumps({"schema": "sightline.dataset/0"}))
    with pytest.raises(SightlineError, match=rf"{RECORD}: schema: found 'sightline.dataset/0'"):
        PreparedDataset.open(data)
    assert dataset_facts(data).licence.startswith("not known")


@pytest.fixture
def pairs(make_images, make_file, tmp_path: Path):
    """Prepares a data set of some images, named by their number, into ``out``."""

    def run(folder: str, numbers: range) -> PreparedDataset:
        images = make_images([f"{i}.png" for i in range(max(numbers) + 1)], folder)
        for path in images.iterdir():
            if int(path.stem) not in numbers:
                path.unlink()
        captions = make_file(f"{folder}.csv", f"image,caption\n{numbers[0]}.png,some words\n")
        return prepare_dataset("pairs", tmp_path / "out", images=images, captions=captions)

    return run


def test_a_data_set_with_an_image_in_common_replaces_it(pairs):
    pairs("old", range(0, 5))
    assert pairs("new", range(4, 9)).images["image_id"].to_pylist()[-1] == "8.png"


def test_another_data_set_is_not_replaced(pairs, make_file, tmp_path):
    before = pairs("old", range(0, 5)).images
    message = "different data set: none of its 5 images is among the 4"
    with pytest.raises(DatasetError, match=message):
        pairs("new", range(5, 9))
    sentences = make_file("s.txt", "some words\n")
    with pytest.raises(DatasetError, match="of kind pairs, but this is one of kind sentences"):
        prepare_dataset("sentences", tmp_path / "out", path=sentences)
    assert PreparedDataset.open(tmp_path / "out").images.equals(before)
    prepare_dataset("sentences", tmp_path / "other", path=sentences)
    with pytest.raises(DatasetError, match="none of its 1 sentences is among the 1 new ones"):
        prepare_dataset("sentences", tmp_path / "other", path=make_file("t.txt", "others\n"))
