"""Grounding DINO: a tiny model of the true class, and which box belongs to which phrase."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tiny_grounders import captions_of, pictures, save_dino

from pipeline.grounding.chunker import noun_phrases
from pipeline.grounding.grounding_dino import GroundingDinoGrounder
from pipeline.grounding.protocols import GroundingError
from pipeline.grounding.settings import GroundingDinoSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> str:
    return str(save_dino(tmp_path_factory.mktemp("models") / "dino"))


def grounder_of(folder: str, box=0.0, text=0.0) -> GroundingDinoGrounder:
    settings = GroundingDinoSettings(
        family="grounding-dino", model=folder, box_threshold=box, text_threshold=text
    )
    return GroundingDinoGrounder.load(settings, torch.device("cpu"), "fp32")


TEXTS = ["A man holds the red dog", "the dog", "a man and a dog near the red dog", "and of it"]


def test_a_batch_of_several_sizes_equals_one_by_one(folder):
    grounder = grounder_of(folder)
    images = pictures((40, 60), (64, 64), (40, 60), (64, 64))
    captions = captions_of(TEXTS)
    together = grounder.ground(images, captions)
    for image, caption, (found, dropped) in zip(images, captions, together, strict=True):
        ((alone, alone_dropped),) = grounder.ground([image], [caption])
        assert [each.phrase for each in found] == [each.phrase for each in alone]
        assert dropped == alone_dropped
        for ours, theirs in zip(found, alone, strict=True):
            torch.testing.assert_close(ours.boxes, theirs.boxes, rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(ours.scores, theirs.scores, rtol=1e-4, atol=1e-5)
    assert [each.phrase for each in together[0][0]] == ["A man", "the red dog"]
    assert together[0][0][0].boxes.shape == (12, 4)
    assert [each.reason for each in together[3][1]] == ["no_phrase"]


def test_boxes_are_pixels_of_the_image(folder, monkeypatch):
    grounder = grounder_of(folder)
    # centre x, centre y, width, height, as shares of the image
    output = SimpleNamespace(
        logits=torch.zeros(2, 1, 64), pred_boxes=torch.tensor([[[0.5, 0.5, 0.25, 1.0]]] * 2)
    )
    monkeypatch.setattr(grounder._model, "forward", lambda **inputs: output)
    for found, _ in grounder.ground(pictures((40, 80), (40, 80)), captions_of(["the dog"] * 2)):
        assert found[0].boxes.tolist() == [[30, 0, 50, 40]]
        assert found[0].scores.tolist() == [0.5]


def test_a_box_belongs_to_every_phrase_whose_token_passes(folder, monkeypatch):
    grounder = grounder_of(folder, box=0.35, text=0.25)
    # [CLS] a man . the dog . [SEP]
    scores = torch.tensor(
        [
            [0, 0.1, 0.9, 0, 0.1, 0.3, 0, 0],  # both, by their nouns
            [0, 0.1, 0.1, 0, 0.1, 0.8, 0, 0],  # the dog alone
            [0, 0.3, 0.3, 0, 0.3, 0.3, 0, 0],  # under the box threshold
            [0, 0.2, 0.2, 0.6, 0.2, 0.2, 0, 0],  # only the full stop passes
        ]
    )
    boxes = torch.arange(16, dtype=torch.float32).reshape(4, 4)
    monkeypatch.setattr(grounder, "_forward", lambda images, queries: [(boxes, scores)])
    ((found, dropped),) = grounder.ground(pictures((8, 8)), captions_of(["A man near the dog"]))
    assert [each.phrase for each in found] == ["A man", "the dog"]
    assert found[0].boxes.tolist() == boxes[:1].tolist()
    assert found[0].scores.tolist() == pytest.approx([0.9])
    assert found[1].boxes.tolist() == boxes[:2].tolist()
    assert found[1].scores.tolist() == pytest.approx([0.3, 0.8])
    assert dropped == []


def test_a_phrase_without_a_box_is_a_drop_with_its_best_score(folder):
    ((found, dropped),) = grounder_of(folder, box=1.0).ground(
        pictures((8, 8)), captions_of(["A man near the dog"])
    )
    assert found == []
    assert [(each.phrase, each.reason) for each in dropped] == [
        ("A man", "no_box"),
        ("the dog", "no_box"),
    ]


def test_phrases_beyond_the_text_length_are_drops(folder):
    text = " and ".join(["the dog"] * 700) + " near a 👩\u200d🚒 and a cafe\u0301\tman"
    ((found, dropped),) = grounder_of(folder).ground(pictures((1, 1)), captions_of([text]))
    assert len(found) + len(dropped) == 701
    assert {each.reason for each in dropped} == {"too_long"}
    assert len({(each.char_start, each.char_end) for each in found}) == len(found) > 10


def test_a_strip_that_would_be_scaled_to_nothing_is_an_error_of_its_image(folder):
    grounder = grounder_of(folder)
    captions = captions_of(["the dog"])
    grounder.ground(pictures((1, 96)), captions)
    with pytest.raises(GroundingError, match="97 × 1 pixels") as error:
        grounder.ground(pictures((1, 97)), captions)
    assert error.value.image_key == captions[0].image_key


@pytest.mark.parametrize(
    ("caption", "phrases"),
    [
        (
            "A man in a blue shirt is standing on a ladder cleaning a window.",
            ["A man", "a blue shirt", "a ladder", "a window"],
        ),
        ("Two smiling girls with the man's hat", ["Two smiling girls", "the man's hat"]),
        ("Two men riding horses, both the dogs", ["Two men", "horses", "both the dogs"]),
        ("a dog a cat", ["a dog", "a cat"]),
        ("It is there", []),
        ("", []),
        # a determiner by itself is no phrase; an emoji is no word
        ("an 👩\u200d🚒 and a cafe\u0301\tdoor", ["a cafe\u0301\tdoor"]),
        ("A T-shirt of St. Bernard", ["A T-shirt", "St", "Bernard"]),
        ("A man stands in front of a tall building .", ["A man", "front", "a tall building"]),
        ("a red brick building painted white", ["a red brick building painted white"]),
        ("men in black clothing on a tyre swing", ["men", "black clothing", "a tyre swing"]),
        ("a child building a sandcastle", ["a child", "a sandcastle"]),
        ("a boy swinging and a girl running", ["a boy", "a girl"]),
    ],
)
def test_noun_phrases_by_function_words(caption, phrases):
    assert [caption[slice(*span)] for span in noun_phrases(caption)] == phrases
