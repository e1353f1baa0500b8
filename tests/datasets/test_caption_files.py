"""Caption files: what is read, and the one clear error for each kind of damage."""

from __future__ import annotations

import csv
import io
import json
import os

import pytest
from caption_reading import read_captions, read_coco, read_karpathy

from sightline.errors import SightlineError

NAMES = ["a b.jpg", "a,b.jpg", "a\tb.jpg", "日本 ünï.jpg", 'q"uote.jpg']


def test_token_file_gives_image_number_and_text(make_file):
    lines = "a#1.jpg#0\tOne  two.\r\na#1.jpg#1\tThree\t!\n\nb.jpg#0\tit\x92s\n"
    captions = read_captions(make_file("c.token", lines))
    assert captions.images == ["a#1.jpg", "a#1.jpg", "b.jpg"]
    assert captions.numbers == ["0", "1", "0"]
    assert captions.texts == ["One  two.", "Three\t!", "it\x92s"]  # published texts hold Latin-1


def test_csv_keeps_every_kind_of_name_and_text(make_file):
    before = csv.field_size_limit()
    said = ['says "it",\nsecond line', "one\u2028two\x0bthree", "word " * 40_000, "c", "d"]
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(["caption", "image", "extra"])
    writer.writerows([text, name, "x"] for text, name in zip(said, NAMES, strict=True))
    captions = read_captions(make_file("c.csv", buffer.getvalue()))
    assert (captions.images, captions.texts) == (NAMES, said)
    assert csv.field_size_limit() == before


def test_jsonl_keeps_every_kind_of_name_and_the_optional_columns(make_file):
    more = {"caption": "c", "split": "train", "other": None}
    rows = [{"image": name, "caption_id": i, **more} for i, name in enumerate(NAMES)]
    text = "\n".join(map(json.dumps, rows))
    captions = read_captions(make_file("c.jsonl", text))
    assert read_captions(make_file("c.ndjson", text)).images == NAMES
    assert captions.images == NAMES
    assert captions.ids == ["0", "1", "2", "3", "4"]
    assert captions.splits == ["train"] * 5


def test_tsv_has_no_quoting(make_file):
    captions = read_captions(make_file("c.tsv", '\ufeffimage\tcaption\na.jpg\t"Stop" it\n'))
    assert captions.texts == ['"Stop" it']


def karpathy(**changes):
    entry = {"filename": "11.jpg", "split": "train", "sentences": [{"raw": "Eins."}]}
    return json.dumps({"images": [{**entry, **changes}]})


def coco(*annotations, ids=(1, 2)):
    images = [{"id": n, "file_name": f"{n}.jpg"} for n in ids]
    said = [{"id": n, "image_id": image, "caption": text} for n, image, text in annotations]
    return json.dumps({"images": images, "annotations": said})


