"""Grounders that run a model: tiny ones of the true classes, against transformers' own answers."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

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
    save_sam3,
)
from transformers import (
    AutoProcessor,
    MMGroundingDinoConfig,
    MMGroundingDinoForObjectDetection,
    Sam3Model,
    Sam3Processor,
)
from transformers.image_processing_base import ImageProcessingMixin as PreTrainedImageProcessing

from pipeline.grounding.florence2 import parse_answer
from pipeline.grounding.noun_phrases import noun_phrases
from pipeline.grounding.protocols import GroundingError
from pipeline.grounding.settings import GrounderSettings
from sightline.errors import SightlineError

FAMILIES = ["florence2", "grounding-dino", "mm-grounding-dino", "sam3"]
TEXTS = ["A man holds the red dog", "the dog", "a man and a dog near the red dog", "and of it"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A model of each family, in the folder of its name."""
    root = tmp_path_factory.mktemp("models")
    save_florence(root / "florence2")
    save_dino(root / "grounding-dino")
    save_dino(root / "mm-grounding-dino", MMGroundingDinoConfig, MMGroundingDinoForObjectDetection)
    save_sam3(root / "sam3")
    return root


def grounder(folders: Path, family: str, model: str = "", **parameters: object) -> Any:
    values = {"family": family, "model": str(folders / (model or family)), **parameters}
    if family == "florence2":
        values = {"max_length": 12, **values}
    return GrounderSettings.model_validate(values).build(torch.device("cpu"), "fp32")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_of_another_model_is_refused(folders, family):
    other = FAMILIES[FAMILIES.index(family) - 1]
    with pytest.raises(SightlineError, match=f"'{other}(_video)?', expected .*'{family}'"):
        grounder(folders, family, other)


@pytest.mark.parametrize(
    ("family", "told"),
    [
        ("florence2", {"beams": 2, "max_length": 12}),
        ("mm-grounding-dino", {"box_threshold": 0.2, "chunker": "function-words/2"}),
        ("sam3", {"threshold": 0.2, "chunker": "function-words/2"}),
    ],
)
def test_what_determines_an_answer_is_described(folders, family, told):
    parameters = {name: value for name, value in told.items() if name != "chunker"}
    described = grounder(folders, family, **parameters).describe()
    assert {name: described[name] for name in ("family", *told)} == {"family": family, **told}
    assert len(str(described["weights_sha256"])) == 64


@pytest.mark.parametrize("family", FAMILIES)
def test_a_grounders_configuration_and_processing_are_described_as_they_lie(
    folders, family, tmp_path, monkeypatch
):
    described = grounder(folders, family).describe()
    shutil.copytree(folders / family, tmp_path / family)
    config = json.loads((tmp_path / family / "config.json").read_text())
    config |= {"transformers_version": "9.9", "id2label": {"0": "x"}}
    (tmp_path / family / "config.json").write_text(json.dumps(config))
    processing = PreTrainedImageProcessing.to_dict
    later = {"of_a_later_release": 1}
    monkeypatch.setattr(
        PreTrainedImageProcessing, "to_dict", lambda self: {**processing(self), **later}
    )
    assert grounder(tmp_path, family).describe() == described
    other = {**config, "initial_value_of_a_rope": 3}
    (tmp_path / family / "config.json").write_text(json.dumps(other))
    changed = grounder(tmp_path, family).describe()
    assert {name for name in changed if changed[name] != described[name]} == {"config_sha256"}


def test_what_a_model_that_writes_is_told_of_its_answers_counts(folders, tmp_path):
    before = {name: grounder(folders, name).describe() for name in ("florence2", "grounding-dino")}
    for name in before:
        shutil.copytree(folders / name, tmp_path / name)
        (tmp_path / name / "generation_config.json").write_text('{"no_repeat_ngram_size": 3}')
    assert grounder(tmp_path, "florence2").describe() != before["florence2"]
    assert grounder(tmp_path, "grounding-dino").describe() == before["grounding-dino"]


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


# -- Florence-2 ----------------------------------------------------------------------------------

CAPTION = "A man and a dog near the café."
BOX = "<loc_0><loc_0><loc_999><loc_999>"
OTHER = "<loc_100><loc_200><loc_300><loc_400>"
INVERTED = "<loc_300><loc_400><loc_100><loc_200>"
WHOLE, MAN = [0, 0, 499, 199], [50, 40, 150, 80]  # of BOX and OTHER


@pytest.fixture(scope="module")
def post_processor():
    return florence_processor().post_processor


