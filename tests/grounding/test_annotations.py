"""Phrases manifests as annotations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ground_data import write_table

from pipeline.grounding.annotations import open_annotations
from pipeline.grounding.protocols import Answer, Caption, GroundingError
from sightline.cache import PHRASES, key_of_text
from sightline.cache.rle import encode_mask
from sightline.errors import SightlineError

KEY = b"k" * 32


def answer_of(path: Path, caption: str) -> Answer:
    """What the annotations say of a caption of an image of 40 × 30 pixels."""
    image = torch.zeros(3, 30, 40, dtype=torch.uint8)
    return open_annotations(path).ground([image], [Caption("7.jpg", KEY, caption)])[0]


def test_a_path_without_a_file_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "boxes.jsonl"):
        with pytest.raises(SightlineError, match=r"expected a phrases manifest .* or a table"):
            open_annotations(path)


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
