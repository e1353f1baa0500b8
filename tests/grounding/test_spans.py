"""Finding phrases in captions: any Unicode, second mentions, whole words."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.grounding.spans import SpanFinder

WORDS = st.text(
    alphabet=st.one_of(
        st.sampled_from("abßİéñ日👩\u200d🏽\u0301\u0308'’-."),
        st.characters(exclude_categories=["Cs", "Z", "Cc"]),
    ),
    min_size=1,
    max_size=6,
)
SPACES = st.sampled_from([" ", "  ", "\t", "\n", " \t "])


def read(caption: str, label: str) -> str | None:
    span = SpanFinder(caption).find(label)
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
        ("a dog", "   ", None),
        ("", "a dog", None),
    ],
)
def test_a_span_reads_the_phrase(caption, label, expected):
    assert read(caption, label) == expected


def test_a_second_mention_gets_the_second_occurrence_and_a_third_none():
    finder = SpanFinder("a dog chases a dog")
    assert finder.find("A dog") == (0, 5)
    assert finder.find("a DOG") == (13, 18)
    assert finder.find("a dog") is None
    assert "more often" in finder.reason("a dog")
    assert finder.find("a cat") is None
    assert finder.reason("a cat") == "not in the caption"


@given(st.lists(WORDS, min_size=1, max_size=8), st.data())
def test_words_of_a_caption_are_found_where_they_read_the_same(words, data):
    gaps = [data.draw(SPACES) for _ in words[1:]]
    caption = words[0] + "".join(gap + word for gap, word in zip(gaps, words[1:], strict=True))
    start = data.draw(st.integers(0, len(words) - 1))
    end = data.draw(st.integers(start + 1, len(words)))
    label = " ".join(words[start:end])
    span = SpanFinder(caption).find(label)
    if span is None:  # marks at its edge belong to the white space that stands before them
        assert any(is_mark(word[0]) or "\u200d" in (word[0], word[-1]) for word in words)
        return
    found = caption[slice(*span)]
    assert fold(found) == fold(label)


def is_mark(character: str) -> bool:
    """Whether it belongs to the character before it: combining marks and skin tones."""
    return unicodedata.category(character)[0] == "M" or "\U0001f3fb" <= character <= "\U0001f3ff"


def fold(text: str) -> str:
    composed = unicodedata.normalize("NFC", text)
    return unicodedata.normalize("NFC", " ".join(composed.split()).casefold())


@given(st.text(max_size=40), st.text(max_size=10))
def test_any_caption_and_label_give_a_span_inside_the_caption_or_none(caption, label):
    for ascii_only in (False, True):
        span = SpanFinder(caption, ascii_only=ascii_only).find(label)
        if span is not None:
            assert 0 <= span[0] < span[1] <= len(caption)


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
    span = SpanFinder(caption, ascii_only=True).find(label)
    assert (None if span is None else caption[slice(*span)]) == expected


def test_a_caption_of_two_thousand_words_is_searched_to_its_end():
    caption = " ".join(["a dog"] * 1000)
    finder = SpanFinder(caption)
    spans = [finder.find("a dog") for _ in range(1001)]
    assert spans[999] == (len(caption) - 5, len(caption))
    assert spans[1000] is None
