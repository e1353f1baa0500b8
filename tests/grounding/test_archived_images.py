"""Images in tar files give the same results as separate files, without unpacking."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest
from command_line import set_words, sightline
from ground_data import DataSet, annotated, files_of, write_phrases, write_table
from prepared_data import as_prepared
from small_inputs import write_clip

from sightline.cache import IMAGES, FeatureSet, read_manifest

COUNT = 5
COMMANDS = {
    "features": ["extract", "image"],
    "grounding": ["ground"],
    "objects": ["extract", "object"],
    "page.html": ["look", "grounding"],
}


def words(folder: Path, name: str, *more: str) -> list[object]:
    """The command that makes one of `COMMANDS`' outputs, in the folder of the data set."""
    settings = set_words(annotated(folder / "phrases.parquet"))
    encoder = ["--encoder", folder / "clip.json", "--weights=random:0", "--batch-size=4"]
    own = {
        "features": [*encoder, "--workers=0"],
        "grounding": ["--cutouts", folder / "cutouts", *settings],
        "objects": [*encoder, "--workers=0", "--phrases", folder / "grounding"],
        "page.html": [folder / "grounding"],
    }
    return [*COMMANDS[name], "--data", folder, "--out", folder / name, *own[name], *more]


def failures(folder: Path, name: str) -> dict[str, dict[str, str]]:
    """Failed rows of an output, by code."""
    lines = (folder / f"{name}.run/failures.jsonl").read_text().splitlines()
    return {each["code"]: each for each in map(json.loads, lines)}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return read_manifest(folder / "images.parquet", IMAGES).to_pylist()


@pytest.fixture(scope="module")
def loose(tmp_path_factory):
    """Everything made from files, with phrases from a grounder without a model."""
    folder = tmp_path_factory.mktemp("loose")
    data = DataSet.of(folder / "data", COUNT)
    write_phrases(data, data.folder / "phrases.parquet")
    write_clip(data.folder)
    for name in COMMANDS:
        assert sightline(*words(data.folder, name)) == 0
    return data.folder


@pytest.fixture
def packed(loose, tmp_path):
    """The same images: one is a separate file, the others are in two tar files."""
    folder = tmp_path / "packed"
    (folder / "images/shards").mkdir(parents=True)
    for name in ("captions.parquet", "phrases.parquet", "clip.json", "images/0.png"):
        shutil.copy(loose / name, folder / name)
    rows = rows_of(loose)
    for number in range(2):
        path, inside = folder / f"images/shards/{number:05d}.tar", rows[1 + number :: 2]
        with tarfile.open(path, "w") as tar:
            for row in inside:
                tar.add(loose / "images" / row["path"], arcname=row["path"])
        with tarfile.open(path) as tar:
            for row in inside:
                member = tar.getmember(row["path"])
                place = {"offset": member.offset_data, "length": member.size}
                row |= {"path": f"shards/{path.name}", **place}
    write_table(folder / "images.parquet", rows, IMAGES)
    return as_prepared(folder)


def test_images_in_archives_give_the_same_bytes_everywhere(loose, packed, said):
    before = {path: path.stat().st_mtime_ns for path in packed.glob("images/**/*.*")}
    for name in COMMANDS:
        more = ["--workers=2"] if name == "features" else []
        assert said(*words(packed, name, *more))[0] == 0
    for name in ("features", "grounding", "cutouts", "objects"):
        assert files_of(loose / name) == files_of(packed / name), name
    assert (loose / "page.html").read_bytes() == (packed / "page.html").read_bytes()
    # nothing was unpacked or written there
    files = packed.glob("images/**/*.*")
    assert {path: path.stat().st_mtime_ns for path in files} == before
    for name in ("features", "objects"):
        out = said(*words(packed, name, "--check=4"))[1]
        assert "4 rows encoded again: 4 with identical bytes" in out


WRONG = {
    "outside": {"offset": 10**9},
    "empty": {"length": 0},
    "changed": {"offset": 0},
    "missing": {"path": "shards/gone.tar"},
}


@pytest.fixture
def wrong(packed):
    """All images but one are missing from their place: the code of each → its place."""
    whole, *rows = rows_of(packed)
    changed = [{**row, **change} for row, change in zip(rows, WRONG.values(), strict=True)]
    write_table(packed / "images.parquet", [whole, *changed], IMAGES)
    return {
        code: f"{packed / 'images' / row['path']}[{row['offset']}:+{row['length']}]"
        for code, row in zip(WRONG, changed, strict=True)
    }


def test_a_place_without_the_image_costs_its_own_row(packed, wrong, said):
    code, _, error = said(*words(packed, "features"))
    assert code == 1
    assert "4 of 5 images failed" in error
    assert any(f"  {place}: " in error for place in wrong.values())
    for name in ("features", "grounding"):
        said(*words(packed, name, "--max-failed=1"))
        failed = failures(packed, name)
        assert {code: each["path"] for code, each in failed.items()} == wrong
        assert "get the complete file, or the matching manifest" in failed["outside"]["reason"]
        assert failed["empty"]["reason"] == "its place in the file has 0 bytes"
    features = FeatureSet.open(packed / "features")
    assert sorted(features.failed.values()) == sorted(WRONG)
    assert len(features) == COUNT - len(WRONG)


def test_objects_and_cutouts_of_a_missing_image_name_its_place(loose, packed, wrong, said):
    shutil.copytree(loose / "grounding", packed / "grounding")
    assert said(*words(packed, "objects", "--max-failed=1"))[0] == 0
    assert set(FeatureSet.open(packed / "objects").failed.values()) == set(WRONG)
    assert failures(packed, "objects")["outside"]["path"] == wrong["outside"]
    said(*words(packed, "page.html"))
    page = (packed / "page.html").read_text()
    assert page.count(f"{Path(wrong['outside']).relative_to(packed / 'images')}: ") == 1
    code, _, error = said(*words(packed, "grounding"))
    assert code == 1
    assert any(f"{place}: " in error for place in wrong.values())
    assert "24 of 30 objects failed" in error


def test_a_row_with_an_invalid_place_is_one_clear_error(loose, packed, said):
    shutil.copytree(loose / "grounding", packed / "grounding")
    *others, last = rows_of(packed)
    write_table(packed / "images.parquet", [*others, {**last, "length": None}], IMAGES)
    for name in COMMANDS:
        code, _, error = said(*words(packed, name))
        assert code == 1
        assert "images.parquet: row 4: " in error
        assert "expected two numbers, or both null" in error
