"""The checks of one set against brute force, what each finds if planted, and what is said of it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from diagnosed_world import DIM, poison, stored_units, write_set

from sightline.cache import key_of_text
from train.diagnose.checks import Neighbours, Rows, Spectrum
from train.diagnose.diagnosis import diagnose
from train.diagnose.findings import findings
from train.diagnose.sections import document_of
from train.diagnose.settings import Settings
from train.evaluate.vectors import effective_rank
from train.report.render import to_text


def of_texts(world, **settings):
    """The captions' set alone, with names for its rows."""
    return diagnose([world.text_set], world.captions_manifest, None, Settings(**settings))


@pytest.fixture(scope="module")
def checks(diagnosis):
    """Of the captions."""
    return diagnosis.sets[1]


@pytest.fixture(scope="module")
def cosines(world):
    """Of every two captions, sorted by key; −inf of one with itself."""
    units = stored_units(world.text_set)
    products = units @ units.T
    np.fill_diagonal(products, -np.inf)
    return products


def said(diagnosis, level):
    return "\n".join(each.text for each in findings(diagnosis) if each.level == level)


def test_norms_mean_cosine_and_rank_equal_brute_force(world, checks, cosines):
    rows = np.array(list(world.text_rows.values())).astype(np.float32).astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    assert checks.norms.mean == pytest.approx(lengths.mean())
    assert checks.norms.sd == pytest.approx(lengths.std(ddof=1))
    assert (checks.norms.least, checks.norms.greatest) == (lengths.min(), lengths.max())
    assert sum(checks.norms.counts) == len(rows)
    assert checks.mean_cosine == pytest.approx(cosines[np.isfinite(cosines)].mean(), abs=1e-7)

    def rank(matrix):
        values = np.linalg.svd(matrix, compute_uv=False)
        shares = values / values.sum()
        return np.exp(-(shares * np.log(shares)).sum())

    units = stored_units(world.text_set)
    assert checks.spectrum.effective_rank == pytest.approx(rank(units), rel=1e-6)
    assert checks.spectrum.centred == pytest.approx(rank(units - units.mean(axis=0)), rel=1e-6)
    assert checks.spectrum.most == DIM
    assert sum(checks.spectrum.shares) == pytest.approx(1)


def test_a_wide_set_has_the_rank_of_its_rows(tmp_path):
    rng = np.random.default_rng(0)
    rows = {key_of_text(str(i)): rng.normal(size=40) for i in range(9)}
    write_set(tmp_path / "wide", "text", rows)
    checks = diagnose([tmp_path / "wide"], None, None, Settings()).sets[0]
    assert checks.neighbours.closest[0].one.startswith("key ")  # no manifest, no text
    spectrum = checks.spectrum
    units = stored_units(tmp_path / "wide")
    values = np.linalg.svd(units - units.mean(axis=0), compute_uv=False)
    assert spectrum.centred == pytest.approx(effective_rank(values), rel=1e-6)
    assert spectrum.most == 8
    assert spectrum.shares[8] < 1e-6  # the mean took one direction


def test_neighbours_equal_brute_force(world, checks, cosines):
    nearest = cosines.max(axis=1)
    found = checks.neighbours
    assert (found.compared, found.of) == (len(cosines), len(cosines))
    assert found.cosines.mean == pytest.approx(nearest.mean(), abs=1e-6)
    assert found.above == (nearest >= 0.7).sum() > 0
    one, other = np.unravel_index(cosines.argmax(), cosines.shape)
    by_key = dict(zip(world.text_keys, (text for _, text in world.captions), strict=True))
    texts = [by_key[key] for key in sorted(by_key)]
    assert found.closest[0].cosine == pytest.approx(cosines.max(), abs=1e-6)
    assert {found.closest[0].one, found.closest[0].other} == {texts[one], texts[other]}
    pairs = {frozenset((near.one, near.other)) for near in found.closest}
    assert len(pairs) == len(found.closest)


def test_a_sample_of_rows_is_compared_with_all_and_is_fixed_by_the_seed(world, checks):
    one, same, other = (
        of_texts(world, sample=7, seed=seed).sets[0].neighbours for seed in (1, 1, 2)
    )
    assert (one.compared, one.of) == (7, len(world.captions))
    assert one == same
    assert one.cosines.mean != other.cosines.mean
    assert one.cosines.greatest <= checks.neighbours.cosines.greatest


