"""Images in tar files give the same results as separate files, without unpacking."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from command_line import set_words, sightline
from ground_data import DataSet, files_of, run_ground, write_table
from prepared_data import as_prepared
from small_inputs import write_clip

from sightline.cache import IMAGES, PHRASES, FeatureSet, read_manifest, write_manifest
from sightline.cache.groundings import read_phrases

COUNT = 5
COMMANDS = {
    "features": ["extract", "image"],
    "grounding": ["ground", "--cutouts=CUTOUTS"],
    "objects": ["extract", "object", "--phrases=GROUNDING"],
    "page.html": ["look", "grounding", "GROUNDING"],
}


class Data:
    """A data set on disk and the commands that read its images; outputs are beside it."""

    def __init__(self, folder: Path, annotations: Path) -> None:
        self.folder = as_prepared(folder)
        encoder = f"--encoder={write_clip(folder)}"
        extract = [encoder, "--weights=random:0", "--batch-size=4", "--workers=0"]
        settings = {
            "captions": "all",
            "grounder": {"family": "annotations", "path": annotations},
            "segmenter": {"family": "annotations"},
            "rules": {"duplicate_iou": None},
        }
        self._more = {"extract": extract, "ground": list(set_words(settings)), "look": []}

    def run(self, name: str, *words: str, code: int = 0) -> str:
        """Make one of `COMMANDS`' outputs; returns what was said."""
        command = [*COMMANDS[name], *self._more[COMMANDS[name][0]]]
        given = [
            word.replace("CUTOUTS", f"{self.folder}/cutouts").replace(
                "GROUNDING", f"{self.folder}/grounding"
            )
            for word in [*command, f"--data={self.folder}", f"--out={self.folder / name}", *words]
        ]
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            found = sightline(*given)
        assert found == code, said.getvalue()
        return said.getvalue()

    def failures(self, name: str) -> dict[str, dict[str, str]]:
        """Failed rows of an output, by code."""
        lines = (self.folder / f"{name}.run" / "failures.jsonl").read_text().splitlines()
        return {each["code"]: each for each in map(json.loads, lines)}

    @property
    def rows(self) -> list[dict[str, Any]]:
        return read_manifest(self.folder / "images.parquet", IMAGES).to_pylist()

    def write_rows(self, rows: list[dict[str, Any]]) -> None:
        write_table(self.folder / "images.parquet", rows, IMAGES)


@pytest.fixture(scope="module")
def loose(tmp_path_factory) -> Data:
    """Everything made from files, with phrases from a grounder without a model."""
    folder = tmp_path_factory.mktemp("loose")
    data = DataSet.of(folder / "data", COUNT)
    run_ground(data, folder / "drawn")
    write_manifest(folder / "phrases.parquet", read_phrases(folder / "drawn"), PHRASES)
    made = Data(data.folder, folder / "phrases.parquet")
    for name in COMMANDS:
        made.run(name)
    return made


@pytest.fixture
def packed(loose: Data, tmp_path) -> Data:
    """The same images in two tar files; none of them is a separate file."""
    folder = tmp_path / "packed"
    (folder / "images/shards").mkdir(parents=True)
    shutil.copy(loose.folder / "captions.parquet", folder)
    rows = loose.rows
    for number in range(2):
        path = folder / f"images/shards/{number:05d}.tar"
        with tarfile.open(path, "w") as tar:
            for row in rows[number::2]:
                tar.add(loose.folder / "images" / row["path"], arcname=row["path"])
        with tarfile.open(path) as tar:
            for row in rows[number::2]:
                member = tar.getmember(row["path"])
                place = {"offset": member.offset_data, "length": member.size}
                row |= {"path": f"shards/{path.name}", **place}
    made = Data(folder, loose.folder.parent / "phrases.parquet")
    made.write_rows(rows)
    return made


