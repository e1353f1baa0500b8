"""Captions that lie beside their images, and what people give in place of a file of captions."""

from __future__ import annotations

import json
import subprocess
import zipfile

import pytest
from packed import column, texts

from pipeline.datasets.pairs import PairsSource
from pipeline.datasets.prepare import prepare
from pipeline.datasets.source import DatasetError
from sightline.errors import SightlineError


def test_captions_beside_their_images(make_images, out):
    folder = make_images(["00000/0.png", "00000/1.PNG", "00001/0.png", "both.jpg", "both.png"])
    for name, text in {
        "00000/0.txt": "a dog\n\n a cat \n",
        "00000/1.TXT": "a bird",
        "both.txt": "whose",
        "lost.txt": "x",
        "notes.md": "",
    }.items():
        (folder / name).write_text(text)
    report = prepare(PairsSource(images=folder, beside="txt"), out)
    assert texts(out) == {
        "00000/0.png#0": "a dog",
        "00000/0.png#1": "a cat",
        "00000/1.PNG#0": "a bird",
    }
    assert report.problems["captions_of_ambiguous_image"] == ["both.txt or both.jpg or both.png"]
    assert report.problems["captions_without_image"] == ["lost.txt"]
    assert report.ignored == {".md": 1}


def test_objects_beside_their_images(make_images, out):
    folder = make_images(["0.png", "1.png", "2.png"])
    for number, split in enumerate(("train", "val")):
        record = {"url": "u", "title": f"picture {number}", "split": split, "caption": ["a", "b"]}
        (folder / f"{number}.json").write_text(json.dumps(record))
    report = prepare(PairsSource(images=folder, beside="json"), out)
    assert list(texts(out).values()) == ["a", "b", "a", "b"]
    assert column(out, "split") == ["train", "dev", ""]
    assert any(
        "'title' is not used; `caption_column` chooses it" in guess for guess in report.guesses
    )
    prepare(PairsSource(images=folder, beside="json", caption_column="title"), out)
    assert texts(out) == {"0.png#0": "picture 0", "1.png#0": "picture 1"}
    (folder / "2.json").write_text('{"title": 3}')
    with pytest.raises(SightlineError, match=r"file 2\.json: caption: found 3"):
        prepare(PairsSource(images=folder, beside="json", caption_column="title"), out)
    (folder / "2.json").write_text("[]")
    with pytest.raises(SightlineError, match=r"2\.json: .*expected an object with a caption"):
        prepare(PairsSource(images=folder, beside="json", caption_column="title"), out)


def test_captions_that_are_not_beside_images_are_one_error(make_images, make_file, out):
    folder = make_images(["0.png"])
    with pytest.raises(DatasetError, match=r"no \.txt lies beside its images; check `beside`"):
        prepare(PairsSource(images=folder, beside="txt"), out)
    with pytest.raises(SightlineError, match=r"a folder without a metadata\.jsonl or \.csv"):
        prepare(PairsSource(images=folder, captions=folder), out)
    table = make_file("p.csv", "url,key,status,caption\nu,0,success,a\n")
    with pytest.raises(DatasetError, match=r"img2dataset's own table; .* give `beside: txt`"):
        prepare(PairsSource(images=folder, captions=table), out)
    with pytest.raises(DatasetError, match=r"paste NAMES CAPTIONS\) > captions.tsv`"):
        prepare(PairsSource(images=folder, captions=make_file("c.txt", "a dog\n")), out)


def test_a_list_of_names_and_one_of_captions_are_pasted_as_shown(
    make_images, make_file, out, tmp_path
):
    folder = make_images(["0.png", "1.png"])
    make_file("NAMES", "0.png\n1.png\n")
    make_file("CAPTIONS", 'a "red" dog\na cat\n')
    shown = r"(printf 'image\tcaption\n'; paste NAMES CAPTIONS) > captions.tsv"
    subprocess.run(shown, shell=True, check=True, cwd=tmp_path)
    prepare(PairsSource(images=folder, captions=tmp_path / "captions.tsv"), out)
    assert texts(out) == {"0.png#0": 'a "red" dog', "1.png#0": "a cat"}


def test_an_archive_in_place_of_a_folder_of_images_is_called_so(tmp_path, out):
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.writestr("0.jpg", b"x")
    with pytest.raises(SightlineError, match=r"a zip archive; expected a folder .*`unzip "):
        prepare(PairsSource(images=tmp_path / "photos.zip", beside="txt"), out)


def test_a_bad_file_beside_an_image_is_named_with_its_folder(make_images, out):
    folder = make_images(["00000/0.png", "00001/0.png"])
    for name, text in (("00000", "a dog"), ("00001", 7)):
        (folder / name / "0.json").write_text(json.dumps({"caption": text}))
    with pytest.raises(SightlineError, match=r"file 00001/0\.json: caption: "):
        prepare(PairsSource(images=folder, beside="json"), out)
