"""MM Grounding DINO and SAM 3, against transformers' own processors and post-processing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_grounders import captions_of, pictures, save_dino, save_sam3
from transformers import (
    AutoProcessor,
    MMGroundingDinoConfig,
    MMGroundingDinoForObjectDetection,
    Sam3Model,
)

from pipeline.grounding.settings import GrounderSettings
from sightline.errors import SightlineError

CPU = torch.device("cpu")
TEXTS = ["A man holds the red dog", "the dog", "a man and a dog near the red dog", "and of it"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("models")
    save_dino(root / "mm-grounding-dino", MMGroundingDinoConfig, MMGroundingDinoForObjectDetection)
    save_sam3(root / "sam3")
    return root


def grounder(folders: Path, family: str, **parameters: float):
    values = {"family": family, "model": str(folders / family), **parameters}
    return GrounderSettings.model_validate(values).build(CPU, "fp32")


def test_mm_grounding_dino_finds_what_the_librarys_post_processing_finds(folders):
    family, text = "mm-grounding-dino", "a man holds the red dog"
    ours = grounder(folders, family, box_threshold=0.0, text_threshold=0.0)
    (image,) = pictures((40, 60))
    ((found, dropped),) = ours.ground([image], captions_of([text]))
    assert [each.phrase for each in found] == ["a man", "the red dog"]
    assert not dropped

    processor = AutoProcessor.from_pretrained(folders / family)
    model = MMGroundingDinoForObjectDetection.from_pretrained(folders / family).eval()
    inputs = processor(images=image, text="a man. the red dog.", return_tensors="pt")
    with torch.no_grad():
        output = model(**inputs)
    (result,) = processor.post_process_grounded_object_detection(
        output, inputs["input_ids"], threshold=0.0, text_threshold=0.0, target_sizes=[(40, 60)]
    )
    torch.testing.assert_close(found[0].boxes, result["boxes"], rtol=1e-4, atol=1e-3)
    best = torch.stack([each.scores for each in found]).amax(dim=0)  # theirs count every token
    assert (best <= result["scores"] + 1e-6).all()


def theirs(folders: Path, image: torch.Tensor, phrase: str, threshold: float):
    """SAM 3's answer for one phrase, by the library's processor alone."""
    processor = AutoProcessor.from_pretrained(folders / "sam3")
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
    ours = grounder(folders, "sam3", threshold=threshold)
    answers = ours.ground(images, captions)
    some = 0
    for image, caption, (found, dropped) in zip(images, captions, answers, strict=True):
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
    assert [each.reason for each in answers[3][1]] == ["no_phrase"]


def test_sam3_asks_a_phrase_once_and_encodes_an_image_once(folders, monkeypatch):
    ours = grounder(folders, "sam3", threshold=0.0)
    (image,) = pictures((40, 60))
    captions = [replace(each, image_key=bytes(32)) for each in captions_of(TEXTS)]
    encoded, asked = [], []
    see, forward = ours._model.get_vision_features, ours._model.forward
    monkeypatch.setattr(
        ours._model,
        "get_vision_features",
        lambda pixels: encoded.append(len(pixels)) or see(pixels),
    )
    monkeypatch.setattr(
        ours._model,
        "forward",
        lambda **inputs: asked.append(len(inputs["input_ids"])) or forward(**inputs),
    )
    answers = ours.ground([image] * 4, captions)
    assert encoded == [1]
    assert sum(asked) == 4  # a man, the red dog, the dog, a dog
    first, second = (found for found, _ in (answers[0], answers[2]))
    torch.testing.assert_close(first[0].boxes, second[0].boxes)


@pytest.mark.parametrize("family", ["mm-grounding-dino", "sam3"])
def test_a_checkpoint_of_another_model_is_refused(folders, family):
    other = {"mm-grounding-dino": "sam3", "sam3": "mm-grounding-dino"}[family]
    settings = {"family": family, "model": str(folders / other)}
    with pytest.raises(SightlineError, match=f"expected '{family}'"):
        GrounderSettings.model_validate(settings).build(CPU, "fp32")


def test_what_determines_an_answer_is_described(folders):
    for family in ("mm-grounding-dino", "sam3"):
        told = grounder(folders, family).describe()
        assert told["family"] == family
        assert told["chunker"] == "function-words/2"
        assert len(str(told["weights_sha256"])) == 64
