"""Features in MCSE's format: nothing lost, nothing silently truncated."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from command_line import sightline

from pipeline.interchange.mcse_files import import_mcse
from sightline.cache import (
    CAPTIONS,
    IMAGES,
    FeatureSet,
    key_column,
    read_manifest,
    verify,
)
from sightline.errors import SightlineError

ROWS = np.random.default_rng(0).standard_normal((6, 5)).astype(np.float32)
ROWS[4] = ROWS[1]  # one picture with two captions
TEXTS = [f"picture {i} with ünlike letters" for i in range(6)]


def write_hdf5(path: Path, compression: str | None = None, **arrays: object) -> None:
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, compression=compression)


@pytest.fixture
def mcse(tmp_path):
    write_hdf5(tmp_path / "flickr.hdf5", features=ROWS)
    (tmp_path / "captions.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    return tmp_path / "flickr.hdf5", tmp_path / "captions.txt"


def image_rows(dataset: Path, features: Path) -> dict[str, np.ndarray]:
    """Caption → the row of its image."""
    images = read_manifest(dataset / "images.parquet", IMAGES)
    rows = FeatureSet.open(features).take(key_column(images["key"]))
    of_image = dict(zip(images["image_id"].to_pylist(), rows, strict=True))
    captions = read_manifest(dataset / "captions.parquet", CAPTIONS).to_pylist()
    return {each["text"]: of_image[each["image_id"]] for each in captions}


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_mcse_becomes_a_data_set_and_its_features(mcse, tmp_path, compression):
    write_hdf5(mcse[0], compression, features=ROWS)
    record, _ = import_mcse(*mcse, tmp_path / "data", tmp_path / "set", "a ResNet-50, unchecked")
    assert record.rows == 5
    assert record.spec.encoder.source == "a ResNet-50, unchecked"
    assert verify(tmp_path / "set") == []
    found = image_rows(tmp_path / "data", tmp_path / "set")
    for text, row in zip(TEXTS, ROWS, strict=True):
        np.testing.assert_array_equal(found[text], row)


def test_pictures_with_one_row_are_one_image_named_by_its_first_line(mcse, tmp_path, capsys):
    mcse[1].write_text("\n".join([*TEXTS[:5], f" {TEXTS[5]} "]))
    words = ["--format", "mcse", "--data", tmp_path / "data", "--out", tmp_path / "set"]
    assert sightline("cache", "import", mcse[0], "--texts", mcse[1], *words) == 0
    said = capsys.readouterr().out
    assert "5 images, 6 captions" in said.replace("mcse: ", "")
    assert "white space around 1 captions left out" in said
    images = read_manifest(tmp_path / "data/images.parquet", IMAGES)["image_id"].to_pylist()
    assert images == [f"line-{number:07d}" for number in (1, 2, 3, 4, 6)]
    captions = read_manifest(tmp_path / "data/captions.parquet", CAPTIONS)
    assert captions["image_id"].to_pylist()[4] == "line-0000002"
    assert captions["text"].to_pylist() == TEXTS


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: write_hdf5(path),
        lambda path: write_hdf5(path, features=ROWS.ravel()),
        lambda path: write_hdf5(path, features=[["a", "b"]]),
        lambda path: path.write_bytes(path.read_bytes()[:-20]),
        Path.unlink,
    ],
    ids=["nothing", "flat", "words", "cut", "missing"],
)
def test_anything_but_an_array_of_rows_is_refused(mcse, tmp_path, spoil):
    spoil(mcse[0])
    with pytest.raises(SightlineError, match=mcse[0].name):
        import_mcse(*mcse, tmp_path / "data", tmp_path / "set", "")


@pytest.mark.parametrize("lines", [5, 7])
def test_a_different_number_of_lines_is_an_error(mcse, tmp_path, lines):
    mcse[1].write_text("\n".join([*TEXTS, "one more"][:lines]))
    with pytest.raises(SightlineError, match=f"{lines} lines, but .* has 6 rows"):
        import_mcse(*mcse, tmp_path / "data", tmp_path / "set", "")
    assert not (tmp_path / "set").exists()
