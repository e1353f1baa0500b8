"""Caption files: what is read, and the one clear error for each kind of damage."""

from __future__ import annotations

import csv
import io
import json

import pytest

from pipeline.datasets.captions import read_captions
from pipeline.datasets.source import DatasetError

NAMES = ["a b.jpg", "a,b.jpg", "a\tb.jpg", "日本 ünï.jpg", 'q"uote.jpg']


def test_token_file_gives_image_number_and_text(make_file):
    captions = read_captions(
        make_file("c.token", "a#1.jpg#0\tOne  two.\r\na#1.jpg#1\tThree\t!\n\n")
    )
    assert captions.images == ["a#1.jpg", "a#1.jpg"]
    assert captions.numbers == ["0", "1"]
    assert captions.texts == ["One  two.", "Three\t!"]


def test_csv_keeps_every_kind_of_name(make_file):
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(["caption", "image", "extra"])
    writer.writerows([f'says "{n}",\nsecond line', n, "x"] for n in NAMES)
    captions = read_captions(make_file("c.csv", buffer.getvalue()))
    assert captions.images == NAMES
    assert captions.texts[0] == 'says "a b.jpg",\nsecond line'


def test_csv_does_not_split_at_unicode_line_separators(make_file):
    captions = read_captions(make_file("c.csv", "image,caption\na.jpg,one\u2028two\x0bthree\n"))
    assert captions.texts == ["one\u2028two\x0bthree"]


def test_jsonl_keeps_every_kind_of_name_and_the_optional_columns(make_file):
    rows = [
        {"image": name, "caption": "c", "split": "train", "caption_id": i, "other": None}
        for i, name in enumerate(NAMES)
    ]
    captions = read_captions(make_file("c.jsonl", "\n".join(map(json.dumps, rows))))
    assert captions.images == NAMES
    assert captions.ids == ["0", "1", "2", "3", "4"]
    assert captions.splits == ["train"] * 5


def test_tsv_has_no_quoting(make_file):
    captions = read_captions(make_file("c.tsv", '\ufeffimage\tcaption\na.jpg\t"Stop" it\n'))
    assert captions.texts == ['"Stop" it']


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.csv", "file,text\na,b\n", "wrong columns: found 'file', 'text'; expected image and"),
        ("c.csv", "", "wrong columns: found none"),
        ("c.csv", "image,caption,image\na,b,c\n", "wrong columns"),
        ("c.csv", "image,caption\na.jpg,one,two\n", "line 2: found 3 columns, expected 2"),
        ("c.csv", 'image,caption\na.jpg,"open\n', "not CSV"),
        ("c.tsv", "image\tcaption\na.jpg one\n", "line 2: found 1 columns"),
        ("c.tsv", "image\tcaption\n", "contains no captions"),
        ("c.token", "a.jpg#0\tone\na.jpg two\n", "line 2: found 'a.jpg two', expected `name"),
        ("c.txt", "image,caption\na.jpg,one\n", "must end in .csv"),
        ("c.jsonl", '{"image": "a"}\n', "wrong columns"),
        ("c.jsonl", '{"image": "a", "caption": "b"}\n{"image": "a"\n', "line 2: not JSON"),
        ("c.jsonl", '{"image": "a", "caption": "b"}\n["a"]\n', "line 2: found ['a']"),
        ("c.jsonl", '{"image": "a", "caption": 3}\n', "line 1: 'caption' is 3, expected a string"),
        (
            "c.jsonl",
            '{"image": "a", "caption": "\\ud800"}\n',
            "line 1: contains an unpaired surrogate",
        ),
    ],
)
def test_a_malformed_file_is_one_error_that_names_the_place(make_file, name, content, message):
    path = make_file(name, content)
    with pytest.raises(DatasetError) as error:
        read_captions(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_bad_utf8_names_line_and_byte(make_file, mark):
    content = mark + b"image,caption\na.jpg,one\nb.jpg,caf\xe9\n"
    byte = content.index(0xE9)
    with pytest.raises(DatasetError, match=rf"line 3: byte {byte} \(0xe9\) is not UTF-8"):
        read_captions(make_file("c.csv", content))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DatasetError, match=r"nowhere\.csv: no such file"):
        read_captions(tmp_path / "nowhere.csv")
