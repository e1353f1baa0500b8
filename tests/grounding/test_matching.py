"""From answers to phrases: their spans in the caption, and the rules, without silent drops."""

from __future__ import annotations

import math
import unicodedata

import pytest
import regex
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.grounding.grounding_settings import Rules
from pipeline.grounding.protocols import Grounded
from pipeline.grounding.rules import hull, select
from pipeline.grounding.spans import SpanFinder

# -- spans: any Unicode, second mentions, whole words --------------------------------------------


def read(caption: str, label: str, ascii_only: bool = False) -> str | None:
    span = SpanFinder(caption, ascii_only=ascii_only).find(label)
    return None if span is None else caption[slice(*span)]


@pytest.mark.parametrize(
    ("caption", "label", "expected"),
    [
        ("A Man in a RED hat", "a red HAT", "a RED hat"),
        ("a  black\tdog", "a black dog", "a  black\tdog"),
        ("a woman and a man", "man", "man"),
        ("a woman", "man", None),
        ("a snow_man", "man", None),
        ("a man's hat", "man", "man"),
        ("the Straße", "STRASSE", "Straße"),
        ("the Straße", "stras", None),
        ("a cafe\u0301 here", "café", "cafe\u0301"),
        ("a cafe\u0301 here", "cafe", None),
        ("a 👩\u200d🚒 waves", "👩\u200d🚒", "👩\u200d🚒"),
        ("a 👩\u200d🚒 waves", "👩", None),
        ("a 🇩🇪 flag", "🇩🇪", "🇩🇪"),
        ("a 🇩🇪 flag", "🇩", None),
        ("한 man", "하", None),
        ("개가 달린다", "개", None),
        ("一只狗在草地上", "草地", "草地"),
        ("犬が走る。", "犬", "犬"),
        ("サッカーボールを蹴る", "ボール", "ボール"),
        ("カ\u3099ム", "カ", None),
        ("ชายคนหนึ่งกับสุนัข", "สุนัข", "สุนัข"),
        ("ชายคนหนึ่งกับสุนัข", "สุน", None),
        ("ຫມານ້ອຍ", "ນ້ອຍ", "ນ້ອຍ"),
        ("黒いTシャツとiPhone", "iphone", "iPhone"),
        ("黒いTシャツとiPhone", "シャツ", "シャツ"),
        ("黒いTシャツとiPhone", "phone", None),
        ("一本catalogue", "cat", None),
        ("狗2只", "2", "2"),
        ("狗12只", "2", None),
        ("a dog", "   ", None),
        ("", "a dog", None),
    ],
)
def test_a_span_reads_the_phrase(caption, label, expected):
    assert read(caption, label) == expected


@pytest.mark.parametrize(
    ("caption", "label", "expected"),
    [
        ("a café au lait", "a caf", "a café"),
        ("the naïve man", "the nave man", "the naïve man"),
        ("the naïve man", "na", None),
        ("Ørsted waves", "rsted", "Ørsted"),
        ("a 😀 sign", "a sign", "a 😀 sign"),
        ("日本", "", None),
    ],
)
def test_labels_without_their_non_ascii_letters_are_found(caption, label, expected):
    assert read(caption, label, ascii_only=True) == expected


def test_a_second_mention_gets_the_second_occurrence_and_a_third_none():
    finder = SpanFinder("白い犬と黒い犬")
    assert [finder.find("犬") for _ in range(3)] == [(2, 3), (6, 7), None]
    finder = SpanFinder("a dog chases a dog")
    assert finder.find("A dog") == (0, 5)
    assert finder.find("a DOG") == (13, 18)
    assert finder.find("a dog") is None
    assert "more often" in finder.reason("a dog")
    assert finder.find("a cat") is None
    assert finder.reason("a cat") == "not in the caption"


WORDS = st.text(
    alphabet=st.one_of(
        st.sampled_from("abßİéñ日👩\u200d🏽\u0301\u0308'’-."),
        st.characters(exclude_categories=["Cs", "Z", "Cc"]),
    ),
    min_size=1,
    max_size=6,
)
SPACES = st.sampled_from([" ", "  ", "\t", "\n", " \t "])


