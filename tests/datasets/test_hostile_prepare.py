"""Hostile captions of every kind: refused with one error, or read as they are written."""

from __future__ import annotations

import csv
import json
import os
import unicodedata
from pathlib import Path

import pytest
from hostile_files import CONTROL, MANY, run
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sightline.cache.manifest import CAPTIONS, SENTENCES, read_manifest
from sightline.files.output import run_folder_of

pytestmark = pytest.mark.slow
IMAGES = ("a.png", "b.png", "sub/c d.png")
ODD = ["A dog runs.", "\u200b", "\x1b[31mred", "a\0b", "a\rb", "a\nb", ' "quoted", he said ']
ODD += ["#1\t2", "\u202eabc", "\x9b31m", "\ufeffmark", "x" * 140_000, "=1+1", "\u2028", "é"]
ODD += ["👩\u200d🚒", "NaN"]
TEXT = st.one_of(st.text(max_size=12), st.sampled_from(ODD))
ROWS = st.lists(st.tuples(st.sampled_from(IMAGES), TEXT), min_size=1, max_size=6)


def seen(text: str) -> bool:
    """Whether a text has a letter, digit, punctuation mark or symbol."""
    return any(
        unicodedata.category(c)[0] in "LNPS" and c not in "\u115f\u1160\u2800\u3164\uffa0"
        for c in text
    )


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number, name in enumerate(IMAGES):
        (folder / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (3, 2), (number, 0, 0)).save(folder / name)
    return folder


KINDS = {"coco": ("coco", "captions=train="), "karpathy": ("flickr30k", "karpathy=")}


def words(form: str, file: Path, photos: Path, out: Path) -> list[object]:
    """The command that reads ``file``."""
    if form == "sentences":
        return ["prepare", "sentences", f"--path={file}", "--out", out]
    kind, option = KINDS.get(form, ("pairs", "captions="))
    return ["prepare", kind, f"--{option}{file}", f"--images={photos}", "--out", out]


def write(file: Path, form: str, rows: list[tuple[str, str]]):
    """Write ``rows`` of image and text in a format."""
    if form == "csv":
        with file.open("w", encoding="utf-8", newline="") as out:
            csv.writer(out).writerows([("image", "caption"), *rows])
        return
    lines = [f"{image}#{k}\t{text}\n" for k, (image, text) in enumerate(rows)]
    if form == "tsv":
        lines = ["\t".join(row) + "\n" for row in [("image", "caption"), *rows]]
    elif form == "jsonl":
        lines = [json.dumps({"image": i, "caption": t}) + "\n" for i, t in rows]
    elif form == "coco":
        images = [{"id": number, "file_name": name} for number, name in enumerate(IMAGES)]
        said = [{"image_id": IMAGES.index(i), "caption": t} for i, t in rows]
        said = [{"id": number, **each} for number, each in enumerate(said)]
        lines = [json.dumps({"images": images, "annotations": said})]
    elif form == "karpathy":
        of_image = {name: [{"raw": t} for i, t in rows if i == name] for name in IMAGES}
        images = [{"filename": n, "split": "train", "sentences": s} for n, s in of_image.items()]
        lines = [json.dumps({"images": images})]
    file.write_text("".join(lines), "utf-8", newline="")


