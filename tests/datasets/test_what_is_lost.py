"""Every loss in every source: counted, named in dataset.json, refused with `strict`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packed import picture, write_tar

from pipeline.datasets import source as sources
from pipeline.datasets.prepare import prepare, prepare_dataset
from pipeline.datasets.source import DatasetError, PrepareReport, Source
from sightline.errors import SightlineError

SOURCES = ("csv", "tsv", "token", "jsonl", "karpathy", "coco", "webdataset", "huggingface")
Row = tuple[int, str, str]  # number of the picture, split, caption

GOOD: list[Row] = [(0, "train", "one"), (1, "test", "two")]
ROWS: dict[str, list[Row]] = {
    "images_in_two_splits": [*GOOD, (0, "test", "a copy")],
    "images_without_caption": [*GOOD, (2, "train", "")],
    "empty_captions": [*GOOD, (2, "train", "\u2800")],
    "unreadable_images": [*GOOD, (-1, "train", "not an image")],
}


def data(number: int) -> bytes:
    return b"no image" if number < 0 else picture(number)


def build(source: str, folder: Path, rows: list[Row]) -> tuple[str, dict[str, Any]]:
    """The rows as ``source`` has them, each with a file of its own: kind and parameters."""
    folder.mkdir()
    names = [f"{split}-{at}.png" for at, (_, split, _) in enumerate(rows)]
    named = [(name, split, text) for name, (_, split, text) in zip(names, rows, strict=True)]
    if source == "huggingface":
        pytest.importorskip("datasets")

        columns = {
            "image": [data(number) for number, _, _ in rows],
            "split": [split for _, split, _ in rows],
            "caption": [[text] if text else [] for _, _, text in rows],
        }
        pq.write_table(pa.table(columns), folder / "a.parquet")
        return source, {"path": folder, "split_column": "split"}
    if source == "webdataset":
        for split in {split for _, split, _ in rows}:
            members = []
            for (number, _, text), (name, of, _) in zip(rows, named, strict=True):
                said = [(name.replace("png", "txt"), text)] if text else []
                members += [(name, data(number)), *said] if of == split else []
            write_tar(folder / f"{split}.tar", members)
        return source, {
            "images": folder,
            "splits": {path.stem: path.name for path in folder.glob("*.tar")},
        }
    for name, (number, _, _) in zip(names, rows, strict=True):
        (folder / name).write_bytes(data(number))
    said = [row for row in named if row[2]]
    if source in ("karpathy", "coco"):
        return _json(source, folder, named)
    lists = {}
    for split in {split for _, split, _ in rows}:
        lists[split] = folder / f"{split}.list"
        lists[split].write_text("\n".join(name for name, of, _ in named if of == split))
    file = folder / f"said.{source}"
    mark = "," if source == "csv" else "\t"
    if source == "token":
        lines = [f"{name}#0\t{text}" for name, _, text in said]
    elif source == "jsonl":
        lines = [json.dumps({"image": name, "caption": text}) for name, _, text in said]
    else:
        lines = [f"image{mark}caption", *(f"{name}{mark}{text}" for name, _, text in said)]
    file.write_text("\n".join(lines))
    return "pairs", {"images": folder, "captions": file, "splits": lists}


def _json(source: str, folder: Path, named: list[tuple[str, str, str]]):
    if source == "karpathy":
        images = [
            {"filename": name, "split": split, "sentences": [{"raw": text}] if text else []}
            for name, split, text in named
        ]
        (folder / "k.json").write_text(json.dumps({"images": images}))
        return "pairs", {"images": folder, "karpathy": folder / "k.json"}
    files = {}
    for split in {split for _, split, _ in named}:
        files[split] = folder / f"{split}.json"
        rows = [(at, *row) for at, row in enumerate(named) if row[1] == split]
        images = [{"id": at, "file_name": name} for at, name, _, _ in rows]
        texts = [{"id": at, "image_id": at, "caption": text} for at, _, _, text in rows if text]
        files[split].write_text(json.dumps({"images": images, "annotations": texts}))
    return "coco", {"images": folder, "captions": files}


@pytest.mark.parametrize("loss", ROWS)
@pytest.mark.parametrize("source", SOURCES)
def test_every_source_counts_every_loss(source, loss, tmp_path, out):
    kind, given = build(source, tmp_path / "in", ROWS[loss])
    prepare_dataset(kind, out, **given)
    record = json.loads((out / "dataset.json").read_text())
    bare = {"images_without_caption": 1} if loss == "empty_captions" else {}
    assert record["problem_counts"] == {loss: 1, **bare}
    assert len(record["problems"][loss]) == 1
    with pytest.raises(DatasetError, match=f"(?s)strict is set .*{sources.spelled(loss)}: 1 "):
        prepare_dataset(kind, out, strict=True, **given)


@pytest.mark.parametrize("source", ["csv", "tsv", "jsonl", "parquet", "sentences"])
def test_every_table_counts_the_columns_that_are_not_read(source, tmp_path, make_images, out):
    folder = make_images(["0.png"])
    rows = pa.table({"image": ["0.png"], "text": ["a dog"], "licence": ["CC"], "n": [1]})
    path, frame = tmp_path / f"t.{source.replace('sentences', 'csv')}", rows.to_pandas()
    if source == "parquet":
        pq.write_table(rows, path)
    elif source == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, index=False, sep="\t" if source == "tsv" else ",")
    if source == "sentences":
        prepare_dataset("sentences", out, path=path)
    else:
        prepare_dataset("pairs", out, images=folder, captions=path)
    counts = json.loads((out / "dataset.json").read_text())["counts"]
    assert counts["columns_not_read"] == (3 if source == "sentences" else 2)


def test_every_loss_of_the_code_is_in_the_table():
    folder = Path(sources.__file__).parent
    used = set()
    for path in folder.rglob("*.py"):
        text = path.read_text()
        used |= set(re.findall(r'(?:\.problem|\.note|\.warn)\(\s*"(\w+)"', text))
        used |= set(re.findall(r'\("(\w+)", (?:UNKNOWN|AMBIGUOUS)\)', text))
        used |= set(re.findall(r"problems\[\"(\w+)\"\]", text))
    assert used | {"incomplete_shards"} == set(sources.LOSSES)


def test_members_whose_key_contains_a_dot_are_named(tmp_path, out):
    members = [(f"a{end}", content) for end, content in ((".png", picture(0)), (".txt", "a"))]
    members += [("a.mask.png", picture(1)), ("b.5.png", picture(2)), ("sub/b.5.txt", "b")]
    members += [("a.5.png", picture(3)), ("a.5.txt", "c")]
    write_tar(tmp_path / "in/0.tar", members)
    prepare_dataset("webdataset", out, images=tmp_path / "in")
    problems = json.loads((out / "dataset.json").read_text())["problems"]
    assert problems == {
        "captions_whose_key_contains_a_dot": ["0.tar/sub/b.5.txt"],
        "images_whose_key_contains_a_dot": ["0.tar/b.5.png", "0.tar/a.5.png"],
    }
    write_tar(tmp_path / "in/0.tar", [("b.5.png", picture(2)), ("b.5.txt", "b")])
    with pytest.raises(SightlineError, match="ends a key at the first dot: rename the members"):
        prepare_dataset("webdataset", out.with_name("none"), images=tmp_path / "in")


@pytest.mark.parametrize(
    ("texts", "quoted"),
    [
        (['"A sign reads ""STOP"" ."', "two"], 1),
        (['"""Hello"" she says"', '"two"'], 2),
        (['"a 5"""', "two"], 1),
        (['"one"', "two"], 0),  # spoken, as Flickr's captions have it
        (['"one" and ""two""', 'a ""b"" c'], 0),
    ],
)
@pytest.mark.parametrize("suffix", ["tsv", "token", "csv"])
def test_texts_that_look_quoted_are_counted(tmp_path, out, texts, quoted, suffix):
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        (folder / f"{number}.png").write_bytes(picture(number))
    if suffix == "token":
        lines = [f"{n}.png#0\t{text}" for n, text in enumerate(texts)]
    else:
        mark = {"tsv": "\t", "csv": ","}[suffix]
        doubled = ['"{}"'.format(text.replace('"', '""')) for text in texts]
        values = doubled if suffix == "csv" else texts
        lines = [f"image{mark}caption", *(f"{n}.png{mark}{t}" for n, t in enumerate(values))]
    (folder / f"said.{suffix}").write_text("\n".join(lines))
    prepare_dataset("pairs", out, images=folder, captions=folder / f"said.{suffix}")
    record = json.loads((out / "dataset.json").read_text())
    counts = {"captions_that_look_quoted": quoted} if quoted and suffix == "token" else {}
    as_csv = "said.tsv: its quotation marks are those of CSV"
    assert record.get("guesses", []) == ([as_csv] if quoted and suffix == "tsv" else [])
    assert record["problem_counts"] == counts


