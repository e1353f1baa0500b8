"""Features exported for others: every bit, under its key, with a card whose code runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import sightline
from foreign_files import DIM, ROWS, write_set
from tiny_encoder import make_encoder
from twice import write_twice

from pipeline.interchange import rows as row_files
from sightline.cache import (
    PHRASES,
    FeatureSet,
    as_keys,
    key_of_file,
    keys_of_texts,
    verify,
    write_manifest,
)


def export(folder: Path, form: str, *more: object) -> Path:
    words = ["--format", form, "--out", folder / "out", *more]
    assert sightline("cache", "export", folder / "set", *words) == 0
    return folder / "out"


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("form", ["parquet", "npy"])
@pytest.mark.parametrize("kind", ["text", "teacher", "object", "image"])
def test_every_bit_is_exported_and_imported_by_its_key(tmp_path, monkeypatch, form, dtype, kind):
    monkeypatch.setattr(row_files, "FILE_BYTES", 600)  # so that there are several files
    monkeypatch.setattr(row_files, "_CHUNK_BYTES", 64)
    before = write_set(tmp_path / "set", dtype, kind)
    out = export(tmp_path, form)
    assert len([path for path in out.rglob("*") if path.suffix == f".{form}"]) > 2
    assert sightline("cache", "import", out, "--out", tmp_path / "back") == 0
    after = FeatureSet.open(tmp_path / "back")
    assert after.record.spec.kind == kind
    assert after.fingerprint != before.fingerprint  # what computed the rows is hearsay
    np.testing.assert_array_equal(after.keys, before.keys)
    rows = np.arange(len(before))
    assert after.gather(rows).tobytes() == before.gather(rows).tobytes()
    assert len(before.failed) == 1
    assert str(after.record.provenance) == "imported, not checked"
    assert verify(tmp_path / "back") == []


@pytest.mark.parametrize("form", ["parquet", "npy"])
def test_an_export_is_imported_as_what_it_is_alone(tmp_path, capsys, form):
    write_set(tmp_path / "set", "float16", "object")
    out = export(tmp_path, form)
    words = ["cache", "import", out, "--out", tmp_path / "back", "--kind"]
    assert sightline(*words, "image") == 1
    assert "exported features of kind object; leave out --kind" in capsys.readouterr().err
    assert sightline(*words, "object") == 0
    assert sightline("cache", "import", out, "--out", tmp_path / "without") == 0
    (out / "export.json").write_text("[]")  # of another tool
    assert sightline("cache", "import", out, "--out", tmp_path / "more", "--kind", "object") == 0


def test_objects_are_known_by_keys_alone(tmp_path, capsys):
    pq.write_table(
        pa.table({"path": ["a.png"], "x": pa.array([[0.5, 1.0]])}), tmp_path / "a.parquet"
    )
    words = ["cache", "import", tmp_path / "a.parquet", "--kind", "object", "--out", tmp_path / "b"]
    for more in ([], ["--names", "path"]):
        assert sightline(*words, *more) == 1
        assert "without one that holds keys of cut-outs, such as 'key'" in capsys.readouterr().err


@pytest.mark.parametrize(("form", "table"), [("parquet", "data"), ("npy", "metadata")])
def test_every_image_and_caption_of_a_row_is_listed_with_its_split(tmp_path, form, table):
    data = write_twice(tmp_path)
    write_set(tmp_path / "set", "float16", keys=data.image_keys[:2])
    rows = pq.read_table(export(tmp_path, form, "--data", data.folder) / table).to_pylist()
    columns = {"key", "image_path", "image_ids", "splits"}
    assert {*rows[0]} - {"features"} == columns
    by_key = {row["key"]: [row["image_path"], row["image_ids"], row["splits"]] for row in rows}
    assert by_key == {
        key_of_file(tmp_path / "photos/a.png").hex(): [
            "a.png",
            ["a.png", "copy of a.png"],
            ["train", "dev"],
        ],
        key_of_file(tmp_path / "photos/b.png").hex(): ["b.png", ["b.png"], ["test"]],
    }

    shutil.rmtree(tmp_path / "set")
    shutil.rmtree(tmp_path / "out")
    texts = ["a dog", "a red dog", "without a row", "in no data set"]
    write_set(tmp_path / "set", "float16", "text", keys=keys_of_texts(texts))
    rows = pq.read_table(export(tmp_path, form, "--data", data.folder) / table).to_pylist()
    assert {*rows[0]} - {"features"} == {"key", "caption", "caption_ids", "splits"}
    by_text = {row["caption"]: [row["caption_ids"], row["splits"]] for row in rows}
    assert by_text == {
        "a dog": [["a.png#0", "b.png#0"], ["train", "test"]],
        "a red dog": [["a.png#1"], ["train"]],
        None: [[], []],
    }
    assert "columns `caption`, `caption_ids`, `splits`" in (tmp_path / "out/README.md").read_text()


def test_an_empty_set_is_exported_too(tmp_path):
    write_set(tmp_path / "set", "float16", rows=0)
    assert pq.read_table(export(tmp_path, "parquet") / "data/rows-0000.parquet").num_rows == 0
    assert np.load(export(tmp_path, "npy") / "img_emb/img_emb_0000.npy").shape == (0, DIM)


@pytest.mark.parametrize(("form", "dtype"), [("parquet", "float16"), ("npy", "float32")])
def test_datasets_opens_it_and_the_card_shows_code_that_runs(tmp_path, monkeypatch, form, dtype):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    before = write_set(tmp_path / "set", dtype)
    out = export(tmp_path, form, "--licence", "cc-by-4.0")
    rows = datasets.load_dataset(str(out), split="train")
    assert [bytes.fromhex(key) for key in rows["key"]] == [key.tobytes() for key in before.keys]
    if form == "parquet":
        kind = rows.features.arrow_schema.field("features").type
        assert (kind.list_size, kind.value_type) == (DIM, pa.float16())
    text = (out / "README.md").read_text()
    assert "license: cc-by-4.0" in text
    assert "computed here" in text
    assert str(tmp_path) not in text
    code, _ = re.findall(r"```python\n(.*?)```", text, re.S)
    monkeypatch.chdir(out)
    names: dict = {}
    exec(code.replace("path/to/this/folder", str(out)), names)
    found = names["rows"]["features"] if form == "parquet" else names["rows"]
    expected = before.gather(np.arange(len(before)))
    assert np.asarray(found[:], dtype=dtype).tobytes() == expected.tobytes()


@pytest.mark.parametrize("form", ["parquet", "npy"])
@pytest.mark.parametrize("kind", ["image", "teacher", "object"])
def test_the_card_shows_how_rows_are_joined_with_a_manifest(tmp_path, form, kind):
    pytest.importorskip("pandas")
    data = write_twice(tmp_path)
    cutout = {
        **{"image_key": data.image_keys[0].tobytes(), "caption_key": b"c" * 32, "phrase": "a dog"},
        **{"char_start": 0, "char_end": 5, "box": [0.0, 0.0, 2.0, 2.0], "score": 1.0},
        **{"mask": {"size": [2, 3], "counts": "06"}, "cutout_key": b"o" * 32},
    }
    phrases = pa.Table.from_pylist([cutout], PHRASES)
    write_manifest(data.folder / "phrases.parquet", phrases, PHRASES)
    names = {
        "image": ("image_id", ["a.png", "copy of a.png"], data.image_keys[:1]),
        "teacher": ("caption_id", ["a.png#0", "b.png#0"], keys_of_texts(["a dog"])),
        "object": ("phrase", ["a dog"], as_keys([b"o" * 32])),
    }
    column, expected, keys = names[kind]
    features = write_set(tmp_path / "set", "float16", kind, keys=keys)
    text = (export(tmp_path, form) / "README.md").read_text()
    _, code = re.findall(r"```python\n(.*?)```", text, re.S)
    found: dict = {}
    code = code.replace("path/to/this/folder", str(tmp_path / "out"))
    exec(code.replace("path/to/manifests", str(data.folder)), found)
    assert [*found["joined"][column]] == expected
    assert {*found["joined"]["key"]} == {features.keys[0].tobytes().hex()}


def test_the_page_trains_a_student_on_a_teacher(tmp_path, monkeypatch):
    pytest.importorskip("sentence_transformers", minversion="6.0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    for name in ("datasets", "transformers"):
        pytest.importorskip(name).utils.logging.disable_progress_bar()
    for part in make_encoder():
        part.save_pretrained(tmp_path / "bert")
    (tmp_path / "s.txt").write_text("".join(f"text {i}\n" for i in range(ROWS)))
    assert sightline("prepare", "sentences", "--path", "s.txt", "--out", "data") == 0
    write_set(tmp_path / "set", "float16", "teacher")
    words = ["--format", "parquet", "--data", "data", "--out", "teacher-of-mine"]
    assert sightline("cache", "export", "set", *words) == 0
    page = (Path(__file__).parents[2] / "docs/cache.md").read_text()
    (block,) = [b for b in re.findall(r"```python\n(.*?)```", page, re.S) if "EmbedDistill" in b]
    names: dict = {}
    exec(block.replace("bert-base-uncased", "bert"), names)
    assert len(names["rows"]) == ROWS - 1
    assert names["loss"].projection.out_features == DIM


def said_by(capsys: pytest.CaptureFixture, *words: object) -> tuple[int, str]:
    code = sightline("cache", "export", *words)
    return code, capsys.readouterr().err


OTHERS = {
    "kind": ({"kind": "text"}, "--format parquet", "kind: image → text"),
    "dtype": ({"dtype": "float32"}, "--format parquet", "dtype: float16 → float32"),
    "rows": (
        {"keys": keys_of_texts(["text 3", "other"])},
        "--format parquet",
        "this one has 1 of its 89 rows",
    ),
    "format": ({}, "--format npy", "as parquet, not npy"),
    "normalised": ({}, "--format parquet --normalise", "normalised: absent → True"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_export_of_another_set_is_not_replaced(tmp_path, capsys, name):
    changes, words, difference = OTHERS[name]
    write_set(tmp_path / "set", "float16")
    out = export(tmp_path, "parquet")
    write_set(tmp_path / "other", **{"dtype": "float16", **changes})
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    code, error = said_by(capsys, tmp_path / "other", *words.split(), "--out", out)
    assert code == 1
    assert difference in error
    assert "name another output, or delete that export first" in error
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    (out / "data/rows-0000.parquet").write_bytes(b"PAR1 damaged")
    code, error = said_by(capsys, tmp_path / "set", "--format", "parquet", "--out", out)
    assert code == 1
    assert "cannot be read" in error
    shutil.rmtree(out)
    code, error = said_by(capsys, tmp_path / "other", *words.split(), "--out", out)
    assert (code, error) == (0, "")


@pytest.mark.parametrize("name", ["kind", "dtype", "rows"])
def test_the_tar_of_another_set_is_not_replaced(tmp_path, capsys, name):
    changes, _, difference = OTHERS[name]
    write_set(tmp_path / "set", "float16")
    write_set(tmp_path / "other", **{"dtype": "float16", **changes})
    out = tmp_path / "set.tar"
    assert said_by(capsys, tmp_path / "set", "--out", out) == (0, "")
    before = out.read_bytes()
    code, error = said_by(capsys, tmp_path / "other", "--out", out)
    assert code == 1
    assert difference in error
    assert "name another output, or delete that export first" in error
    assert out.read_bytes() == before
    out.write_bytes(before[:1000])
    code, error = said_by(capsys, tmp_path / "set", "--out", out)
    assert code == 1
    assert "cannot be read" in error
    out.unlink()
    assert said_by(capsys, tmp_path / "other", "--out", out) == (0, "")


@pytest.mark.parametrize("form", ["parquet", "npy", "tar"])
def test_an_export_of_a_set_that_has_grown_or_shrunk_replaces_its_own_files(
    tmp_path, monkeypatch, capsys, form
):
    monkeypatch.setattr(row_files, "FILE_BYTES", 600)
    out = tmp_path / "out"
    for count in (20, 90, 60):
        write_set(tmp_path / f"{count}", "float16", rows=count)
        words = (tmp_path / f"{count}", "--format", form, "--out", out)
        assert said_by(capsys, *words) == (0, "")
        again, text = said_by(capsys, *words)
        assert (again, text) == (0, "")
    if form != "tar":
        name = "data" if form == "parquet" else "metadata"
        assert pq.read_table(out / name).num_rows == 59
    else:
        assert sightline("cache", "import", out, "--out", tmp_path / "back") == 0
        assert len(FeatureSet.open(tmp_path / "back")) == 59


def test_normalised_rows_are_another_set(tmp_path):
    write_set(tmp_path / "set", "float32")
    out = export(tmp_path, "npy", "--normalise")
    rows = np.load(out / "img_emb/img_emb_0000.npy", allow_pickle=False)
    lengths = np.linalg.norm(rows.astype(np.float64), axis=1)
    assert ((np.abs(lengths - 1) < 1e-6) | (lengths == 0)).all()
    card = (out / "README.md").read_text()
    assert "Every row has length 1." in card
    assert "Content digest" not in card
