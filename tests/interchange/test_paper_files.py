"""Features in MCSE's and KDMCSE's formats: nothing lost, nothing silently truncated."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest
from command_line import sightline

from pipeline.interchange.mcse_files import import_kdmcse, import_mcse, read_entries
from sightline.cache import (
    CAPTIONS,
    IMAGES,
    FeatureSet,
    key_column,
    key_of_text,
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


def entries() -> dict[str, dict]:
    return {
        f"{i}.jpg": {
            "image_feat": ROWS[i].tolist(),
            "captions": [TEXTS[i], f"{TEXTS[i]} again"],
            "lang_feat": [(ROWS[i] * 2).tolist(), (ROWS[i] * 3).tolist()],
        }
        for i in range(4)
    }


def test_kdmcse_becomes_a_data_set_and_two_feature_sets(tmp_path):
    source, body = tmp_path / "flickr.json", entries()
    body["2.jpg"]["captions"] = [f" {TEXTS[2]}\n", "two\nlines"]
    source.write_text(json.dumps(body, indent=3))
    places = tmp_path / "data", tmp_path / "images", tmp_path / "texts"
    images, texts, report = import_kdmcse(source, *places, "CLIP ViT-L/14")
    assert (images.rows, texts.rows) == (4, 8)
    assert report.counts["captions_trimmed"] == 1
    found = image_rows(*places[:2])
    for i in range(4):
        np.testing.assert_array_equal(found[TEXTS[i]], ROWS[i])
    keys = [key_of_text(text) for text in TEXTS[:4]]
    np.testing.assert_array_equal(FeatureSet.open(tmp_path / "texts").take(keys), ROWS[:4] * 2)
    captions = read_manifest(tmp_path / "data/captions.parquet", CAPTIONS)["text"].to_pylist()
    assert captions[4:6] == [TEXTS[2], "two\nlines"]


def spoilt(**changes: object) -> str:
    body = entries()
    body["2.jpg"].update(changes)
    return json.dumps(body)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (spoilt(captions=["one"]), "'2.jpg': 1 captions"),
        (spoilt(captions="ab"), "'2.jpg': captions are not a list of strings"),
        (spoilt(captions=[1, 2]), "'2.jpg': captions are not a list of strings"),
        (spoilt(image_feat=[1, "x"]), "'2.jpg': features are not rows"),
        (spoilt(image_feat=[1.0]), "'2.jpg': row lengths differ"),
        (spoilt(lang_feat=[[1.0], [1.0, 2.0]]), "'2.jpg'"),
        (spoilt(image_feat=[float("nan")] * 5), "damaged, or not JSON"),
        (spoilt(image_feat=[1e39] * 5), "'2.jpg': a feature is not a finite number"),
        (spoilt()[:-40], "damaged, or not JSON"),
        (f"{spoilt()[:-1]}, {spoilt()[1:]}", "lists the image '0.jpg' twice"),
        ('{"a.jpg": {"captions": []}}', "lacks image_feat, lang_feat"),
        ("[]", "contains no images"),
        ("nothing", "damaged, or not JSON"),
        ('{"a": ' + '{"b": ' * 5_000, "flickr.json"),
    ],
)
def test_errors_name_the_image(tmp_path, text, message):
    path = tmp_path / "flickr.json"
    path.write_text(text)
    with pytest.raises(SightlineError, match=message):
        import_kdmcse(path, tmp_path / "data", tmp_path / "images", tmp_path / "texts", "")
    assert not (tmp_path / "images").exists()


def test_a_large_file_is_read_in_bounded_memory(tmp_path):
    path = tmp_path / "large.json"
    body = json.dumps(entries()["0.jpg"] | {"image_feat": [0.123456] * 20_000})
    path.write_text("{" + ", ".join(f'"{i}.jpg": {body}' for i in range(30)) + "}")  # 5 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_entries(path)) == 30
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()
