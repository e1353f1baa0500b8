"""Rows of any reader of Arrow become the manifests that the same rows in a Parquet file become."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packed import column, load_all, picture, texts

from pipeline.datasets.huggingface import HuggingFaceSource
from pipeline.datasets.prepare import building
from pipeline.datasets.prepare import prepare as prepare_source
from pipeline.datasets.source import PrepareReport
from pipeline.datasets.table_rows import rows_to_manifests
from sightline.errors import SightlineError

ROWS = pa.table(
    {
        "picture": [picture(number) for number in (0, 1, 0, 2)],
        "said": [["a dog", "a cat"], ["a fish"], ["one more dog"], []],
        "part": ["train", "val", "train", "test"],
        "vector": [[1.0]] * 4,
    }
)
COLUMNS = {"image": "picture", "caption": "said", "split": "part"}


def prepare(batches, out: Path, **given) -> PrepareReport:
    with building("rows", out, []) as (folder, report):
        rows_to_manifests(batches, folder, report, where="the lake", **given)
    return report


def one_by_one(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Batches of one row, which can be read once."""
    yield from table.to_batches(max_chunksize=1)


def test_rows_become_what_they_become_in_a_file(out, tmp_path):
    report = prepare(one_by_one(ROWS), out, **COLUMNS)
    assert column(out, "image_id") == ["0", "1", "3"]
    assert texts(out) == {"0#0": "a dog", "0#1": "a cat", "1#0": "a fish", "0#2": "one more dog"}
    assert column(out, "split") == ["train", "dev", "test"]
    assert len(load_all(out)) == 3
    assert report.counts["columns_not_read"] == 1
    assert report.problems == {"images_without_caption": ["3"]}

    pq.write_table(ROWS, tmp_path / "rows.parquet")
    source = HuggingFaceSource(
        path=tmp_path / "rows.parquet",
        image_column="picture",
        caption_column="said",
        split_column="part",
    )
    prepare_source(source, tmp_path / "from file")
    for name in ("images.parquet", "captions.parquet", "sentences.parquet", "images/00000.tar"):
        assert (out / name).read_bytes() == (tmp_path / "from file" / name).read_bytes()


def test_usual_names_and_chosen_splits(out):
    table = ROWS.rename_columns(["image", "caption", "split", "v"])
    report = prepare(table.to_batches(), out, split="split", splits={"dev": ["val", "test"]})
    assert column(out, "split") == ["dev", "dev"]
    assert report.counts["rows_of_other_splits"] == 2
    assert "column 'split' (test, train, val) is not used; `split` takes" in (
        prepare(table.to_batches(), out).summary()
    )


def test_a_caption_id_is_of_one_caption_as_in_a_table_of_captions(out):
    table = ROWS.append_column("id", pa.array([["1", "2"], ["3"], ["1"], []]))
    with pytest.raises(SightlineError, match="the lake: 1 duplicate caption ids, the first is '1'"):
        prepare(table.to_batches(), out, **COLUMNS, caption_id="id")


def test_paths_start_from_the_given_folder(out, make_images):
    images = make_images(["a.png", "b.png"])
    table = pa.table({"image": ["a.png", "b.png"], "caption": ["one", "two"]})
    prepare(table.to_batches(), out, images=images)
    assert column(out, "path") == ["a.png", "b.png"]
    assert not (out / "images").exists()


@pytest.mark.parametrize(
    ("table", "given", "message"),
    [
        (ROWS.slice(0, 0), {}, "the lake: contains no rows"),
        (ROWS, {"image": "photo"}, "the lake: has no column 'photo', which `image` names"),
        (ROWS, {"image": "picture"}, r"wrong columns: .* choose one with `caption`"),
        (ROWS, COLUMNS | {"image": "vector"}, "column 'vector' is list<.*another column with `im"),
        (ROWS, COLUMNS | {"splits": {"dev": "none"}}, "the lake, column part: no row has 'none'"),
        (
            pa.table({"image": ["a.png"], "caption": ["a"]}),
            {},
            r"the lake: row 0 names its image by path, 'a.png'; give `images`",
        ),
        (
            pa.table({"image": ["/9j/" * 400], "caption": ["a"]}),
            {"images": Path()},
            "the lake: row 1: its image is text of 1,600 characters, expected bytes or a path; of",
        ),
        (ROWS, COLUMNS | {"images": Path()}, "contains the images themselves, so `images` does n"),
    ],
)
def test_what_cannot_be_read_is_one_error(out, table, given, message):
    with pytest.raises(SightlineError, match=message):
        prepare(one_by_one(table), out, **given)


def test_many_rows_are_kept_in_arrow_and_told(out, monkeypatch):
    monkeypatch.setattr("pipeline.datasets.manifests._IN_LISTS", 3)
    told = []
    table = pa.table(
        {"image": [picture(n) for n in range(8)], "caption": [f"{n}" for n in range(8)]}
    )
    prepare(one_by_one(table), out, total=8, progress=lambda *told_now: told.append(told_now))
    assert column(out, "image_id") == [str(number) for number in range(8)]
    assert list(texts(out).values()) == [str(number) for number in range(8)]
    assert ("reading", 8, 8, "rows") in told
