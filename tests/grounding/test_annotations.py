"""Flickr30k Entities' format on invented files, and phrases manifests as annotations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ground_data import write_table

from pipeline.grounding.annotations import open_annotations
from pipeline.grounding.entities import align, parse_sentence
from pipeline.grounding.protocols import Caption, Grounded, GroundingError
from sightline.cache import PHRASES, key_of_text
from sightline.cache.rle import encode_mask
from sightline.errors import SightlineError

KEY = b"k" * 32
SENTENCE = (
    "[/EN#1/people Two men] in [/EN#2/clothing a hat ( [ red ] )] , [/EN#0/notvisual it] seems , "
    "near [/EN#3/scene/other a harbour] with [/EN#4/other nets] ."
)
PLAIN = "Two men in a hat ( [ red ] ) , it seems , near a harbour with nets ."


def thing(*names: str, box: tuple[int, int, int, int] | None = None, extra: str = "") -> str:
    edges = zip(("xmin", "ymin", "xmax", "ymax"), box or (), strict=False)
    corners = "".join(f"<{edge}>{value}</{edge}>" for edge, value in edges)
    return (
        "<object>"
        + "".join(f"<name>{name}</name>" for name in names)
        + (f"<bndbox>{corners}</bndbox>" if box else "")
        + f"{extra}</object>"
    )


THINGS = (
    thing("1", box=(1, 1, 10, 20))
    + thing("1", box=(11, 1, 20, 20))
    + thing("2", box=(5, 5, 5, 5))
    + thing("3", extra="<scene>1</scene><nobndbox>0</nobndbox>")
    + thing("4", extra="<scene>0</scene><nobndbox>1</nobndbox>")
)


@pytest.fixture
def entities(tmp_path: Path):
    """Writes one image's files and returns the answer for a caption of it."""

    def answer(caption: str = PLAIN, sentence: str = SENTENCE, things: str = THINGS, xml=None):
        whole = (
            "<annotation><size><width>40</width><height>30</height><depth>3</depth></size>"
            f"{things}</annotation>"
        )
        for folder, name, text in [
            ("Sentences", "7.txt", sentence + "\n[/EN#1/people They] stand .\n"),
            ("Annotations", "7.xml", whole if xml is None else xml(whole)),
        ]:
            (tmp_path / folder).mkdir(exist_ok=True)
            (tmp_path / folder / name).write_text(text, encoding="utf-8")
        grounder = open_annotations(tmp_path)
        image = torch.zeros(3, 30, 40, dtype=torch.uint8)
        return grounder.ground([image], [Caption("7.jpg", KEY, caption)])[0]

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


def test_a_caption_that_matches_no_sentence_is_a_drop(entities):
    found, dropped = entities("A cat sleeps.")
    assert found == []
    assert [each.reason for each in dropped] == ["no_phrase"]


def test_a_box_that_no_phrase_names_and_a_sentence_without_marks_are_reported(entities):
    found, dropped = entities(things=THINGS + thing("99", box=(1, 1, 2, 2)))
    assert len(found) == 2
    assert dropped[0].detail == "id 99 has no phrase in any sentence"
    found, dropped = entities("It runs .", "It runs .", "")
    assert found == []
    assert [each.detail for each in dropped] == ["nothing is marked in this sentence"]


def test_a_phrase_whose_id_has_no_object_and_a_scene_with_a_box(entities):
    things = thing("3", box=(1, 1, 40, 30), extra="<scene>1</scene>")
    found, dropped = entities(things=things)
    assert [each.phrase for each in found] == ["a harbour"]
    assert [each.reason for each in dropped] == ["no_box", "no_box", "not_visual", "no_box"]
    assert "not in the XML" in dropped[0].detail


def test_an_object_of_several_phrases_gives_its_box_to_each(entities):
    found, _ = entities(things=thing("1", "4", box=(2, 3, 4, 5)))
    assert [each.phrase for each in found] == ["Two men", "nets"]
    assert found[0].boxes.tolist() == found[1].boxes.tolist() == [[1, 2, 4, 5]]


def swapped(old: str, new: str):
    return lambda whole: whole.replace(old, new)


