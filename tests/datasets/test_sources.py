"""Parameters of every kind, sentences, joined sets, and a prepared folder for its readers.

That no file of others is replaced, also by a run that is killed, is tested in tests/outputs.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from packed import column as values
from packed import load_all, texts
from pydantic import ValidationError

from pipeline.datasets.joined import JoinedSource, common_root
from pipeline.datasets.prepare import prepare, prepare_dataset
from pipeline.datasets.sentences import SentencesSource
from pipeline.datasets.source import DatasetError, Source
from sightline.cache.prepared import LICENCE_UNKNOWN, RECORD, PreparedDataset, dataset_facts
from sightline.errors import SightlineError


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("flickr30k", {"captions": "c"}, r"give `splits` \(the lists of Flickr30k Entities\)"),
        ("pairs", {"captions": "c", "splits": {"train": "t"}, "karpathy": "k"}, "but not both"),
        ("pairs", {"splits": {"train": "t"}}, "`captions` is missing"),
        ("pairs", {"images": None, "captions": "c"}, "no image folder is given"),
        ("pairs", {"images": "", "captions": "c"}, "no image folder is given"),
        ("coco", {}, "give `captions`"),
        ("coco", {"captions": {"train": "a"}, "karpathy": "k"}, "but not both"),
        ("coco", {"captions": {"train": "a"}, "restval": True}, "is a split of `karpathy`"),
        ("huggingface", {"name": "a/b", "path": "x"}, "not both"),
        ("huggingface", {"revision": "main"}, "give its `name`"),
        ("huggingface", {"splits": {"train": "a", "test": "a"}}, "takes 'a' for 2 splits"),
        ("webdataset", {"splits": {"train": "a"}, "shards": "a"}, "but not both"),
        *(("webdataset", {"shards": p}, "below the folder") for p in ("/d/*.tar", "../*.tar", ".")),
        ("webdataset", {"splits": {"train": "x/../../y.tar"}}, "below the folder"),
        *(("webdataset", {"shards": p}, "between slashes") for p in ("**.tar", "a/b**/*.tar")),
        ("coco", {"source": "s3://b", "captions": {"val": "v.json"}}, "this file is read here"),
        ("joined", {"source": "s3://b", "parts": {"a": "a", "b": "b"}}, "this file is read here"),
        ("joined", {"parts": {"one": "one"}}, r"found 1 data set\(s\), expected at least two"),
        *(
            (kind, {"no_such_parameter": 1}, "unknown key 'no_such_parameter'")
            for kind in Source.families
        ),
    ],
)
def test_contradicting_parameters_are_refused(kind, given, message):
    fields = Source.families.subclass(kind, Source).model_fields
    images = {"images": "photos"} if "images" in fields and kind != "joined" else {}
    with pytest.raises(ValidationError, match=message):
        Source.model_validate({"kind": kind, **images, **given})


def test_an_unknown_kind_lists_the_available_ones():
    with pytest.raises(ValidationError, match=r"did you mean 'coco'\? \(available: coco, flickr"):
        Source.model_validate({"kind": "cocoo"})


def test_paths_start_from_the_source_which_is_no_input_itself():
    lists = {"train": "lists/train.txt", "test": "/lists/test.txt"}
    given = {"kind": "pairs", "source": "raw", "images": "photos", "captions": "c.csv"}
    source = Source.model_validate({**given, "splits": lists})
    paths = [Path(name) for name in ("raw/photos", "raw/c.csv", "raw/lists/train.txt")]
    assert source.inputs() == [*paths, Path("/lists/test.txt")]
    shards = Source.model_validate({"kind": "webdataset", "source": "raw"})
    assert shards.inputs() == [shards.image_root(Path("out"))] == [Path("raw")]


def test_sentences_keep_order_and_duplicates(make_file, out):
    path = make_file("s.txt", "\ufeff One \r\n\n  \nTwo\u2028x\nOne\n")
    report = prepare(SentencesSource(path=path), out)
    assert values(out, "text", "sentences") == ["One", "Two\u2028x", "One"]
    assert report.counts == {
        "sentences_trimmed": 1,
        "sentences": 3,
        "blank_lines": 2,
        "distinct_sentences": 2,
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n \n", "no sentence"),
        (b"ok\n\xff\n", "line 2: the byte 0xff"),
        ("\u200b\n\u2060\n", "no sentence"),
    ],
)
def test_sentences_refuse_an_empty_or_broken_file(make_file, out, content, message):
    with pytest.raises(SightlineError, match=message):
        prepare(SentencesSource(path=make_file("s.txt", content)), out)


TWO = ["a dog, red", 'it says "no"']


@pytest.mark.parametrize(
    ("name", "column", "content"),
    [
        ("nli.csv", "sent0", 'sent0,sent1\n"a dog, red",x\n"it says ""no""",y\n'),
        ("wiki.jsonl", None, '{"id": 1, "text": "a dog, red"}\n{"text": "it says \\"no\\""}\n'),
        ("t.tsv", None, 'n\tSentence\n1\ta dog, red\n2\tit says "no"\n'),
        ("t.json", None, '["a dog, red", "it says \\"no\\""]'),
        ("t.json", None, '[{"raw": "a dog, red"}, {"raw": "it says \\"no\\""}]'),
        ("t.json", None, '{"text": {"0": "a dog, red", "1": "it says \\"no\\""}}'),
        ("t.txt", "text", 'text|n\na dog, red|1\nit says "no"|2\n'),
        ("t.csv", "a.b", 'a.b\n"a dog, red"\n"it says ""no"""\n\n'),
    ],
)
def test_sentences_of_a_table(make_file, out, name, column, content):
    report = prepare(SentencesSource(path=make_file(name, content), column=column), out)
    assert values(out, "text", "sentences") == TWO
    read_otherwise = name in ("wiki.jsonl", "t.tsv") or (column is None and "{" in content)
    assert bool(report.guesses) == (read_otherwise or name == "t.txt")


