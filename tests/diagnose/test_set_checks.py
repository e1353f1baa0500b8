"""The checks of one set against brute force, and what each finds when it is planted."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosed_world import DIM, DiagnosedWorld, poison, stored_units, write_set

from sightline.cache import key_of_text
from train.diagnose.checks import SetChecks
from train.diagnose.diagnosis import Diagnosis, Settings, diagnose
from train.diagnose.findings import findings
from train.evaluate.vectors import effective_rank


@pytest.fixture
def world(tmp_path) -> DiagnosedWorld:
    return DiagnosedWorld.make(tmp_path / "world")


def look(world: DiagnosedWorld, **settings) -> Diagnosis:
    """The captions' set alone, with names for its rows."""
    world.write()
    return diagnose([world.text_set], world.captions_manifest, None, Settings(**settings))


def checks_of(world: DiagnosedWorld, **settings) -> SetChecks:
    return look(world, **settings).sets[0]


def said(diagnosis: Diagnosis, level: str) -> str:
    return "\n".join(each.text for each in findings(diagnosis) if each.level == level)


def test_norms_mean_cosine_and_rank_equal_brute_force(world):
    checks = checks_of(world)
    rows = np.array(list(world.text_rows.values())).astype(np.float32).astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1)
    assert checks.norms is not None
    assert checks.norms.mean == pytest.approx(lengths.mean())
    assert checks.norms.sd == pytest.approx(lengths.std(ddof=1))
    assert (checks.norms.least, checks.norms.greatest) == (lengths.min(), lengths.max())
    assert sum(checks.norms.counts) == len(rows)

    units = stored_units(world.text_set)
    cosines = units @ units.T
    others = cosines[~np.eye(len(units), dtype=bool)]
    assert checks.mean_cosine == pytest.approx(others.mean(), abs=1e-7)

    def rank(matrix):
        values = np.linalg.svd(matrix, compute_uv=False)
        shares = values / values.sum()
        return np.exp(-(shares * np.log(shares)).sum())

    assert checks.spectrum is not None
    assert checks.spectrum.effective_rank == pytest.approx(rank(units), rel=1e-6)
    assert checks.spectrum.centred == pytest.approx(rank(units - units.mean(axis=0)), rel=1e-6)
    assert checks.spectrum.most == DIM
    assert sum(checks.spectrum.shares) == pytest.approx(1)


def test_effective_rank_at_its_limits():
    assert effective_rank(np.ones(7)) == pytest.approx(7)  # all directions alike
    assert effective_rank(np.array([3.0, 0, 0])) == pytest.approx(1)
    assert effective_rank(np.zeros(3)) == 0


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


def test_neighbours_equal_brute_force(world):
    checks = checks_of(world, near=0.9)
    units = stored_units(world.text_set)
    cosines = units @ units.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = cosines.max(axis=1)
    found = checks.neighbours
    assert found is not None
    assert (found.compared, found.of) == (len(units), len(units))
    assert found.cosines.mean == pytest.approx(nearest.mean(), abs=1e-6)
    assert found.above == (nearest >= 0.9).sum() > 0
    one, other = np.unravel_index(cosines.argmax(), cosines.shape)
    by_key = {key: text for (_, text), key in zip(world.captions, world.text_rows, strict=True)}
    texts = [by_key[key] for key in sorted(world.text_rows)]
    assert found.closest[0].cosine == pytest.approx(cosines.max(), abs=1e-6)
    assert {found.closest[0].one, found.closest[0].other} == {texts[one], texts[other]}
    pairs = {frozenset((near.one, near.other)) for near in found.closest}
    assert len(pairs) == len(found.closest)


def test_a_sample_of_rows_is_compared_with_all_and_is_fixed_by_the_seed(world):
    one, same, other = (checks_of(world, sample=7, seed=seed).neighbours for seed in (1, 1, 2))
    every = checks_of(world).neighbours
    assert one is not None
    assert other is not None
    assert every is not None
    assert (one.compared, one.of) == (7, len(world.captions))
    assert one == same
    assert one.cosines.mean != other.cosines.mean
    assert one.cosines.greatest <= every.cosines.greatest


def test_planted_faults_are_found_and_named(world):
    keys = [key_of_text(text) for _, text in world.captions]
    world.text_rows[keys[2]][:] = 0
    world.text_rows[keys[4]] = world.text_rows[keys[5]].copy()
    world.text_rows[keys[6]] *= 1000
    world.write()
    poison(world.text_set, keys[1], np.nan)
    diagnosis = diagnose([world.text_set], world.captions_manifest, None, Settings())
    checks = diagnosis.sets[0]
    text = [text for _, text in world.captions]
    assert (checks.not_finite.count, checks.not_finite.examples) == (1, [text[1]])
    assert (checks.zero.count, checks.zero.examples) == (1, [text[2]])
    assert checks.copies.count == 2
    assert set(checks.copies.examples) == {text[4], text[5]}
    assert (checks.outlying.count, checks.outlying.examples) == (1, [text[6]])
    problems, notices = said(diagnosis, "problem"), said(diagnosis, "notice")
    assert f"1 of {len(keys)} rows (“{text[1]}”) contain NaN" in problems
    assert f"1 of {len(keys)} rows (“{text[2]}”) are all zeros" in problems
    assert text[6] in notices
    assert checks.neighbours is not None
    assert checks.neighbours.of == len(keys) - 2
    assert checks.neighbours.closest[0].cosine == pytest.approx(1)
    assert checks.mean_cosine is not None
    assert np.isfinite(checks.mean_cosine)


def test_constant_columns_are_named(world):
    for row in world.text_rows.values():
        row[[2, 9]] = 0.5, -0.0
        row[4] = 1e-9 * row[4]  # below a millionth of the other columns
    checks = checks_of(world)
    assert (checks.constant.count, checks.constant.examples) == (3, ["2", "4", "9"])
    assert "3 of 12 columns are constant (2, 4, 9)" in said(look(world), "notice")


def test_rows_that_are_all_alike_are_a_problem(world):
    first = next(iter(world.text_rows.values()))
    for row in world.text_rows.values():
        row[:] = first
    diagnosis = look(world)
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
    folder = tmp_path / "random"
    write_set(folder, "text", world.text_rows, untrained=True, source="random:0")
    diagnosis = diagnose([folder], None, None, Settings())
    assert "The weights are untrained (random:0)" in said(diagnosis, "problem")
    assert diagnosis.sets[0].neighbours is not None
    assert diagnosis.sets[0].neighbours.closest[0].one.startswith("key ")  # no manifest, no text
