"""Results, the table over seeds, gains, references, and the report written from them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from invented_runs import UNTRAINED, invented
from made_results import made_result, with_task

from sightline.cache import EncoderRecord, FeatureSpec, SetRecord
from sightline.errors import SightlineError
from train.evaluate.results import RunResult, load_result, save_result
from train.records import DEV, FeatureUse
from train.report.comparison import (
    compare_results,
    document_of,
    feature_uses,
    parameter_rows,
)
from train.report.figures import training_chart
from train.report.formats import to_json, to_text
from train.report.run_tables import make_table, notes_on_scores
from train.report.scores import Comparison, best, gains_of, headline, lead_of
from train.report.tables import Cell, Row, parts_of
from train.report.write import means_of, write_report

CLIP = UNTRAINED.model_copy(
    update={"name": "scenes/image/clip", "source": "file:clip.safetensors", "untrained": False}
)
COMPARISON = Comparison("simcse", "mcse-clip", "shuffled")
IMPORTS = """
import sys
for name in ("torchvision", "open_clip", "sam2"):
    sys.modules[name] = None
import train, train.evaluate, train.report, train.evaluate.results
print([m for m in ("torch", "matplotlib", "scipy", "transformers") if m in sys.modules])
import train.embed, train.evaluate.sts, train.evaluate.geometry
import train.evaluate.retrieval, train.report.write
"""


def test_packages_import_nothing_heavy_and_nothing_of_extraction():
    words = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def result(run, seed, score, *features, **parameters):
    log = [
        {"loss": 2.0, "loss_text": 1.5, "step": 10},
        {"dev": 1.0, "step": 10},
        {"dev": score, "step": 20},
    ]
    return made_result(
        run,
        seed,
        parameters={"train": {"batch_size": 64}, "student": {"pooling": "cls"}, **parameters},
        features=features,
        training={"steps": 20, "best_step": 20, "dev": "STS-B dev", "log": log},
        scores={"scenes": score},
    )


@pytest.fixture(scope="module")
def results():
    runs = {
        "simcse": ((), (5.0, 6.0, 10.0)),
        "mcse-clip": ((CLIP,), (83.0, 84.0, 88.0)),
        "mcse-resnet": ((UNTRAINED,), (70.0, 71.0, 72.0)),
        "shuffled": ((CLIP,), (14.0, 15.0, 19.0)),
    }
    return [
        result(run, seed, score, *features)
        for run, (features, scores) in runs.items()
        for seed, score in enumerate(scores)
    ]


def test_a_result_survives_a_round_trip(tmp_path, results):
    path = save_result(results[3], tmp_path / "runs" / "mcse")
    assert path.name == "result.json"
    assert load_result(path) == load_result(path.parent) == results[3]


def test_features_are_taken_from_a_feature_sets_own_record():
    encoder = EncoderRecord(
        name="torchvision/resnet50", source="random:0", weights_sha256="1" * 64, untrained=True
    )
    about = {"kind": "image", "preprocessing": {}, "precision": "fp32", "dtype": "float16"}
    spec = FeatureSpec(encoder=encoder, dim=2048, **about)
    record = SetRecord[FeatureSpec].model_construct(
        spec=spec, fingerprint=spec.fingerprint, content_digest="2" * 64, rows=9
    )
    used = FeatureUse.of_set(SimpleNamespace(path=Path("data/scenes/image/resnet"), record=record))
    assert used.name == "scenes/image/resnet"
    assert used.untrained
    assert (used.dim, used.rows, used.fingerprint) == (2048, 9, spec.fingerprint)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such file; expected the result of a finished run; run its train and evaluate"),
        ('{"schema": "sightline.result/1"', "not JSON (EOF while parsing"),
        ('{"schema": "sightline.result/9"}', "schema: found 'sightline.result/9', expected"),
        ("[]", "found [], expected an object"),
        ('{"schema": "sightline.result/1"}', "run: is missing"),
        (
            '{"schema": "sightline.result/1", "run": "a", "tasks": {"t": {"scores": {"a": null}}}}',
            "scores.a is null but reasons does not say why",
        ),
        (
            '{"schema": "sightline.result/1", "run": "a", "tasks": {"t": {"scores": {"a": NaN}}}}',
            "tasks.t.scores.a: found nan, expected a finite number",
        ),
    ],
)
def test_a_bad_result_file_is_one_error(tmp_path, text, message):
    if text is not None:
        (tmp_path / "result.json").write_text(text)
    with pytest.raises(SightlineError) as caught:
        load_result(tmp_path)
    assert str(tmp_path / "result.json") in str(caught.value)
    assert message in str(caught.value)


def test_of_a_score_that_is_better_when_lower_the_lowest_is_the_best():
    scores = {"a": -1.0, "b": -2.0}
    runs = [
        made_result(name, scores={"far": score, "near": 2.0}, lower_is_better=("far", "near"))
        for name, score in scores.items()
    ]
    table = make_table(runs)
    assert best(table, table.columns[0]) == -2.0
    gain, _ = gains_of(make_table(runs), [Comparison("a", "b")])
    assert gain.change == 1.0
    hidden = [with_task(run, hidden=("near",)) for run in runs]
    assert "lower is better: far" in compare_results(hidden).notes


def test_one_seed_twice_and_no_results_are_errors(results):
    with pytest.raises(SightlineError, match="'simcse' has two results of seed 0"):
        make_table([results[0], results[0]])
    with pytest.raises(SightlineError, match="no results"):
        make_table([])


def test_seeds_that_differ_in_more_than_the_seed_are_noted(results):
    assert notes_on_scores(results) == []
    other = result("simcse", 3, 7.0, CLIP, student={"pooling": "mean"})
    assert notes_on_scores([*results, other]) == [
        "the seeds of simcse differ in parameters: student.pooling",
        "the seeds of simcse learned from different feature sets",
    ]


def test_a_control_recovers_its_share_of_the_gain(results):
    (gain,) = gains_of(make_table(results), [COMPARISON])
    assert (gain.change, gain.control_change, gain.share) == pytest.approx((78, 9, 9 / 78))
    assert gain.sentence == (
        "scenes: mcse-clip +78.00 over simcse (p < 0.001); shuffled +9.00, 12 % of it."
    )
    one_seed = make_table(results[::3])
    (gain,) = gains_of(one_seed, [COMPARISON])
    assert (gain.share, gain.p_value) == (pytest.approx(9 / 78), None)
    there = "there are simcse, mcse-clip, mcse-resnet, shuffled"
    with pytest.raises(SightlineError, match=f"'mcse', which has no result; {there}"):
        gains_of(one_seed, [Comparison("simcse", "mcse")])


@pytest.mark.parametrize(
    ("treatment", "control", "share", "reason"),
    [
        ((14, 15, 16), (12, 13, 14), 0.6, ""),  # of a gain of 5
        ((14, 15, 16), (8, 9, 10), -0.2, ""),
        ((14, 15, 16), (15, 16, 17), None, "more than the gain"),
        ((14, 15, 16), (3, 4, 5), None, "it loses more than the gain"),
        ((10, 11, 12), (10, 10.5, 11), None, "the gain is not significant"),  # p = 0.29
        ((8, 9, 10), (12, 13, 14), None, "there is no gain to recover"),
    ],
)
def test_a_share_is_stated_only_where_it_says_something(treatment, control, share, reason):
    names = {"x": (9, 10, 11), "y": treatment, "z": control}
    runs = [result(n, s, float(v)) for n, values in names.items() for s, v in enumerate(values)]
    comparison = compare_results(runs, "x", comparisons=[Comparison("x", "y", "z")])
    (gain,) = comparison.gains
    assert (gain.share, gain.reason) == (pytest.approx(share) if reason == "" else None, reason)
    own = f"; z {gain.control_change:+.2f}"  # the control's own gain, in every case
    assert gain.sentence.endswith(
        f"{own}, {100 * share:.0f} % of it." if share else f"{own}: {reason}."
    )
    (table,) = (each for each in document_of(comparison).tables if each.title == "Gain over x")
    last = table.columns[-1]
    assert last.heading == "share of the gain"
    shown = parts_of(table.rows[0].cells[last.name], last)
    assert shown == (f"{100 * share:.0f} %" if share else reason,)


def test_a_task_that_the_baseline_has_no_score_on_has_no_gain_and_no_difference():
    no_heads = {"R@1": "its objective projects no image features"}
    runs = [
        made_result(run, scores={"sts": 1.0, "R@1": score}, reasons=why)
        for run, score, why in (("x", None, no_heads), ("y", 2.0, {}))
    ]
    comparison = compare_results(runs, "x", comparisons=[Comparison("x", "y")])
    scores, *rest = document_of(comparison).tables
    headings = [column.heading for column in scores.columns]
    assert (scores.heading, *headings) == ("run", "seeds", "sts", "R@1")
    assert [[row.name for row in table.rows] for table in rest] == [["sts"], ["sts"], ["x", "y"]]
    said = [line for line in document_of(comparison).lines if "R@1" in line]
    assert said == ["Note: x, R@1: not defined: seed 0: its objective projects no image features."]


def test_the_average_is_stated_first_and_alignment_and_uniformity_only_alone():
    scores = {
        "x": {"STS12": 1.0, "Avg": 2.0, "uniformity": -2.0},
        "y": {"STS12": 2.0, "Avg": 3.0, "uniformity": -2.1},
    }
    runs = [
        made_result(r, scores=own, lower_is_better=("uniformity",)) for r, own in scores.items()
    ]
    table = make_table(runs)
    sts, average, uniformity = gains_of(table, [Comparison("x", "y")])
    assert headline(table, [sts, average, uniformity]) == [average]
    assert headline(table, [sts, uniformity]) == [sts]
    assert headline(table, [uniformity]) == [uniformity]


def test_scores_of_a_table_further_down_are_not_stated():
    runs = [
        made_result(run, scores={"STS12": 1.0, "STS13": at}) for run, at in (("x", 1), ("y", 2))
    ]
    table = make_table(runs)
    below, first = replace(table.columns[0], part="More"), table.columns[1]
    table = replace(table, columns=(below, first))
    sts12, sts13 = gains_of(table, [Comparison("x", "y")])
    assert headline(table, [sts12, sts13]) == [sts13]


def test_a_report_first_says_which_run_is_best_and_what_its_control_keeps():
    scores = {"text": 10.0, "images": 60.0, "objects": 80.0, "shuffled": 12.5}
    runs = [made_result(name, scores={"sts": score}) for name, score in scores.items()]
    runs[2] = made_result("objects", scores={"sts": 80.0}, features=(UNTRAINED,))
    table = make_table(runs)
    comparisons = [Comparison("text", "images", "shuffled"), Comparison("text", "objects")]
    assert lead_of(table, gains_of(table, comparisons)) == (
        "sts: objects (untrained features) is best with 80.00, +70.00 over text.",
        "sts: images +50.00 over text; shuffled +2.50, 5 % of it.",
        "sts: objects (untrained features) +70.00 over text.",
    )
    assert lead_of(table, ()) == ()
    unscored = make_table([*runs, made_result("new", scores={"other": 1.0})])
    assert lead_of(unscored, gains_of(unscored, comparisons)) == lead_of(
        table, gains_of(table, comparisons)
    )


CEILING = {"clip (frozen)": {"STS12": 99.0}, "chance": {"STS12": 1.0, "unknown": 2.0}}
PAPER = Row("MCSE", {"STS12": Cell(98.0)}, kind="published")


def runs_with_references(**changes):
    """Rows that need no run, such as chance, are compared with nothing."""
    return [
        invented(run, seed, (score + seed, 80.0), references=CEILING, **changes)
        for run, score in (("simcse", 60.0), ("mcse", 70.0))
        for seed in range(2)
    ]


def test_references_stand_between_the_runs_and_the_published_rows():
    comparison = compare_results(
        runs_with_references(), published=[PAPER], comparisons=[Comparison("simcse", "mcse")]
    )
    table = comparison.table
    names = ["simcse", "mcse", "clip (frozen)", "chance", "MCSE"]
    assert [row.name for row in table.rows] == names
    assert [row.measured for row in table.rows] == [True, True, False, False, False]
    assert set(table.rows[3].cells) == {"STS12"}
    assert best(table, table.columns[0]) == 70.5
    assert set(means_of(table)) == {"simcse", "mcse"}
    assert comparison.gains[0].change == 10.0
    assert notes_on_scores(runs_with_references()) == []
    assert {each.run for each in comparison.differences} == {"mcse"}
    document = document_of(comparison)
    assert "| *clip (frozen)* | – | 99.00 |" in to_text(document, "markdown")
    latex = to_text(document, "latex")
    (row,) = (line for line in latex.splitlines() if line.startswith(r"\textit{clip (frozen)} &"))
    assert row.split(" & ")[2] == "99.00"  # not bold
    scores = latex.split(r"\end{tabular}")[0]
    assert scores.count(r"\midrule") == 2  # below the header and below the runs


def test_results_that_disagree_on_a_reference_are_noted_once():
    results = runs_with_references(notes=("3 images left out",))
    changed = {"clip (frozen)": {"STS12": 90.0}}
    results[2:] = [with_task(each, references=changed) for each in results[2:]]
    disagree, *notes_of_results = notes_on_scores(results)
    assert "disagree on clip (frozen), STS12 (99.00 and 90.00)" in disagree
    assert notes_of_results == ["all runs: 3 images left out"]  # said once
    silent = [with_task(each, notes=()) for each in results[2:]]
    (told,) = notes_on_scores([*results[:2], *silent])[1:]
    assert told == "simcse: 3 images left out"
    assert make_table(results).rows[2].cells["STS12"].value == 99.0


@pytest.fixture(scope="module")
def nasty_results(results):
    nasty = '<script>alert("x")</script> | [a](b) `c`'
    use = CLIP.model_copy(update={"name": nasty})
    return [*results, result(nasty, 0, 1.0, use, objective={"note": nasty})]


def write_nasty(results, out):
    return write_report(results, out, results[-1].run, comparisons=[COMPARISON])


@pytest.fixture(scope="module")
def written(nasty_results, tmp_path_factory):
    """A report with names that are markup."""
    return write_nasty(nasty_results, tmp_path_factory.mktemp("report"))[0].parent


def test_equal_results_give_equal_bytes(written, nasty_results, tmp_path):
    again = {path.name: path.read_bytes() for path in write_nasty(nasty_results, tmp_path)}
    assert again == {path.name: path.read_bytes() for path in written.iterdir()}
    pages = {f"report.{kind}" for kind in ("html", "txt", "json")}
    assert again.keys() == {*pages, "curves.json", "metrics.json"}


def test_the_report_is_one_file_with_everything_escaped(written, nasty_results):
    text = (written / "report.html").read_text()
    assert not re.search(r"<(link|img|iframe)\b", text)
    assert not re.search(r"""(?:src|href)=["'](?!#)""", text)
    assert (text.count("<script"), text.count("<svg")) == (1, 2)
    assert "&lt;script&gt;" in text
    for shown in ("12 % of it", "f" * 12, "train.batch_size", "file:clip.safetensors"):
        assert shown in text
    comparison = compare_results(nasty_results)
    lines = to_text(document_of(comparison, nasty_results[-1].run), "markdown").splitlines()
    assert not [line for line in lines if "<" in line]
    row = next(line for line in lines if line.startswith("| &lt;script"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 4
    body = json.loads((written / "report.json").read_text())
    assert [gain["share"] for gain in body["gains"]] == [pytest.approx(9 / 78)]
    for given, each in zip(nasty_results, body["results"], strict=True):
        training = given.training.model_copy(update={"log": []})
        without_log = given.model_copy(update={"training": training})
        assert RunResult.model_validate(each) == without_log


def test_no_two_figures_of_a_page_share_an_id_and_each_reference_finds_its_own(written):
    text = (written / "report.html").read_text()
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(set(ids)) == len(ids)
    referred = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    assert referred
    assert referred <= set(ids)


def test_a_report_of_one_undefined_score_can_be_written(tmp_path):
    run = made_result("$x_{1}$", scores={"STS-B": None}, reasons={"STS-B": "constant"})
    write_report([run], tmp_path, "t")
    page = (tmp_path / "report.html").read_text()
    assert "seed 0: constant" in page
    assert "No run used cached features" in page


def test_a_task_whose_scores_are_all_hidden_has_no_table(tmp_path):
    runs = [made_result(name, scores={"count": 1.0}, hidden=("count",)) for name in ("a", "b")]
    write_report(runs, tmp_path, "t")
    assert '<section id="scores">' not in (tmp_path / "report.html").read_text()


def test_a_training_chart_has_a_line_per_seed(results):
    lines = training_chart(results, DEV).axes[0].lines
    assert len([line for line in lines if len(line.get_xydata()) == 2]) == 12
    assert training_chart([made_result("a")], DEV) is None


@pytest.mark.parametrize(("steps", "marker"), [([9], "o"), ([9, 18], "None")])
def test_a_line_of_one_point_is_a_dot_and_steps_are_whole(results, steps, marker):
    log = [{"step": step, "loss": 1.5} for step in steps]
    training = results[0].training.model_copy(update={"log": log})
    chart = training_chart([results[0].model_copy(update={"training": training})], "loss")
    (axis,) = chart.axes
    assert axis.lines[0].get_marker() == marker
    assert all(float(tick).is_integer() for tick in axis.get_xticks())


def test_parameters_that_differ_come_first_and_features_once(results):
    other = result("mcse-clip", 0, 83.0, CLIP, objective={"weight": 1.0})
    changed = [*results[:3], other, *results[4:]]
    rows = parameter_rows(changed)
    assert rows[0] == ("objective.weight", ["", "1", "", ""], True)
    assert ("train.batch_size", ["64"] * 4, False) in rows
    uses = [(used.name, runs) for used, runs in feature_uses(changed)]
    assert uses == [
        ("scenes/image/clip", ["mcse-clip", "shuffled"]),
        (UNTRAINED.name, ["mcse-resnet"]),
    ]


def test_a_row_has_the_parameters_in_which_its_seeds_agree():
    seeds = [
        result("mcse", seed, 1.0, objective={"weight": weight, "image": "clip"})
        for seed, weight in enumerate((0.1, 0.2))
    ]
    (row,) = make_table(seeds).rows
    assert row.parameters["objective.image"] == "clip"
    assert row.parameters["objective"] == seeds[0].objective
    assert "objective.weight" not in row.parameters
    body = to_json(document_of(compare_results([seeds[1]])))
    assert body["table"]["rows"][0]["parameters"]["objective.weight"] == 0.2


def test_what_rounds_to_zero_has_no_minus():
    runs = [result(name, 0, score) for name, score in (("x", 0.001), ("y", -0.001))]
    comparison = compare_results(runs, "x", comparisons=[Comparison("x", "y")])
    for format_ in ("terminal", "markdown", "latex", "html"):
        text = to_text(document_of(comparison, page=format_ == "html"), format_)
        assert not re.search(r"(?<!\")[-−]0\.00", text)
    assert "+0.00 over x" in comparison.gains[0].sentence


@pytest.mark.parametrize(
    ("scores", "bold"),
    [
        ((0.001, 0.004), [False, False]),  # both print 0.00
        ((1.001, 1.004, 0.5), [True, True, False]),
    ],
)
def test_scores_that_print_alike_look_alike(scores, bold):
    table = make_table([result(f"r{n}", 0, score) for n, score in enumerate(scores)])
    assert [row.cells["scenes"].strong for row in table.rows] == bold
