"""Caption files: what is read, and the one clear error for each kind of damage."""

from __future__ import annotations

import csv
import io
import json

import pytest

from pipeline.datasets.captions import read_captions
from sightline.errors import SightlineError

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
        ("c.jsonl", '{"image": "a"}\n', "line 1: caption: is missing"),
        ("c.jsonl", '{"image": "a", "caption": "b"}\n{"image": "a"\n', "line 2: not JSON (EOF"),
        (
            "c.jsonl",
            '{"image": "a", "caption": "b"}\n["a"]\n',
            "line 2: found ['a'], expected",
        ),
        (
            "c.jsonl",
            '{"image": "a", "caption": 3}\n',
            "line 1: caption: found 3, expected a",
        ),
        (
            "c.jsonl",
            '{"image": "a", "caption": "\\ud800"}\n',
            "line 1: not JSON (unexpected end of hex escape at column 34: half a surrogate",
        ),
    ],
)
def test_a_malformed_file_is_one_error_that_names_the_place(make_file, name, content, message):
    path = make_file(name, content)
    with pytest.raises(SightlineError) as error:
        read_captions(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (
            "c.token",
            "a.jpg#0\thello\rb.jpg#0\tworld\r",
            "line 1: a carriage return",
        ),
        ("c.token", "a.jpg#0\tone\r\nb.jpg#0\tt\rwo\r\n", "line 2: a carriage return inside"),
        ("c.tsv", "image\tcaption\ra.jpg\tone\r", "line 1: a carriage return inside"),
        (
            "c.token",
            "a.jpg#0\tone\nb.jpg#0\t\x1b[31mred\n",
            "control character U+001B",
        ),
        ("c.csv", "image,caption\na.jpg,one\0\n", "control character U+0000"),
        (
            "c.tsv",
            "image\tcaption\na.jpg\t\x9b31m\n",
            "control character U+009B",
        ),
        (
            "c.jsonl",
            '{"image": "a", "caption": "\\u001b[2J"}',
            "line 1: caption: contains",
        ),
        ("c.jsonl", '{"image": "a\\u0000", "caption": "b"}', "line 1: image: contains the control"),
        (
            "c.csv",
            "image,caption,caption_id\na,b,1\na,c,\n",
            "line 3: caption_id: found '', expected",
        ),
        (
            "c.csv",
            'image,caption,caption_id\na,"b\nb",1\na,c," "\n',
            "line 4: caption_id: found '', expected",
        ),
        (
            "c.jsonl",
            '{"image": "a", "caption": "b", "caption_id": ""}',
            "caption_id: found ''",
        ),
        (
            "c.jsonl",
            '{"image": "a", "caption": "b", "caption_id": " "}',
            "caption_id: found ' '",
        ),
        ("c.token", "a.jpg# \tA dog.", "line 1: found 'a.jpg# "),
        ("c.jsonl", '{"image": "a", "caption": "b", "caption_id": true}', "caption_id: found True"),
        (
            "c.jsonl",
            '{"image": "a", "caption": "b", "n": ' + "9" * 5000 + "}",
            "(number out",
        ),
        ("c.jsonl", "[" * 100_000, "line 1: not JSON (recursion limit exceeded"),
        (
            "c.jsonl",
            '{"image": "a", "caption": "b"}\n{"image": "a", "caption": "b", "split": "dev"}',
            "line 1: split: is missing, but other lines have it",
        ),
    ],
)
def test_what_would_be_wrong_without_a_word_is_an_error(make_file, name, content, message):
    with pytest.raises(SightlineError) as error:
        read_captions(make_file(name, content))
    assert message in str(error.value)


@pytest.mark.parametrize(("name", "comma"), [("c.csv", ","), ("c.tsv", "\t")])
def test_a_header_is_read_without_regard_to_case_and_spaces_and_says_so(make_file, name, comma):
    rows = [["Image", " CAPTION ", "caption_id"], ["a.jpg", "one ", "1 "], ["b.jpg", "two", "2"]]
    captions = read_captions(make_file(name, "\n".join(comma.join(row) for row in rows)))
    assert captions.images == ["a.jpg", "b.jpg"]
    assert captions.ids == ["1", "2"]
    assert captions.remarks == [
        f"{name}: column 'Image' read as image",
        f"{name}: column ' CAPTION ' read as caption",
        f"{name}: white space around 1 values of caption_id left out",
    ]


def test_headers_that_differ_in_case_alone_are_ambiguous(make_file):
    with pytest.raises(SightlineError, match="wrong columns: found 'image', 'Image', 'caption'"):
        read_captions(make_file("c.csv", "image,Image,caption\na,b,c\n"))


def test_a_long_csv_field_is_read_and_the_limit_of_the_csv_module_is_kept(make_file):
    before = csv.field_size_limit()
    captions = read_captions(make_file("c.csv", f"image,caption\na.jpg,{'word ' * 40_000}\n"))
    assert len(captions.texts[0]) == 200_000
    assert csv.field_size_limit() == before


def test_windows_punctuation_read_as_latin_1_is_kept(make_file):
    """Published texts contain it."""
    assert read_captions(make_file("c.token", "a.jpg#0\tit\x92s\n")).texts == ["it\x92s"]


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_bad_utf8_names_line_and_byte(make_file, mark):
    content = mark + b"image,caption\na.jpg,one\nb.jpg,caf\xe9\n"
    with pytest.raises(SightlineError, match="line 3: the byte 0xe9 is not UTF-8"):
        read_captions(make_file("c.csv", content))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(SightlineError, match=r"nowhere\.csv: no such file"):
        read_captions(tmp_path / "nowhere.csv")