@pytest.mark.parametrize(
    ("answer", "found", "dropped"),
    [
        (f"</s><s>A man{OTHER}a dog{BOX}</s>", {"A man": [MAN], "a dog": [WHOLE]}, []),
        (f"</s><s>a dog{OTHER}{BOX}{OTHER}</s><pad><pad>", {"a dog": [MAN, WHOLE, MAN]}, []),
        (f"<s>the caf{BOX}</s>", {"the café": [WHOLE]}, []),
        (f"<s>a dog{INVERTED}</s>", {"a dog": [[150, 80, 50, 40]]}, []),  # the rules drop it
        ("</s><s></s>", {}, [("", "no_phrase")]),
        (f"</s><s>A man{OTHER}a dog<loc_1><loc_2>", {"A man": [MAN]}, [("a dog", "unfinished")]),
        (f"<s>A man{OTHER}a do", {"A man": [MAN]}, [("a do", "unfinished")]),
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
def test_recorded_answers_of_florence2(post_processor, answer, found, dropped):
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


@pytest.fixture(scope="module")
def florence(folders):
    return grounder(folders, "florence2", beams=2, max_length=12)


def test_a_batch_of_florence2_equals_one_by_one(florence):
    images = pictures((40, 60), (64, 64), (30, 90))
    texts = ["A dog.", "Two men stand near a red boat in the harbour", "x"]
    together = florence.predictions(images, texts)
    alone = [florence.predictions([i], [t])[0] for i, t in zip(images, texts, strict=True)]
    assert [each.replace("<pad>", "") for each in together] == [
        each.replace("<pad>", "") for each in alone
    ]
    assert len(set(alone)) > 1, "the tiny model must answer each image in its own way"
    predictions = florence.ground(images, captions_of(texts))
    assert len(predictions) == 3
    assert all(found or dropped for found, dropped in predictions)
    assert florence.ground([], []) == []


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
def test_any_caption_is_read_by_florence2(florence, text):
    ((found, dropped),) = florence.ground(pictures((1, 1)), captions_of([text]))
    assert found or dropped
    fits = len(text.encode()) < POSITIONS - IMAGE_TOKENS - 40
    assert any(each.reason == "too_long" for each in dropped) != fits


def test_an_answer_longer_than_the_positions_of_florence2_is_refused(folders):
    longest = grounder(folders, "florence2", beams=1, max_length=POSITIONS)
    assert longest.ground(pictures((40, 60)), captions_of(["the red dog"]))
    message = f"florence2: max_length is {POSITIONS + 1}, .* set grounder.max_length to {POSITIONS}"
    with pytest.raises(SightlineError, match=message):
        grounder(folders, "florence2", max_length=POSITIONS + 1)


# -- Grounding DINO ------------------------------------------------------------------------------


def test_dino_finds_batched_what_the_librarys_post_processing_finds(folders):
    family, threshold = "mm-grounding-dino", {"box_threshold": 0.0, "text_threshold": 0.0}
    images = pictures((40, 60), (64, 64), (40, 60), (64, 64))
    predictions = grounder(folders, family, **threshold).ground(images, captions_of(TEXTS))
    processor = AutoProcessor.from_pretrained(folders / family)
    model = MMGroundingDinoForObjectDetection.from_pretrained(folders / family).eval()
    phrases = [["A man", "the red dog"], ["the dog"], ["a man", "a dog", "the red dog"]]
    for image, (found, dropped), expected in zip(images[:3], predictions[:3], phrases, strict=True):
        assert [each.phrase for each in found] == expected
        assert not dropped
        text = " ".join(f"{phrase.lower()}." for phrase in expected)
        inputs = processor(images=image, text=text, return_tensors="pt")
        with torch.no_grad():
            output = model(**inputs)
        (result,) = processor.post_process_grounded_object_detection(
            output,
            inputs["input_ids"],
            threshold=0.0,
            text_threshold=0.0,
            target_sizes=[tuple(image.shape[1:])],
        )
        assert found[0].boxes.shape == (12, 4)
        torch.testing.assert_close(found[0].boxes, result["boxes"], rtol=1e-4, atol=1e-3)
        best = torch.stack([each.scores for each in found]).amax(dim=0)  # theirs count every token
        assert (best <= result["scores"] + 1e-6).all()
    assert [each.reason for each in predictions[3][1]] == ["no_phrase"]


def test_a_box_belongs_to_every_phrase_whose_token_passes(folders, monkeypatch):
    dino = grounder(folders, "grounding-dino", box_threshold=0.35, text_threshold=0.25)
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
    monkeypatch.setattr(dino, "_forward", lambda images, queries: [(boxes, scores)])
    ((found, dropped),) = dino.ground(pictures((8, 8)), captions_of(["A man near the dog"]))
    assert [each.phrase for each in found] == ["A man", "the dog"]
    assert found[0].boxes.tolist() == boxes[:1].tolist()
    assert found[0].scores.tolist() == pytest.approx([0.9])
    assert found[1].boxes.tolist() == boxes[:2].tolist()
    assert found[1].scores.tolist() == pytest.approx([0.3, 0.8])
    assert dropped == []


def test_a_phrase_without_a_box_and_phrases_beyond_the_text_length_are_drops(folders):
    image = pictures((8, 8))
    strict = grounder(folders, "grounding-dino", box_threshold=1.0)
    ((found, dropped),) = strict.ground(image, captions_of(["A man near the dog"]))
    assert found == []
    reasons = [(each.phrase, each.reason) for each in dropped]
    assert reasons == [("A man", "no_box"), ("the dog", "no_box")]
    text = " and ".join(["the dog"] * 700) + " near a 👩\u200d🚒 and a cafe\u0301\tman"
    dino = grounder(folders, "grounding-dino", box_threshold=0.0, text_threshold=0.0)
    ((found, dropped),) = dino.ground(image, captions_of([text]))
    assert len(found) + len(dropped) == 701
    assert {each.reason for each in dropped} == {"too_long"}
    assert len({(each.char_start, each.char_end) for each in found}) == len(found) > 10


def test_a_strip_that_would_be_scaled_to_nothing_is_an_error_of_its_image(folders):
    dino = grounder(folders, "grounding-dino")
    captions = captions_of(["the dog"])
    dino.ground(pictures((1, 96)), captions)
    with pytest.raises(GroundingError, match="97 × 1 pixels") as error:
        dino.ground(pictures((1, 97)), captions)
    assert error.value.image_key == captions[0].image_key


# -- SAM 3 ---------------------------------------------------------------------------------------


def theirs(folders: Path, image: torch.Tensor, phrase: str, threshold: float) -> Any:
    """SAM 3's answer for one phrase, by the library's processor alone."""
    processor = Sam3Processor.from_pretrained(folders / "sam3")
    model = Sam3Model.from_pretrained(folders / "sam3").eval()
    inputs = processor(images=image, text=phrase, return_tensors="pt")
    with torch.no_grad():
        output = model(**inputs)
    (result,) = processor.post_process_instance_segmentation(
        output, threshold=threshold, target_sizes=[tuple(image.shape[1:])]
    )
    return result


def test_sam3_finds_what_the_librarys_processor_finds_batched(folders):
    images = pictures((40, 60), (64, 64), (33, 20), (64, 64))
    captions = captions_of(TEXTS)
    everything = grounder(folders, "sam3", threshold=0.0).ground(images, captions)
    scores = torch.cat([each.scores for found, _ in everything for each in found]).sort().values
    widest = int(scores.diff().argmax())  # no score is near a threshold in this gap
    threshold = float(scores[widest : widest + 2].mean())
    predictions = grounder(folders, "sam3", threshold=threshold).ground(images, captions)
    some = 0
    for image, caption, (found, dropped) in zip(images, captions, predictions, strict=True):
        for each in found:
            assert caption.text[each.char_start : each.char_end] == each.phrase
            expected = theirs(folders, image, each.phrase.lower(), threshold)
            torch.testing.assert_close(each.boxes, expected["boxes"], rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(each.scores, expected["scores"], rtol=2e-4, atol=1e-5)
            assert each.masks is not None
            assert each.masks.shape == (len(each.boxes), *image.shape[1:])
            assert (each.masks == expected["masks"].bool()).float().mean() > 0.999
            some += 1
        for each in dropped:
            assert each.reason in ("no_box", "no_phrase")
    assert some >= 2
    assert [each.reason for each in predictions[3][1]] == ["no_phrase"]


def test_a_phrase_that_sam3_cannot_read_whole_is_a_drop(folders):
    text = "a " + "red brown " * 20 + "dog and the dog"
    ((found, dropped),) = grounder(folders, "sam3", threshold=0.0).ground(
        pictures((40, 60)), captions_of([text])
    )
    assert [each.phrase for each in found] == ["the dog"]
    (drop,) = dropped
    assert (drop.phrase, drop.reason) == (text.partition(" and")[0], "too_long")
    assert drop.detail == "longer than the 32 tokens that the model reads"


def test_the_image_model_of_sam3_alone_answers_as_the_published_one(folders, tmp_path):
    Sam3Model.from_pretrained(folders / "sam3").save_pretrained(tmp_path / "sam3")
    Sam3Processor.from_pretrained(folders / "sam3").save_pretrained(tmp_path / "sam3")
    images, captions = pictures((40, 60), (64, 64)), captions_of(TEXTS[:2])
    alone, published = (
        grounder(folder, "sam3", threshold=0.0).ground(images, captions)
        for folder in (tmp_path, folders)
    )
    assert [len(found) for found, _ in alone] == [len(found) for found, _ in published] == [2, 1]
    for (ours, _), (theirs, _) in zip(alone, published, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one.boxes, other.boxes)
            assert torch.equal(one.masks, other.masks)


def test_sam3_asks_a_phrase_once_and_encodes_an_image_once(folders, monkeypatch):
    ours = grounder(folders, "sam3", threshold=0.0)
    (image,) = pictures((40, 60))
    captions = [replace(each, image_key=bytes(32)) for each in captions_of(TEXTS)]
    encode = Mock(side_effect=ours._model.get_vision_features)
    ask = Mock(side_effect=ours._model.forward)
    monkeypatch.setattr(ours._model, "get_vision_features", encode)
    monkeypatch.setattr(ours._model, "forward", ask)
    predictions = ours.ground([image] * 4, captions)
    assert [len(call.args[0]) for call in encode.call_args_list] == [1]
    asked = [len(call.kwargs["input_ids"]) for call in ask.call_args_list]
    assert sum(asked) == 4  # a man, the red dog, the dog, a dog
    first, second = (found for found, _ in (predictions[0], predictions[2]))
    torch.testing.assert_close(first[0].boxes, second[0].boxes)