@pytest.mark.parametrize("form", ["csv", "tsv", "token", "jsonl", "coco", "karpathy"])
@MANY
@given(rows=ROWS)
def test_captions_are_refused_or_read_as_they_are_written(
    form, rows, photos, tmp_path_factory, capsys
):
    folder = tmp_path_factory.mktemp("case")
    file = folder / f"captions.{'json' if form in KINDS else form}"
    write(file, form, rows)
    outcome = run(capsys, *words(form, file, photos, folder / "out"))
    texts = [text for _, text in rows]
    unsafe = any(map(CONTROL.search, texts))
    # these formats cannot hold every text
    ends = {"tsv": "\n\r\t", "token": "\n\r"}.get(form, "")
    unsafe = unsafe or any(end in text for end in ends for text in texts)
    if outcome.code:
        outcome.refused("captions.")
        nothing = "no captions" in outcome.err or "no usable caption" in outcome.err
        assert unsafe or not any(text.strip() for text in texts) or nothing
        assert not (folder / "out").exists()
        return
    kept = read_manifest(folder / "out/captions.parquet", CAPTIONS)["text"].to_pylist()
    assert not any(map(CONTROL.search, kept))
    texts = [CONTROL.sub("", text).strip() for text in texts]
    if any(end in text for end in ends for text in texts):
        return
    assert not set(kept) - set(texts)
    for text in texts:
        assert not seen(text) or kept.count(text) == texts.count(text)
        assert seen(text) or not set(text) <= set("\u200b\u200d\ufeff") or text not in kept


BYTES = [st.text(max_size=60).map(lambda t: t.encode("utf-8", "surrogatepass"))]
BYTES += [st.binary(max_size=80), st.lists(TEXT).map(lambda t: "\n".join(t).encode())]


@MANY
@given(data=st.one_of(BYTES))
@pytest.mark.parametrize("form", ["csv", "tsv", "token", "jsonl", "coco", "sentences"])
def test_any_bytes(data, form, photos, tmp_path_factory, capsys):
    folder = tmp_path_factory.mktemp("case")
    file = folder / f"captions.{form}"
    file.write_bytes(data)
    outcome = run(capsys, *words(form, file, photos, folder / "out"))
    if outcome.code:
        outcome.refused(file)
        assert not (folder / "out").exists()
    elif form == "sentences":
        kept = read_manifest(folder / "out/sentences.parquet", SENTENCES)["text"].to_pylist()
        lines = [line.strip() for line in data.decode("utf-8-sig").split("\n")]
        assert kept == [line for line in lines if line in kept]


FIELDS = ["id", "image_id", "caption", "file_name", "images", "annotations"]
FIELDS += ["filename", "split", "raw", "sentences"]
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inside, max_size=4)
    ),
    max_leaves=12,
)


@MANY
@given(value=JSON_VALUES)
@pytest.mark.parametrize("form", ["coco", "karpathy", "jsonl"])
def test_any_json(form, value, photos, tmp_path_factory, capsys):
    folder = tmp_path_factory.mktemp("case")
    file = folder / f"c.{form}"
    file.write_text(json.dumps(value))
    run(capsys, *words(form, file, photos, folder / "out")).refused(file)


@pytest.mark.parametrize("what", ["pipe", "folder", "dangling", "device", "nothing"])
@pytest.mark.parametrize("option", ["captions", "split", "image", "out"])
def test_things_that_are_no_files(what, option, photos, tmp_path, capsys):
    odd = tmp_path / "odd.png"
    if what == "pipe":
        os.mkfifo(odd)
    elif what == "folder":
        odd.mkdir()
    elif what != "nothing":
        odd.symlink_to(tmp_path / "gone" if what == "dangling" else "/dev/zero")
    (tmp_path / "c.token").write_text("a.png#0\tone\n")
    (tmp_path / "more").mkdir()
    Image.new("RGB", (2, 2)).save(tmp_path / "more/a.png")
    if option == "image" and what != "nothing":
        odd.rename(tmp_path / "more/odd.png")
    outcome = run(
        capsys,
        *("prepare", "pairs"),
        *("--captions", f"{odd if option == 'captions' else tmp_path / 'c.token'}"),
        *("--images", f"{tmp_path / 'more' if option == 'image' else photos}"),
        *(("--splits", f"train={odd}") if option == "split" else ()),
        *("--out", odd if option == "out" else tmp_path / "out"),
    )
    if option in ("captions", "split"):
        outcome.refused(odd)
    assert not run_folder_of(tmp_path / "out").exists()
