"""What a table of others is: by its suffix where it can be read so, else by its content."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sightline.errors import SightlineError
from sightline.tables.outside_columns import choose, wanted_of_captions
from sightline.tables.outside_tables import open_table
from sightline.user_files import read_lines

FRAME = pd.DataFrame(
    {"image": ["0.jpg", "1.jpg"], "caption": ["A box", "A dog, or two"], "split": ["train", "val"]}
)
ROWS = FRAME.to_numpy().tolist()
RECORDS = FRAME.to_dict("records")
CSV = FRAME.to_csv(index=False)


def as_json(orient: Any, **options: Any) -> str:
    return str(FRAME.to_json(orient=orient, **options))


LINES = as_json("records", lines=True)


def read(path: Path, columns: tuple[str, ...] = ("image", "caption", "split")) -> list[list[Any]]:
    """The rows of a table, in some columns."""
    return [row for _, row in open_table(path, "captions").read(columns)]


def chosen(path: Path) -> list[list[Any]]:
    """The rows of a table of captions, in the columns with usual names."""
    table = open_table(path, "captions")
    columns = choose(table, wanted_of_captions())
    return [row for _, row in table.read([name for names in columns.values() for name in names])]


def refusal(path: Path) -> str:
    """What is said of a table that cannot be read."""
    with pytest.raises(SightlineError) as error:
        chosen(path)
    return str(error.value)


FORMS: dict[str, tuple[str, str]] = {
    "JSON lines as .json": ("a.json", LINES),
    "JSON lines of old Macs": ("a.jsonl", LINES.replace("\n", "\r")),
    "JSON lines as .csv": ("a.csv", LINES),
    "JSON as .csv": ("a.csv", as_json("records")),
    "JSON of several lines as .jsonl": ("a.jsonl", as_json("columns", indent=1)),
    "a list as .jsonl": ("a.jsonl", as_json("records", indent=1)),
    "CSV as .json": ("a.json", CSV),
    "CSV as .tsv": ("a.tsv", CSV),
    **{
        f"pandas {orient}": ("a.json", as_json(orient))
        for orient in ("records", "columns", "index", "split", "table")
    },
    "pandas tight": ("a.json", json.dumps(FRAME.to_dict("tight"))),
    "named rows": ("a.json", json.dumps(dict(zip(("10", "11"), RECORDS, strict=True)))),
    "sep=;": ("a.csv", "sep=;\r\n" + FRAME.to_csv(index=False, sep=";", lineterminator="\r\n")),
    '"sep=|"': ("a.csv", '"sep=|"\n' + FRAME.to_csv(index=False, sep="|")),
    "sep=,": ("a.csv", "\ufeffsep=,\n" + CSV),
    "sep= and a tab": ("a.csv", "sep=\t\n" + FRAME.to_csv(index=False, sep="\t")),
    "old Mac": ("a.csv", CSV.replace("\n", "\r")),
    "old Mac, tabs": ("a.tsv", FRAME.to_csv(index=False, sep="\t").replace("\n", "\r")),
    "old Mac, semicolons": ("a.csv", FRAME.to_csv(index=False, sep=";").replace("\n", "\r")),
}


@pytest.mark.parametrize(("name", "text"), FORMS.values(), ids=FORMS)
def test_each_form_gives_the_same_rows(tmp_path, name, text):
    path = tmp_path / name
    path.write_bytes(text.encode())
    assert read(path) == ROWS


def test_the_suffix_decides_where_the_file_can_be_read_so(tmp_path):
    path = tmp_path / "a.tsv"  # one column, with commas
    path.write_text("sentence\nA dog, or two\n")
    assert read(path, ("sentence",)) == [["A dog, or two"]]
    path.write_text("sentence, or text\nA dog\n")
    assert open_table(path, "captions").columns == ("sentence, or text",)
    path = tmp_path / "a.csv"
    path.write_text("[image],caption\n0.jpg,A box\n")
    assert read(path, ("[image]", "caption")) == [["0.jpg", "A box"]]
    path = tmp_path / "a.json"
    path.write_text('{"image": "0.jpg", "caption": ["A box", "B"]}\n')  # a row, of one line
    assert read(path, ("image", "caption")) == [["0.jpg", ["A box", "B"]]]


def test_a_damaged_line_is_named_whatever_the_file_is_called(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(LINES + '{"image": "2.jpg", \n')
    with pytest.raises(SightlineError, match=r"a.json: line 3: not JSON"):
        read(path)


BY_NAME: dict[str, tuple[Any, list[list[Any]]]] = {
    "objects": ({"0.jpg": {"caption": "A"}, "1.jpg": {"caption": "B"}}, [["0.jpg", "A"]]),
    "stems": ({"0001": {"caption": "A"}, "0002": {"caption": "B"}}, [["0001", "A"]]),
    "several captions": ({"0.jpg": {"captions": ["A", "B"]}}, [["0.jpg", ["A", "B"]]]),
    "lists": (
        {"0.jpg": [{"caption": "A"}, {"caption": "B"}], "1.jpg": [{"caption": "C"}]},
        [["0.jpg", "A"], ["0.jpg", "B"]],
    ),
}


@pytest.mark.parametrize(("content", "rows"), BY_NAME.values(), ids=BY_NAME)
def test_keys_that_name_images_are_names(tmp_path, content, rows):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    assert chosen(path)[: len(rows)] == rows
    first = next(iter(content))
    assert f"a.json: its keys, such as '{first}', name images" in open_table(path, "").notes


def test_two_readings_are_an_error_that_names_both(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"0.jpg": {"image": "1.jpg", "caption": "A"}}))
    said = refusal(path)
    assert "its keys, such as '0.jpg', and 'image' in its objects may both name images" in said
    assert "remove 'image' from them, or write a list of the objects" in said


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
@pytest.mark.parametrize("at", [0, 1])
def test_a_null_is_a_row_without_values(tmp_path, suffix, at):
    path = tmp_path / f"a{suffix}"
    rows = [*RECORDS[:at], None, *RECORDS[at:]]
    lines = "\n".join(map(json.dumps, rows))
    path.write_text(json.dumps(rows) if suffix == ".json" else lines)
    table = open_table(path, "")
    columns = list(RECORDS[0])
    expected = [list((row or dict.fromkeys(columns)).values()) for row in rows]
    assert [list(values) for _, values in table.read(columns)] == expected


@pytest.mark.parametrize("texts", [[""], ["", None], [None, "A", ""]])
def test_texts_may_be_empty(tmp_path, texts):
    (tmp_path / "a.json").write_text(json.dumps(texts))
    table = open_table(tmp_path / "a.json", "")
    assert [list(values) for _, values in table.read(["sentence"])] == [[text] for text in texts]


FAULTS: dict[str, tuple[Any, str]] = {
    "values": (ROWS, r'as pandas writes with `orient="values"`.* write it with `orient="records"`'),
    "a number": ([*RECORDS, 3], "found 3 in its array, .*; remove it, or write an object in"),
    "unequal": ({"image": ["0.jpg"], "caption": []}, "columns of one length; write a list of obj"),
    "no row": (
        {"columns": ["image", "caption"], "data": [["0.jpg"]]},
        "as many values in each row of 'data' as 'columns' has; write a list of objects",
    ),
    "nothing": ({"version": 2}, "wrong columns: found 'version'; expected image .*; write a list"),
    "by split": (
        {"train": [{"image": "0.jpg"}], "val": [{"image": "1.jpg"}]},
        r'found \'train\', \'val\'; .*write a list of objects .* \(pandas: `orient="records"`\)',
    ),
    "neither": ({"a": {"b": 1}}, "found 'a'; .*write a list of objects"),
    "key and image": ({"id": {"image": "0.jpg", "caption": "A"}}, "found 'id'; .*write a list of"),
}


@pytest.mark.parametrize(("content", "says"), FAULTS.values(), ids=FAULTS)
def test_json_that_is_not_a_table_says_what_to_write(tmp_path, content, says):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    with pytest.raises(SightlineError, match=says):
        chosen(path)


@pytest.mark.parametrize(
    ("separator", "marks"), [(",", "commas"), (";", "semicolons"), ("\t", "tabs"), ("|", "vert")]
)
def test_a_line_with_too_few_columns_or_too_many_has_a_remedy_of_its_own(
    tmp_path, separator, marks
):
    path = tmp_path / "a.csv"
    lines = [["image", "number", "caption"], ["0.jpg", "0", "A"], ["1.jpg", "0 B"]]
    path.write_text("".join(f"{separator.join(line)}\n" for line in lines))
    assert "line 3: found 2 columns, expected 3 " in refusal(path)
    assert f"put the missing {marks}" in refusal(path)
    path.write_text("".join(f"{separator.join(line)}\n" for line in [*lines[:2], ["a"] * 4]))
    assert "line 3: found 4 columns, expected 3" in refusal(path)
    assert "; correct the line" in refusal(path)


def test_lines_end_in_cr_where_nothing_else_ends_them(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a dog\ra cat\r")
    assert read_lines(path) == ["a dog", "a cat"]
    path.write_bytes(b"a dog\ra cat\nb\r\n")
    with pytest.raises(SightlineError, match=r"line 1: a carriage return inside the line"):
        read_lines(path)
