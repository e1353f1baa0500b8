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
from sightline.output import run_folder_of

pytestmark = pytest.mark.slow
IMAGES = ("a.png", "b.png", "sub/c d.png")
TEXT = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "A dog runs.",
            "\u200b",
            "\x1b[31mred",
            "a\0b",
            "a\rb",
            "a\nb",
            ' "quoted", he said ',
            "#1\t2",
            "\u202eabc",
            "\x9b31m",
            "\ufeffmark",
            "x" * 140_000,
            "=1+1",
            "\u2028",
            "é",
            "👩\u200d🚒",
            "NaN",
        ]
    ),
)
ROWS = st.lists(st.tuples(st.sampled_from(IMAGES), TEXT), min_size=1, max_size=6)


def seen(text: str) -> bool:
    """Whether a text has a letter, digit, punctuation mark or symbol."""
    return any(
        unicodedata.category(c)[0] in "LNPS" and c not in "\u115f\u1160\u2800\u3164\uffa0"
        for c in text
    )


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number, name in enumerate(IMAGES):
        (folder / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (3, 2), (number, 0, 0)).save(folder / name)
    return folder


def written(folder: Path, form: str, rows: list[tuple[str, str]]) -> list[object]:
    """Write ``rows`` in a format; the words of the command that reads them."""
    file = folder / f"captions.{form.removeprefix('karpathy.').removeprefix('coco.')}"
    if form == "csv":
        with file.open("w", encoding="utf-8", newline="") as out:
            csv.writer(out).writerows([("image", "caption"), *rows])
    elif form == "tsv":
        file.write_text(
            "\n".join(map("\t".join, [("image", "caption"), *rows])), "utf-8", newline=""
        )
    elif form == "token":
        lines = [f"{image}#{k}\t{text}\n" for k, (image, text) in enumerate(rows)]
        file.write_text("".join(lines), "utf-8", newline="")
    elif form == "jsonl":
        file.write_text("\n".join(json.dumps({"image": i, "caption": t}) for i, t in rows), "utf-8")
    elif form == "coco.json":
        images = [{"id": number, "file_name": name} for number, name in enumerate(IMAGES)]
        annotations = [
            {"id": k, "image_id": IMAGES.index(i), "caption": t} for k, (i, t) in enumerate(rows)
        ]
        file.write_text(json.dumps({"images": images, "annotations": annotations}), "utf-8")
        return ["coco", f"--set=captions.train={file}"]
    elif form == "karpathy.json":
        entries = [
            {
                "filename": name,
                "split": "train",
                "sentences": [{"raw": t} for i, t in rows if i == name],
            }
            for name in IMAGES
        ]
        file.write_text(json.dumps({"images": entries}), "utf-8")
        return ["flickr30k", f"--set=karpathy={file}"]
    return ["pairs", f"--set=captions={file}"]


@pytest.mark.parametrize("form", ["csv", "tsv", "token", "jsonl", "coco.json", "karpathy.json"])
@MANY
@given(rows=ROWS)
def test_captions_are_refused_or_read_as_they_are_written(
    form, rows, photos, tmp_path_factory, capsys
) -> None:
    folder = tmp_path_factory.mktemp("case")
    outcome = run(
        capsys,
        "prepare",
        *written(folder, form, rows),
        f"--set=images={photos}",
        "--out",
        folder / "out",
    )
    texts = [text for _, text in rows]
    unsafe = any(map(CONTROL.search, texts))
    # these formats cannot hold every text
    ends = "\n\r" if form in ("tsv", "token") else ""
    unsafe = unsafe or any(end in text for end in ends for text in texts)
    unsafe = unsafe or (form == "tsv" and any("\t" in text for text in texts))
    if outcome.code == 0:
        assert not any(map(CONTROL.search, texts))
        table = read_manifest(folder / "out/captions.parquet", CAPTIONS)
        kept = table["text"].to_pylist()
        if not unsafe:
            assert not set(kept) - set(map(str.strip, texts))
            for text in texts:
                same = sum(text.strip() == other.strip() for other in texts)
                assert not seen(text) or kept.count(text.strip()) == same
                assert (
                    seen(text)
                    or not set(text.strip()) <= set("\u200b\u200d\ufeff")
                    or text not in kept
                )
    else:
        outcome.refused("captions.")
        nothing = "no captions" in outcome.err or "no usable caption" in outcome.err
        assert unsafe or not any(text.strip() for text in texts) or nothing
        assert not (folder / "out").exists()