@given(st.lists(WORDS, min_size=1, max_size=8), st.data())
def test_words_of_a_caption_are_found_where_they_read_the_same(words, data):
    gaps = [data.draw(SPACES) for _ in words[1:]]
    caption = words[0] + "".join(gap + word for gap, word in zip(gaps, words[1:], strict=True))
    start = data.draw(st.integers(0, len(words) - 1))
    end = data.draw(st.integers(start + 1, len(words)))
    label = " ".join(words[start:end])
    found = read(caption, label)
    if found is None:  # marks at its edge belong to the white space that stands before them
        assert any(is_mark(word[0]) or "\u200d" in (word[0], word[-1]) for word in words)
        return
    assert fold(found) == fold(label)


def is_mark(character: str) -> bool:
    """Whether it belongs to the character before it: combining marks and skin tones."""
    return bool(regex.match(r"\p{M}", character)) or "\U0001f3fb" <= character <= "\U0001f3ff"


def test_a_mark_newer_than_pythons_unicode_is_a_mark():
    mark = "\U00013447"
    assert is_mark(mark)
    assert read(f"a b{mark} c", "b") is None
    assert read(f"a b{mark} c", f"b{mark}") == f"b{mark}"


def fold(text: str) -> str:
    composed = unicodedata.normalize("NFC", text)
    return unicodedata.normalize("NFC", " ".join(composed.split()).casefold())


@given(st.text(max_size=40), st.text(max_size=10))
def test_any_caption_and_label_give_a_span_inside_the_caption_or_none(caption, label):
    for ascii_only in (False, True):
        span = SpanFinder(caption, ascii_only=ascii_only).find(label)
        if span is not None:
            assert 0 <= span[0] < span[1] <= len(caption)


# -- rules ---------------------------------------------------------------------------------------

HEIGHT, WIDTH = 60, 80


def phrase(text="a dog", start=0, boxes=((10, 10, 30, 30),), scores=None, masks=None):
    scores = [1.0] * len(boxes) if scores is None else scores
    return Grounded(
        text,
        start,
        start + len(text),
        torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        torch.tensor(scores, dtype=torch.float32),
        masks,
    )


def chosen(found, **rules):
    return select(found, Rules(**rules), HEIGHT, WIDTH)


@pytest.mark.parametrize(
    "box",
    [
        (30, 10, 10, 30),
        (10, 30, 30, 10),
        (10, 10, 10, 30),
        (90, 10, 99, 30),
        (-20, -20, -1, -1),
        (math.nan, 0, 10, 10),
        (0, 0, math.inf, 10),
    ],
)
def test_invalid_boxes_are_dropped_with_what_was_found(box):
    kept, dropped = chosen([phrase(boxes=[box])])
    assert kept == []
    assert [(each.phrase, each.reason) for each in dropped] == [("a dog", "bad_box")]
    assert dropped[0].detail


def test_a_box_beyond_the_image_is_clipped_and_a_phrase_without_boxes_dropped():
    (kept,), dropped = chosen([phrase(boxes=[(-5, -5, 200, 30)]), phrase("x", boxes=[])])
    assert kept.boxes.tolist() == [[0, 0, WIDTH, 30]]
    assert [(each.phrase, each.reason) for each in dropped] == [("x", "no_box")]


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        ({"min_score": 0.5}, "low_score"),
        ({"min_area": 401}, "too_small"),
        ({"max_share": 0.05}, "too_large"),
    ],
)
def test_each_rule_drops_what_breaks_it_and_nothing_at_its_limit(rules, reason):
    found = [phrase(boxes=[(10, 10, 30, 30)], scores=[0.4])]  # 400 of 4,800 pixels
    kept, dropped = chosen(found, **rules)
    assert kept == []
    assert [each.reason for each in dropped] == [reason]
    at_limit = {"min_score": 0.5, "min_area": 400, "max_share": 400 / 4800}
    kept, dropped = chosen([phrase(scores=[0.5])], **at_limit)
    assert len(kept) == 1
    assert dropped == []


def test_best_takes_the_first_best_box_and_union_all_valid_ones():
    boxes = [(0, 0, 10, 10), (20, 20, 40, 40), (50, 20, 60, 40), (5, 5, 5, 5)]
    found = [phrase(boxes=boxes, scores=[0.2, 0.9, 0.9, 1.0])]
    (best,), dropped = chosen(found)
    assert best.boxes.tolist() == [[20, 20, 40, 40]]
    assert [each.reason for each in dropped] == ["bad_box"]
    (union,), _ = chosen(found, boxes="union")
    assert union.boxes.tolist() == [list(map(float, box)) for box in boxes[:3]]
    assert hull(union.boxes) == (0, 0, 60, 40)


