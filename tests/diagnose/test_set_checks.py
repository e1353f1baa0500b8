"""The checks of one set against brute force, and what each finds when it is planted."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosed_world import DIM, DiagnosedWorld, poison, stored_units, write_set

from sightline.cache import key_of_text
from train.diagnose.checks import SetChecks
from train.diagnose.diagnosis import Diagnosis, diagnose
from train.diagnose.findings import findings
from train.diagnose.settings import Settings
from train.evaluate.vectors import effective_rank


@pytest.fixture
def own(tmp_path) -> DiagnosedWorld:
    """A world to change."""
    return DiagnosedWorld(tmp_path / "world")


def of_texts(world: DiagnosedWorld, **settings) -> Diagnosis:
    """The captions' set alone, with names for its rows."""
    return diagnose([world.text_set], world.captions_manifest, None, Settings(**settings))


@pytest.fixture(scope="module")
def checks(diagnosis) -> SetChecks:
    """Of the captions."""
    return diagnosis.sets[1]


@pytest.fixture(scope="module")
def cosines(world) -> np.ndarray:
    """Of every two captions, sorted by key; −inf of one with itself."""
    units = stored_units(world.text_set)
    products = units @ units.T
    np.fill_diagonal(products, -np.inf)
    return products


def said(diagnosis: Diagnosis, level: str) -> str:
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
    spectrum = diagnose([tmp_path / "wide"], None, None, Settings()).sets[0].spectrum
    units = stored_units(tmp_path / "wide")
    values = np.linalg.svd(units - units.mean(axis=0), compute_uv=False)
    assert spectrum is not None
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
    assert one is not None
    assert other is not None
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
    assert checks.neighbours is not None
    assert checks.neighbours.closest[0].cosine == pytest.approx(1)
    assert checks.mean_cosine is not None
    assert np.isfinite(checks.mean_cosine)


def test_rows_of_zeros_have_no_direction(own):
    own.text_rows[own.text_keys[2]][:] = 0
    diagnosis = of_texts(own.write())
    checks, text = diagnosis.sets[0], own.captions[2][1]
    assert (checks.zero.count, checks.zero.examples) == (1, [text])
    assert checks.neighbours is not None
    assert checks.neighbours.of == len(own.captions) - 1
    assert f"1 of 90 rows (“{text}”) are all zeros" in said(diagnosis, "problem")


def test_rows_that_are_all_alike_are_a_problem(own):
    first = next(iter(own.text_rows.values()))
    own.text_rows = dict.fromkeys(own.text_rows, first)
    diagnosis = of_texts(own.write())
    checks = diagnosis.sets[0]
    assert checks.constant.count == DIM
    assert checks.mean_cosine == pytest.approx(1)
    assert checks.spectrum is not None
    assert checks.spectrum.effective_rank == pytest.approx(1)
    assert checks.spectrum.centred == 0
    assert "All rows point almost one way" in said(diagnosis, "problem")


def test_one_row_has_no_neighbours(tmp_path):
    write_set(tmp_path / "one", "object", {key_of_text("x"): np.arange(1.0, 5)})
    checks = diagnose([tmp_path / "one"], None, None, Settings()).sets[0]
    assert checks.neighbours is checks.spectrum is checks.mean_cosine is None
    assert checks.norms is not None
    assert checks.norms.count == 1


def test_untrained_weights_are_a_problem(tmp_path, world):
    write_set(tmp_path / "set", "text", world.text_rows, untrained=True, source="random:0")
    diagnosis = diagnose([tmp_path / "set"], None, None, Settings())
    assert "The weights are untrained (random:0)" in said(diagnosis, "problem")
    assert diagnosis.sets[0].neighbours is not None
    assert diagnosis.sets[0].neighbours.closest[0].one.startswith("key ")  # no manifest, no text
