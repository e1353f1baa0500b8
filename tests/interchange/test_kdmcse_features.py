"""examples/kdmcse_features.py: features in KDMCSE's format are imported, nothing lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import sightline
from PIL import Image

from sightline import FeatureSet, PreparedDataset, keys_of_texts
from sightline.cache import key_of_file

ROWS = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
TEXTS = [f"picture {i} with ünlike letters" for i in range(4)]


def entries() -> dict[str, dict[str, Any]]:
    return {
        f"{i}.jpg": {
            "image_feat": ROWS[i].tolist(),
            "captions": [TEXTS[i], f"{TEXTS[i]} again"],
            "lang_feat": [(ROWS[i] * 2).tolist(), (ROWS[i] * 3).tolist()],
        }
        for i in range(4)
    }


def imported(*words: object) -> FeatureSet:
    """The set that `sightline cache import WORDS --out DIR` makes."""
    assert sightline("cache", "import", *words, "--out", f"sets/{words[0]}") == 0
    return FeatureSet.open(f"sets/{words[0]}")


@pytest.fixture
def kdmcse(run_example) -> list[str]:
    """Texts of the file that was converted to the folder `made`."""
    body = entries()
    body["2.jpg"]["captions"] = [f" {TEXTS[2]}", "two\nlines"]
    Path("flickr.json").write_text(json.dumps(body, indent=3))
    run_example("kdmcse_features.py", "flickr.json", "made")
    texts = [text for entry in body.values() for text in entry["captions"]]
    return [text.strip().replace("\n", " ") for text in texts]


def test_kdmcse_becomes_a_data_set_and_two_feature_sets(kdmcse):
    words = ("--format", "mcse", "--texts", "made/mcse.txt", "--data", "data")
    images, texts = (
        imported("made/mcse.hdf5", *words),
        imported("made/texts.parquet", "--kind", "text"),
    )
    rows = np.concatenate([[2 * row, 3 * row] for row in ROWS])
    np.testing.assert_array_equal(texts.take(keys_of_texts(kdmcse)), rows)
    data = PreparedDataset.open("data")
    assert (len(data.images), len(images), len(texts)) == (4, 4, 8)
    assert data.captions["text"].to_pylist() == kdmcse
    np.testing.assert_array_equal(images.take(data.image_keys), ROWS)
    owners = data.captions["image_id"].to_pylist()
    assert owners == [name for name in data.images["image_id"].to_pylist() for _ in range(2)]


def test_kdmcse_with_its_photographs_is_keyed_by_them(kdmcse):
    Path("photos").mkdir()
    for i in range(4):
        Image.new("RGB", (4, 4), (60 * i, 0, 0)).save(f"photos/{i}.jpg")
    images = imported("made/images.parquet", "--kind", "image", "--data", "photos")
    keys = [key_of_file(Path(f"photos/{i}.jpg")) for i in range(4)]
    np.testing.assert_array_equal(images.take(keys), ROWS)


def spoilt(**changes: object) -> str:
    body = entries()
    body["2.jpg"].update(changes)
    return json.dumps(body)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (spoilt(captions=["one"]), r"'2.jpg': found \(5,\), 1 captions and \(2, 5\), expected"),
        (spoilt(captions="ab"), "'2.jpg': captions are not a list of strings"),
        (spoilt(captions=[1, 2]), "'2.jpg': captions are not a list of strings"),
        (spoilt(image_feat=[1, "x"]), "'2.jpg': could not convert"),
        (spoilt(image_feat=[]), r"'2.jpg': found \(0,\)"),
        (spoilt(image_feat=[1.0]), "'2.jpg': row lengths differ"),
        (spoilt(lang_feat=[[1.0], [1.0, 2.0]]), "'2.jpg': setting an array element"),
        (spoilt(lang_feat=7), r"'2.jpg': found \(5,\), 2 captions and \(\)"),
        (spoilt(image_feat=[float("nan")] * 5), "'2.jpg': a feature is not a finite number"),
        (spoilt(image_feat=[1e39] * 5), "'2.jpg': a feature is not a finite number"),
        (spoilt()[:-40], "Expecting"),
        (f"{spoilt()[:-1]}, {spoilt()[1:]}", "lists '0.jpg' twice"),
        ('{"a.jpg": {"captions": []}}', "'a.jpg': expected image_feat, captions and lang_feat"),
        ("[]", "contains no images"),
        ("{}", "contains no images"),
        ("nothing", "Expecting value"),
        ('{"a": ' + '{"b": ' * 100_000, "recursion"),
    ],
)
def test_another_form_than_kdmcse_is_one_clear_error(run_example, text, message):
    Path("flickr.json").write_text(text)
    with pytest.raises(SystemExit, match=rf"error: flickr\.json: .*{message}.*expected KDMCSE's"):
        run_example("kdmcse_features.py", "flickr.json", "made")
    assert not Path("made").exists()


def test_a_file_that_cannot_be_read_is_one_clear_error(run_example):
    with pytest.raises(SystemExit, match=r"error: .*No such file.*no\.json"):
        run_example("kdmcse_features.py", "no.json", "made")