def test_sentences_of_parquet_leave_out_what_is_not_there(tmp_path, out):
    pq.write_table(pa.table({"text": ["a", None, " b "], "n": [1, 2, 3]}), tmp_path / "t")
    report = prepare(SentencesSource(path=tmp_path / "t"), out)
    assert values(out, "text", "sentences") == ["a", "b"]
    assert report.counts["blank_lines"] == 1


@pytest.mark.parametrize(
    ("name", "content", "column", "message"),
    [
        ("nli.csv", "sent0,sent1\na,b\n", None, "found 'sent0', 'sent1'; expected sentence"),
        ("nli.csv", "sent0,sent1\na,b\n", None, "choose one with `column`"),
        ("nli.csv", "sent0,sent1\na,b\n", "sent2", "has no column 'sent2', which `column` names"),
        ("t.txt", "sent0\na\n", "sent2", "has no column 'sent2'"),
        ("t.csv", "text,caption\na,b\n", None, "'text' and 'caption' may both be the sentence"),
        ("t.jsonl", '{"text": 3}\n', None, "line 1: text: found 3, expected text"),
        ("t.txt", "1\ta dog\n\n2\ta cat\n", None, "every line has 2 columns"),
        ("t.json", '["a dog", 3]', None, "found 'a dog' in its array, expected an object"),
    ],
)
def test_a_table_that_shows_no_sentences_is_refused(make_file, out, name, content, column, message):
    with pytest.raises(SightlineError, match=message):
        prepare(SentencesSource(path=make_file(name, content), column=column), out)


