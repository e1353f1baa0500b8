"""Data sets of the hub: what is fetched, and what is read from this machine's cache."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from packed import load_all
from saved_tables import README, table

from pipeline.datasets.huggingface import HuggingFaceSource
from pipeline.datasets.prepare import prepare as prepare_source
from sightline.errors import SightlineError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """A hub's cache with the data set `owner/name`, without network."""
    from huggingface_hub import constants

    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    repository = cache / "datasets--owner--name"
    snapshot = repository / "snapshots" / COMMIT / "data"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(COMMIT)
    (repository / "blobs").mkdir()
    for name, numbers in (("train", range(3)), ("test", range(3, 5))):
        blob = repository / "blobs" / name
        pq.write_table(table(numbers), blob, compression="none", use_dictionary=False)
        (snapshot / f"{name}-00000-of-00001.parquet").symlink_to(f"../../../blobs/{name}")
    return cache


def test_a_dataset_of_the_hub_is_read_from_its_cache(hub, out):
    source = HuggingFaceSource(name="owner/name")
    report = prepare_source(source, out)
    assert report.counts["images_train"] == 3
    record = json.loads((out / "dataset.json").read_text())
    assert (record["commit"], record.get("images")) == (COMMIT, None)
    assert str(hub) not in (out / "dataset.json").read_text()
    shutil.rmtree(hub)
    assert len(load_all(out)) == 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "owner/other"}, "owner/other: its data set cannot be fetched"),
        ({"name": "owner/name", "revision": "other"}, "cannot be fetched"),
        ({"name": "not/a/name"}, "not a valid name"),
    ],
)
def test_what_cannot_be_had_is_one_error(hub, out, given, message):
    with pytest.raises(SightlineError, match=message):
        prepare_source(HuggingFaceSource(**given), out)
    assert not out.exists()


@pytest.fixture
def served(tmp_path, monkeypatch) -> list[str]:
    """The hub with a data set `owner/name` in `tmp_path / "data"`; the names that are fetched."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.utils import filter_repo_objects

    folder, fetched = tmp_path / "data", []

    def names(*_, **__) -> list[str]:
        return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())

    def download(name, allow_patterns, revision, **_) -> str:
        assert (name, revision) in (("owner/name", None), ("owner/name", COMMIT))
        for file in filter_repo_objects(names(), allow_patterns=allow_patterns):
            fetched.append(file)
            (tmp_path / COMMIT / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / file, tmp_path / COMMIT / file)
        return str(tmp_path / COMMIT)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("sightline.models.pretrained.why_silent", lambda _: "")
    monkeypatch.setattr("sightline.models.pretrained._is_silent", lambda *_: False)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr(HfApi, "list_repo_files", names)
    return fetched


def test_only_the_files_of_the_chosen_splits_are_fetched(folder, out, served):
    for number, name in enumerate(("train-a", "validation", "test-[1]")):
        pq.write_table(table(range(number, number + 1)), folder / f"{name}.parquet")
    for name in ("a.py", "a.zip", "README.md"):
        (folder / name).touch()
    prepare_source(HuggingFaceSource(name="owner/name", splits={"test": "test"}), out)
    assert served == ["README.md", "test-[1].parquet"]
    assert len(load_all(out)) == 1


def test_only_the_files_of_the_chosen_configuration_are_fetched(folder, out, served):
    for number, name in enumerate(("one", "two")):
        pq.write_table(table(range(number, number + 1)), folder / f"{name}.parquet")
    two = "- config_name: second\n  data_files: two.parquet\n---"
    (folder / "README.md").write_text("---" + README.format("one.parquet")[3:-4] + two)
    prepare_source(HuggingFaceSource(name="owner/name", config="second"), out)
    assert served == ["README.md", "two.parquet"]


def test_only_the_chosen_splits_of_a_saved_data_set_are_fetched(saved, out, served):
    prepare_source(HuggingFaceSource(name="owner/name", splits={"dev": "validation"}), out)
    states = ["dataset_dict.json", "train/state.json", "validation/state.json"]
    assert served == [*states, "validation/data-00000-of-00001.arrow"]
