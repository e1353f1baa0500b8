"""Tables of captions as other tools write them: columns, formats, lists, splits."""

from __future__ import annotations

import csv
import gzip
import json

import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from caption_reading import read_captions

from sightline.errors import SightlineError
from sightline.tables.outside_columns import Wanted, choose, wanted_of_captions
from sightline.tables.outside_tables import open_table

NAMES, TEXTS = ["0.png", "1.png"], ["A red box", 'A sign, "STOP", in\ttabs']
FRAME = pd.DataFrame({"image": NAMES, "caption": TEXTS})


def feathered(path) -> None:
    feather.write_feather(pa.Table.from_pandas(FRAME), str(path))


def kaggle(path) -> None:
    rows = "".join(f"{n}| {k}| {t}\n" for k, (n, t) in enumerate(zip(NAMES, TEXTS, strict=True)))
    path.write_text("image_name| comment_number| comment\n" + rows)


WRITERS = {
    "a.csv": lambda path: FRAME.to_csv(path, index=False),
    "a.CSV": lambda path: FRAME.to_csv(path, index=False),
    "b.csv": lambda path: FRAME.to_csv(path, index=False, sep=";"),
    "c.csv": lambda path: FRAME.rename(columns={"image": "filepath", "caption": "title"}).to_csv(
        path, index=False, sep="\t"
    ),
    "d.csv.gz": lambda path: FRAME.to_csv(path, index=False),
    "a.tsv": lambda path: FRAME.to_csv(path, index=False, sep="\t"),
    "a.jsonl": lambda path: FRAME.to_json(path, orient="records", lines=True),
    "b.jsonlines": lambda path: FRAME.to_json(path, orient="records", lines=True),
    "c.jsonl": lambda path: FRAME.to_json(path, orient="records"),
    "d.jsonl.gz": lambda path: FRAME.to_json(path, orient="records", lines=True),
    "a.json": lambda path: FRAME.to_json(path, orient="records"),
    "b.json": lambda path: FRAME.to_json(path),
    "c.json": lambda path: (
        FRAME.to_json(path, orient="list")
        if False
        else path.write_text(json.dumps(FRAME.to_dict("list")))
    ),
    "d.json": lambda path: path.write_text(json.dumps(dict(zip(NAMES, TEXTS, strict=True)))),
    "a.parquet": lambda path: FRAME.to_parquet(path),
    "a.pq": lambda path: FRAME.to_parquet(path),
    "b.csv.parquet": lambda path: FRAME.to_parquet(path),
    "a.feather": feathered,
    "excel.csv": lambda path: path.write_text(
        "\r\n" + FRAME.assign(x="", y="").to_csv(index=False, sep=";").replace("x;y", ";")
    ),
    "captions.txt": lambda path: FRAME.to_csv(path, index=False),
    "results.csv": kaggle,
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_table_is_read_as_its_writer_wrote_it(tmp_path, name):
    WRITERS[name](tmp_path / name)
    captions = read_captions(tmp_path / name)
    assert captions.images == NAMES
    assert [text.strip() for text in captions.texts] == TEXTS


def said(tmp_path, rows, name="c.jsonl", splits=None, **given):
    (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_captions(tmp_path / name, wanted_of_captions(**given), splits)


def test_columns_are_known_by_name_or_given_also_inside_objects(tmp_path):
    rows = [{"file_name": "0.png", "description": "one", "who": "me"}]
    captions = said(tmp_path, rows)
    assert (captions.images, captions.texts) == (["0.png"], ["one"])
    assert captions.remarks == [
        "c.jsonl: column 'file_name' read as image",
        "c.jsonl: column 'description' read as caption",
    ]
    rows = [{"img": {"name": "0.png"}, "sentences": [{"raw": "one"}, {"raw": "two"}], "x": "three"}]
    captions = said(tmp_path, rows, image="img.name", caption=("sentences.raw", "x"))
    assert captions.images == ["0.png"] * 3
    assert captions.texts == ["one", "two", "three"]
    assert captions.remarks == []


ONE = {"image": "0", "caption": "x"}
FAULTS = [
    ([{"filename": "0", "filepath": "1", "text": "x"}], {}, "'filename' and 'filepath' may both"),
    ([{"image": "0", "text": "x", "title": "y"}], {}, "'text' and 'title' may both be the caption"),
    ([{"img": "0", "caption": "x"}], {}, "found 'img', 'caption'; expected image (or file_name"),
    ([ONE], {"image": "name"}, "has no column 'name', which `image_column` names"),
    ([{**ONE, "image": {"bytes": "x"}}], {}, "use the kind `huggingface`"),
    ([{**ONE, "caption": ["a", "b"], "caption_id": ["1"]}], {}, "caption_id: 1 for 2 captions"),
    ([{**ONE, "caption": ["a", 3]}], {}, "line 1: caption: found 3, expected a valid string"),
    ([ONE, {**ONE, "split": "dev"}], {}, "line 2: has 'split', which the first object lacks"),
]


@pytest.mark.parametrize(("rows", "given", "message"), FAULTS)
def test_what_cannot_be_meant_is_one_error(tmp_path, rows, given, message):
    with pytest.raises(SightlineError) as error:
        said(tmp_path, rows, **given)
    assert message in str(error.value)
    assert str(tmp_path / "c.jsonl") in str(error.value)


@pytest.mark.parametrize("name", ["c.csv", "c.tsv"])
def test_a_cell_of_text_has_no_fields(tmp_path, name):
    FRAME.to_csv(tmp_path / name, index=False, sep=",\t"[name == "c.tsv"])
    with pytest.raises(SightlineError, match=r"has no column 'caption\.y', which `caption_column`"):
        read_captions(tmp_path / name, wanted_of_captions(caption="caption.y"))


def test_what_is_left_unused_is_said(tmp_path):
    (tmp_path / "c.csv").write_text("image,caption,title\n0.png,one,two\n")
    assert read_captions(tmp_path / "c.csv").remarks == [
        "c.csv: column 'title' is not used; `caption_column` chooses it"
    ]


def test_lists_have_ids_of_their_own(tmp_path):
    rows = [{"image": "0", "caption": ["a", "b"], "caption_id": ["x", "y"]}]
    assert said(tmp_path, rows).ids == ["x", "y"]
    assert said(tmp_path, [{"image": "0", "caption": ["a", "b"], "caption_id": 7}]).ids == [
        "7#0",
        "7#1",
    ]
    assert said(
        tmp_path, [{"image": "0", "caption": []}, {"image": "1", "caption": "a"}]
    ).images == ["1"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_what_is_missing_in_a_cell_is_empty_in_every_format(tmp_path, suffix):
    path, frame = tmp_path / f"c.{suffix}", FRAME.assign(split=["train", None])
    frame.loc[0, "caption"] = None
    if suffix == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        getattr(frame, f"to_{suffix}")(path, index=False)
    captions = read_captions(path)
    assert captions.texts == ["", TEXTS[1]]
    assert captions.splits == ["train", ""]


def test_a_missing_text_is_counted_also_in_a_list_and_as_pandas_number(tmp_path):
    rows = [{"image": "0", "caption": ["a", None]}, {"image": "1", "caption": float("nan")}]
    assert said(tmp_path, rows).texts == ["a", "", ""]


def test_a_row_without_an_image_is_counted(tmp_path):
    rows = [{"image": None, "caption": "a"}, {"image": "1", "caption": "b"}]
    captions = said(tmp_path, rows)
    assert captions.images == ["1"]
    assert captions.problems == {"rows_without_image": ["1"]}
    (tmp_path / "c.csv").write_text("image,caption\n ,a\n1,b\n")
    assert read_captions(tmp_path / "c.csv").problems == {"rows_without_image": ["2"]}


def test_an_image_may_be_named_by_a_number(tmp_path):
    assert said(tmp_path, [{"image": 7, "caption": "a"}]).images == ["7"]


@pytest.mark.parametrize("dump", [json.dumps, repr], ids=["JSON", "Python"])
def test_lists_written_into_cells_are_lists(tmp_path, dump):
    path = tmp_path / "c.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "caption"])
        writer.writerows([name, dump([f"{name} one", "it's two"])] for name in NAMES)
    captions = read_captions(path)
    assert captions.texts == ["0.png one", "it's two", "1.png one", "it's two"]
    assert captions.remarks == ["c.csv: lists of captions read from its cells"]
    with path.open("a", newline="") as file:
        csv.writer(file).writerow(["1.png", "[sic] a caption"])
    with pytest.raises(SightlineError, match="2 of 3 cells hold lists, the others text"):
        read_captions(path)


def test_quotation_marks_in_a_list_are_no_array(tmp_path):
    texts = ['a sign says "stop" "now"', "it's"]
    with (tmp_path / "c.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["image", "caption"], ["0.png", repr(texts)]])
    assert read_captions(tmp_path / "c.csv").texts == texts


def test_an_array_as_numpy_prints_it_is_refused(tmp_path):
    (tmp_path / "c.csv").write_text("image,caption\n0.png,\"['one' 'two']\"\n")
    with pytest.raises(SightlineError, match="a NumPy array as it prints"):
        read_captions(tmp_path / "c.csv")


@pytest.mark.parametrize("key", ["data", "annotations"])
def test_the_only_list_of_objects_in_an_object_is_the_table(tmp_path, key):
    rows = [{"image_name": "0.png", "caption_str": "one"}]
    (tmp_path / "c.json").write_text(json.dumps({"name": "textcaps", "tags": [], key: rows}))
    captions = read_captions(tmp_path / "c.json", wanted_of_captions(caption="caption_str"))
    assert (captions.images, captions.texts) == (["0.png"], ["one"])
    assert captions.remarks[0] == f"c.json: the rows are those of {key!r}"


TASK = {"annotations": [], "data": {"image": "0.png", "words": "one"}, "predictions": []}
KINDS = [
    ({"images": [{"id": 1}], "annotations": []}, "use the kind `coco`"),
    ({"dataset": "coco", "images": [{"filename": "0.png"}]}, "give it as `karpathy`"),
    ([{"image": "0.png", "conversations": [{"from": "gpt", "value": "x"}]}], "as LLaVA has them"),
    ([{"images": ["0.png"], "messages": [{"role": "user", "content": "x"}]}], "as LLaVA has them"),
    ([TASK], "Label Studio's tasks; export JSON-MIN or CSV"),
    ({"image_urls": ["http://a/0.jpg"], "captions": ["a"]}, "'image_urls' gives URLs"),
    ({"info": {}, "annotations": [{"image_url": "http://a", "caption": "a"}]}, "gives URLs"),
]


@pytest.mark.parametrize(("content", "message"), KINDS)
def test_json_of_other_kinds_is_sent_there(tmp_path, content, message):
    (tmp_path / "c.json").write_text(json.dumps(content))
    with pytest.raises(SightlineError, match=message):
        read_captions(tmp_path / "c.json")


def test_columns_that_are_named_are_read_whatever_the_table_is(tmp_path):
    captions = said(tmp_path, [TASK], image="data.image", caption="data.words")
    assert (captions.images, captions.texts) == (["0.png"], ["one"])


def test_splits_of_other_names_are_chosen(tmp_path):
    rows = [
        {"image": f"{n}.png", "caption": "a", "split": split}
        for n, split in enumerate(["train", "restval", "qual_dev", "test"])
    ]
    captions = said(tmp_path, rows, splits={"train": ["train", "restval"], "dev": ["qual_dev"]})
    assert captions.images == ["0.png", "1.png", "2.png"]
    assert captions.splits == ["train", "train", "dev"]
    assert captions.left_out == {"3.png"}
    assert captions.counts["rows_of_other_splits"] == 1
    with pytest.raises(SightlineError, match=r"no row has 'val', which `splits\.dev` names"):
        said(tmp_path, rows, splits={"dev": ["val"]})


def test_a_binary_file_is_called_what_it_is(tmp_path):
    (tmp_path / "c.csv").write_bytes(b"PK\x03\x04" + bytes(40))
    with pytest.raises(SightlineError, match="a zip archive; expected a table of captions"):
        read_captions(tmp_path / "c.csv")
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(b"0.png#0\tA dog\n"))
    assert read_captions(tmp_path / "train.en.gz").texts == ["A dog"]
    pq.write_table(pa.table({"url": ["u"], "caption": ["x"]}), tmp_path / "p.csv")
    with pytest.raises(SightlineError, match="'url' gives URLs, expected names of images"):
        read_captions(tmp_path / "p.csv")


def test_a_table_that_was_not_read_to_its_end_limits_no_other(tmp_path):
    quoted = 'image\tcaption\n0.png\t"a sign, ""{}"", in\ttabs"\n'
    tables = []
    for number, length in enumerate((10, 2000)):
        path = tmp_path / f"{number}.tsv"
        path.write_text(quoted.format("x" * length))
        tables.append(open_table(path, "a table").read(["image"]))
        next(tables[-1])
    tables[0].close()
    tables[1].close()
    (tmp_path / "c.tsv").write_text(quoted.format("x" * 200_000))
    assert len(read_captions(tmp_path / "c.tsv").texts[0]) > 200_000


def test_a_column_that_no_setting_asks_for_may_come_later(tmp_path):
    records = [{"sentence": "a dog"}, {"sentence": "a cat", "title": "Cats"}]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, records)))
    table = open_table(tmp_path / "s.jsonl", "sentences")
    assert choose(table, {"sentence": Wanted()}) == {"sentence": ("sentence",)}
    assert [values for _, values in table.read(["sentence"])] == [["a dog"], ["a cat"]]