@pytest.fixture
def pairs(make_images, make_file, tmp_path, monkeypatch):
    """Prepares images, named by their number, with relative paths: ``NAME-photos`` → ``out``."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, numbers: range, out: str | None = None) -> PreparedDataset:
        folder = make_images([f"{n}.png" for n in range(max(numbers) + 1)], f"{name}-photos")
        for path in folder.iterdir():
            if int(path.stem) not in numbers:
                path.unlink()
        lines = [f"{n}.png,the {name} picture {n}" for n in numbers]
        make_file(f"{name}.csv", "\n".join(["image,caption", *lines]))
        images = folder.relative_to(tmp_path)
        return prepare_dataset("pairs", out or name, images=images, captions=f"{name}.csv")

    return run


def test_the_record_says_where_the_images_are(pairs, tmp_path, monkeypatch):
    assert pairs("mine", range(2), "data/mine").image_root == Path("mine-photos")
    data = tmp_path / "data/mine"
    assert json.loads((data / RECORD).read_text())["images"] == "../../mine-photos"
    monkeypatch.chdir(data)
    assert PreparedDataset.open(data).image_root == tmp_path / "mine-photos"


def test_images_are_found_through_links(pairs, tmp_path, monkeypatch):
    data = pairs("mine", range(2), "disk/data/mine").folder
    (tmp_path / "away").mkdir()
    (tmp_path / "away/linked").symlink_to(tmp_path / data)
    (tmp_path / "away/mine-photos").mkdir()  # another folder of that name
    (tmp_path / "work").symlink_to(tmp_path / "disk/data")
    into = pairs("mine", range(2), "work/other").folder
    for folder in ("away/linked", into, "disk/data/other", "work/mine"):
        root = PreparedDataset.open(tmp_path / folder).require_images()
        assert Path(root).samefile(tmp_path / "mine-photos"), folder


def test_images_that_are_elsewhere_can_be_named(pairs, tmp_path):
    data = pairs("mine", range(2)).folder
    (tmp_path / "mine-photos").rename(tmp_path / "moved")
    assert PreparedDataset.open(data).image_root is None
    with pytest.raises(SightlineError, match=rf"{data}: its images are not here: .*mine-photos\. "):
        PreparedDataset.open(data).require_images()
    assert PreparedDataset.open(data, tmp_path / "moved").require_images() == tmp_path / "moved"


def test_a_data_set_of_sentences_has_no_images(make_file, out):
    prepare(SentencesSource(path=make_file("s.txt", "One\n")), out)
    with pytest.raises(SightlineError, match=rf"{out}: has sentences and no images"):
        PreparedDataset.open(out).require_images()


def test_a_record_of_another_kind_is_one_clear_error(pairs):
    data = pairs("mine", range(2)).folder
    (data / RECORD).write_text(json.dumps({"schema": "sightline.dataset/0"}))
    with pytest.raises(SightlineError, match=rf"{RECORD}: schema: found 'sightline.dataset/0'"):
        PreparedDataset.open(data)
    assert dataset_facts(data).licence.startswith("not known")


def test_a_data_set_is_replaced_by_one_with_an_image_in_common_alone(pairs, make_file):
    pairs("old", range(0, 5), "out")
    before = pairs("new", range(4, 9), "out").images
    assert before["image_id"].to_pylist()[-1] == "8.png"
    with pytest.raises(DatasetError, match="different data set: none of its 5 images is among the"):
        pairs("other", range(9, 11), "out")
    sentences = make_file("s.txt", "some words\n")
    with pytest.raises(DatasetError, match="of kind pairs, but this is one of kind sentences"):
        prepare_dataset("sentences", "out", path=sentences)
    assert PreparedDataset.open("out").images.equals(before)
    prepare_dataset("sentences", "text", path=sentences)
    with pytest.raises(DatasetError, match="none of its 1 sentences is among the 1 new ones"):
        prepare_dataset("sentences", "text", path=make_file("t.txt", "others\n"))


def joined(*names: str) -> JoinedSource:
    return JoinedSource(
        parts={name: Path(name) for name in names},
        images={name: Path(f"{name}-photos") for name in names},
    )


def test_both_parts_are_included_with_distinct_names_and_their_licences(pairs, out):
    for name, numbers in (("one", range(2)), ("two", range(2, 3))):
        pairs(name, numbers)
    source = joined("one", "two")
    report = prepare(source, out)
    assert report.counts["images_of_one"] == 2
    assert dataset_facts(out).licence == LICENCE_UNKNOWN  # named once
    ids = ["one/0.png", "one/1.png", "two/2.png"]
    assert values(out, "image_id") == values(out, "image_id", "captions") == ids
    assert len(load_all(out)) == 3
    assert list(texts(out)) == ["one/0.png#0", "one/1.png#0", "two/2.png#0"]
    assert values(out, "text", "sentences") == list(texts(out).values())
    for name, licence in (("one", "CC BY 4.0"), ("two", "Flickr")):
        record = json.loads(Path(name, RECORD).read_text())
        Path(name, RECORD).write_text(json.dumps(record | {"licence": licence}))
    prepare(source, out)
    assert dataset_facts(out).licence == "CC BY 4.0; Flickr"


def test_what_cannot_be_joined(pairs, make_file, out):
    pairs("one", range(1, 3))
    pairs("two", range(2, 4))
    prepare_dataset("sentences", "text", path=make_file("lines.txt", "a sentence\n"))
    Path("text-photos").mkdir()
    shared = r"1 image\(s\) are in two .* one/2\.png and two/2\.png"
    unpaired = JoinedSource(parts={"one": Path(), "two": Path()}, images={"one": Path()})
    for source, message in (
        (joined("one", "two"), shared),
        (joined("one", "text"), "text: contains no captions"),
        (joined("one", "absent"), r"absent.*images\.parquet: no such manifest"),
        (unpaired, "part 'two': give both"),
    ):
        with pytest.raises(SightlineError, match=message):
            prepare(source, out)
    assert not out.exists()


def test_the_root_of_relative_folders_is_relative():
    assert common_root([Path("data/raw/a/images"), Path("data/raw/b")]) == Path("data/raw")
    assert common_root([Path("a"), Path("b")]) == Path()
    assert common_root([Path("/x/a"), Path("/x/b/c")]) == Path("/x")
    assert common_root([Path("/"), Path("b")]) == Path("/")
