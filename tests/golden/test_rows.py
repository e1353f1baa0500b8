"""The rows of fixed weights, and the phrases, boxes and masks of every grounder and segmenter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from golden_world import World, encoder_cases, phrases_of
from numpy.typing import NDArray
from pinned import pinned, same_transformers

from sightline import FeatureSet

FILE = "rows.json"
TOLERANCE = 2e-3  # of a row's length: that of stored float16, and of other orders of its sums
BFLOAT16 = 2e-2
PINNED_ROWS, PINNED_PHRASES = 3, 12
CASES = encoder_cases(Path())
GROUNDINGS = ("entities, box", "phrases, annotations", "entities, sam2", "entities, sam2-hf")


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_what_its_encoder_gave(world: World, sets: Mapping[str, Path], name: str) -> None:
    keys = world.keys(CASES[name][0])[:PINNED_ROWS]
    rows = FeatureSet.open(sets[name]).take(keys).astype(np.float64)
    written = [[float(f"{value:.4g}") for value in row] for row in rows.tolist()]
    expected = np.array(pinned(FILE, name, written))
    tolerance = BFLOAT16 if "bf16" in name else TOLERANCE
    assert distances(rows, expected).diagonal().max() <= tolerance
    others = distances(expected, expected)[~np.eye(len(expected), dtype=bool)]
    assert others.min() > 10 * tolerance  # rows of different inputs differ clearly


def distances(rows: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.float64]:
    """‖row − expected‖ / ‖expected‖ of every pair."""
    apart = np.linalg.norm(rows[:, None] - expected, axis=2)
    return apart / np.linalg.norm(expected, axis=1)


@pytest.mark.parametrize("name", [*GROUNDINGS, "grounding-dino, box"])
def test_a_phrase_has_its_pinned_span_box_and_mask(sets: Mapping[str, Path], name: str) -> None:
    """Not Florence-2's, whose answers from random weights name no phrase of a caption."""
    if name.startswith("grounding-dino") and not same_transformers(FILE):
        pytest.skip("pinned with another version of transformers")
    phrases = phrases_of(sets[name])
    expected = pinned(FILE, name, {"count": len(phrases), "first": phrases[:PINNED_PHRASES]})
    assert len(phrases) == expected["count"]
    for phrase, before in zip(phrases, expected["first"], strict=False):
        assert phrase["text"] == before["text"]
        assert phrase["span"] == before["span"]
        assert phrase["box"] == pytest.approx(before["box"], abs=1e-2)
        assert phrase["score"] == pytest.approx(before["score"], abs=1e-4)
        assert phrase["mask size"] == pytest.approx(before["mask size"], abs=2)  # pixels