def test_images_in_archives_give_the_same_bytes_everywhere(loose, packed):
    before = {path: path.stat().st_mtime_ns for path in packed.folder.glob("images/**/*.tar")}
    for name, words in {**dict.fromkeys(COMMANDS, ()), "features": ("--workers=2",)}.items():
        packed.run(name, *words)
    for name in ("features", "grounding", "cutouts", "objects"):
        assert files_of(loose.folder / name) == files_of(packed.folder / name), name
    pages = [(data.folder / "page.html").read_bytes() for data in (loose, packed)]
    assert pages[0] == pages[1]
    # nothing was unpacked or written there
    files = [path for path in packed.folder.glob("images/**/*") if path.is_file()]
    assert {path: path.stat().st_mtime_ns for path in files} == before
    for name in ("features", "objects"):
        assert "4 rows encoded again: 4 with identical bytes" in packed.run(name, "--check=4")


def test_rows_from_files_are_reused_for_archives(loose, packed):
    shutil.copytree(loose.folder / "features", packed.folder / "features")
    assert "nothing to compute" in packed.run("features")


def test_files_and_archives_in_one_manifest(loose, packed):
    shutil.copy(loose.folder / "images" / "0.png", packed.folder / "images")
    packed.write_rows([loose.rows[0], *packed.rows[1:]])
    packed.run("features")
    assert files_of(loose.folder / "features") == files_of(packed.folder / "features")


WRONG = {
    "outside": {"offset": 10**9},
    "empty": {"length": 0},
    "changed": {"offset": 0},
    "missing": {"path": "shards/gone.tar"},
}


@pytest.fixture
def wrong(packed: Data) -> dict[str, str]:
    """All images but one are missing from their place: the code of each → its place."""
    rows = sorted(packed.rows, key=lambda row: row["image_id"])
    changed = [{**row, **change} for row, change in zip(rows, WRONG.values(), strict=False)]
    packed.write_rows(changed + rows[len(WRONG) :])
    root = packed.folder / "images"
    return {
        code: f"{root / row['path']}[{row['offset']}:+{row['length']}]"
        for code, row in zip(WRONG, changed, strict=True)
    }


def test_a_place_without_the_image_costs_its_own_row(packed, wrong):
    said = packed.run("features", code=1)
    assert "4 of 5 images failed" in said
    assert any(f"  {place}: " in said for place in wrong.values())
    for name in ("features", "grounding"):
        packed.run(name, "--max-failed=1")
        failures = packed.failures(name)
        assert {code: each["path"] for code, each in failures.items()} == wrong
        assert "get the complete file, or the matching manifest" in failures["outside"]["reason"]
        assert failures["empty"]["reason"] == "its place in the file has 0 bytes"
    features = FeatureSet.open(packed.folder / "features")
    assert sorted(features.failed.values()) == sorted(WRONG)
    assert len(features) == COUNT - len(WRONG)


def test_objects_and_cutouts_of_a_missing_image_name_its_place(loose, packed, wrong):
    shutil.copytree(loose.folder / "grounding", packed.folder / "grounding")
    packed.run("objects", "--max-failed=1")
    failed = FeatureSet.open(packed.folder / "objects").failed
    assert set(failed.values()) == set(WRONG)
    assert packed.failures("objects")["outside"]["path"] == wrong["outside"]
    packed.run("page.html")
    page = (packed.folder / "page.html").read_text()
    assert page.count("shards/00000.tar[1000000000:+") == 1
    said = packed.run("grounding", code=1)
    assert any(f"{place}: " in said for place in wrong.values())
    assert "24 of 30 objects failed" in said


@pytest.mark.parametrize("name", COMMANDS)
def test_a_row_with_an_invalid_place_is_one_clear_error(loose, packed, name):
    shutil.copytree(loose.folder / "grounding", packed.folder / "grounding")
    first, *others = packed.rows
    packed.write_rows([*others, {**first, "length": None}])
    said = packed.run(name, code=1)
    assert "images.parquet: row 4: " in said
    assert "expected two numbers, or both null" in said