def test_masks_that_came_with_the_boxes_stay_with_them():
    masks = torch.zeros(2, HEIGHT, WIDTH, dtype=torch.bool)
    masks[1, 20:40, 20:40] = True
    boxes = [(0, 0, 10, 10), (20, 20, 40, 40)]
    (kept,), _ = chosen([phrase(boxes=boxes, scores=[0.1, 0.2], masks=masks)])
    assert kept.masks is not None
    assert kept.masks.shape[0] == 1
    assert kept.masks.sum() == 400


def test_of_duplicate_boxes_the_better_phrase_is_kept_and_of_equal_ones_the_first():
    pair = [phrase("a man", 0, scores=[0.5]), phrase("a clown", 10, scores=[0.6])]
    kept, dropped = chosen(pair)
    assert [each.phrase for each in kept] == ["a clown"]
    assert dropped[0].reason == "duplicate"
    assert "a clown" in dropped[0].detail
    kept, _ = chosen([phrase("a clown", 10), phrase("a man", 0)])
    assert [each.phrase for each in kept] == ["a man"]
    assert len(chosen(pair, duplicate_iou=None)[0]) == 2
    same_words = [phrase(), phrase(boxes=[(50, 0, 60, 10)], scores=[0.5])]
    kept, dropped = chosen(same_words, duplicate_iou=None)
    assert len(kept) == 1
    assert [each.reason for each in dropped] == ["duplicate"]


def test_overlap_is_intersection_over_union():
    boxes = [(0, 0, 10, 10), (5, 0, 15, 10), (20, 20, 30, 30)]
    found = [phrase(f"w{i}", i * 3, [box]) for i, box in enumerate(boxes)]
    kept, dropped = chosen(found, duplicate_iou=50 / 150)
    assert [each.phrase for each in kept] == ["w0", "w2"]
    assert [each.detail for each in dropped] == ["box of 'w0', IoU 0.33"]
    kept, _ = chosen(found, duplicate_iou=50 / 149)
    assert len(kept) == 3


def test_only_the_best_pairs_of_a_caption_are_kept_in_caption_order():
    found = [
        phrase(str(i), i * 2, [(i * 10, 0, i * 10 + 9, 9)], [score])
        for i, score in enumerate([0.8, 0.1, 0.9, 0.7])
    ]
    kept, dropped = chosen(found, max_pairs=2)
    assert [each.phrase for each in kept] == ["0", "2"]
    assert [(each.phrase, each.reason) for each in dropped] == [
        ("3", "too_many"),
        ("1", "too_many"),
    ]


EDGES = st.floats(-100, 200, width=32) | st.just(math.nan) | st.just(math.inf)
BOXES = st.lists(st.tuples(EDGES, EDGES, EDGES, EDGES), max_size=4)
RULES = st.builds(
    Rules,
    boxes=st.sampled_from(["best", "union"]),
    min_score=st.floats(0, 1),
    min_area=st.floats(0, 3000),
    max_share=st.floats(0, 1),
    duplicate_iou=st.none() | st.floats(0.01, 1),
    max_pairs=st.none() | st.integers(1, 3),
)


@given(st.lists(BOXES, max_size=6), RULES, st.data())
def test_every_phrase_is_kept_once_or_dropped_with_a_reason(all_boxes, rules, data):
    found = [
        phrase(f"w{i}", i * 3, boxes, [data.draw(st.floats(0, 1, width=32)) for _ in boxes])
        for i, boxes in enumerate(all_boxes)
    ]
    kept, dropped = select(found, rules, HEIGHT, WIDTH)
    names = [each.phrase for each in kept]
    assert len(set(names)) == len(names)
    assert set(names) | {each.phrase for each in dropped} == {each.phrase for each in found}
    assert [each.char_start for each in kept] == sorted(each.char_start for each in kept)
    for each in kept:
        x0, y0, x1, y1 = each.boxes.double().unbind(dim=1)
        assert (each.boxes >= 0).all()
        assert (x1 <= WIDTH).all()
        assert (y1 <= HEIGHT).all()
        area = (x1 - x0) * (y1 - y0)
        assert (area > 0).all()
        assert (area >= rules.min_area).all()
        assert (area <= rules.max_share * HEIGHT * WIDTH * (1 + 1e-9)).all()
        assert (each.scores >= rules.min_score - 1e-7).all()
        assert rules.boxes == "union" or len(each.boxes) == 1
    assert rules.max_pairs is None or len(kept) <= rules.max_pairs
