"""`compare --paper`: measured beside published rows, and what keeps them from being compared."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import unboxed
from invented_runs import UNTRAINED
from made_results import made_result, untrained_result

from pipeline.paper_recipes import PaperRecipes
from train.evaluate.results import EvaluationSet, save_result
from train.evaluate.sts import EXPECTED_PAIRS
from train.report.formats import terminal_text, to_text
from train.report.paper import ExpectedRun, compare_entry, document_of
from train.report.published import Entry, find_entries

TESTS = {task: EvaluationSet(examples=n, sha256="0" * 64) for task, n in EXPECTED_PAIRS.items()}
SOURCES = {"pairs": "data/datasets/{}", "text": "/elsewhere/{}/sentences.parquet"}
SETTINGS = {
    "objective": {"weight": 0.01},
    "student": {"name": "bert", "model": "bert", "pooling": "cls"},
    "train": {"batch_size": 64, "learning_rate": 3e-5, "device_cache": 0.25},
}
DATA = {"pairs": "flickr30k", "text": "wiki"}
ENTRY = Entry.model_validate(
    {
        "id": "mcse:table-1",
        "kind": "table",
        "shows": "a table",
        "seeds": 2,
        "columns": ["STS12", "STS13", {"name": "dev", "metric": "best dev"}],
        "rows": [
            {
                **{"model": "MCSE", "data": "wiki+flickr", "configuration": "c", "run": "mcse"},
                "scores": {"STS12": 70.0, "STS13": 80.0, "dev": 80.0},
                "std": {"STS12": 1.0, "STS13": 1.0},
                "significant": ["STS12"],
            },
            {"model": "Other", "data": "wiki", "reason": "a reason", "scores": {"STS12": 1.0}},
        ],
    }
)


def entry_of(row, **changes):
    """`ENTRY` with other fields, and with one row."""
    return Entry.model_validate({**ENTRY.model_dump(), "rows": [row], **changes})


def write(root, seeds=2, run="mcse", training=None, **changes):
    for seed in range(seeds):
        values = {
            "parameters": SETTINGS,
            "scores": {**dict.fromkeys(EXPECTED_PAIRS, 70.0), "STS12": 70.5, "STS13": 78.0 + seed},
            "evaluated_on": TESTS,
            **changes,
        }
        values["training"] = {
            "data": {s: SOURCES[s].format(name) for s, name in DATA.items()},
            **{"steps": 1, "best_step": 1, "dev": "STS-B dev", "log": [{"dev": 81.0, "step": 1}]},
            **(training or {}),
        }
        save_result(made_result(run, seed, **values), root / run / f"seed-{seed}.json")


def compared(*roots, entry=ENTRY):
    return compare_entry(entry, roots, lambda *_: ExpectedRun(SETTINGS, DATA))


def shown(rows, entry=ENTRY):
    document = document_of(entry, rows)
    return terminal_text(document.tables, document.lines, 200)


def test_a_difference_is_within_or_beyond_a_published_deviation(tmp_path):
    write(tmp_path)
    table = compared(tmp_path)
    assert table[0].marks == ()
    lines = [" ".join(line.split()) for line in shown(table).splitlines()]
    assert "MCSE, wiki+flickr 2 seeds 70.00† ± 1.00 80.00 ± 1.00 80.00" in lines
    assert "measured 0, 1 70.50 ± 0.00 78.50 ± 0.71 81.00 ± 0.00" in lines
    assert "difference – +0.50 within -1.50 beyond +1.00" in lines
    write(tmp_path, scores=dict.fromkeys(EXPECTED_PAIRS, 71.0))  # an exact deviation is within
    assert compared(tmp_path)[0].differences["STS12"] == (1.0, True)


def test_a_row_that_was_not_run_says_so(tmp_path):
    for root in (tmp_path, tmp_path / "no folder"):
        said = shown(compared(root))
        assert "not run" in said
        assert "a reason" in said
        assert "difference" not in said


def changed(part, **values):
    """`SETTINGS` with other values in one of its parts."""
    return {"parameters": {**SETTINGS, part: {**SETTINGS[part], **values}}}


@pytest.mark.parametrize(
    ("changes", "marks", "judged"),
    [
        ({"features": (UNTRAINED,)}, ("untrained features",), None),
        (changed("train", batch_size=32), ("train.batch_size 32, not 64",), None),
        (
            {"evaluated_on": {**TESTS, "STS12": EvaluationSet(examples=9, sha256="1" * 64)}},
            ("STS12 on 9 examples, not 3108",),
            None,
        ),
        ({"training": {"dev": "mine"}}, ("dev set mine, not STS-B dev",), None),
        ({"seeds": 1}, ("1 seed, published 2",), True),
        ({"training": {"best_step": None, "dev": None}}, ("no score of best dev",), True),
        (changed("train", device_cache=0.5), (), True),  # of the machine
    ],
)
def test_what_is_not_comparable_is_said_in_the_row_and_not_judged(tmp_path, changes, marks, judged):
    write(tmp_path, **changes)
    table = compared(tmp_path)
    assert table[0].marks == marks
    assert table[0].differences["STS12"] == (0.5, judged)
    assert not marks or f"measured ({marks[0]})" in shown(table)


def test_of_two_folders_the_one_with_the_row_s_settings_counts(tmp_path):
    write(tmp_path / "other", **changed("objective", weight=0.5))
    write(tmp_path / "same")
    assert compared(tmp_path / "other", tmp_path / "same")[0].marks == ()
    assert compared(tmp_path / "other")[0].marks == ("objective.weight 0.5, not 0.01",)


def test_an_average_over_other_tasks_is_said(tmp_path):
    write(tmp_path, scores={"STS12": 70.0, "Avg": 70.0})
    row = {"model": "M", "data": "d", "configuration": "c", "run": "mcse", "scores": {"Avg": 1.0}}
    (mark,) = compared(tmp_path, entry=entry_of(row, columns=["Avg"]))[0].marks
    assert mark == "Avg without STS13, STS14, STS15, STS16, STS-B, SICK-R"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (
            {"training": {"data": {"pairs": "data/datasets/coco.v2"}}},  # a dot, and no file
            "bert trained on coco.v2 (pairs)",
        ),
        (
            changed("student", name="roberta"),
            "roberta trained on flickr30k (pairs) and wiki (text)",
        ),
    ],
)
def test_another_training_of_the_same_name_is_not_compared(tmp_path, changes, found):
    write(tmp_path / "one", **changes)
    table = compared(tmp_path / "one")
    assert "not run; other training found" in shown(table)
    assert f"Note: {tmp_path}/one/mcse is {found}." in shown(table)
    write(tmp_path / "two")  # the first folder with the row's training counts
    assert compared(tmp_path / "one", tmp_path / "two")[0].measured is not None


def test_a_model_that_is_not_trained_is_found_by_its_name(tmp_path):
    row = {"model": "BERT", "data": "none", "run": "bert", "command": "x", "scores": {"STS12": 1.0}}
    entry = entry_of(row)
    scores = dict.fromkeys(EXPECTED_PAIRS, 2.0)
    write(tmp_path, run="bert")
    assert compared(tmp_path, entry=entry)[0].notes == (f"{tmp_path}/bert is a training",)
    result = untrained_result("bert", scores=scores, evaluated_on=TESTS)
    save_result(result, tmp_path / "x/bert/seed-0.json")
    assert compared(tmp_path / "x", entry=entry)[0].measured is not None
    trained = {**ENTRY.rows[0].model_dump(), "run": "bert"}
    notes = compared(tmp_path / "x", entry=entry_of(trained))[0].notes
    assert notes == (f"{tmp_path}/x/bert is not a training",)


def test_a_score_that_is_not_defined_has_no_difference(tmp_path):
    scores = {**dict.fromkeys(EXPECTED_PAIRS, 70.0), "STS12": None}
    write(tmp_path, scores=scores, reasons={"STS12": "constant embeddings"})
    table = compared(tmp_path)
    assert "STS12" not in table[0].differences
    assert "not defined" in shown(table)


def test_the_paper_s_settings_are_beside_the_configuration_s(tmp_path):
    metrics = {"batch": "train.batch_size", "rate": "train.learning_rate"}
    columns = [{"name": name, "metric": metric} for name, metric in metrics.items()]
    row = {"model": "MCSE", "data": "d", "configuration": "c", "run": "mcse"}
    row["scores"] = {"batch": 64, "rate": 1e-5}
    entry = entry_of(row, kind="settings", columns=columns)
    said = " ".join(shown(compared(tmp_path, entry=entry), entry).split())
    assert said.endswith("configured – 64 3e-05 difference – equal differs")


def test_the_formats_have_the_same_figures(tmp_path):
    write(tmp_path)
    table = compared(tmp_path)
    document = document_of(ENTRY, table)
    assert "| 70.50 ± 0.00 | 78.50 ± 0.71 |" in to_text(document, "markdown")
    assert re.search(r">70\.50 <span[^>]*>± 0\.00</span>", to_text(document, "html"))
    assert "\n  measured" in to_text(document, "terminal")
    assert r"\quad measured & " in to_text(document, "latex")
    assert '<th scope="row" class="under">measured</th>' in to_text(document, "html")
    body = json.loads(to_text(document, "json"))
    assert body["schema"] == "sightline.paper/3"
    row, other = body["rows"]
    assert row["measured"]["cells"]["STS13"]["mean"] == 78.5
    assert row["published"]["scores"]["STS13"] == 80.0
    assert row["differences"]["STS13"] == [-1.5, False]
    assert other["why_not"] == "a reason"


def test_the_command_compares_the_results_of_this_folder(tmp_path, monkeypatch, said):
    monkeypatch.chdir(tmp_path)
    (entry,) = find_entries("dalr:table-3")
    expected = PaperRecipes().expected("flickr30k studies/terms", "dalr-no-cml")
    scores = {**dict.fromkeys(EXPECTED_PAIRS, 78.0), "Avg": 78.0, "transfer Avg": 85.0}
    sources = {s: SOURCES[s].format(name) for s, name in expected.data.items()}
    more = {"parameters": expected.parameters, "scores": scores, "training": {"data": sources}}
    write(tmp_path / "results", 5, "dalr-no-cml", **more)
    words = ("compare", "--paper", entry.id)
    code, out, _ = said(*words)
    assert code == 0
    assert sum(line.strip().startswith("not run") for line in out.splitlines()) == 8
    assert "-0.16 within" in out
    assert "-0.72 within" in out
    assert "sightline configure flickr30k studies/terms\n" in out
    assert said(*words, "--format", "latex", "--out", "a.tex") == (0, "", "")
    assert Path("a.tex").read_text().startswith("% sightline.paper/3\n")
    Path("empty").mkdir()  # a folder that is named counts instead
    rows = json.loads(said(*words, "--format", "json", "empty")[1])["rows"]
    assert {row["why_not"] for row in rows} == {"not run"}
    code, out, err = said(*words, "no")
    assert (code, out) == (1, "")
    assert "no: no such folder" in err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("--paper mcse:1 --baseline simcse", "--baseline: not with --paper"),
        ("--paper mcse:1 --baseline m --plot a.png", "--baseline and --plot: not with"),
        ("--paper mcse:1 --plot a.svg", "--plot: not with --paper"),
        ("--paper list --format html", "--format: a list is printed"),
        ("--paper mcse --out list.txt", "--out: a list is printed"),
        ("", "name at least one, or give --paper"),
    ],
)
def test_options_that_do_not_go_together_are_misuse(said, words, hint):
    code, _, err = said("compare", *words.split())
    assert code == 2
    assert hint in unboxed(err)


@pytest.mark.parametrize("name", ["mcse:figure-2", "kdmcse:table-2", "dalr:table-6"])
def test_published_alignment_stands_beside_that_of_the_released_evaluation(name):
    (entry,) = find_entries(name)
    metrics = [column.metric for column in entry.columns]
    assert metrics[:2] == ["alignment_released", "uniformity_released"]
