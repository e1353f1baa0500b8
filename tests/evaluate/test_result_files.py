"""Files of results: a name has one, and a result loses no task there."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_results import made_result, untrained_result

from sightline.digest import Pinned
from sightline.errors import SightlineError
from train.evaluate.result_files import (
    add_result,
    earlier_result,
    file_of,
    result_file,
    result_folder,
    run_of,
)
from train.evaluate.results import TaskResult, load_result, save_result
from train.report.found_runs import find_run

NAMES = st.text(st.sampled_from("a-/.%2FDE é"), min_size=1, max_size=8)


@given(NAMES)
def test_a_folder_has_the_name_of_one_model(name):
    folder = result_folder(Path("out"), name)
    assert folder.parent == Path("out")
    assert folder.name[0] not in ".-"
    assert run_of(folder) == name


def test_names_of_runs_and_of_the_hub_stay_readable():
    names = ["mcse-clip", "princeton-nlp/unsup-simcse", "x--ma", "./ma", "/ma", "..", "-x"]
    assert [result_folder(Path(), name).name for name in names] == [
        *("mcse-clip", "princeton-nlp--unsup-simcse", "x%2D%2Dma", "%2E--ma", "%2Fma", "%2E."),
        "%2Dx",
    ]
    assert result_file(Path("out"), "run", 3) == Path("out/run/seed-3.json")
    assert result_file(Path("out"), "a/b", None) == Path("out/a--b/result.json")


def test_results_are_found_by_the_name_of_their_model(tmp_path):
    result = untrained_result("x/ma", scores={"score": 1.0})
    add_result(file_of(result, tmp_path), result, (), "x/ma")
    assert find_run("x/ma", tmp_path).name == "x/ma"
    with pytest.raises(SightlineError, match="did you mean 'x/ma'"):
        find_run("x/mb", tmp_path)


SCORED = TaskResult(task="own", scores={"score": 1.0})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pinned": Pinned("main")}, "has the scores of another model than m; give this one a na"),
        ({"pooling": "mean"}, "scores of m pooled by mean in fp32, not pooled as its folder says"),
        ({"precision": "bf16"}, "scores of m pooled as its folder says in bf16, not pooled as"),
        ({"recipe": "other"}, "has the scores of m pooled"),
        ({"tasks": {"own": SCORED.model_copy(update={"task": "x"})}}, "'own' is a task 'x' there"),
        ({"tasks": {"other": SCORED}}, "has a metric 'score' of another task, 'other'"),
    ],
)
def test_a_result_of_something_else_stays_as_it_is(tmp_path, change, message):
    file, result = tmp_path / "m/result.json", untrained_result("m").restricted(())
    result = result.model_copy(update={"tasks": {"own": SCORED}})
    file.parent.mkdir()
    save_result(result.model_copy(update=change), file)
    before = file.read_bytes()
    data = made_result("m", evaluated_on={"score": {"examples": 1, "sha256": ""}})
    measured = {"own": data.tasks["own"].model_copy(update={"task": "own"})}
    for refused in (
        lambda: earlier_result(file, result, measured, "m"),
        lambda: add_result(file, result.model_copy(update={"tasks": measured}), (), "m"),
    ):
        with pytest.raises(SightlineError, match=message):
            refused()
    assert file.read_bytes() == before


def test_what_is_no_result_is_not_replaced(tmp_path):
    file = tmp_path / "result.json"
    file.write_text("{}")
    with pytest.raises(SightlineError, match="is not a result that can gain tasks; move it away"):
        add_result(file, untrained_result("m"), (), "m")
    assert file.read_text() == "{}"


def test_a_model_and_a_run_of_one_name_have_no_common_folder(tmp_path):
    run, model = made_result("m"), untrained_result("m")
    for first, second in ((run, model), (model, run)):
        out = tmp_path / type(first.training).__name__
        add_result(file_of(first, out), first, (), "first")
        with pytest.raises(SightlineError, match="what second is not another seed of"):
            add_result(file_of(second, out), second, (), "second")


def test_a_task_that_failed_replaces_no_scores(tmp_path):
    file, result = tmp_path / "result.json", untrained_result("m", scores={"score": 1.0})
    lost = TaskResult(scores={"score": None}, reasons={"score": "the task failed"})
    failed = result.model_copy(update={"tasks": {"own": lost, "more": TaskResult()}})
    assert add_result(file, result, (), "m") == []
    assert add_result(file, failed, ["own"], "m") == ["own"]
    assert load_result(file).tasks == {**result.tasks, "more": TaskResult()}


def _add(file: Path, name: str) -> None:
    result = untrained_result("m")
    add_result(file, result.model_copy(update={"tasks": {name: TaskResult(title=name)}}), (), "m")


def test_commands_at_the_same_time_lose_no_task(tmp_path):
    names = [str(number) for number in range(6)]
    context = multiprocessing.get_context("fork")
    file = tmp_path / "m/result.json"
    processes = [context.Process(target=_add, args=(file, name)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert sorted(load_result(file).tasks) == names
    assert [path.name for path in file.parent.iterdir()] == ["result.json"]