@MANY
@given(
    data=st.one_of(
        st.binary(max_size=80),
        st.text(max_size=60).map(lambda t: t.encode("utf-8", "surrogatepass")),
    )
)
@pytest.mark.parametrize("suffix", ["csv", "tsv", "token", "jsonl", "json"])
def test_any_bytes_as_captions(data, suffix, photos, tmp_path_factory, capsys) -> None:
    folder = tmp_path_factory.mktemp("case")
    file = folder / f"captions.{suffix}"
    file.write_bytes(data)
    words = (
        ["coco", f"--set=captions.train={file}"]
        if suffix == "json"
        else ["pairs", f"--set=captions={file}"]
    )
    outcome = run(capsys, "prepare", *words, f"--set=images={photos}", "--out", folder / "out")
    if outcome.code:
        outcome.refused(file)
        assert not (folder / "out").exists()


@MANY
@given(data=st.one_of(st.binary(max_size=80), st.lists(TEXT).map(lambda t: "\n".join(t).encode())))
def test_any_bytes_as_sentences(data, tmp_path_factory, capsys) -> None:
    folder = tmp_path_factory.mktemp("case")
    (folder / "text").write_bytes(data)
    outcome = run(
        capsys, "prepare", "sentences", f"--set=path={folder / 'text'}", "--out", folder / "out"
    )
    if outcome.code:
        outcome.refused(folder / "text")
    else:
        kept = read_manifest(folder / "out/sentences.parquet", SENTENCES)["text"].to_pylist()
        lines = [line.strip() for line in data.decode("utf-8-sig").split("\n")]
        assert kept == [line for line in lines if line in kept]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "id",
                    "image_id",
                    "caption",
                    "file_name",
                    "images",
                    "annotations",
                    "filename",
                    "split",
                    "raw",
                    "sentences",
                ]
            ),
            inside,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@MANY
@given(value=JSON_VALUES)
@pytest.mark.parametrize("kind", ["coco", "karpathy", "jsonl"])
def test_any_json(kind, value, photos, tmp_path_factory, capsys) -> None:
    folder = tmp_path_factory.mktemp("case")
    file = folder / ("c.jsonl" if kind == "jsonl" else "c.json")
    file.write_text(json.dumps(value))
    words = {
        "coco": ["coco", f"--set=captions.train={file}"],
        "karpathy": ["flickr30k", f"--set=karpathy={file}"],
        "jsonl": ["pairs", f"--set=captions={file}"],
    }[kind]
    run(capsys, "prepare", *words, f"--set=images={photos}", "--out", folder / "out").refused(file)


@pytest.mark.parametrize("what", ["pipe", "folder", "dangling", "device", "nothing"])
@pytest.mark.parametrize("option", ["captions", "split", "image", "out"])
def test_things_that_are_no_files(what, option, photos, tmp_path, capsys) -> None:
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
        *("--set", f"captions={odd if option == 'captions' else tmp_path / 'c.token'}"),
        *("--set", f"images={tmp_path / 'more' if option == 'image' else photos}"),
        *(("--set", f"splits.train={odd}") if option == "split" else ()),
        *("--out", odd if option == "out" else tmp_path / "out"),
    )
    if option in ("captions", "split"):
        outcome.refused(odd)
    assert not run_folder_of(tmp_path / "out").exists()
