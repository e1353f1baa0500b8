"""`sightline compare --curve`: figures by hand, lines, axes, what it prints and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from made_results import made_result, with_task

from sightline.errors import SightlineError
from train.evaluate.results import save_result
from train.report.charts import axis_of, curve_chart
from train.report.comparison import FoundRun
from train.report.comparison_document import document_of_curve
from train.report.curve import RUN, curve_of, value_text
from train.report.render import to_text


def found(run, *scores, objective="mcse", **given):
    """A run whose seeds have these scores; `given` are its objective's parameters."""
    results = tuple(
        made_result(
            run,
            seed,
            parameters={"objective": given, "train": {"batch_size": 64, "temperature": 1}},
            training={"objective": objective},
            scores={"score": score, "distance": 1.0},
            reasons={} if score is not None else {"score": "constant"},
            lower_is_better=("distance",),
        )
        for seed, score in enumerate(scores)
    )
    files = tuple(Path(run) / f"seed-{seed}.json" for seed in range(len(scores)))
    return FoundRun(run, files, results)


WEIGHTS = [
    found("third", 30.0, 34.0, weight=2.0),
    found("first", 10.0, 20.0, weight=0.01),
    found("second", 21.0, 25.0, weight=0.5),
]
BASE = found("base", 1.0, 3.0, objective="simcse")


def with_tasks(**changes):
    """`WEIGHTS` with `changes` in their task."""
    return [
        replace(run, results=tuple(with_task(each, **changes) for each in run.results))
        for run in WEIGHTS
    ]


def test_a_line_has_the_means_and_deviations_in_the_order_of_the_values():
    curve = curve_of(WEIGHTS, "weight")
    assert (curve.parameter, curve.metric, curve.baseline) == ("objective.weight", "score", None)
    (line,) = curve.lines
    assert line.label == "mcse"
    values = [(point.value, point.row.name) for point in line.points]
    assert values == [(0.01, "first"), (0.5, "second"), (2.0, "third")]
    cells = [point.row.cells["score"] for point in line.points]
    assert [cell.mean for cell in cells] == [15.0, 23.0, 32.0]
    # of two numbers that are d apart: d / √2
    assert [cell.sd for cell in cells] == pytest.approx([10 / 2**0.5, 8**0.5, 8**0.5])


def test_runs_that_differ_in_something_else_are_another_line():
    other = [found(f"clip-{w}", 40.0 * w, weight=w, image="clip") for w in (1.0, 0.5)]
    dalr = [found(f"dalr-{w}", w, weight=w, objective="dalr") for w in (1, 3)]
    own = [found(f"resnet-{w}", w, weight=w, image="resnet") for w in (0.5, 1.0)]
    curve = curve_of([*other, *dalr, *own], "objective.weight")
    labels = [line.label for line in curve.lines]
    assert labels == ["mcse, image clip", "dalr", "mcse, image resnet"]
    assert [point.value for point in curve.lines[0].points] == [0.5, 1.0]
    assert [point.row.name for point in curve.lines[2].points] == ["resnet-0.5", "resnet-1.0"]


def test_the_baseline_and_chance_are_no_points_and_have_no_notes():
    runs = with_tasks(references={"chance": {"distance": 0.5}})
    curve = curve_of([BASE, *runs], "weight", baseline="base")
    assert curve.baseline.cells["score"].mean == 2.0
    assert curve.baseline.cells["score"].seeds == (1.0, 3.0)
    assert [point.row.name for point in curve.points] == ["first", "second", "third"]
    assert curve.notes == ()


def test_the_metric_is_the_average_the_first_or_the_one_named():
    assert curve_of(WEIGHTS, "weight", "distance").metric == "distance"
    average = with_tasks(scores={"score": 1.0, "distance": 1.0, "Avg": 7.0})
    assert curve_of(average, "weight").metric == "Avg"


def test_without_a_parameter_every_run_is_a_row_as_given_also_file_by_file():
    curve = curve_of(WEIGHTS, RUN)
    assert not curve.ordered
    assert [point.row.name for point in curve.points] == ["third", "first", "second"]
    parts = [
        replace(run, files=run.files[n : n + 1], results=run.results[n : n + 1])
        for run in WEIGHTS
        for n in range(2)
    ]
    assert curve_of(parts, "weight") == curve_of(WEIGHTS, "weight")
    assert curve_of(parts, RUN) == curve


