"""Sets of fixed weights and settings: the fingerprint of every family, rows, phrases and masks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from golden_world import encoder_cases, grounding_cases, pinned, same_transformers

from sightline import FeatureSet, read_phrases
from sightline.cache.rle import decode_mask

FINGERPRINTS, ROWS = "fingerprints.json", "rows.json"
EXACT = ("drawn, box", "phrases, annotations", "cut-outs", "tokens", "phrase tokens")
"""Sets whose content holds no result of floating-point sums."""
CASES = encoder_cases(Path())
NAMES = [*EXACT[2:], *CASES, *grounding_cases(Path(), Path())]
TOLERANCE = 2e-3  # of a row's length: that of stored float16, and of other orders of its sums
BFLOAT16 = 2e-2
PINNED_ROWS, PINNED_PHRASES = 3, 12
GROUNDINGS = (*EXACT[:2], "drawn, sam2", "drawn, sam2-hf", "grounding-dino, box")
OF_TRANSFORMERS = ("florence2", "grounding-dino", "drawn, sam2-hf")  # whose settings it writes
"""Not Florence-2's, whose answers from random weights name no phrase of a caption."""


def record_of(folder):
    """The record of a set, as it is on the disk."""
    return json.loads((folder / "set.json").read_text())


@pytest.mark.parametrize("name", NAMES)
def test_a_set_has_its_pinned_fingerprint(sets, name):
    if name.startswith(OF_TRANSFORMERS) and not same_transformers(FINGERPRINTS):
        pytest.skip("pinned with another version of transformers")
    record = record_of(sets[name])
    expected = pinned(FINGERPRINTS, name, {key: record[key] for key in ("spec", "fingerprint")})
    assert record["spec"] == expected["spec"]  # first, as it shows what is different
    assert record["fingerprint"] == expected["fingerprint"]


def test_no_two_sets_have_one_fingerprint(sets):
    assert sorted(sets) == sorted(NAMES)
    assert len({record_of(folder)["fingerprint"] for folder in sets.values()}) == len(sets)


@pytest.mark.parametrize("name", EXACT)
def test_a_set_without_arithmetic_has_its_pinned_content(sets, name):
    digest = record_of(sets[name])["content_digest"]
    assert digest == pinned(FINGERPRINTS, f"{name}: content", digest)


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_what_its_encoder_gave(world, sets, name):
    keys = world.keys(CASES[name][0])[:PINNED_ROWS]
    rows = FeatureSet.open(sets[name]).take(keys).astype(np.float64)
    written = [[float(f"{value:.4g}") for value in row] for row in rows.tolist()]
    expected = np.array(pinned(ROWS, name, written))
    tolerance = BFLOAT16 if "bf16" in name else TOLERANCE
    assert distances(rows, expected).diagonal().max() <= tolerance
    others = distances(expected, expected)[~np.eye(len(expected), dtype=bool)]
    assert others.min() > 10 * tolerance  # rows of different inputs differ clearly


def distances(rows, expected):
    """‖row − expected‖ / ‖expected‖ of every pair."""
    apart = np.linalg.norm(rows[:, None] - expected, axis=2)
    return apart / np.linalg.norm(expected, axis=1)


@pytest.mark.parametrize("name", GROUNDINGS)
def test_a_phrase_has_its_pinned_span_box_and_mask(sets, name):
    if name.startswith("grounding-dino") and not same_transformers(ROWS):
        pytest.skip("pinned with another version of transformers")
    phrases = [
        {
            "text": row["phrase"],
            "span": [row["char_start"], row["char_end"]],
            "box": [round(edge, 4) for edge in row["box"]],
            "score": round(row["score"], 6),
            "mask size": int(decode_mask(row["mask"]["size"], row["mask"]["counts"]).sum()),
        }
        for row in read_phrases(sets[name]).to_pylist()
    ]
    expected = pinned(ROWS, name, {"count": len(phrases), "first": phrases[:PINNED_PHRASES]})
    assert len(phrases) == expected["count"]
    for phrase, before in zip(phrases, expected["first"], strict=False):
        assert phrase["text"] == before["text"]
        assert phrase["span"] == before["span"]
        assert phrase["box"] == pytest.approx(before["box"], abs=1e-2)
        assert phrase["score"] == pytest.approx(before["score"], abs=1e-4)
        assert phrase["mask size"] == pytest.approx(before["mask size"], abs=2)  # pixels
