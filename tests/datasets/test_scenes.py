"""Scenes: the images show what the captions say, and only the images connect the synonyms."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.datasets.scenes.captions import Description, Mention, describe, write
from pipeline.datasets.scenes.draw import box_of, draw
from pipeline.datasets.scenes.scene import Placed, Scene, Thing, random_scene, relation, stream
from pipeline.datasets.scenes.similarity import graded_pairs, similarity
from pipeline.datasets.scenes.student import wordpieces
from pipeline.datasets.scenes.vocabulary import ATTRIBUTES, RELATIONS, RGB, WEIGHTS

ALL = frozenset(Thing._fields)
RED_DISC = Thing("post", "red", "big", "plain")
BLUE_BAR = Thing("bar", "blue", "small", "striped")
SYNONYMS = [value.words for values in (*ATTRIBUTES.values(), RELATIONS) for value in values]
seeds = st.integers(0, 10**6)


def told(*things, where=None, said=ALL):
    return Description(tuple(Mention(thing, said) for thing in things), where)


@given(seeds)
def test_masks_are_the_things_and_nothing_else(seed):
    scene = random_scene(stream(seed))
    pixels, masks = draw(scene, 64)
    assert sum(mask.astype(int) for mask in masks).max() == 1  # things never overlap
    ground = (pixels == scene.ground).all(axis=2)
    assert (ground == ~np.any(masks, axis=0)).all()
    for placed, mask in zip(scene.things, masks, strict=True):
        found = {tuple(colour) for colour in pixels[mask].tolist()}
        assert RGB[placed.thing.colour] in found
        assert len(found) == (1 if placed.thing.texture == "plain" else 2)
        x0, y0, x1, y1 = (int(edge) for edge in box_of(mask))
        assert mask[y0:y1, x0:x1].sum() == mask.sum() > 20


@given(seeds)
def test_relations_are_those_of_the_masks(seed):
    scene = random_scene(stream(seed))
    for one, other in pairwise(scene.things):
        where = relation(one, other)
        assert {"left": one.x < other.x, "right": one.x > other.x}.get(where, True)
        assert {"above": one.y < other.y, "below": one.y > other.y}.get(where, True)


@given(seeds)
def test_spans_hold_the_words_of_their_thing(seed):
    random = stream(seed)
    scene = random_scene(random)
    description, order = describe(scene, random)
    caption = write(description, random)
    for mention, span, i in zip(description.mentions, caption.spans, order, strict=True):
        assert mention.thing == scene.things[i].thing
        phrase = caption.text[slice(*span)].split()
        assert phrase[0] == "a"
        assert len(phrase) == 1 + len(mention.said)
        for attribute in mention.said:
            value = getattr(mention.thing, attribute)
            words = next(v.words for v in ATTRIBUTES[attribute] if v.name == value)
            assert set(words) & set(phrase)


@given(seeds)
def test_no_text_ever_holds_two_words_for_one_value(seed):
    random = stream(seed)
    caption = write(describe(random_scene(random), random)[0], random)
    words = caption.text.split()
    assert all(sum(word in words for word in synonyms) <= 1 for synonyms in SYNONYMS)


def test_every_word_belongs_to_one_value_only():
    words = [word for synonyms in SYNONYMS for word in synonyms]
    assert len(words) == len(set(words))
    assert all(len(synonyms) >= 2 for synonyms in SYNONYMS)


def test_synonyms_are_chosen_evenly_and_independently():
    random = stream(1)
    texts = [write(told(RED_DISC), random).text.split() for _ in range(400)]
    shape = np.array(["wug" in text for text in texts])
    colour = np.array(["vorn" in text for text in texts])
    assert 150 < shape.sum() < 250
    assert 60 < (shape & colour).sum() < 140


def test_every_caption_fits_the_student():
    pieces = wordpieces()
    random = stream(2)
    for _ in range(2000):
        words = write(describe(random_scene(random), random)[0], random).text.split()
        assert len(words) + 2 <= 32
        assert all(word in pieces for word in words)


def test_similarity_follows_the_meaning_and_not_the_words():
    pair = told(RED_DISC, BLUE_BAR, where="left")
    assert similarity(pair, pair) == pytest.approx(5)
    assert similarity(pair, pair.turned()) == pytest.approx(5)
    assert similarity(pair, told(RED_DISC, BLUE_BAR, where="right")) == pytest.approx(4.5)
    other_colour = RED_DISC._replace(colour="green")
    assert similarity(told(RED_DISC), told(other_colour)) == pytest.approx(
        5 * (1 - WEIGHTS["colour"])
    )
    assert similarity(told(RED_DISC), told(BLUE_BAR)) == 0
    assert similarity(told(RED_DISC), told(RED_DISC, said=ALL - {"size"})) == pytest.approx(
        5 * (1 - WEIGHTS["size"] / 2)
    )


@given(seeds)
def test_similarity_is_symmetric_and_within_bounds(seed):
    random = stream(seed)
    one, other = (describe(random_scene(random), random)[0] for _ in range(2))
    assert similarity(one, other) == pytest.approx(similarity(other, one))
    assert 0 <= similarity(one, other) <= 5
    assert similarity(one, one) == pytest.approx(5)


def test_pairs_are_balanced_and_word_overlap_is_uninformative():
    pairs = graded_pairs(600, "dev", stream(3), set())
    scores = np.array([pair.score for pair in pairs])
    assert np.histogram(scores, bins=5, range=(0, 5))[0].min() > 80
    content = {word for synonyms in SYNONYMS for word in synonyms}
    for pair in pairs:
        assert not set(pair.sentence1.split()) & set(pair.sentence2.split()) & content
    overlap = [
        len(set(a.split()) & set(b.split())) / len(set(a.split()) | set(b.split()))
        for _, a, b in pairs
    ]
    ranks = [np.argsort(np.argsort(values)) for values in (overlap, scores)]
    assert abs(np.corrcoef(ranks)[0, 1]) < 0.15


def test_a_thing_out_of_place_changes_the_relation():
    here, there = Placed(RED_DISC, 0.2, 0.2, 0.1), Placed(BLUE_BAR, 0.8, 0.3, 0.1)
    assert relation(here, there) == "left"
    assert relation(there, here) == "right"
    assert relation(Placed(RED_DISC, 0.8, 0.9, 0.1), there) == "below"


def test_the_same_things_are_in_the_same_split_regardless_of_place():
    scene = random_scene(stream(4))
    moved = Scene(tuple(placed._replace(x=0.5) for placed in reversed(scene.things)), 40)
    assert moved.split == scene.split
    assert random_scene(stream(5), "test").split == "test"