ONE, TWO = (found("unlike", 1.0, 1.0, weight=weight) for weight in (1.0, 2.0))
UNLIKE = replace(ONE, results=(ONE.results[0], TWO.results[1]))  # seeds of two weights


@pytest.mark.parametrize(
    ("runs", "parameter", "message"),
    [
        (
            WEIGHTS,
            "weigh",
            r"'weigh'; did you mean 'weight'\? \(available: weight\), in which the runs differ$",
        ),
        (WEIGHTS, "batch_size", r"train\.batch_size is 64 in every run; .* in objective\.weight$"),
        (
            [found("a", 1.0, temperature=0.05), found("b", 1.0, temperature=0.1)],
            "temperature",
            "the name of 2 parameters: objective.temperature, train.temperature; give one in full",
        ),
        ([found("base", 1.0), *WEIGHTS], "weight", "'base' has no parameter objective.weight; .*b"),
        (
            [*WEIGHTS, found("again", 1.0, weight=0.5)],
            "weight",
            "'second' and 'again' both have objective.weight 0.5 and differ in nothing else",
        ),
        (
            [found("a", 1.0, weight=1, image="x"), found("b", 1.0, weight=2, image="y")],
            "weight",
            "no two runs differ in objective.weight alone, .* objective.weight, objective.image$",
        ),
        (WEIGHTS[:1], "weight", r"objective\.weight is 2 in every run; .* have equal parameters"),
        (
            WEIGHTS,
            "zzz",
            r"unknown parameter 'zzz' \(available: weight\), in which the runs differ$",
        ),
        ([UNLIKE, *WEIGHTS], "weight", r"unlike/seed-1\.json: objective\.weight is 2, but 1 in"),
    ],
)
def test_what_cannot_be_drawn_is_one_error(runs, parameter, message):
    with pytest.raises(SightlineError, match=message):
        curve_of(runs, parameter)


def test_null_comes_last_and_the_axis_is_then_even():
    runs = [found(f"pairs-{n}", 1.0, pairs=n) for n in (None, 5000, 100)]
    curve = curve_of(runs, "pairs")
    assert curve.ordered
    assert [point.value for point in curve.points] == [100, 5000, None]
    assert axis_of(curve) == ({"100": 0.0, "5000": 1.0, "not set": 2.0}, False)


@pytest.mark.parametrize(
    ("values", "places", "logarithmic"),
    [
        ((0.1, 0.2, 0.15), [0.1, 0.15, 0.2], False),
        ((0.001, 0.5, 0.05), [0.001, 0.05, 0.5], True),
        ((0, 0.001, 0.5), [0, 1, 2], False),  # 0 and 0.001 would be one tick
    ],
)
def test_an_axis_shows_every_value_apart(values, places, logarithmic):
    axis = axis_of(curve_of([found(f"r{v}", 1.0, weight=v) for v in values], "weight"))
    assert (list(axis[0].values()), axis[1]) == (places, logarithmic)


def test_the_figure_draws_the_means_the_spread_and_every_seed():
    curve = curve_of([BASE, *WEIGHTS], "weight", baseline="base")
    axis = curve_chart(curve).axes[0]
    lines = {str(line.get_label()): line for line in axis.lines}
    assert list(lines["mcse"].get_xdata()) == [0.01, 0.5, 2.0]
    assert list(lines["mcse"].get_ydata()) == [15.0, 23.0, 32.0]
    assert list(lines["base (baseline)"].get_ydata()) == [2.0, 2.0]
    seeds = [tuple(line.get_ydata()) for line in axis.lines if line.get_mfc() == "white"]
    assert seeds == [(10.0, 20.0), (21.0, 25.0), (30.0, 34.0)]
    band = axis.collections[0].get_paths()[0].vertices
    assert (min(band[:, 1]), max(band[:, 1])) == pytest.approx((15 - 50**0.5, 32 + 8**0.5))
    assert axis.get_xscale() == "log"
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["0.01", "0.5", "2"]


