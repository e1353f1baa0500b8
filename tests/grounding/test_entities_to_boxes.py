"""examples/entities_to_boxes.py on invented files: the phrases and boxes that people marked."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from ground_data import DataSet
from shown_commands import ROOT

from pipeline.grounding.box_tables import BoxTable
from pipeline.grounding.protocols import Grounded

SENTENCE = (
    "[/EN#1/people Two men] in [/EN#2/clothing a hat ( [ red ] )] , [/EN#0/notvisual it] seems , "
    "near [/EN#3/scene/other a harbour] with [/EN#4/other nets] ."
)
PLAIN = "Two men in a hat ( [ red ] ) , it seems , near a harbour with nets ."
THEY = "They stand ."


def thing(*names: str, box: tuple[int, int, int, int] | None = None, extra: str = "") -> str:
    edges = zip(("xmin", "ymin", "xmax", "ymax"), box or (), strict=False)
    corners = "".join(f"<{edge}>{value}</{edge}>" for edge, value in edges)
    bounds = f"<bndbox>{corners}</bndbox>" if box else ""
    return f"<object>{''.join(f'<name>{n}</name>' for n in names)}{bounds}{extra}</object>"


def annotation(*things: str) -> str:
    size = "<size><width>40</width><height>30</height><depth>3</depth></size>"
    return f"<annotation>{size}{''.join(things)}</annotation>"


THINGS = (
    thing("1", box=(1, 1, 10, 20)),
    thing("1", box=(11, 1, 20, 20)),
    thing("2", box=(5, 5, 5, 5)),
    thing("3", extra="<scene>1</scene><nobndbox>0</nobndbox>"),
    thing("4", extra="<scene>0</scene><nobndbox>1</nobndbox>"),
)
XML = annotation(*THINGS)
Convert = Callable[..., list[Grounded]]


@pytest.fixture
def data(tmp_path) -> DataSet:
    return DataSet(tmp_path / "data")


@pytest.fixture
def convert(data, run_example) -> Convert:
    """Writes one image's files, converts them, and returns the grounder's phrases of a caption."""
    for folder in ("Sentences", "Annotations"):
        Path("release", folder).mkdir(parents=True)

    def answer(caption: str = PLAIN, sentence: str = SENTENCE, xml: str = XML) -> list[Grounded]:
        Path("release/Sentences/7.txt").write_text(f"{sentence}\n[/EN#1/people They] stand .\n")
        Path("release/Annotations/7.xml").write_text(xml)
        data.add("7.png", caption, THEY, caption, size=(30, 40))
        units = data.units()
        run_example("entities_to_boxes.py", "release", "data", "boxes.jsonl")
        table = BoxTable(Path("boxes.jsonl"), None)
        assert table.match(units, masks=False) == []
        (asked,) = [each for unit in units for each in unit.captions if each.text == caption]
        image = torch.zeros(3, 30, 40, dtype=torch.uint8)
        found, dropped = table.ground([image], [asked])[0]
        assert [each.reason for each in dropped] == ["no_phrase"] * (not found)
        return found

    return answer


def test_phrases_with_and_without_boxes(convert, capsys):
    found = convert()
    assert [each.phrase for each in found] == ["Two men", "a hat ( [ red ] )"]
    for each in found:
        assert PLAIN[each.char_start : each.char_end] == each.phrase
    # counted from 1 and with their last pixel, in the file; from 0 and without it, here
    assert found[0].boxes.tolist() == [[0, 0, 10, 20], [10, 0, 20, 20]]
    assert found[1].boxes.tolist() == [[4, 4, 5, 5]]
    assert found[0].scores.tolist() == [1, 1]
    assert capsys.readouterr().out.splitlines() == [
        "boxes.jsonl: 5 boxes",
        "phrases of a scene: 1",
        "phrases that name nothing visible: 1",
        "phrases with boxes: 3",  # and They
        "phrases without a box: 1",
    ]


def test_a_raw_caption_matches_the_tokenised_sentence_up_to_white_space(convert):
    raw = "Two men in a hat ([red]), it seems, near a harbour with nets."
    found = convert(raw)
    assert [raw[each.char_start : each.char_end] for each in found] == ["Two men", "a hat ([red])"]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "examples")
        return importlib.import_module("entities_to_boxes")


def test_a_caption_with_different_punctuation_is_matched_by_its_letters(script):
    sentence = script.parse("`` [/EN#1/people A man 's dog] '' , [/EN#2/people a man] .")
    caption = '"A man\'s dog" - a man'
    spans = script.align(sentence, caption)
    assert [caption[slice(*span)] for span in spans] == ["A man's dog", "a man"]
    assert script.align(sentence, "A man's dog, a woman") is None


@pytest.mark.parametrize(
    "text", ["😀 a cafe\u0301", "a\ttab", "the Straße İ", " ".join(["word"] * 2000)]
)
def test_any_caption_keeps_its_own_characters(script, text):
    sentence = script.parse(f"[/EN#1/other {text}] stands")
    caption = f"{text.upper()}  stands"
    assert script.align(sentence, caption) == [(0, len(text.upper()))]


def test_what_has_no_phrase_or_no_box_is_counted(convert, capsys):
    def said(*words: str) -> str:
        assert convert(*words) == []
        return capsys.readouterr().out

    they = annotation(THINGS[0])
    assert "captions without a marked sentence: 1" in said("A cat sleeps.")
    assert "captions without a marked sentence: 1" in said("It runs .", "It runs .", they)
    assert "phrases without a letter: 1" in said("It runs", "It [/EN#1/x ( )] runs", they)
    scene = thing("3", box=(1, 1, 40, 30), extra="<scene>1</scene>")
    found = convert(xml=annotation(scene, *THINGS[:1], thing("99", box=(1, 1, 2, 2))))
    assert [each.phrase for each in found] == ["Two men", "a harbour"]
    said_last = capsys.readouterr().out
    assert "ids that no sentence names: 1" in said_last
    assert "phrases without a box: 2" in said_last


def test_an_object_of_several_phrases_gives_its_box_to_each(convert):
    found = convert(xml=annotation(thing("1", "4", box=(2, 3, 4, 5))))
    assert [each.phrase for each in found] == ["Two men", "nets"]
    assert found[0].boxes.tolist() == found[1].boxes.tolist() == [[1, 2, 4, 5]]


def encoded(name: str) -> str:
    return f'<?xml version="1.0" encoding="{name}"?>{XML}'


NUMBERS = ("NaN", "inf", "1e400", "", "9" * 5000)
OUTSIDE = '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(
    ("xml", "says"),
    [
        *(
            (XML.replace(">40<", f">{w}<"), f"{w} × 30 pixels, .* 40 ×")
            for w in ("41", "-4", "40.5")
        ),
        *(
            (xml, "")
            for xml in (
                *(XML[:90], "", "<a>" * 100_000, XML.replace(">1<", ">&lost;<")),
                OUTSIDE + XML.replace(">1<", ">&b;<"),
                *map(encoded, ("no-such", "utf-16", "big5", "idna", "")),
            )
        ),
        (XML.replace("<width>40</width>", ""), "size/width: found ''"),
        (XML.replace("<name>2</name>", ""), "an object has no name"),
        *(
            (XML.replace(f"<{where}>{old}", f"<{where}>{number}"), f"{where}: found '{number[:9]}")
            for where, old in (("width", 40), ("xmax", 10))
            for number in (*NUMBERS, "ten")
        ),
    ],
)
def test_a_damaged_annotation_is_one_clear_error(convert, xml, says):
    match = rf"^error: release/Annotations/7\.xml: damaged, or not as released: .*{says}"
    with pytest.raises(SystemExit, match=match) as ended:
        convert(xml=xml)
    assert "\n" not in str(ended.value)
    assert not Path("boxes.jsonl").exists()


def test_unclosed_markup_and_bytes_that_are_no_text_name_the_file(convert, run_example):
    with pytest.raises(SystemExit, match=r"7\.txt: .*no closing bracket after 'Two men'"):
        convert(sentence="[/EN#1/people Two men")
    Path("release/Sentences/7.txt").write_bytes(b"\xff")
    with pytest.raises(SystemExit, match=r"7\.txt: .*utf-8"):
        run_example("entities_to_boxes.py", "release", "data", "boxes.jsonl")


def test_images_without_files_are_counted_and_a_folder_without_any_is_refused(
    convert, data, run_example, capsys
):
    data.add("8.png", "A dog .")
    convert()
    assert "images without annotations: 1" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"^error: data: no boxes of data; expected Sentences/"):
        run_example("entities_to_boxes.py", "data", "data", "boxes.jsonl")
    with pytest.raises(SystemExit, match=r"^error: release: no prepared data set here"):
        run_example("entities_to_boxes.py", "release", "release", "boxes.jsonl")
    with pytest.raises(SystemExit):
        run_example("entities_to_boxes.py", "release", "data", "boxes.csv")
    assert "expected a name that ends in .jsonl" in capsys.readouterr().err


def test_the_docs_have_its_command():
    source = (ROOT / "examples/entities_to_boxes.py").read_text()
    (example,) = re.findall(r"such as: (\S+) (\S+) (\S+)\.", source)
    command = f"python examples/entities_to_boxes.py {' '.join(example)}"
    assert command in (ROOT / "docs/grounding.md").read_text()
