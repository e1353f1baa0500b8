"""Images in tar files give the same results as separate files, without unpacking."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from archived_images import archive, write_rows
from command_line import set_words, sightline
from flat_tables import rows_with_keys
from ground_data import DataSet, files_of, run_ground
from prepared_data import as_prepared
from small_inputs import write_clip

from sightline.cache import IMAGES, PHRASES, FeatureSet, read_manifest, write_manifest
from sightline.cache.groundings import read_phrases

COUNT = 5
SETS = ("features", "grounding", "cutouts", "objects")


class Data:
    """A data set on disk and the commands that read its images; outputs are beside it."""

    def __init__(self, folder: Path, captions: Path, annotations: Path) -> None:
        self.folder = folder
        self.captions = captions
        self.annotations = annotations
        if captions.parent != folder:
            shutil.copy(captions, folder)
        as_prepared(folder)
        self.encoder = write_clip(folder)

    def run(self, *words: str, code: int = 0, **options: object) -> str:
        """Run a command; returns its output."""
        given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            found = sightline(*words, *given)
        assert found == code, said.getvalue()
        return said.getvalue()

    def extract_images(self, code: int = 0, **options: object) -> str:
        return self._extract("image", "features", code, **options)

    def extract_objects(self, code: int = 0, **options: object) -> str:
        phrases = self.folder / "grounding"
        return self._extract("object", "objects", code, phrases=phrases, **options)

    def ground(self, code: int = 0, **options: object) -> str:
        outputs = {"out": self.folder / "grounding", "cutouts": self.folder / "cutouts"}
        settings = {
            "captions": "all",
            "grounder": {"family": "annotations", "path": self.annotations},
            "segmenter": {"family": "annotations"},
            "rules": {"duplicate_iou": None},
        }
        words = ["ground", *set_words(settings)]
        return self.run(*words, code=code, data=self.folder, **outputs, **options)

    def gallery(self, code: int = 0) -> str:
        words = "look", "grounding", str(self.folder / "grounding")
        return self.run(*words, code=code, data=self.folder, out=self.folder / "page.html")

    def failures(self, name: str) -> dict[str, dict[str, str]]:
        """Failed rows of an output, by code."""
        lines = (self.folder / f"{name}.run" / "failures.jsonl").read_text().splitlines()
        return {each["code"]: each for each in map(json.loads, lines)}

    @property
    def rows(self) -> list[dict[str, Any]]:
        return read_manifest(self.folder / "images.parquet", IMAGES).to_pylist()

    def _extract(self, kind: str, name: str, code: int, **options: object) -> str:
        fixed = {"encoder": self.encoder, "weights": "random:0", "batch_size": 4, "workers": 0}
        places = {"data": self.folder, "out": self.folder / name}
        return self.run("extract", kind, code=code, **{**places, **fixed, **options})


@pytest.fixture(scope="module")
def loose(tmp_path_factory) -> Data:
    """Everything made from files, with phrases from a grounder without a model."""
    folder = tmp_path_factory.mktemp("loose")
    data = DataSet.of(folder / "data", COUNT)
    run_ground(data, folder / "drawn")
    annotations = folder / "phrases.parquet"
    write_manifest(annotations, read_phrases(folder / "drawn"), PHRASES)
    made = Data(data.folder, data.folder / "captions.parquet", annotations)
    made.extract_images()
    made.ground()
    made.extract_objects()
    made.gallery()
    return made


@pytest.fixture
def packed(loose: Data, tmp_path) -> Data:
    """The same images in tar files; none of them is a separate file."""
    folder = tmp_path / "packed"
    archive(loose.folder / "images.parquet", loose.folder / "images", folder)
    return Data(folder, loose.captions, loose.annotations)


def same(loose: Data, packed: Data, name: str) -> bool:
    return files_of(loose.folder / name) == files_of(packed.folder / name)


def test_images_in_archives_give_the_same_bytes_everywhere(loose, packed):
    before = {path: path.stat() for path in packed.folder.glob("images/**/*")}
    packed.extract_images(workers=2)
    packed.ground()
    packed.extract_objects()
    packed.gallery()
    assert [same(loose, packed, name) for name in SETS] == [True] * len(SETS)
    pages = [(data.folder / "page.html").read_bytes() for data in (loose, packed)]
    assert pages[0] == pages[1]
    for path, stat in before.items():  # nothing was unpacked or written there
        if path.is_file():
            assert path.stat().st_mtime_ns == stat.st_mtime_ns
    assert {*packed.folder.glob("images/**/*")} == {*before}


def test_features_of_archived_images_are_those_of_the_files_key_by_key(loose, packed):
    packed.extract_images()
    ours, theirs = (FeatureSet.open(data.folder / "features") for data in (packed, loose))
    keys = [row["key"] for row in loose.rows]
    assert [row["key"] for row in packed.rows] == keys
    np.testing.assert_array_equal(ours.take(keys), theirs.take(keys))
    assert len(ours) == len(theirs) == COUNT


def test_records_and_cutouts_of_archived_images_are_those_of_the_files(loose, packed):
    packed.ground()

    def by_key(data: Data, name: str) -> dict:
        return {
            row["key"]: row for row in rows_with_keys(data.folder / name, "cutouts").to_pylist()
        }

    assert by_key(packed, "cutouts") == by_key(loose, "cutouts") != {}
    records = [read_phrases(data.folder / "grounding") for data in (packed, loose)]
    assert records[0].equals(records[1])


def test_rows_from_files_are_reused_for_archives(loose, packed):
    shutil.copytree(loose.folder / "features", packed.folder / "features")
    assert "nothing to compute" in packed.extract_images()


def test_rows_are_encoded_again_from_archives(loose, packed):
    packed.extract_images()
    packed.ground()
    packed.extract_objects()
    for extract in (packed.extract_images, packed.extract_objects):
        assert "4 rows encoded again: 4 with identical bytes" in extract(check=4)


def test_files_and_archives_in_one_manifest(loose, packed):
    shutil.copy(loose.folder / "images" / "0.png", packed.folder / "images")
    write_rows(packed.folder, [loose.rows[0], *packed.rows[1:]])
    packed.extract_images()
    assert same(loose, packed, "features")


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
    write_rows(packed.folder, changed + rows[len(WRONG) :])
    root = packed.folder / "images"
    return {
        code: f"{root / row['path']}[{row['offset']}:+{row['length']}]"
        for code, row in zip(WRONG, changed, strict=True)
    }


def test_a_place_without_the_image_costs_its_own_row(packed, wrong):
    packed.extract_images(max_failed=1)
    packed.ground(max_failed=1)
    for name in ("features", "grounding"):
        failures = packed.failures(name)
        assert {code: each["path"] for code, each in failures.items()} == wrong
        assert "get the complete file, or the matching manifest" in failures["outside"]["reason"]
        assert failures["empty"]["reason"] == "its place in the file has 0 bytes"
    features = FeatureSet.open(packed.folder / "features")
    assert sorted(features.failed.values()) == sorted(WRONG)
    assert len(features) == COUNT - len(WRONG)


def test_too_many_of_them_are_reported_with_one_place(packed, wrong):
    said = packed.extract_images(code=1)
    assert "4 of 5 images failed" in said
    assert any(f"  {place}: " in said for place in wrong.values())


def test_objects_of_a_missing_image(loose, packed, wrong):
    shutil.copytree(loose.folder / "grounding", packed.folder / "grounding")
    packed.extract_objects(max_failed=1)
    failed = FeatureSet.open(packed.folder / "objects").failed
    assert set(failed.values()) == set(WRONG)
    assert packed.failures("objects")["outside"]["path"] == wrong["outside"]
    packed.gallery()
    page = (packed.folder / "page.html").read_text()
    assert page.count("shards/00000.tar[1000000000:+") == 1


def test_cutouts_of_a_missing_image_name_its_place(loose, packed, wrong):
    shutil.copytree(loose.folder / "grounding", packed.folder / "grounding")
    said = packed.ground(code=1)
    assert any(f"{place}: " in said for place in wrong.values())
    assert "24 of 30 objects failed" in said


@pytest.mark.parametrize("change", [{"offset": None}, {"length": None}, {"offset": -1}])
def test_a_row_with_an_invalid_place_is_one_clear_error(loose, packed, change):
    shutil.copytree(loose.folder / "grounding", packed.folder / "grounding")
    first, *others = packed.rows
    write_rows(packed.folder, [*others, {**first, **change}])
    for command in (packed.extract_images, packed.ground, packed.extract_objects, packed.gallery):
        said = command(code=1)
        assert "images.parquet: row 4: " in said
        assert "expected two numbers, or both null" in said or "offset: found -1" in said
