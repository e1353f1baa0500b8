"""Hostile manifests, annotations and settings for `ground` and `extract`, and odd images."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import set_words
from ground_data import DataSet
from hostile_files import MANY, Change, hostile_tables, run, write_hostile
from hypothesis import given
from hypothesis import strategies as st
from prepared_data import as_prepared
from small_inputs import write_clip

from sightline.cache import CAPTIONS, IMAGES, key_of_file, key_of_text
from sightline.cache.manifest import PHRASES, SENTENCES
from sightline.cache.rle import CROP_RULE, cutout_key, encode_mask

pytestmark = pytest.mark.slow
TEXT = "a dog runs"
XML = (
    "<annotation><size><width>24</width><height>16</height></size><object><name>1</name>"
    "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>9</xmax><ymax>8</ymax></bndbox></object></annotation>"
)
SENTENCE = "[/EN#1/animals a dog] runs"
NUMBERS = ["NaN", "inf", "-inf", "1e400", "-7", "0", "2.5", "", "x", "\u0663", "1_0", "0x9"]
NUMBERS += ["9" * 5000]


def write_set(folder: Path) -> None:
    data = DataSet(folder)
    for number in range(2):
        data.add(f"{number}.png", TEXT, size=(16, 24))
    data.write()


def images_of(folder: Path) -> list[dict[str, Any]]:
    sizes = {"offset": None, "length": None, "width": 24, "height": 16, "split": "train"}
    return [
        {"image_id": n, "path": n, "key": key_of_file(folder / "images" / n), **sizes}
        for n in ("0.png", "1.png")
    ]


CAPTION_ROWS = [
    {"caption_id": f"{n}.png#0", "image_id": f"{n}.png", "text": TEXT, "split": "train"}
    for n in range(2)
]


def phrases_of(folder: Path) -> list[dict[str, Any]]:
    mask = np.zeros((16, 24), dtype=bool)
    mask[2:9, 3:12] = True
    code = encode_mask(mask)
    return [
        {
            **{"image_key": row["key"], "caption_key": key_of_text(TEXT), "phrase": "a dog"},
            **{"char_start": 0, "char_end": 5, "box": [3.0, 2.0, 12.0, 9.0], "score": 1.0},
            "mask": {**code, "size": [*code["size"]]},
            "cutout_key": cutout_key(row["key"], code["size"], code["counts"], CROP_RULE),
        }
        for row in images_of(folder)
    ]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound") / "set"
    write_set(folder)
    write_hostile(folder / "phrases.parquet", PHRASES, phrases_of(folder), ("as it is", None))
    entities = folder / "entities"
    for part, text in (("Sentences", SENTENCE), ("Annotations", XML)):
        (entities / part).mkdir(parents=True)
        for number in range(2):
            suffix = "txt" if part == "Sentences" else "xml"
            (entities / part / f"{number}.{suffix}").write_text(text)
    write_clip(folder)
    return folder


def words_of(
    command: str, sound: Path, folder: Path, data: Path | None = None, phrases: Path | None = None
) -> list[object]:
    """A command over the data set ``sound`` or ``data``, with these phrases or annotations."""
    data, phrases = data or sound, phrases or sound / "phrases.parquet"
    words = ["--data", data, "--out", folder / "out"]
    if command == "ground":
        masks = {"family": "box" if phrases.is_dir() else "annotations"}
        grounder = {"family": "annotations", "path": phrases}
        settings = set_words({"grounder": grounder, "segmenter": masks})
        return ["ground", *words, "--cutouts", folder / "cut", *settings]
    words += ["--encoder", sound / "clip.json", "--weights", "random:0", "--batch-size", 4]
    words += ["--phrases", phrases] if command == "object" else []
    return ["extract", command, *words, "--workers", 0]


def test_sound_files_are_accepted(sound, tmp_path, capsys) -> None:
    """Else the sweeps below would prove nothing."""
    for command in ("ground", "entities", "image", "object", "text"):
        folder = tmp_path / command
        folder.mkdir()
        words = words_of(command, sound, folder)
        if command == "entities":
            words = words_of("ground", sound, folder, phrases=sound / "entities")
        outcome = run(capsys, *words)
        assert outcome.code == 0, outcome.err
        assert "failed" not in outcome.out


ZERO = key_of_text("")
PHRASE_ROW = {
    **{"image_key": ZERO, "caption_key": ZERO, "phrase": "a", "char_start": 0, "char_end": 1},
    **{"box": [0.0] * 4, "score": 1.0, "mask": {"size": [1, 1], "counts": ""}, "cutout_key": ZERO},
}
IMAGE_ROW = {"image_id": "", "path": "", "offset": 0, "length": 0, "key": ZERO}
IMAGE_ROW |= {"width": 1, "height": 1, "split": ""}
SENTENCE_ROWS = [{"text": "one"}, {"text": "two"}]
READERS = {
    "phrases": (PHRASES, phrases_of, ["ground", "object"], [PHRASE_ROW] * 2),
    "images": (IMAGES, images_of, ["ground", "image", "object"], [IMAGE_ROW] * 2),
    "captions": (CAPTIONS, lambda _: CAPTION_ROWS, ["ground", "text"], CAPTION_ROWS),
    "sentences": (SENTENCES, lambda _: SENTENCE_ROWS, ["text"], SENTENCE_ROWS),
}
"""Manifest → its schema, its sound rows, the commands that read it, and rows to change."""


@pytest.mark.parametrize(
    ("name", "command"), [(name, command) for name in READERS for command in READERS[name][2]]
)
@MANY
@given(data=st.data())
def test_manifests(name: str, command: str, data, sound, tmp_path_factory, capsys) -> None:
    folder = tmp_path_factory.mktemp("case")
    schema, rows_of, _, changed = READERS[name]
    change: Change = data.draw(hostile_tables(schema, changed))
    file = folder / f"{name}.parquet"
    fault = write_hostile(file, schema, rows_of(sound), change)
    if command == "text" and not (fault and "text" in fault):
        fault = None  # the only column that is read
    if name in ("images", "captions"):
        (other,) = {"images", "captions"} - {name}
        (folder / f"{other}.parquet").symlink_to(sound / f"{other}.parquet")
        words = words_of(command, sound, folder, as_prepared(folder, sound / "images"))
    elif name == "phrases":
        words = words_of(command, sound, folder, phrases=file)
    else:
        words = words_of(command, sound, folder, file)
    outcome = run(capsys, *words)
    if fault is not None:
        outcome.refused(file, fault)
    if outcome.code and "failed" not in outcome.err:
        assert not (folder / "out/set.json").exists()


MARKUP = st.one_of(
    st.tuples(st.sampled_from(["24", "16", ">1<", ">9<"]), st.sampled_from(NUMBERS)).map(
        lambda pair: XML.replace(pair[0], f">{pair[1]}<" if ">" in pair[0] else pair[1])
    ),
    st.sampled_from(
        ["no-such", "utf-16", "utf-32", "big5", "idna", "punycode", "rot13", "hex", "utf-7", ""]
    ).map(lambda name: f'<?xml version="1.0" encoding="{name}"?>{XML}'),
    st.floats(0, 1).map(lambda share: XML[: int(len(XML) * share)]),
    st.text(max_size=30),
    st.sampled_from(["size", "width", "object", "name", "bndbox", "xmin"]).map(
        lambda tag: XML.replace(f"<{tag}>", "<other>").replace(f"</{tag}>", "</other>")
    ),
    st.just("<a>" * 100_000),
    st.just("<!DOCTYPE a [<!ENTITY b 'c'>]>" + XML.replace(">1<", ">&b;&d;<")),
    st.just('<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>' + XML.replace(">1<", ">&b;<")),
)


@MANY
@given(xml=MARKUP, sentence=st.one_of(st.just(SENTENCE), st.text(max_size=20)))
def test_entities(xml: str, sentence: str, sound, tmp_path_factory, capsys) -> None:
    """Damage costs its own image; with every image failed, the command does."""
    folder = tmp_path_factory.mktemp("case")
    for part, suffix, text, good in (
        ("Sentences", "txt", sentence, SENTENCE),
        ("Annotations", "xml", xml, XML),
    ):
        (folder / part).mkdir()
        (folder / part / f"0.{suffix}").write_bytes(text.encode("utf-8", "surrogatepass"))
        (folder / part / f"1.{suffix}").write_text(good)
    words = [*words_of("ground", sound, folder, phrases=folder), "--max-failed=1"]
    outcome = run(capsys, *words)
    assert outcome.code == 0, outcome.err
    failures = folder / "out.run/failures.jsonl"
    assert failures.is_file() == ("failed" in outcome.out), outcome.out


SETTINGS = st.one_of(
    st.tuples(st.just("grounder"), st.text(min_size=1, max_size=40)),
    st.sampled_from(
        [
            ("grounder", "&a [*a]"),
            ("grounder", "2020-13-45"),
            ("grounder", "{family: annotations, path: " + "9" * 5000 + "}"),
            ("grounder", "? [a]: b"),
            ("grounder", "[" * 5000),
            ("grounder", "!!python/object/apply:os.system [ls]"),
            (
                "grounder",
                "[&a [x,x,x,x,x,x,x,x,x], &b [*a,*a,*a,*a,*a,*a,*a,*a,*a], "
                "&c [*b,*b,*b,*b,*b,*b,*b,*b,*b], &d [*c,*c,*c,*c,*c,*c,*c,*c,*c], "
                "&e [*d,*d,*d,*d,*d,*d,*d,*d,*d], &f [*e,*e,*e,*e,*e,*e,*e,*e,*e], "
                "&g [*f,*f,*f,*f,*f,*f,*f,*f,*f], [*g,*g,*g,*g,*g,*g,*g,*g,*g]]",
            ),
            ("grounder", "{family: [annotations], path: x}"),
            ("grounder", '{family: annotations, path: "\\0"}'),
            ("grounder", '{family: annotations, path: "\\ud800"}'),
            ("rules.min_score", ".nan"),
            ("rules.max_pairs", "1e400"),
            ("rules.min_area", "-.inf"),
            ("grounder", "null"),
            ("grounder", ""),
        ]
    ),
)


@MANY
@given(setting=SETTINGS)
def test_settings(setting: tuple[str, str], sound, tmp_path_factory, capsys) -> None:
    folder = tmp_path_factory.mktemp("case")
    name, value = setting
    words = words_of("ground", sound, folder)
    if name == "grounder":
        words = [word for word in words if "grounder." not in str(word)]
    assert run(capsys, *words, f"--set={name}={value}").code in (1, 2)


@pytest.mark.parametrize("what", ["pipe", "folder", "device", "dangling", "empty", "text", "cut"])
@pytest.mark.parametrize("command", ["ground", "image", "object"])
def test_an_image_that_is_none_costs_its_row(what, command, sound, tmp_path, capsys) -> None:
    folder = tmp_path / "set"
    write_set(folder)
    odd = folder / "images/0.png"
    data = odd.read_bytes()
    odd.unlink()
    if what == "pipe":
        os.mkfifo(odd)
    elif what == "folder":
        odd.mkdir()
    elif what in ("device", "dangling"):
        odd.symlink_to("/dev/zero" if what == "device" else tmp_path / "gone")
    else:
        odd.write_bytes({"empty": b"", "text": b"no image", "cut": data[:-20]}[what])
    words = words_of(command, sound, tmp_path, folder)
    outcome = run(capsys, *words, "--max-failed=1")
    assert outcome.code == 0, outcome.err
    (line,) = (tmp_path / "out.run/failures.jsonl").read_text().splitlines()
    expected = "changed" if what in ("empty", "text", "cut") else "missing"
    assert json.loads(line)["code"] == expected
