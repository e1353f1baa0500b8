"""What the numbers of a diagnosis are said to mean, on both sides of every bound."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from train.diagnose.checks import Rows, Spectrum
from train.diagnose.findings import findings
from train.diagnose.sections import document_of
from train.report.render import to_text


def with_set(diagnosis, **changes):
    first, *others = diagnosis.sets
    return replace(diagnosis, sets=(replace(first, **changes), *others))


def with_removal(diagnosis, share: float):
    """With another share of the configured threshold."""
    filters = []
    for each in diagnosis.filters:
        removals = [replace(r, share=share) if r.configured else r for r in each.removals]
        filters.append(replace(each, removals=removals))
    return replace(diagnosis, filters=tuple(filters))


def texts(diagnosis) -> str:
    return "\n".join(f"{each.level}: {each.text}" for each in findings(diagnosis))


@pytest.mark.parametrize(("rank", "few"), [(1.0, True), (4.9, True), (5.1, False)])
def test_few_directions_are_less_than_a_twentieth_of_what_the_shape_allows(diagnosis, rank, few):
    spectrum = Spectrum(rows=200, effective_rank=50.0, centred=rank, most=100, shares=[1.0])
    said = f"notice: The rows use few directions: effective rank {rank} of 100"
    assert (said in texts(with_set(diagnosis, spectrum=spectrum))) == few


@pytest.mark.parametrize(("cosine", "one"), [(0.89, False), (0.91, True)])
def test_one_direction_is_a_mean_cosine_above_nine_tenths(diagnosis, cosine, one):
    said = f"problem: All rows point almost one way: the mean cosine of two rows is {cosine:.3f}"
    assert (said in texts(with_set(diagnosis, mean_cosine=cosine))) == one


@pytest.mark.parametrize(
    ("share", "level", "said"),
    [
        (0.0, "notice", "removes no negative in 9 batches"),
        (0.09, "fine", "removes 9 % of the negatives in batches of 16"),
        (0.11, "notice", "removes 11 % of the negatives in batches of 16"),
    ],
)
def test_a_threshold_removes_nothing_some_or_much(diagnosis, share, level, said):
    lines = texts(with_removal(diagnosis, share)).splitlines()
    (line,) = [line for line in lines if "Image term: the configured threshold 0.35" in line]
    assert line.startswith(f"{level}: ")
    assert said in line
    assert ("many of them are likely to be true negatives" in line) == (share > 0.1)


@pytest.mark.parametrize(("copies", "others"), [(2, False), (1, True)])
def test_exact_copies_are_not_said_again_as_near_duplicates(diagnosis, copies, others):
    neighbours = replace(diagnosis.sets[0].neighbours, above=2, compared=7)
    some = with_set(diagnosis, neighbours=neighbours, copies=Rows(copies, ["a.jpg"]))
    assert ("2 of 7 rows (28.6 %) have a near-duplicate" in texts(some)) == others


def test_problems_come_first_then_notices_and_none_is_said_to_be_none(diagnosis):
    levels = [each.level for each in findings(with_set(diagnosis, zero=Rows(1, ["a.jpg"])))]
    assert levels[0] == "problem"
    assert levels == sorted(levels, key=["problem", "notice", "fine"].index)
    assert set(levels) >= {"problem", "fine"}
    fine = replace(diagnosis, sets=())
    assert [each.text for each in findings(fine) if each.about == "all"] == ["No problem found."]


def test_a_cosine_that_rounds_to_zero_has_no_minus(diagnosis):
    cosines = diagnosis.captions.mismatched
    none = replace(cosines, mean=-1e-5, quantiles=dict.fromkeys(cosines.quantiles, -1e-5))
    captions = replace(diagnosis.captions, mismatched=none)
    filters = tuple(replace(each, highest=-1e-5) for each in diagnosis.filters)
    near = replace(diagnosis, captions=captions, filters=filters)
    text = to_text(document_of(with_set(near, mean_cosine=-1e-5)), "terminal")
    assert "of different images 0.00" in text
    assert not re.search(r"-0\.0+(?!\d)", text)