def test_values_that_are_no_numbers_are_rows_of_a_figure():
    runs = [found(f"with-{t}", n, n + 2.0, teachers=[t]) for n, t in enumerate("ab")]
    curve = curve_of([*runs, found("none", None, teachers=[])], "teachers")
    assert [value_text(point.value) for point in curve.points] == ["[a]", "[b]", "[]"]
    axis = curve_chart(curve).axes[0]
    assert [tick.get_text() for tick in axis.get_yticklabels()] == ["with-a", "with-b", "none"]
    assert "not defined" in [text.get_text() for text in axis.texts]
    assert "none: score is not defined: seed 0: constant" in curve.notes


def test_the_table_and_the_json_have_the_figures():
    base = found("base", 2.0, objective="simcse")
    document = document_of_curve(curve_of([base, *WEIGHTS], "weight", baseline="base"))
    shown = to_text(document, "terminal")
    assert "score against objective.weight" in shown
    assert [line.split()[0] for line in shown.splitlines()[3:7]] == ["0.01", "0.5", "2", "–"]
    assert "23.00 ± 2.83" in shown
    spread = "Mean ± sample standard deviation over seeds."
    assert spread in shown
    one_seed = [found(f"one-{w}", 40.0 * w, weight=w) for w in (1.0, 0.5)]
    assert spread not in to_text(document_of_curve(curve_of(one_seed, "weight")), "terminal")
    assert "Note: base has one seed (0), so no deviation." in shown
    assert "| – | base (baseline) | 0 | 2.00 |" in to_text(document, "markdown")
    body = json.loads(to_text(document, "json"))
    assert body["schema"] == "sightline.curve/2"
    point = body["lines"][0]["points"][1]
    assert (point["value"], point["row"]["name"], point["row"]["seeds"]) == (0.5, "second", [0, 1])
    cell = {"mean": 23.0, "sd": pytest.approx(8**0.5), "seeds": [21.0, 25.0], "reason": ""}
    assert point["row"]["cells"]["score"] == cell
    assert "distance: lower is better" in curve_of(WEIGHTS, "weight", "distance").notes


@pytest.fixture
def sightline(tmp_path, monkeypatch, said):
    """Runs `sightline compare` in a folder with results of `WEIGHTS` and of `base`."""
    for run in (*WEIGHTS, BASE):
        for each in run.results:
            save_result(each, tmp_path / "results" / run.name / f"seed-{each.seed}.json")
    monkeypatch.chdir(tmp_path)
    return partial(said, "compare")


def test_the_command_prints_the_table_and_writes_the_figure(sightline):
    code, out, _ = sightline(
        "first", "second", "third", "--curve", "weight", "--baseline", "base", "--plot", "w.svg"
    )
    assert code == 0
    assert "15.00 ± 7.07" in out
    assert "base (baseline)" in out
    assert Path("w.svg").read_bytes().startswith(b"<svg")
    again = sightline("first", "second", "--curve", "weight", "--plot", "w.svg", "--out", "w.txt")
    assert again[:2] == (0, "")
    assert "sightline.curve/2" in Path("w.txt").read_text()
    refused = sightline("first", "second", "--out", "w.txt")
    assert refused[0] == 1
    assert "w.txt: already exists" in refused[2]


def test_a_page_of_a_curve_has_its_figure_and_replaces_itself(sightline):
    words = ("first", "second", "--curve", "run", "--format", "html", "--out", "curve.html")
    for _ in range(2):
        assert sightline(*words, "--baseline", "base") == (0, "", "")
    page = Path("curve.html").read_text()
    assert page.count("<svg") == 1
    assert "23.00" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("first", "second", "--curve", "weight", "--metric", "scor"), "did you mean 'score'"),
        (("first", "second", "--metric", "score"), "give it with --curve"),
        (("first", "--curve", "run", "--published", "MCSE-BERT"), "a curve has no published rows"),
        (("base", "--curve", "run", "--baseline", "base"), "base is the only run"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_error(sightline, words, message):
    code, _, said = sightline(*words)
    assert code != 0
    assert message in said