def test_an_entry_of_a_split_that_several_files_fit_is_not_missing(tmp_path, out):
    folder = tmp_path / "in"
    for number, name in enumerate(("a/1.png", "b/1.png", "c/2.png")):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(picture(number))
    (folder / "said.token").write_text("1.png#0\tone\n2.png#0\ttwo")
    (folder / "train.txt").write_text("1\n2\n3")
    given = {"captions": folder / "said.token", "splits": {"train": folder / "train.txt"}}
    prepare_dataset("pairs", out, images=folder, **given)
    assert json.loads((out / "dataset.json").read_text())["problems"] == {
        "captions_of_ambiguous_image": ["1.png#0 (a/1.png or b/1.png)"],
        "images_without_caption": ["a/1.png", "b/1.png"],
        "split_entries_of_ambiguous_image": ["1"],
        "split_entries_without_image": ["3"],
    }


def read(tmp_path: Path, kind: str, **given) -> dict:
    out = tmp_path / f"out-{kind}"
    prepare_dataset(kind, out, **given)
    return json.loads((out / "dataset.json").read_text())


def test_hidden_folders_are_counted_by_every_source(tmp_path):
    for source in ("csv", "webdataset", "huggingface"):
        kind, given = build(source, tmp_path / source, GOOD)
        if kind == "webdataset":
            given = {"images": tmp_path / source}
        for name in (".thumbs", "deep/.cache"):
            (tmp_path / source / name).mkdir(parents=True)
            for suffix in ("png", "tar", "parquet"):
                (tmp_path / source / name / f"a.{suffix}").write_bytes(picture(0))
        data = Source.model_validate({"kind": kind, **given})
        lines = prepare(data, tmp_path / f"out-{source}").summary()
        record = json.loads((tmp_path / f"out-{source}/dataset.json").read_text())
        assert record["ignored"]["hidden folders"] == 2, source
        assert record["problem_counts"] == {}
        assert re.search("ignored: .*2 hidden folders", lines), source