HEAD = "image,caption\n"
IDS = "image,caption,caption_id\n"
AB = '{"image": "a", "caption": "b"'
FAULTS = [
    (
        "csv",
        "file,text\na,b\n",
        "'file', 'text'; expected image (or file_name,",
    ),
    ("csv", "", "wrong columns: found none"),
    (
        "csv",
        "image,Image,caption\na,b,c\n",
        "'image' and 'Image' may both be the image",
    ),
    ("csv", HEAD + "a.jpg,one,two\n", "line 2: found 3 columns, expected 2"),
    ("csv", HEAD + "a.jpg,one,two\n", "quotation marks around a value that contains commas"),
    ("csv", "a.jpg,one\nb.jpg,two\n", "or, if the first line is not a header, write one above it"),
    ("csv", HEAD + 'a.jpg,"open\n', "not CSV"),
    ("csv", HEAD + 'a.jpg,"one\nb.jpg,two\nc.jpg,three\n', "line 2: not CSV (unexpected end of"),
    ("csv", HEAD + 'a.jpg,"one\nb.jpg,two\nc.jpg,"3, 4"\n', "line 2: not CSV (',' expected after"),
    (
        "csv",
        HEAD + 'a.jpg,"one\nb.jpg,two"\n',
        "line 2: a quotation mark in it takes in the next 1",
    ),
    (
        "csv",
        HEAD + 'a,b\n"c,d\ne,f\ng","h"\n',
        "line 3: a quotation mark in it takes in the next 2",
    ),
    ("csv", IDS + 'a,"b,1\nc,d,2\ne,f,3"\n', "the next 2 lines, such as 'c,d,2'; correct the line"),
    ("csv", HEAD + 'a.jpg,"a \\"b\\" c"\n', "quotation marks in a value are doubled"),
    ("csv", "image,caption,caption\na,b,c\n", "expected each name once"),
    ("csv", "\ufeff" + HEAD + "a,b\nc,\ud800", "line 3: the byte 0xed is not UTF-8"),
    ("csv", IDS + 'a,"b\nb",1\na,c," "\n', "line 4: caption_id: found '', expected"),
    ("tsv", "image\tcaption\na.jpg one\n", "line 2: found 1 columns"),
    ("tsv", "image\tcaption\na.jpg\t\x9b31m\n", "control character U+009B"),
    ("token", "a.jpg#0\tone\na.jpg two\n", "line 2: found 'a.jpg two', expected `name"),
    ("token", "a.jpg# \tA dog.", "line 1: found 'a.jpg# "),
    ("token", "a.jpg#0\thello\rb.jpg#0\tworld\n", "line 1: a carriage return"),
    ("token", "a.jpg#0\tone\r\nb.jpg#0\tt\rwo\r\n", "line 2: a carriage return inside"),
    ("token", "a.jpg#0\tone\nb.jpg#0\t\x1b[31mred\n", "control character U+001B"),
    ("txt", "picture,words\na.jpg,one\n", "must end in .csv"),
    ("jsonl", '{"image": "a"}\n', "wrong columns: found 'image'; expected caption"),
    ("jsonl", AB + '}\n{"image": "a"\n', "line 2: not JSON (EOF"),
    ("jsonl", AB + '}\n["a"]\n', "line 2: found ['a'], expected"),
    ("jsonl", '{"image": "a", "caption": 3}\n', "line 1: caption: found 3, expected a"),
    ("jsonl", '{"image": "a", "caption": "\\ud800"}\n', "at column 34: half a surrogate"),
    ("jsonl", AB + ', "caption_id": " "}', "caption_id: found ' '"),
    ("jsonl", AB + ', "caption_id": true}', "caption_id: found True"),
    ("jsonl", AB + ', "n": ' + "9" * 5000 + "}", "(number out"),
    ("jsonl", "[" * 100_000, "not JSON (recursion limit exceeded"),
    (
        "jsonl",
        f'{AB}}}\n{AB}, "split": "dev"}}',
        "line 2: has 'split', which the first",
    ),
    ("karpathy", "{}", "images: is missing; expected Karpathy's"),
    ("karpathy", "{", "not JSON (EOF while parsing an object at line 1 column 1)"),
    ("karpathy", karpathy(split=3), "images[0].split: found 3, expected a valid string"),
    ("karpathy", karpathy(split="later"), "unknown split 'later'"),
    ("karpathy", karpathy(sentences=[1, 2]), "images[0].sentences[0]: found 1, expected"),
    ("karpathy", karpathy(sentences=[1, 2]), "(1 more such"),
    ("karpathy", karpathy(sentences=7), "images[0].sentences: found 7, expected a valid"),
    ("karpathy", karpathy(filename=""), "images[0].filename: is empty"),
    ("coco", "[]", "found [], expected an object; expected COCO's captions_"),
    ("coco", coco(), "annotations: is empty; expected COCO"),
    ("coco", '{"images": [{"id": 1}]}', "images[0].file_name: is missing"),
    ("coco", coco((1, True, "a")), "annotations[0].image_id: found True, expected a whole number"),
    ("coco", coco((None, 1, "a")), "annotations[0].id: found None"),
    ("coco", coco((1, 1, "a"), ids=(1, 1)), "images: several have the id 1"),
]


def test_ids_of_coco_may_be_numbers_here_and_texts_there(make_file):
    content = json.loads(coco((7, "2", "A dog.")))
    captions = read_coco(make_file("c.json", json.dumps(content)))
    assert captions.images == ["2.jpg"]


READERS = {"karpathy": read_karpathy, "coco": read_coco}


@pytest.mark.parametrize(("suffix", "content", "message"), FAULTS)
def test_a_fault_is_one_error_that_names_the_place(make_file, suffix, content, message):
    path = make_file(f"c.{suffix}", content.encode("utf-8", "surrogatepass"))
    with pytest.raises(SightlineError) as error:
        READERS.get(suffix, read_captions)(path)
    assert str(path) in str(error.value)
    assert message in str(error.value)


def test_a_value_of_several_lines_is_kept_and_named(make_file):
    content = HEAD + 'a,"A dog\r\nruns, fast"\n\nb,two\nc,"3, 4\nor 5"\n'
    captions = read_captions(make_file("c.csv", content))
    assert captions.texts == ["A dog\r\nruns, fast", "two", "3, 4\nor 5"]
    assert captions.remarks == ["c.csv: 2 rows of several lines, the first begins in line 2"]


def test_a_header_is_read_without_regard_to_case_and_spaces_and_says_so(make_file):
    content = "Image, CAPTION ,caption_id\na.jpg,one ,1 \nb.jpg,two,2\n"
    captions = read_captions(make_file("c.csv", content))
    assert captions.images == ["a.jpg", "b.jpg"]
    assert captions.ids == ["1", "2"]
    assert captions.remarks == [
        "c.csv: column 'Image' read as image",
        "c.csv: column ' CAPTION ' read as caption",
        "c.csv: white space around 1 values of caption_id left out",
    ]


def test_a_missing_file_or_a_pipe_is_named(tmp_path):
    with pytest.raises(SightlineError, match=r"nowhere\.csv: no such file"):
        read_captions(tmp_path / "nowhere.csv")
    os.mkfifo(tmp_path / "c.token")  # reading it would block
    with pytest.raises(SightlineError, match="not a file, but a folder, a pipe or a device"):
        read_captions(tmp_path / "c.token")
