"""A prepared data set at a URL: its manifests are fetched, its images read in place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import sightline, unboxed
from packed import load_all, samples, write_tar
from shelves import SHELVES, Shelf, s3_shelf, web_shelf
from small_inputs import write_clip

from pipeline.datasets.prepare import prepare_dataset
from pipeline.extract.inputs import inputs_of
from sightline.cache import FeatureSet
from sightline.cache.prepared import MANIFESTS, PreparedDataset, local_dataset
from sightline.errors import SightlineError
from sightline.files import storage


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(storage, "_PAUSES", (0.01, 0.01))
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "fetched"))


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A prepared data set, with its two tars of images in a folder beside it."""
    for number in range(2):
        write_tar(tmp_path / f"all/raw/{number}.tar", samples(2 * number, 2 * number + 1))
    prepare_dataset("webdataset", tmp_path / "all/sets/mine", images=tmp_path / "all/raw")
    return tmp_path / "all/sets/mine"


@pytest.fixture(params=SHELVES)
def shelf(request, here, monkeypatch) -> Iterator[Shelf]:
    with SHELVES[request.param](here.parent.parent, monkeypatch) as served:
        yield served


def fetched(shelf: Shelf) -> set[str]:
    """Names of the manifests that were read since the last call."""
    asked = {path.rpartition("/")[2] for method, path, _ in shelf.faults.asked if method == "GET"}
    shelf.faults.asked.clear()
    return asked & {*MANIFESTS}


def test_manifests_are_fetched_once_and_images_are_read_in_place(shelf, here, capsys):
    url = f"{shelf.url}/sets/mine"
    there = PreparedDataset.open(url)
    assert f"{url}: fetching 3 files, " in capsys.readouterr().err
    assert fetched(shelf) == {*MANIFESTS}
    assert there.folder.name == "mine"
    assert there.require_images() == f"{shelf.url}/raw"
    for name in MANIFESTS:
        assert (there.folder / name).read_bytes() == (here / name).read_bytes()
    for image, same in zip(load_all(there.folder), load_all(here), strict=True):
        assert image.equal(same)
    fetched(shelf)
    assert PreparedDataset.open(url) == there
    assert not fetched(shelf)
    assert not capsys.readouterr().err


def test_what_changed_there_is_fetched_again(shelf, here, tmp_path):
    url = f"{shelf.url}/sets/mine"
    there = PreparedDataset.open(url)
    fetched(shelf)
    raw = here.parent.parent / "raw"
    write_tar(raw / "2.tar", samples(4))
    prepare_dataset("webdataset", here, images=raw)
    shelf.put()
    assert len(PreparedDataset.open(url).images) == 5
    assert fetched(shelf) >= {"images.parquet", "captions.parquet"}
    (there.folder / "captions.parquet").unlink()  # here
    assert len(PreparedDataset.open(url).captions) == len(PreparedDataset.open(here).captions)
    assert fetched(shelf) == {"captions.parquet"}


def test_a_fetch_that_fails_leaves_no_half_of_a_data_set(shelf, here):
    url = f"{shelf.url}/sets/mine"
    for name in ("captions.parquet", "dataset.json"):
        shelf.faults.of[shelf.path(f"sets/mine/{name}")] = [403] * 9
        with pytest.raises(SightlineError, match=f"mine/{name}: "):
            PreparedDataset.open(url)
        shelf.faults.of.clear()
        assert len(PreparedDataset.open(url).captions) == 4


def test_commands_take_its_url(shelf, here, tmp_path, capsys):
    url = f"{shelf.url}/sets/mine"
    for data, out in ((here, "here"), (url, "there")):
        words = ["--encoder", write_clip(tmp_path), "--weights", "random:0", "--workers", 0]
        words += ["--data", data, "--out", tmp_path / out]
        assert sightline("extract", "image", *words) == 0
    sets = [FeatureSet.open(tmp_path / out).record for out in ("here", "there")]
    assert sets[0].content_digest == sets[1].content_digest
    assert (
        inputs_of("text", url).entries.keys.tolist()
        == inputs_of("text", here).entries.keys.tolist()
    )
    assert sightline("evaluate", "neighbours", "--model", "x", "--data", url) == 1
    assert "no caption in the split 'test'; found '' (4)" in unboxed(capsys.readouterr().err)
    exported = ["cache", "export", tmp_path / "here", "--format", "npy", "--out", tmp_path / "npy"]
    assert sightline(*exported, "--data", url) == 0
    assert "not in" not in unboxed(capsys.readouterr().out)


def test_what_is_no_data_set_there_is_one_error(shelf, here, tmp_path, capsys):
    words = ["tokens", "--student", "bert", "--out", tmp_path / "tokens", "--data"]
    assert sightline(*words, f"{shelf.url}/sets/none") == 1
    said = unboxed(capsys.readouterr().err)
    assert (
        f"{shelf.url}/sets/none: no prepared data set here (no dataset.json); check the addr"
        in said
    )
    assert sightline(*words, "ftp://host/mine") == 2
    assert "found a URL of 'ftp'" in unboxed(capsys.readouterr().err)
    sound = (here / "dataset.json").read_bytes()
    shelf.write("sets/mine/dataset.json", b"[]")
    assert sightline(*words, f"{shelf.url}/sets/mine") == 1
    assert f"{shelf.url}/sets/mine/dataset.json: found []" in unboxed(capsys.readouterr().err)
    shelf.write("sets/half/dataset.json", sound)
    assert sightline(*words, f"{shelf.url}/sets/half") == 1
    assert f"{shelf.url}/sets/half: has no images.parquet" in unboxed(capsys.readouterr().err)
    assert not (tmp_path / "tokens").exists()


def test_manifests_that_change_while_they_are_fetched_are_not_mixed(here, monkeypatch):
    with s3_shelf(here.parent.parent, monkeypatch) as shelf:
        url, other = f"{shelf.url}/sets/mine", samples(5)

        def prepared_again() -> None:
            write_tar(here.parent.parent / "raw/2.tar", other)
            prepare_dataset("webdataset", here, images=here.parent.parent / "raw")
            shelf.put()

        shelf.faults.of[shelf.path("sets/mine/captions.parquet")] = [prepared_again]
        with pytest.raises(SightlineError, match="mine: changed while it was fetched; try again"):
            PreparedDataset.open(url)
        there = PreparedDataset.open(url)
        assert len(there.images) == len(there.captions) == 5


def test_images_that_lie_elsewhere_are_missed_only_where_they_are_read(here, shelf):
    record = json.loads((here / "dataset.json").read_text())
    shelf.write(
        "sets/mine/dataset.json", json.dumps({**record, "images": "../../../../photos"}).encode()
    )
    for _ in range(2):
        there = PreparedDataset.open(f"{shelf.url}/sets/mine")
        assert len(there.captions) == 4
        (there.folder / "../../../../photos").mkdir(exist_ok=True)  # another's
    with pytest.raises(SightlineError, match="its images are not here"):
        there.require_images()


def test_a_signature_stays_out_of_what_is_kept(here, monkeypatch, tmp_path):
    with web_shelf(here.parent.parent, monkeypatch, secret="sig=s3cr3t") as shelf:
        folder = local_dataset(f"{shelf.url}/sets/mine?sig=s3cr3t")
    kept = [path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()]
    assert kept
    assert not any(b"s3cr3t" in content for content in kept)
    shutil.rmtree(folder.parent)