def test_files_and_members_that_are_not_read_are_counted_by_suffix(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("a.png", "b.heic", "c.HEIC", "d.svg", "e", ".f.png"):
        (photos / name).write_bytes(picture(0))
    (tmp_path / "said.token").write_text("a.png#0\ta dog\n")
    record = read(tmp_path, "pairs", images=photos, captions=tmp_path / "said.token")
    expected = {".heic": 2, ".svg": 1, "no suffix": 1, "hidden": 1}
    assert (record["ignored"], record["counts"]["files_ignored"]) == (expected, 5)
    members = [("a.png", picture(0)), ("a.txt", "x"), ("a.TXT", "y"), ("a.seg.png", picture(1))]
    members += [("b.HEIC", b"x"), ("._a.png", b"of a Mac"), ("a.json", "{}")]
    write_tar(tmp_path / "tars/0.tar", members)
    write_tar(tmp_path / "tars/deep/1.tar", [("a.png", picture(1))])
    for name in ("2.tar.gz", "3.TAR", "0_stats.json"):
        (tmp_path / "tars" / name).write_bytes(b"")
    record = read(tmp_path, "webdataset", images=tmp_path / "tars")
    assert record["problems"] == {
        "captions_whose_key_has_another": ["0.tar/a.TXT"],
        "shards_not_read": ["2.tar.gz", "3.TAR", "deep/1.tar"],
    }
    assert record["ignored"] == {".heic": 1, ".json": 2, ".png": 1, "hidden": 1}
    record = read(tmp_path, "webdataset", images=tmp_path / "tars", shards="0.tar")
    assert "shards_not_read" not in record["problems"]  # they were not asked for


def test_a_kind_of_another_package_may_have_losses_of_its_own():
    report = PrepareReport("theirs")
    for names in (["a"], [], ["b", "c"]):
        report.note("of_their_own", names)
    assert report.problems == {"of_their_own": ["a", "b", "c"]}
    assert report.problem_counts == {"of_their_own": 3}
    with pytest.raises(DatasetError, match="of their own: 3"):
        report.refuse_problems()
