"""Florence-2: recorded answers through the parser, and a tiny model of the true class."""

from __future__ import annotations

import pytest
import torch
from tiny_grounders import (
    IMAGE_TOKENS,
    POSITIONS,
    captions_of,
    florence_processor,
    pictures,
    save_dino,
    save_florence,
)

from pipeline.grounding.florence2 import Florence2Grounder, parse_answer
from pipeline.grounding.settings import Florence2Settings
from sightline.errors import SightlineError

CAPTION = "A man and a dog near the café."
BOX = "<loc_0><loc_0><loc_999><loc_999>"
OTHER = "<loc_100><loc_200><loc_300><loc_400>"


@pytest.fixture(scope="module")
def post_processor():
    return florence_processor().post_processor


WHOLE, MAN = [0, 0, 499, 199], [50, 40, 150, 80]  # of BOX and OTHER


@pytest.mark.parametrize(
    ("answer", "found", "dropped"),
    [
        (f"</s><s>A man{OTHER}a dog{BOX}</s>", {"A man": [MAN], "a dog": [WHOLE]}, []),
        (f"</s><s>a dog{OTHER}{BOX}{OTHER}</s><pad><pad>", {"a dog": [MAN, WHOLE, MAN]}, []),
        (f"<s>the caf{BOX}</s>", {"the café": [WHOLE]}, []),
        ("</s><s></s>", {}, [("", "no_phrase")]),
        ("", {}, [("", "no_phrase")]),
        (f"</s><s>A man{OTHER}a dog<loc_1><loc_2>", {"A man": [MAN]}, [("a dog", "unfinished")]),
        (f"<s>A man{OTHER}a do", {"A man": [MAN]}, [("a do", "unfinished")]),
        (f"<s>A man{OTHER}<loc_5>", {"A man": [MAN]}, [("A man", "unfinished")]),
        (f"<s>A mana dog{BOX}</s>", {}, [("A mana dog", "not_in_caption")]),
        (
            f"<s>a cat{BOX}a dog{BOX}a dog{OTHER}</s>",
            {"a dog": [WHOLE]},
            [("a cat", "not_in_caption"), ("a dog", "not_in_caption")],
        ),
        (f"<s>it{BOX}</s>", {}, [("it", "no_phrase")]),
        (f"<s>{BOX}</s>", {}, [("", "no_phrase")]),
        ("<s>A man</s>", {}, [("A man", "no_box")]),
    ],
)
def test_recorded_answers(post_processor, answer, found, dropped):
    phrases, drops = parse_answer(answer, CAPTION, (500, 200), post_processor)
    assert {each.phrase: each.boxes.tolist() for each in phrases} == found
    assert [(each.phrase, each.reason) for each in drops] == dropped
    for each in phrases:
        assert CAPTION[each.char_start : each.char_end] == each.phrase
        assert each.scores.tolist() == [1.0] * len(each.boxes)


def test_the_answer_that_the_demo_of_grounded_sam_2_shows(post_processor):
    answer = (
        "</s><s>A green car<loc_53><loc_331><loc_909><loc_780>"
        "a yellow building<loc_2><loc_8><loc_998><loc_635></s>"
    )
    caption = "A green car parked in front of a yellow building."
    phrases, dropped = parse_answer(answer, caption, (640, 480), post_processor)
    assert [each.phrase for each in phrases] == ["A green car", "a yellow building"]
    published = [[34.24, 159.12, 582.08, 374.64], [1.6, 4.08, 639.04, 305.04]]
    for each, box in zip(phrases, published, strict=True):  # transformers rounds down
        assert each.boxes.tolist() == [[int(edge) for edge in box]]
    assert dropped == []


def test_an_inverted_location_is_parsed_verbatim(post_processor):
    answer = "<s>a dog<loc_900><loc_900><loc_100><loc_100></s>"
    (phrase,), _ = parse_answer(answer, CAPTION, (1000, 1000), post_processor)
    assert phrase.boxes.tolist() == [[900, 900, 100, 100]]  # the rules drop it, with a reason


@pytest.fixture(scope="module")
def grounder(tmp_path_factory) -> Florence2Grounder:
    folder = save_florence(tmp_path_factory.mktemp("models") / "florence")
    settings = Florence2Settings(family="florence2", model=str(folder), beams=2, max_length=12)
    return Florence2Grounder.load(settings, torch.device("cpu"), "fp32")


def test_a_batch_equals_one_by_one(grounder):
    images = pictures((40, 60), (64, 64), (30, 90))
    texts = ["A dog.", "Two men stand near a red boat in the harbour", "x"]
    together = grounder.answers(images, texts)
    alone = [grounder.answers([i], [t])[0] for i, t in zip(images, texts, strict=True)]
    assert [each.replace("<pad>", "") for each in together] == [
        each.replace("<pad>", "") for each in alone
    ]
    assert len(set(alone)) > 1, "the tiny model must answer each image in its own way"
    answers = grounder.ground(images, captions_of(texts))
    assert len(answers) == 3
    assert all(found or dropped for found, dropped in answers)


@pytest.mark.parametrize(
    "text",
    [
        "👩\u200d🚒 a cafe\u0301\tdog",
        "a sign <OCR> with <loc_5></s> <image> on it",
        "word " * 2000,
        "x" * 5000,
        "",
    ],
)
def test_any_caption_is_read(grounder, text):
    ((found, dropped),) = grounder.ground(pictures((1, 1)), captions_of([text]))
    assert found or dropped
    fits = len(text.encode()) < POSITIONS - IMAGE_TOKENS - 40
    assert any(each.reason == "too_long" for each in dropped) != fits


def test_no_captions_give_no_answers_and_parameters_are_described(grounder):
    assert grounder.ground([], []) == []
    described = grounder.describe()
    said = {name: described[name] for name in ("family", "beams", "max_length")}
    assert said == {"family": "florence2", "beams": 2, "max_length": 12}
    assert len(str(described["weights_sha256"])) == 64


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    folder = save_dino(tmp_path / "dino")
    settings = Florence2Settings(family="florence2", model=str(folder))
    with pytest.raises(SightlineError, match=r"'grounding-dino', expected 'florence2'"):
        Florence2Grounder.load(settings, torch.device("cpu"), "fp32")
