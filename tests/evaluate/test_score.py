"""Evaluations: every task of a model, what a result says of them, and what is scored again."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from letters import Letters, model
from made_results import untrained_result
from small_senteval import write_transfer

from pipeline.cli.evaluate import _save
from sightline.errors import SightlineError
from train.evaluate.evaluation import Evaluation, evaluate_model
from train.evaluate.geometry import GEOMETRY
from train.evaluate.models import EvaluatedModel
from train.evaluate.results import EvaluationSet, TaskResult, load_result, save_result
from train.evaluate.sts import SUBSETS, TASKS
from train.evaluate.task import Metric
from train.evaluate.transfer import TASKS as TRANSFER_TASKS
from train.report.table import make_table


@pytest.fixture
def pairs(tmp_path):
    file = tmp_path / "pairs.tsv"
    file.write_text("score\tsentence1\tsentence2\n5\ta dog\ta big dog\n1\tthe sea\ta tree\n")
    return file


def evaluation(senteval, pairs, **more):
    return Evaluation.load({"sts": {"data": senteval}, "geometry": {"data": pairs}, **more})


def test_a_result_says_what_its_tasks_are_and_keeps_the_scores_of_subsets(
    senteval, pairs, tmp_path
):
    result = evaluate_model(model(), evaluation(senteval, pairs))
    assert (result.run, result.objective) == ("letters", "not trained by Sightline")
    assert list(result.scores) == [*TASKS, "Avg", *GEOMETRY]
    assert {task: tuple(parts) for task, parts in result.subsets.items()} == SUBSETS
    # every subset of this folder holds the same three pairs
    assert result.subsets["STS12"]["MSRpar"] == result.subsets["STS16"]["headlines"]
    assert result.tasks["geometry"].lower_is_better == GEOMETRY
    assert result.tasks["geometry"].hidden == GEOMETRY[2:]
    file = save_result(result, tmp_path / "result.json")
    assert load_result(file) == result
    sts = json.loads(file.read_text())["tasks"]["sts"]
    assert sts["evaluated_on"]["Avg"]["examples"] == sum(
        result.evaluated_on[task].examples for task in TASKS
    )
    table = make_table([result])
    assert table.tasks == (*TASKS, "Avg", "alignment", "uniformity")
    assert table.lower_is_better == GEOMETRY


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


def test_a_task_that_appears_twice_needs_a_name(pairs, tmp_path):
    other = tmp_path / "other.tsv"
    other.write_text(pairs.read_text().replace("the sea", "a dog"))
    given = {"similarity": {"data": pairs}, "others": {"task": "similarity", "data": other}}
    tasks = Evaluation.load(given)
    assert list(tasks.evaluated_on) == ["similarity", "others: similarity"]
    assert tasks.measured["others"].title == "others: similarity"
    result = evaluate_model(model(), tasks)
    assert [title for title, _ in make_table([result]).parts] == ["", "others: similarity"]


def test_a_task_with_anothers_metric_or_without_its_own_is_named(pairs):
    similarity = Evaluation.load({"similarity": {"data": pairs}}).tasks["similarity"]
    clash = SimpleNamespace(
        name="clash",
        title="",
        metrics=(Metric("similarity", EvaluationSet.of(0)),),
        settings_of_result=dict,
        sentences=list,
        score=lambda model: TaskResult(scores={"other": 1.0}),
    )
    with pytest.raises(SightlineError, match="both have a metric 'similarity'"):
        Evaluation({"similarity": similarity, "clash": clash})
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
    (_, scores), (title, accuracies) = make_table([result]).parts
    assert (title, scores.tasks) == ("Transfer: accuracy ×100", (*TASKS, "Avg"))
    assert accuracies.tasks == (*TRANSFER_TASKS, "transfer Avg")
    values = [result.scores[name] for name in TRANSFER_TASKS]
    assert result.scores["transfer Avg"] == pytest.approx(np.mean(values))
    assert result.evaluated_on["TREC"].examples == 2 * 6 * 12


def test_one_test_set_of_a_task_is_scored_alone_and_without_a_mean(senteval):
    write_transfer(senteval)
    whole = evaluate_model(model(), Evaluation.load({"sts": {"data": senteval}}))
    tasks = {"sts": {"data": senteval, "subsets": "STS-B, SICK-R"}}
    tasks |= {"transfer": {"data": senteval, "subsets": ["TREC"]}}
    some = Evaluation.load(tasks)
    assert list(some.evaluated_on) == ["STS-B", "SICK-R", "TREC"]
    scores = some.score(model(), ["sts"])["sts"].scores
    assert scores == {name: whole.scores[name] for name in ("STS-B", "SICK-R")}


@pytest.mark.parametrize("given", ["../models/bert/", "/models/bert"])
def test_the_result_of_a_path_is_kept_in_one_folder_of_out(tmp_path, given):
    _save([untrained_result(given)], tmp_path, [])
    assert [path.name for path in tmp_path.iterdir()] == ["models--bert"]
