"""Bad input from end to end: each costs only its row, with an actionable reason."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import set_words, sightline
from flat_tables import flat
from ground_data import DataSet
from PIL import Image

from sightline.cache import key_of_file
from sightline.cache.groundings import read_grounding

WIDTH, HEIGHT = 40, 30
LONG = " ".join(["word"] * 1998)
EMOJI = "A 👩\u200d🚒\tin a cafe\u0301"


@dataclass(frozen=True)
class Case:
    """One image with its sentence in Flickr30k Entities' format, and the expected outcome.

    Attributes:
        sentence: with marks; the caption is the same without them.
        boxes: xmin, ymin, xmax, ymax of each id, counted from 1, the last pixel included.
        phrases: that become records.
        drops: (phrase, reason, part of the detail).
        error: code of the image, and part of its reason.
        keep: characters of the XML that are written; all of them where None.
        size: (width, height) that the XML says.
    """

    sentence: str = "[/EN#1/people A man] runs ."
    boxes: tuple[tuple[int, int, int, int, int], ...] = ((1, 5, 5, 20, 20),)
    phrases: tuple[str, ...] = ()
    drops: tuple[tuple[str, str, str], ...] = ()
    error: tuple[str, str] = ("", "")
    keep: int | None = None
    size: tuple[int, int] = (WIDTH, HEIGHT)


def box(*corners: int) -> tuple[tuple[int, int, int, int, int], ...]:
    return ((1, *corners),)  # pyright: ignore[reportReturnType]


CASES = {
    "good": Case(phrases=("A man",)),
    "no-phrase": Case("It runs .", drops=(("", "unnamed", "id 1"), ("", "no_phrase", "marked"))),
    "outside": Case(boxes=box(90, 5, 99, 20), drops=(("A man", "bad_box", "outside the image"),)),
    "inverted": Case(boxes=box(20, 5, 5, 20), drops=(("A man", "bad_box", "inverted or empty"),)),
    "empty": Case(boxes=box(5, 5, 4, 20), drops=(("A man", "bad_box", "inverted or empty"),)),
    "beyond": Case(boxes=box(-9, -9, 99, 99), phrases=("A man",)),
    "id-without-phrase": Case(
        boxes=((1, 5, 5, 20, 20), (9, 1, 1, 4, 4)),
        phrases=("A man",),
        drops=(("", "unnamed", "id 9 has no phrase"),),
    ),
    "phrase-without-id": Case(boxes=(), drops=(("A man", "no_box", "id 1 is not in the XML"),)),
    "cut-short": Case(keep=90, error=("bad_annotation", "truncated or invalid XML")),
    "no-xml": Case(keep=-1, error=("bad_annotation", "no such file")),
    "open-mark": Case("[/EN#1/people A man", error=("bad_annotation", "no closing bracket")),
    "other-size": Case(size=(41, 30), error=("wrong_size", "41 × 30")),
    "dot": Case(boxes=box(1, 1, 1, 1), size=(1, 1), phrases=("A man",)),
    "huge": Case(size=(12_000, 9_000), error=("too_many_pixels", "12000 × 9000")),
    "emoji": Case(f"[/EN#1/people {EMOJI}] .", phrases=(EMOJI,)),
    "long": Case(f"{LONG} [/EN#1/people a man] .", phrases=("a man",)),
}
"""By the name of the image, without its extension."""


def picture(data: DataSet, name: str, case: Case) -> None:
    caption = case.sentence.replace("[/EN#1/people ", "").replace("]", "")
    if name == "huge":
        Image.new("1", case.size).save(data.folder / "images/huge.png")
        data.captions["huge.png"] = [caption]
    else:
        size = (1, 1) if name == "dot" else (HEIGHT, WIDTH)
        data.add(f"{name}.png", caption, size=size)


def annotate(folder: Path, name: str, case: Case) -> None:
    things = "".join(
        f"<object><name>{entity}</name><bndbox><xmin>{x0}</xmin><ymin>{y0}</ymin>"
        f"<xmax>{x1}</xmax><ymax>{y1}</ymax></bndbox></object>"
        for entity, x0, y0, x1, y1 in case.boxes
    )
    width, height = case.size
    xml = f"<size><width>{width}</width><height>{height}</height></size>{things}"
    xml = f"<annotation>{xml}</annotation>"
    (folder / "Sentences" / f"{name}.txt").write_text(case.sentence + "\n", encoding="utf-8")
    if case.keep != -1:
        (folder / "Annotations" / f"{name}.xml").write_text(xml[: case.keep], encoding="utf-8")


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> dict[str, Any]:
    """One run of the command over all of them: its tables and failures, by image name."""
    folder = tmp_path_factory.mktemp("bad")
    data = DataSet(folder / "data")
    for part in ("Sentences", "Annotations"):
        (folder / "entities" / part).mkdir(parents=True)
    for name, case in CASES.items():
        picture(data, name, case)
        annotate(folder / "entities", name, case)
    data.write()
    settings = {
        "grounder": {"family": "annotations", "path": str(folder / "entities")},
        "segmenter": {"family": "box"},
    }
    paths = ["--data", data.folder, "--out", folder / "out", "--cutouts", folder / "cut"]
    assert sightline("ground", *paths, *set_words(settings), "--max-failed", 1) == 0
    failures = (folder / "out.run/failures.jsonl").read_text().splitlines()
    return {
        "keys": {name: key_of_file(data.folder / "images" / f"{name}.png") for name in CASES},
        "failures": {Path(json.loads(line)["path"]).stem: json.loads(line) for line in failures},
        "codes": read_grounding(folder / "out")[1],
        **{kind: flat(folder / "out", kind).to_pylist() for kind in ("images", "phrases", "drops")},
    }


@pytest.mark.parametrize("name", CASES)
def test_bad_input_costs_only_its_own_row(done, name):
    case, key = CASES[name], done["keys"][name]
    images = [row for row in done["images"] if row["image_key"] == key]
    assert len(images) == (not case.error[0])
    phrases = [row["phrase"] for row in done["phrases"] if row["image_key"] == key]
    assert tuple(phrases) == case.phrases
    drops = [row for row in done["drops"] if row["image_key"] == key]
    assert [(row["phrase"], row["reason"]) for row in drops] == [each[:2] for each in case.drops]
    for row, (_, _, detail) in zip(drops, case.drops, strict=True):
        assert detail in row["detail"]
    if case.error[0]:
        failure = done["failures"][name]
        assert failure["code"] == done["codes"][bytes.fromhex(failure["key"])]
        assert failure["code"] == case.error[0]
        assert case.error[1] in done["failures"][name]["reason"]
    else:
        assert name not in done["failures"]