def encoded(name: str):
    return lambda whole: f'<?xml version="1.0" encoding="{name}"?>{whole}'


@pytest.mark.parametrize(
    ("xml", "code", "says"),
    [
        (swapped(">40<", ">41<"), "wrong_size", "41 × 30"),
        *(
            (xml, "bad_annotation", "truncated or invalid XML")
            for xml in (
                *(lambda whole: whole[:90], lambda whole: ""),
                *map(encoded, ("no-such", "utf-16", "big5", "idna", "")),
            )
        ),
        *(
            (swapped(old, new), "bad_annotation", says)
            for old, new, says in (
                ("<xmax>10<", "<xmax>ten<", "xmax: found 'ten'"),
                ("<width>40</width>", "", "size.width: is"),
                ("<name>2</name>", "", r"\[2\].name: is"),
                *(
                    ("<width>40", f"<width>{number}", f"size.width: found '{number[:9]}")
                    for number in ("NaN", "inf", "1e400", "-inf", "-4", "40.5", "9" * 5000, "")
                ),
                *(
                    ("<xmax>10<", f"<xmax>{number}<", r"object\[0\].bndbox.xmax: found")
                    for number in ("NaN", "inf", "1e400", "")
                ),
            )
        ),
    ],
)
def test_a_damaged_annotation_is_an_error_of_its_image(entities, xml, code, says):
    with pytest.raises(GroundingError, match=says) as error:
        entities(xml=xml)
    assert error.value.code == code
    assert error.value.image_key == KEY
    assert "7.xml" in error.value.reason


def test_unclosed_markup_names_its_line(entities):
    with pytest.raises(GroundingError, match=r"7\.txt: line 1: .* no closing bracket"):
        entities(sentence="[/EN#1/people Two men")
    with pytest.raises(ValueError, match="no closing bracket"):
        parse_sentence("[/EN#1/people a [ b ]")


def test_a_folder_without_annotations_and_an_image_without_files(tmp_path):
    with pytest.raises(SightlineError, match=r"expected a phrases manifest"):
        open_annotations(tmp_path)
    (tmp_path / "Sentences").mkdir()
    (tmp_path / "Annotations").mkdir()
    with pytest.raises(GroundingError, match="no such file"):
        answer_of(tmp_path)


# -- phrases manifests --------------------------------------------------------------------------


def manifest(tmp_path: Path, **changes) -> Path:
    mask = np.zeros((30, 40), dtype=bool)
    mask[5:10, 4:20] = True
    row = {
        **{"image_key": KEY, "caption_key": key_of_text("a dog runs"), "phrase": "a dog"},
        **{"char_start": 0, "char_end": 5, "box": [4.0, 5.0, 20.0, 10.0], "score": 1.0},
        **{"mask": encode_mask(mask), "cutout_key": KEY},
    }
    return write_table(tmp_path / "phrases.parquet", [{**row, **changes}], PHRASES)


def answer_of(path: Path, text="a dog runs"):
    image = torch.zeros(3, 30, 40, dtype=torch.uint8)
    return open_annotations(path).ground([image], [Caption("7", KEY, text)])[0]


def test_a_manifest_gives_boxes_and_masks(tmp_path):
    (found,), dropped = answer_of(manifest(tmp_path))
    assert isinstance(found, Grounded)
    assert (found.phrase, found.char_start, found.char_end) == ("a dog", 0, 5)
    assert found.masks is not None
    assert found.masks.shape == (1, 30, 40)
    assert found.masks[0, 5:10, 4:20].all()
    assert found.masks.sum() == 80
    assert dropped == []


def test_a_caption_without_a_row_and_a_span_with_different_text_are_drops(tmp_path):
    _, dropped = answer_of(manifest(tmp_path), "another caption")
    assert [each.reason for each in dropped] == ["no_phrase"]
    found, dropped = answer_of(manifest(tmp_path, char_end=4))
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
        answer_of(manifest(tmp_path, mask=mask))
    assert error.value.code == code


def test_the_description_follows_the_content(tmp_path, entities):
    entities()
    before = open_annotations(tmp_path).describe()
    entities(things=THINGS + thing("9", box=(1, 1, 2, 2)))
    assert open_annotations(tmp_path).describe() != before
