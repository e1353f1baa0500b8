"""The fingerprint of every family, for fixed weights and settings: sets on disk depend on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from golden_world import encoder_cases, grounding_cases, record_of
from pinned import pinned, same_transformers

FILE = "fingerprints.json"
EXACT = ("entities, box", "phrases, annotations", "cut-outs", "tokens", "phrase tokens")
"""Sets whose content holds no result of floating-point sums."""
NAMES = [*EXACT[2:], *encoder_cases(Path()), *grounding_cases(Path(), Path())]


@pytest.mark.parametrize("name", NAMES)
def test_a_set_has_its_pinned_fingerprint(sets: Mapping[str, Path], name: str) -> None:
    if name.startswith(("florence2", "grounding-dino")) and not same_transformers(FILE):
        pytest.skip("pinned with another version of transformers")
    record = record_of(sets[name])
    expected = pinned(FILE, name, {key: record[key] for key in ("spec", "fingerprint")})
    assert record["spec"] == expected["spec"]  # first, as it shows what is different
    assert record["fingerprint"] == expected["fingerprint"]


def test_no_two_sets_have_one_fingerprint(sets: Mapping[str, Path]) -> None:
    assert sorted(sets) == sorted(NAMES)
    assert len({record_of(folder)["fingerprint"] for folder in sets.values()}) == len(sets)


@pytest.mark.parametrize("name", EXACT)
def test_a_set_without_arithmetic_has_its_pinned_content(
    sets: Mapping[str, Path], name: str
) -> None:
    digest = record_of(sets[name])["content_digest"]
    assert digest == pinned(FILE, f"{name}: content", digest)
