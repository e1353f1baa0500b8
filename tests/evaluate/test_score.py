"""What an evaluation saves besides its scores: those of the subsets, and what was scored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from train.evaluate.geometry import GEOMETRY
from train.evaluate.score import Evaluation
from train.evaluate.sts import SUBSETS
from train.report.results import RunResult


def bag_of_letters(sentences) -> np.ndarray:
    """A deterministic embedding that needs no model."""
    counts = [[sentence.count(letter) for letter in "abcdefghst"] for sentence in sentences]
    return np.array(counts, dtype=np.float32) + 0.1


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.tsv"
    rows = ["score\tsentence1\tsentence2", "5\ta dog\ta big dog", "1\tthe sea\ta tree"]
    file.write_text("\n".join(rows) + "\n")
    return file


def test_scores_of_the_subsets_are_kept(senteval, pairs):
    found = Evaluation.load(senteval, pairs).score(bag_of_letters)
    assert {task: tuple(parts) for task, parts in found.subsets.items()} == SUBSETS
    # every subset of this folder holds the same three pairs
    assert found.subsets["STS12"]["MSRpar"] == pytest.approx(found.scores["STS-B"], abs=60)
    assert found.subsets["STS12"]["MSRpar"] == found.subsets["STS16"]["headlines"]


def test_undefined_subsets_say_why_in_the_result(senteval, pairs):
    found = Evaluation.load(senteval, pairs).score(lambda texts: np.ones((len(texts), 3)))
    assert found.subsets["STS12"]["MSRpar"] is None
    assert "constant" in found.reasons["STS12/MSRpar"]
    body = {"run": "r", "objective": "o", "seed": 0, "scores": found.scores}
    kept = RunResult(**body, subsets=found.subsets, reasons=found.reasons)
    assert kept.subsets == found.subsets
    without = {name: why for name, why in found.reasons.items() if name != "STS13/FNWN"}
    with pytest.raises(ValueError, match=r"subsets\.STS13\.FNWN is null"):
        RunResult(**body, subsets=found.subsets, reasons=without)


def test_what_was_scored_is_identified_by_its_content(senteval, pairs):
    first = Evaluation.load(senteval, pairs).evaluated_on
    assert first["STS12"].pairs == 15
    assert first["alignment"] == first["uniformity"]
    assert first["alignment"].pairs == 2
    gold = senteval / "STS/STS13-en-test/STS.gs.OnWN.txt"
    gold.write_text(gold.read_text().replace("4.8", "4.7"))
    second = Evaluation.load(senteval, pairs).evaluated_on
    assert [task for task in first if first[task] != second[task]] == ["STS13"]
    one_set = Evaluation.load(pairs, pairs)
    assert one_set.score(bag_of_letters).subsets == {}
    assert set(one_set.evaluated_on) == {
        "similarity",
        *GEOMETRY,
    }
