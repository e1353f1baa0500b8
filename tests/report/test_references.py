"""Rows that need no run, such as chance: shown in every format, compared with nothing."""

from __future__ import annotations

from invented_runs import invented
from made_results import with_task

from train.report.charts import PUBLISHED, score_chart
from train.report.comparison import compare_results
from train.report.differences import Comparison, compute_gains
from train.report.render import to_text
from train.report.sections import document_of
from train.report.table import Cell, Row, make_table
from train.report.write import means_of

CEILING = {"clip (frozen)": {"STS12": 99.0}, "chance": {"STS12": 1.0, "unknown": 2.0}}
PAPER = Row("MCSE", "", (), {"STS12": Cell(98.0, None)}, kind="published")


def runs(**changes: object) -> list:
    return [
        invented(run, seed, (score + seed, 80.0), references=CEILING, **changes)
        for run, score in (("simcse", 60.0), ("mcse", 70.0))
        for seed in range(2)
    ]


def test_references_stand_between_the_runs_and_the_published_rows():
    table = make_table(runs(), [PAPER])
    names = ["simcse", "mcse", "clip (frozen)", "chance", "MCSE"]
    assert [row.name for row in table.rows] == names
    assert [row.measured for row in table.rows] == [True, True, False, False, False]
    assert set(table.rows[3].cells) == {"STS12"}
    assert table.best("STS12") == 70.5
    assert set(means_of(table)) == {"simcse", "mcse"}
    gains = compute_gains(table, [Comparison("simcse", "mcse")])
    assert gains[0].gain == 10.0
    assert table.notes == ()


def test_a_comparison_shows_them_and_tests_nothing_against_them():
    comparison = compare_results(runs(), published=[PAPER])
    assert {each.run for each in comparison.differences} == {"mcse"}
    assert "| *clip (frozen)* | – | 99.00 |" in to_text(document_of(comparison), "markdown")
    latex = to_text(document_of(comparison), "latex")
    (row,) = (line for line in latex.splitlines() if line.startswith(r"\textit{clip (frozen)} &"))
    assert row.split(" & ")[2] == "99.00"
    scores = latex.split(r"\end{tabular}")[0]
    assert scores.count(r"\midrule") == 2  # below the header and below the runs
    assert r"\textbf{99.00" not in latex


def test_references_are_grey_in_the_chart():
    figure = score_chart(make_table(runs()))
    assert figure is not None
    colours = [patch.get_facecolor()[:3] for patch in figure.axes[0].patches]
    grey = tuple(int(PUBLISHED[i : i + 2], 16) / 255 for i in (1, 3, 5))
    assert [colour == grey for colour in colours] == [False, False, True, True]


def test_results_that_disagree_on_a_reference_are_noted_once():
    changed = {"clip (frozen)": {"STS12": 90.0}}
    results = [*runs()[:2], *(with_task(each, references=changed) for each in runs()[2:])]
    table = make_table(results)
    (note,) = table.notes
    assert "disagree on clip (frozen), STS12 (99.00 and 90.00)" in note
    assert table.rows[2].cells["STS12"].mean == 99.0


def test_notes_of_a_result_follow_the_name_of_its_run():
    table = make_table(runs(notes=("3 images left out",)))
    assert table.notes == ("simcse: 3 images left out", "mcse: 3 images left out")
