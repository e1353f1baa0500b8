"""Flickr30k Entities' format on invented files, and phrases manifests as annotations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ground_data import write_table

from pipeline.grounding.annotations import open_annotations
from pipeline.grounding.entities import align, parse_sentence
from pipeline.grounding.protocols import Answer, Caption, GroundingError
from sightline.cache import PHRASES, key_of_text
from sightline.cache.rle import encode_mask
from sightline.errors import SightlineError

KEY = b"k" * 32
SENTENCE = (
    "[/EN#1/people Two men] in [/EN#2/clothing a hat ( [ red ] )] , [/EN#0/notvisual it] seems , "
    "near [/EN#3/scene/other a harbour] with [/EN#4/other nets] ."
)
PLAIN = "Two men in a hat ( [ red ] ) , it seems , near a harbour with nets ."


def answer_of(path: Path, caption: str) -> Answer:
    """What the annotations say of a caption of an image of 40 × 30 pixels."""
    image = torch.zeros(3, 30, 40, dtype=torch.uint8)
    return open_annotations(path).ground([image], [Caption("7.jpg", KEY, caption)])[0]


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


@pytest.fixture
def entities(tmp_path):
    """Writes one image's files and returns the answer for a caption of it."""
    for folder in ("Sentences", "Annotations"):
        (tmp_path / folder).mkdir()

    def answer(caption: str = PLAIN, sentence: str = SENTENCE, xml: str = XML) -> Answer:
        (tmp_path / "Sentences/7.txt").write_text(f"{sentence}\n[/EN#1/people They] stand .\n")
        (tmp_path / "Annotations/7.xml").write_text(xml)
        return answer_of(tmp_path, caption)

    return answer


def test_phrases_with_and_without_boxes(entities):
    found, dropped = entities()
    assert [each.phrase for each in found] == ["Two men", "a hat ( [ red ] )"]
    for each in found:
        assert PLAIN[each.char_start : each.char_end] == each.phrase
    # counted from 1 and with their last pixel, in the file; from 0 and without it, here
    assert found[0].boxes.tolist() == [[0, 0, 10, 20], [10, 0, 20, 20]]
    assert found[1].boxes.tolist() == [[4, 4, 5, 5]]
    assert found[0].scores.tolist() == [1, 1]
    assert [(each.phrase, each.reason) for each in dropped] == [
        ("it", "not_visual"),
        ("a harbour", "scene"),
        ("nets", "no_box"),
    ]


def test_a_raw_caption_matches_the_tokenised_sentence_up_to_white_space(entities):
    raw = "Two men in a hat ([red]), it seems, near a harbour with nets."
    found, _ = entities(raw)
    assert [raw[each.char_start : each.char_end] for each in found] == ["Two men", "a hat ([red])"]


def test_a_caption_with_different_punctuation_is_matched_by_its_letters():
    sentence = parse_sentence("`` [/EN#1/people A man 's dog] '' , [/EN#2/people a man] .")
    caption = '"A man\'s dog" - a man'
    spans = align(sentence, caption)
    assert spans is not None
    assert [caption[slice(*span)] for span in spans if span] == ["A man's dog", "a man"]
    assert align(sentence, "A man's dog, a woman") is None


@pytest.mark.parametrize(
    "text", ["😀 a cafe\u0301", "a\ttab", "the Straße İ", " ".join(["word"] * 2000)]
)
def test_any_caption_keeps_its_own_characters(text):
    sentence = parse_sentence(f"[/EN#1/other {text}] stands")
    caption = f"{text.upper()}  stands"
    assert align(sentence, caption) == [(0, len(text.upper()))]


def test_what_has_no_phrase_or_no_box_is_a_drop(entities):
    found, dropped = entities("A cat sleeps.")
    assert found == []
    assert [each.reason for each in dropped] == ["no_phrase"]
    found, dropped = entities("It runs .", "It runs .", annotation())
    assert found == []
    assert [each.detail for each in dropped] == ["nothing is marked in this sentence"]
    found, dropped = entities(xml=annotation(*THINGS, thing("99", box=(1, 1, 2, 2))))
    assert len(found) == 2
    assert dropped[0].detail == "id 99 has no phrase in any sentence"
    scene = thing("3", box=(1, 1, 40, 30), extra="<scene>1</scene>")
    found, dropped = entities(xml=annotation(scene))
    assert [each.phrase for each in found] == ["a harbour"]
    assert [each.reason for each in dropped] == ["no_box", "no_box", "not_visual", "no_box"]
    assert "not in the XML" in dropped[0].detail


def test_an_object_of_several_phrases_gives_its_box_to_each(entities):
    found, _ = entities(xml=annotation(thing("1", "4", box=(2, 3, 4, 5))))
    assert [each.phrase for each in found] == ["Two men", "nets"]
    assert found[0].boxes.tolist() == found[1].boxes.tolist() == [[1, 2, 4, 5]]


