"""The checks of one set against brute force, what each finds if planted, and what is said of it."""

from __future__ import annotations

import re

import numpy as np
import pytest
from diagnosed_world import poison, stored_units, write_set

from sightline.cache import key_of_text
from train.diagnose.diagnosis import diagnose
from train.diagnose.diagnosis_document import document_of, findings
from train.diagnose.settings import DiagnosisSettings
from train.report.formats import to_text


def of_texts(world, **settings):
    """The captions' set alone, with names for its rows."""
    return diagnose([world.text_set], world.captions_manifest, None, DiagnosisSettings(**settings))


@pytest.fixture(scope="module")
def checks(diagnosis):
    """Of the captions."""
    return diagnosis["sets"][1]


@pytest.fixture(scope="module")
def cosines(world):
    """Of every two captions, sorted by key; −inf of one with itself."""
    units = stored_units(world.text_set)
    products = units @ units.T
    np.fill_diagonal(products, -np.inf)
    return products


def said(diagnosis, level):
    return "\n".join(each.text for each in findings(diagnosis) if each.level == level)


def test_the_mean_cosine_equals_brute_force(world, checks, cosines):
    assert checks["mean_cosine"] == pytest.approx(cosines[np.isfinite(cosines)].mean(), abs=1e-7)


def test_planted_faults_are_found_and_named(own):
    keys, texts = own.text_keys, [text for _, text in own.captions]
    own.text_rows[keys[2]][:] = 0
    own.write()
    poison(own.text_set, keys[1], np.nan)
    diagnosis = of_texts(own)
    checks = diagnosis["sets"][0]
    assert checks["not_finite"] == {"count": 1, "examples": [texts[1]]}
    assert checks["zero"] == {"count": 1, "examples": [texts[2]]}
    problems = said(diagnosis, "problem")
    assert f"Of {len(keys)} rows, NaN or infinity is in 1 (“{texts[1]}”)" in problems
    assert f"Of {len(keys)} rows, only zeros are in 1 (“{texts[2]}”)" in problems
    assert np.isfinite(checks["mean_cosine"])


def test_rows_that_are_all_alike_are_a_problem(own):
    first = next(iter(own.text_rows.values()))
    own.text_rows = dict.fromkeys(own.text_rows, first)
    diagnosis = of_texts(own.write())
    checks = diagnosis["sets"][0]
    assert checks["mean_cosine"] == pytest.approx(1)
    assert "All rows point almost one way" in said(diagnosis, "problem")


def test_one_row_has_no_mean_cosine_and_untrained_weights_are_a_problem(tmp_path):
    rows = {key_of_text("x"): np.arange(1.0, 5)}
    write_set(tmp_path / "one", "object", rows, untrained=True, source="random:0")
    diagnosis = diagnose([tmp_path / "one"], None, None, DiagnosisSettings())
    (checks,) = diagnosis["sets"]
    assert checks["mean_cosine"] is None
    assert "The weights are untrained (random:0)" in said(diagnosis, "problem")


def with_set(diagnosis, **changes):
    first, *others = diagnosis["sets"]
    return {**diagnosis, "sets": [{**first, **changes}, *others]}


@pytest.mark.parametrize(
    ("changes", "text", "expected"),
    [
        ({"mean_cosine": 0.91}, "All rows point almost one way", True),
        ({"mean_cosine": 0.89}, "All rows point almost one way", False),
    ],
)
def test_a_finding_has_a_bound(diagnosis, changes, text, expected):
    found = findings(with_set(diagnosis, **changes))
    assert any(text in each.text for each in found if each.level == "problem") == expected


@pytest.mark.parametrize(
    ("share", "level", "text"),
    [
        (0.0, "notice", "removes no negative in 9 batches"),
        (0.11, "notice", "removes 11 % of the negatives in batches of 16"),
    ],
)
def test_a_threshold_removes_nothing_or_much(diagnosis, share, level, text):
    tried = diagnosis["filters"][0]
    (removal,) = [each for each in tried["removals"] if each["configured"]]
    filters = [{**tried, "removals": [{**removal, "share": share}]}]
    (line,) = [
        each
        for each in findings({**diagnosis, "filters": filters})
        if "Image term: the configured threshold 0.35" in each.text
    ]
    assert line.level == level
    assert text in line.text


def test_problems_come_first_then_notices_and_none_is_said_to_be_none(diagnosis):
    levels = [
        each.level
        for each in findings(with_set(diagnosis, zero={"count": 1, "examples": ["a.jpg"]}))
    ]
    assert levels[0] == "problem"
    assert levels == sorted(levels, key=["problem", "notice", "fine"].index)
    assert set(levels) >= {"problem", "notice"}
    fine = findings({**diagnosis, "sets": []})
    assert [each.text for each in fine if each.level == "fine"] == ["No problem found."]


def test_a_cosine_that_rounds_to_zero_has_no_minus(diagnosis):
    cosines = diagnosis["captions"]["mismatched"]
    none = {**cosines, "mean": -1e-5, "quantiles": dict.fromkeys(cosines["quantiles"], -1e-5)}
    captions = {**diagnosis["captions"], "mismatched": none}
    filters = [{**each, "highest": -1e-5} for each in diagnosis["filters"]]
    near = {**diagnosis, "captions": captions, "filters": filters}
    text = to_text(document_of(with_set(near, mean_cosine=-1e-5)), "terminal")
    assert not re.search(r"-0\.0+(?!\d)", text)