def test_planted_faults_are_found_and_named(own):
    keys, texts = own.text_keys, [text for _, text in own.captions]
    for row in own.text_rows.values():
        row[[2, 9]] = 0.5, -0.0
        row[4] *= 1e-9  # below a millionth of the other columns
    own.text_rows[keys[2]][:] = 0
    own.text_rows[keys[4]] = own.text_rows[keys[5]].copy()
    own.text_rows[keys[6]] *= 1000
    own.text_rows[keys[6]][[2, 9]] = own.text_rows[keys[2]][[2, 9]] = 0.5, 0.0
    own.write()
    poison(own.text_set, keys[1], np.nan)
    diagnosis = of_texts(own)
    checks = diagnosis.sets[0]
    assert (checks.not_finite.count, checks.not_finite.examples) == (1, [texts[1]])
    assert checks.copies.count == 2
    assert set(checks.copies.examples) == {texts[4], texts[5]}
    assert (checks.outlying.count, checks.outlying.examples) == (1, [texts[6]])
    assert (checks.constant.count, checks.constant.examples) == (3, ["2", "4", "9"])
    problems, notices = said(diagnosis, "problem"), said(diagnosis, "notice")
    assert f"1 of {len(keys)} rows (“{texts[1]}”) contain NaN" in problems
    assert texts[6] in notices
    assert "3 of 12 columns are constant (2, 4, 9)" in notices
    assert checks.neighbours.closest[0].cosine == pytest.approx(1)
    assert np.isfinite(checks.mean_cosine)


def test_rows_of_zeros_have_no_direction(own):
    own.text_rows[own.text_keys[2]][:] = 0
    diagnosis = of_texts(own.write())
    checks, text = diagnosis.sets[0], own.captions[2][1]
    assert (checks.zero.count, checks.zero.examples) == (1, [text])
    assert checks.neighbours.of == len(own.captions) - 1
    assert f"1 of 90 rows (“{text}”) are all zeros" in said(diagnosis, "problem")


def test_rows_that_are_all_alike_are_a_problem(own):
    first = next(iter(own.text_rows.values()))
    own.text_rows = dict.fromkeys(own.text_rows, first)
    diagnosis = of_texts(own.write())
    checks = diagnosis.sets[0]
    assert checks.constant.count == DIM
    assert checks.mean_cosine == pytest.approx(1)
    assert checks.spectrum.effective_rank == pytest.approx(1)
    assert checks.spectrum.centred == 0
    assert "All rows point almost one way" in said(diagnosis, "problem")


def test_one_row_has_no_neighbours_and_untrained_weights_are_a_problem(tmp_path):
    rows = {key_of_text("x"): np.arange(1.0, 5)}
    write_set(tmp_path / "one", "object", rows, untrained=True, source="random:0")
    diagnosis = diagnose([tmp_path / "one"], None, None, Settings())
    (checks,) = diagnosis.sets
    assert checks.neighbours is checks.spectrum is checks.mean_cosine is None
    assert checks.norms.count == 1
    assert "The weights are untrained (random:0)" in said(diagnosis, "problem")


def with_set(diagnosis, **changes):
    first, *others = diagnosis.sets
    return replace(diagnosis, sets=(replace(first, **changes), *others))


NEAR = Neighbours(compared=7, of=7, cosines=None, bound=0.98, above=2, closest=[])


@pytest.mark.parametrize(
    ("changes", "text", "expected"),
    [
        ({"spectrum": Spectrum(200, 50.0, 4.9, 100, [1.0])}, "use few directions: ef", True),
        ({"spectrum": Spectrum(200, 50.0, 5.1, 100, [1.0])}, "use few directions: ef", False),
        ({"mean_cosine": 0.91}, "problem: All rows point almost one way", True),
        ({"mean_cosine": 0.89}, "problem: All rows point almost one way", False),
        # exact copies are not said again as near-duplicates
        ({"neighbours": NEAR, "copies": Rows(1, ["a.jpg"])}, "(28.6 %) have a near-dup", True),
        ({"neighbours": NEAR, "copies": Rows(2, ["a.jpg"])}, "(28.6 %) have a near-dup", False),
    ],
)
def test_a_finding_has_a_bound(diagnosis, changes, text, expected):
    found = findings(with_set(diagnosis, **changes))
    assert any(text in f"{each.level}: {each.text}" for each in found) == expected


@pytest.mark.parametrize(
    ("share", "level", "text"),
    [
        (0.0, "notice", "removes no negative in 9 batches"),
        (0.09, "fine", "removes 9 % of the negatives in batches of 16"),
        (0.11, "notice", "removes 11 % of the negatives in batches of 16"),
    ],
)
def test_a_threshold_removes_nothing_some_or_much(diagnosis, share, level, text):
    (removal,) = [each for each in diagnosis.filters[0].removals if each.configured]
    filters = (replace(diagnosis.filters[0], removals=[replace(removal, share=share)]),)
    (line,) = [
        each
        for each in findings(replace(diagnosis, filters=filters))
        if "Image term: the configured threshold 0.35" in each.text
    ]
    assert line.level == level
    assert text in line.text
    assert ("many of them are likely to be true negatives" in line.text) == (share > 0.1)


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
