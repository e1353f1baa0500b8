"""A prepared data set as `datasets` opens it: a configuration for every manifest that has rows."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tiny_scenes import TINY

from pipeline.datasets.prepare import prepare_dataset

README = "README.md"


@pytest.fixture
def load(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    def load(folder: Path, *name: str) -> list[dict]:
        assert set(datasets.get_dataset_config_names(str(folder))) == configurations(folder)
        return datasets.load_dataset(str(folder), *name, split="train").to_list()

    return load


def configurations(folder: Path) -> set[str]:
    manifests = ("images", "captions", "sentences", "phrases")
    files = {name: folder / f"{name}.parquet" for name in manifests}
    return {n for n, file in files.items() if file.is_file() and pq.read_table(file).num_rows}


@pytest.fixture
def pairs(make_images, make_file):
    images = make_images(["a.png", "b.png"])
    captions = make_file("c.csv", "image,caption\na.png,a dog\na.png,a cat\nb.png,two dogs\n")
    return {"images": images, "captions": captions}


def test_a_data_set_of_pairs_opens(pairs, out, load):
    prepare_dataset("pairs", out, **pairs)
    assert configurations(out) == {"images", "captions", "sentences"}
    for name in ("images", "captions", "sentences"):
        assert load(out, name) == pq.read_table(out / f"{name}.parquet").to_pylist()
    assert load(out) == load(out, "captions")


def test_a_data_set_of_sentences_opens(make_file, out, load):
    prepare_dataset("sentences", out, path=make_file("s.txt", "One\nTwo\nOne\n"))
    assert configurations(out) == {"sentences"}
    assert load(out) == [{"text": text} for text in ("One", "Two", "One")]
    assert "`split`" not in (out / README).read_text().replace("split `train`", "")


def test_drawn_scenes_open_with_their_phrases(out, load):
    prepare_dataset("scenes", out, **TINY)
    assert load(out, "phrases") == pq.read_table(out / "phrases.parquet").to_pylist()
    assert load(out) == pq.read_table(out / "captions.parquet").to_pylist()


def test_the_card_is_recorded_and_says_nothing_of_this_machine(pairs, out, tmp_path):
    for folder in (out, out, tmp_path / "other" / "folder"):
        prepare_dataset("pairs", folder, **pairs)
    assert README in json.loads((out / "dataset.json").read_text())["files"]
    text = (out / README).read_text()
    assert text == (tmp_path / "other/folder" / README).read_text()
    assert str(tmp_path) not in text


def test_a_card_of_the_user_stays(pairs, out):
    out.mkdir()
    (out / README).write_text("my photographs")
    for _ in range(2):
        prepare_dataset("pairs", out, **pairs)
        assert (out / README).read_text() == "my photographs"
        assert README not in json.loads((out / "dataset.json").read_text())["files"]


def test_a_card_that_the_user_made_of_ours_stays(pairs, out):
    prepare_dataset("pairs", out, **pairs)
    lines = (out / README).read_text().splitlines(keepends=True)
    (out / README).write_text("".join(lines) + "\nTaken in Oslo.\n")
    prepare_dataset("pairs", out, **pairs)
    assert (out / README).read_text() == "".join(lines)  # as the line says that is left out now
    ours = "".join(line for line in lines if "replaces" not in line) + "\nTaken in Oslo.\n"
    (out / README).write_text(ours)
    for _ in range(2):
        prepare_dataset("pairs", out, **pairs)
        assert (out / README).read_text() == ours
        assert README not in json.loads((out / "dataset.json").read_text())["files"]
