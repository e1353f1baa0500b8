"""Graded TSV sets: what is read, what is refused, and the score."""

from __future__ import annotations

import numpy as np
import pytest

from sightline.errors import SightlineError
from train.evaluate.similarity import correlate, evaluate_pairs, load_pairs

HEADER = "score\tsentence1\tsentence2\n"


def test_pairs_are_read_and_squeezed(tmp_path):
    file = tmp_path / "dev.tsv"
    # U+0085 ends a line for str.splitlines; here it is a character of the sentence.
    file.write_text(f'{HEADER}4.5\ta  red\x85dog \t"a dog"\n0\ta\tb\n', encoding="utf-8")
    pairs = load_pairs(file)
    assert pairs.name == "dev"
    assert pairs.gold.tolist() == [4.5, 0.0]
    assert pairs.first == ("a red dog", "a")
    assert pairs.second == ('"a dog"', "b")


def test_windows_line_ends_and_a_byte_order_mark_are_fine(tmp_path):
    file = tmp_path / "test.tsv"
    text = f"\ufeff{HEADER}1.5\ta\tb\n".replace("\n", "\r\n")
    file.write_bytes(text.encode())
    assert load_pairs(file).second == ("b",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: found 'nothing', expected the header score<TAB>"),
        ("4.5\ta\tb\n", "line 1: found '4.5\\ta\\tb', expected the header"),
        (f"{HEADER}1\ta\tb\n2\tonly one\n", "line 3: 2 tab-separated columns, expected 3"),
        (f"{HEADER}1\ta\tb\nvery\ta\tb\n", "line 3: score 'very' is not a number"),
        (f"{HEADER}inf\ta\tb\n", "line 2: score 'inf' is not a number"),
        (HEADER, "a header and no pairs"),
    ],
)
def test_a_bad_file_names_the_line(tmp_path, text, message):
    file = tmp_path / "set.tsv"
    file.write_text(text)
    with pytest.raises(SightlineError) as caught:
        load_pairs(file)
    assert str(caught.value).startswith(str(file))
    assert message in str(caught.value)


def test_a_missing_file_says_what_was_expected(tmp_path):
    with pytest.raises(SightlineError, match=r"none\.tsv: no such file; expected a TSV file"):
        load_pairs(tmp_path / "none.tsv")


def test_the_score_is_spearman_of_cosines(tmp_path):
    file = tmp_path / "set.tsv"
    file.write_text(f"{HEADER}5\ta\tb\n3\ta\tc\n1\ta\td\n4\tb\tc\n")
    points = {"a": [1, 0], "b": [3, 1], "c": [1, 1], "d": [0, 2]}
    # cosines 0.949, 0.707, 0, 0.894: the same order as the gold scores
    score = evaluate_pairs(
        lambda texts: np.array([points[t] for t in texts], float), load_pairs(file)
    )
    assert score.spearman == pytest.approx(100.0)
    assert score.pairs == 4


def test_ties_take_their_mean_rank():
    # ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4
    score = correlate(np.array([0.1, 0.2, 0.2, 0.9]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert score.spearman == pytest.approx(100 * 4.5 / np.sqrt(4.5 * 5))


@pytest.mark.parametrize(
    ("cosines", "gold", "reason"),
    [
        ([0.5, 0.5], [1.0, 2.0], "constant"),
        ([0.5, 0.6], [2.0, 2.0], "same gold"),
        ([0.5], [2.0], "needs two"),
        ([0.5, np.nan], [1.0, 2.0], "1 of 2 pairs"),
    ],
)
def test_an_undefined_score_has_a_reason(cosines, gold, reason):
    score = correlate(np.array(cosines), np.array(gold))
    assert score.spearman is None
    assert reason in (score.reason or "")