def encoded(name: str) -> str:
    return f'<?xml version="1.0" encoding="{name}"?>{XML}'


NUMBERS = ("NaN", "inf", "1e400", "")
OUTSIDE = '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]>'


@pytest.mark.parametrize(
    ("xml", "says"),
    [
        (XML.replace(">40<", ">41<"), "41 × 30"),
        *(
            (xml, "truncated or invalid XML")
            for xml in (
                *(XML[:90], "", "<a>" * 100_000, XML.replace(">1<", ">&lost;<")),
                OUTSIDE + XML.replace(">1<", ">&b;<"),
                *map(encoded, ("no-such", "utf-16", "big5", "idna", "")),
            )
        ),
        (XML.replace("<width>40</width>", ""), "size.width: is"),
        (XML.replace("<name>2</name>", ""), r"\[2\].name: is"),
        *(
            (XML.replace("<width>40", f"<width>{number}"), f"size.width: found '{number[:9]}")
            for number in (*NUMBERS, "-4", "40.5", "9" * 5000)
        ),
        *(
            (XML.replace("<xmax>10<", f"<xmax>{number}<"), r"object\[0\].bndbox.xmax: found")
            for number in (*NUMBERS, "ten")
        ),
    ],
)
def test_a_damaged_annotation_is_an_error_of_its_image(entities, xml, says):
    with pytest.raises(GroundingError, match=says) as error:
        entities(xml=xml)
    assert error.value.code == ("wrong_size" if says == "41 × 30" else "bad_annotation")
    assert error.value.image_key == KEY
    assert "7.xml" in error.value.reason


def test_unclosed_markup_names_its_line_and_bytes_that_are_no_text_the_file(entities, tmp_path):
    with pytest.raises(GroundingError, match=r"7\.txt: line 1: .* no closing bracket"):
        entities(sentence="[/EN#1/people Two men")
    with pytest.raises(ValueError, match="no closing bracket"):
        parse_sentence("[/EN#1/people a [ b ]")
    (tmp_path / "Sentences/7.txt").write_bytes(b"\xff")
    with pytest.raises(GroundingError, match=r"7\.txt: .*UTF-8"):
        answer_of(tmp_path, PLAIN)


def test_a_folder_without_annotations_and_an_image_without_files(tmp_path):
    with pytest.raises(SightlineError, match=r"expected a phrases manifest"):
        open_annotations(tmp_path)
    (tmp_path / "Sentences").mkdir()
    (tmp_path / "Annotations").mkdir()
    with pytest.raises(GroundingError, match="no such file"):
        answer_of(tmp_path, PLAIN)


def test_the_description_follows_the_content(tmp_path, entities):
    entities()
    before = open_annotations(tmp_path).describe()
    entities(xml=annotation(*THINGS, thing("9", box=(1, 1, 2, 2))))
    assert open_annotations(tmp_path).describe() != before


# -- phrases manifests --------------------------------------------------------------------------


def answer_of_manifest(tmp_path: Path, caption: str = "a dog runs", **changes: object) -> Answer:
    mask = np.zeros((30, 40), dtype=bool)
    mask[5:10, 4:20] = True
    row = {
        **{"image_key": KEY, "caption_key": key_of_text("a dog runs"), "phrase": "a dog"},
        **{"char_start": 0, "char_end": 5, "box": [4.0, 5.0, 20.0, 10.0], "score": 1.0},
        **{"mask": encode_mask(mask), "cutout_key": KEY},
    }
    path = write_table(tmp_path / "phrases.parquet", [{**row, **changes}], PHRASES)
    return answer_of(path, caption)


def test_a_manifest_gives_boxes_and_masks(tmp_path):
    (found,), dropped = answer_of_manifest(tmp_path)
    assert (found.phrase, found.char_start, found.char_end) == ("a dog", 0, 5)
    assert found.boxes.tolist() == [[4, 5, 20, 10]]
    assert found.masks is not None
    assert found.masks.shape == (1, 30, 40)
    assert found.masks[0, 5:10, 4:20].all()
    assert found.masks.sum() == 80
    assert dropped == []


def test_a_caption_without_a_row_and_a_span_with_different_text_are_drops(tmp_path):
    _, dropped = answer_of_manifest(tmp_path, "another caption")
    assert [each.reason for each in dropped] == ["no_phrase"]
    found, dropped = answer_of_manifest(tmp_path, char_end=4)
    assert found == []
    assert [each.reason for each in dropped] == ["not_in_caption"]


@pytest.mark.parametrize(
    ("mask", "code"),
    [
        (encode_mask(np.ones((40, 30), dtype=bool)), "wrong_size"),
        ({"size": [30, 40], "counts": "07"}, "bad_mask"),
    ],
)
def test_a_mask_that_does_not_fit_is_an_error_of_its_image(tmp_path, mask, code):
    with pytest.raises(GroundingError) as error:
        answer_of_manifest(tmp_path, mask=mask)
    assert error.value.code == code
