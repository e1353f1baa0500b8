"""A prepared folder is all that a command needs: its manifests, and where its images are."""

from __future__ import annotations

import json

import pytest

from pipeline.datasets.kinds import prepare_dataset
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
