"""Results, the table over seeds, gains, and the report written from them."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from invented_runs import UNTRAINED
from made_results import made_result
from matplotlib.backends.backend_agg import FigureCanvasAgg
from scipy.stats import ttest_ind

from sightline.cache import EncoderRecord, FeatureSetRecord, FeatureSpec
from sightline.errors import SightlineError
from train.evaluate.results import (
    RunResult,
    TaskResult,
    load_result,
    save_result,
)
from train.records import FeatureUse
from train.report.charts import dev_chart, score_chart, to_png, to_svg
from train.report.comparison import FoundRun, compare_results
from train.report.curve import RUN, curve_of
from train.report.differences import Comparison, compute_gains, headline, lead_of
from train.report.grid import grid_of_table
from train.report.render import to_text
from train.report.sections import charts_of, document_of, feature_uses, parameter_rows
from train.report.table import Cell, Row, Table, make_table
from train.report.write import write_report


def feature(name="scenes/image/clip", untrained=False, fingerprint="f" * 64):
    return FeatureUse(
        name=name,
        encoder="open_clip/ViT-B-32",
        source="random:0" if untrained else "file:clip.safetensors",
        weights_sha256="a" * 64,
        fingerprint=fingerprint,
        content_digest="c" * 64,
        dim=512,
        rows=3000,
        untrained=untrained,
    )


def lower(task):
    return (task,) if task == "uniformity" else ()


def result(run, seed, score, *features, task="scenes", reasons=None, **parameters):
    scores, reasons = {task: score}, reasons or {}
    own = TaskResult(task=task, scores=scores, reasons=reasons, lower_is_better=lower(task))
    log = [
        {"loss": 2.0, "loss_text": 1.5, "step": 10},
        {"dev": 1.0, "step": 10},
        {"dev": score or 0.0, "step": 20},
    ]
    return made_result(
        run,
        seed,
        parameters={"train": {"batch_size": 64}, "student": {"pooling": "cls"}, **parameters},
        tasks={task: own},
        features=features,
        training={"steps": 20, "best_step": 20, "dev": "STS-B dev", "log": log},
    )


@pytest.fixture
def results():
    return make_results()


def make_results() -> list[RunResult]:
    clip, resnet = feature(), feature("scenes/image/resnet", untrained=True, fingerprint="e" * 64)
    return [
        *(result("simcse", seed, score) for seed, score in enumerate((5.0, 6.0, 10.0))),
        *(result("mcse-clip", s, score, clip) for s, score in enumerate((83.0, 84.0, 88.0))),
        *(result("mcse-resnet", s, score, resnet) for s, score in enumerate((70.0, 71.0, 72.0))),
        *(result("shuffled", s, score, clip) for s, score in enumerate((14.0, 15.0, 19.0))),
    ]


COMPARISON = Comparison("simcse", "mcse-clip", "shuffled")


def test_a_result_survives_a_round_trip(tmp_path, results):
    path = save_result(results[3], tmp_path / "runs" / "mcse")
    assert path.name == "result.json"
    assert load_result(path) == load_result(path.parent) == results[3]


def test_features_are_taken_from_a_feature_sets_own_record():
    encoder = EncoderRecord(
        name="torchvision/resnet50", source="random:0", weights_sha256="1" * 64, untrained=True
    )
    spec = FeatureSpec(
        kind="image", encoder=encoder, preprocessing={}, precision="fp32", dim=2048, dtype="float16"
    )
    record = FeatureSetRecord.model_construct(
        spec=spec, fingerprint=spec.fingerprint, content_digest="2" * 64, rows=9
    )
    opened: Any = SimpleNamespace(path=Path("data/scenes/image/resnet"), record=record)
    used = FeatureUse.of_set(opened)
    assert used.name == "scenes/image/resnet"
    assert used.untrained
    assert (used.dim, used.rows, used.fingerprint) == (2048, 9, spec.fingerprint)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": "sightline.result/1"', "truncated or not JSON"),
        ('{"schema": "sightline.result/9"}', "schema 'sightline.result/9', expected"),
        ("[]", "schema 'list', expected"),
        ('{"schema": "sightline.result/1"}', "run: Field required"),
        (
            '{"schema": "sightline.result/1", "run": "a", "tasks": {"t": {"scores": {"a": null}}}}',
            "tasks.t: scores.a is null but reasons does not say why",
        ),
        (
            '{"schema": "sightline.result/1", "run": "a", "tasks": {"t": {"scores": {"a": NaN}}}}',
            "tasks.t.scores.a: Input should be a finite number",
        ),
    ],
)
def test_a_bad_result_file_is_one_error(tmp_path, text, message):
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(SightlineError) as caught:
        load_result(tmp_path)
    assert str(tmp_path / "result.json") in str(caught.value)
    assert message in str(caught.value)


def test_a_missing_result_says_what_to_run(tmp_path):
    with pytest.raises(SightlineError, match=r"no such file.*Run its train and evaluate"):
        load_result(tmp_path)


def test_the_best_of_what_is_better_when_lower_is_the_lowest():
    low = [result("a", 0, -1.0, task="uniformity"), result("b", 0, -2.0, task="uniformity")]
    assert make_table(low).best("uniformity") == -2.0
    assert compute_gains(make_table(low), [Comparison("a", "b")])[0].gain == 1.0


def test_every_row_of_untrained_encoders_is_marked_everywhere(results):
    comparison = compare_results(results, comparisons=[Comparison("simcse", "mcse-resnet")])
    rows, document = comparison.table.rows, document_of(comparison)
    assert [row.marks for row in rows] == [(), (), ("untrained weights",), ()]
    assert [row.doubtful for row in rows] == [False, False, True, False]
    assert "| mcse-resnet (untrained weights) |" in to_text(document, "markdown")
    mark = 'mcse-resnet<span class="mark warn">untrained weights</span>'
    assert mark in to_text(document, "html")
    assert "mcse-resnet (untrained weights) +64.00" in comparison.gains[0].sentence


def test_one_seed_twice_and_no_results_are_errors(results):
    with pytest.raises(SightlineError, match="'simcse' has two results of seed 0"):
        make_table([results[0], results[0]])
    with pytest.raises(SightlineError, match="no results"):
        make_table([])


def test_seeds_that_differ_in_more_than_the_seed_are_noted(results):
    assert make_table(results).notes == ()
    other = result("simcse", 3, 7.0, feature(), student={"pooling": "mean"})
    assert make_table([*results, other]).notes == (
        "the seeds of simcse differ in parameters: student.pooling",
        "the seeds of simcse learned from different feature sets",
    )


def test_a_control_recovers_its_share_of_the_gain(results):
    gain = compute_gains(make_table(results), [COMPARISON])[0]
    assert gain.gain == pytest.approx(78.0)
    assert gain.control_gain == pytest.approx(9.0)
    assert gain.share == pytest.approx(9 / 78)
    assert gain.p_value == pytest.approx(ttest_ind([83, 84, 88], [5, 6, 10])[1])
    assert gain.sentence == (
        "scenes: mcse-clip +78.00 over simcse (p < 0.001); shuffled +9.00, 12 % of it."
    )


def test_the_names_of_the_three_runs_are_parameters():
    runs = [result("x", 0, 10.0), result("y", 0, 20.0), result("z", 0, 5.0)]
    gain = compute_gains(make_table(runs), [Comparison("x", "y", "z")])[0]
    assert (gain.gain, gain.share, gain.p_value) == (10.0, -0.5, None)
    with pytest.raises(SightlineError, match="'mcse', which has no result; there are x, y, z"):
        compute_gains(make_table(runs), [Comparison("x", "mcse")])


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
    (gain,) = compute_gains(make_table(runs), [Comparison("x", "y", "z")])
    assert (gain.share, gain.reason) == (pytest.approx(share) if reason == "" else None, reason)
    own = f"; z {gain.control_gain:+.2f}"  # the control's own gain, in every case
    assert gain.sentence.endswith(
        f"{own}, {100 * share:.0f} % of it." if share else f"{own}: {reason}."
    )
    comparison = compare_results(runs, "x", comparisons=[Comparison("x", "y", "z")])
    (grid,) = (each for each in document_of(comparison).grids if each.title == "Gain over x")
    shown = grid.rows[0].cells[-1]
    assert shown.parts == (f"{100 * share:.0f} %" if share else reason,)


def test_a_task_that_the_baseline_has_no_score_on_has_no_gain_and_no_difference():
    no_heads = {"R@1": "its objective projects no image features"}
    runs = [
        made_result(run, scores={"sts": 1.0, "R@1": score}, reasons=why)
        for run, score, why in (("x", None, no_heads), ("y", 2.0, {}))
    ]
    comparison = compare_results(runs, "x", comparisons=[Comparison("x", "y")])
    scores, *rest = document_of(comparison).grids
    assert scores.header == ("run", "seeds", "sts", "R@1")
    assert [[row.label for row in grid.rows] for grid in rest] == [["sts"], ["sts"], ["x", "y"]]
    said = [line for line in document_of(comparison).lines if "R@1" in line]
    assert said == ["Note: x, R@1: not defined: seed 0: its objective projects no image features."]


def test_the_average_is_stated_first():
    runs = [
        made_result(name, scores={"STS12": v, "Avg": v + 1}) for name, v in (("x", 1.0), ("y", 2.0))
    ]
    gains = compute_gains(make_table(runs), [Comparison("x", "y")])
    assert [gain.task for gain in headline(gains)] == ["Avg"]
    assert headline(gains[:1]) == [gains[0]]


def test_alignment_and_uniformity_are_not_stated_as_gains_beside_a_score():
    scores = [("x", 1.0, -2.0), ("y", 3.0, -2.1)]
    runs = [
        made_result(
            name,
            tasks={
                task: TaskResult(task=task, scores={task: value}, lower_is_better=lower(task))
                for task, value in (("scenes", score), ("uniformity", spread))
            },
        )
        for name, score, spread in scores
    ]
    gains = compute_gains(make_table(runs), [Comparison("x", "y")])
    assert [gain.task for gain in gains] == ["scenes", "uniformity"]
    assert [gain.task for gain in headline(gains)] == ["scenes"]
    assert headline(gains[1:]) == [gains[1]]


def test_a_report_first_says_which_run_is_best_and_what_its_control_keeps():
    scores = {"text": 10.0, "images": 60.0, "objects": 80.0, "shuffled": 12.5}
    runs = [made_result(name, scores={"sts": score}) for name, score in scores.items()]
    runs[2] = made_result("objects", scores={"sts": 80.0}, features=(UNTRAINED,))
    table = make_table(runs)
    gains = compute_gains(table, [Comparison("text", "images", "shuffled")])
    assert lead_of(table, gains) == (
        "sts: objects (untrained weights) is best with 80.00, +70.00 over text.",
        "sts: images +50.00 over text; shuffled +2.50, 5 % of it.",
    )
    assert lead_of(table, ()) == ()


@pytest.fixture(scope="module")
def nasty_results():
    nasty = '<script>alert("x")</script> | [a](b) `c`'
    return [*make_results(), result(nasty, 0, 1.0, feature(nasty), note=nasty)]


def write_nasty(results: list[RunResult], out: Path) -> list[Path]:
    return write_report(results, out, results[-1].run, comparisons=[COMPARISON])


@pytest.fixture(scope="module")
def written(nasty_results, tmp_path_factory) -> Path:
    """A report with names that are markup."""
    return write_nasty(nasty_results, tmp_path_factory.mktemp("report"))[0].parent


def test_equal_results_give_equal_bytes(written, nasty_results, tmp_path):
    again = {path.name: path.read_bytes() for path in write_nasty(nasty_results, tmp_path)}
    assert again == {path.name: path.read_bytes() for path in written.iterdir()}
    pages = {f"report.{kind}" for kind in ("html", "md", "txt", "json")}
    assert again.keys() == {
        *pages,
        *("curves.json", "metrics.json", "scores.png", "dev.png", "loss.png"),
    }


def test_the_report_is_one_file_with_everything_escaped(written, nasty_results):
    text = (written / "report.html").read_text()
    assert not re.search(r"<(link|img|iframe)\b", text)
    assert not re.search(r"""(?:src|href)=["'](?!#)""", text)
    assert (text.count("<script"), text.count("<svg")) == (1, 3)
    assert "&lt;script&gt;" in text
    for shown in ("12 % of it", "f" * 12, "train.batch_size", "file:clip.safetensors"):
        assert shown in text
    lines = (written / "report.md").read_text().splitlines()
    assert not [line for line in lines if "<" in line]
    row = next(line for line in lines if line.startswith("| &lt;script"))
    assert len(re.findall(r"(?<!\\)\|", row)) == 4
    body = json.loads((written / "report.json").read_text())
    assert [gain["share"] for gain in body["gains"]] == [pytest.approx(9 / 78)]
    for given, each in zip(nasty_results, body["results"], strict=True):
        training = given.training.model_copy(update={"log": []})
        without_log = given.model_copy(update={"training": training})
        assert RunResult.model_validate(each) == without_log


def test_a_report_of_one_undefined_score_can_be_written(tmp_path):
    run = made_result("$x_{1}$", scores={"STS-B": None}, reasons={"STS-B": "constant"})
    write_report([run], tmp_path, "t")
    assert not (tmp_path / "dev.png").exists()
    page = (tmp_path / "report.html").read_text()
    assert "seed 0: constant" in page
    assert "No run used cached features" in page


def test_charts_have_a_panel_per_task_and_a_line_per_seed(results):
    table = make_table(results)
    figure = score_chart(table)
    assert figure is not None
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["scenes"]
    assert len(figure.axes[0].patches) == len(table.rows)
    curves = dev_chart(results)
    assert curves is not None
    assert len([line for line in curves.axes[0].lines if len(line.get_xydata()) == 2]) == 12
    assert dev_chart([made_result("a")]) is None
    assert to_png(figure).startswith(b"\x89PNG")
    assert to_svg(figure).startswith("<svg")


def test_parameters_that_differ_come_first_and_features_once(results):
    results[3] = result("mcse-clip", 0, 83.0, feature(), objective={"weight": 1.0})
    rows = parameter_rows(results)
    assert rows[0] == ("objective.weight", ["", "1", "", ""], True)
    assert ("train.batch_size", ["64"] * 4, False) in rows
    uses = [(used.name, runs) for used, runs in feature_uses(results)]
    assert uses == [
        ("scenes/image/clip", ["mcse-clip", "shuffled"]),
        ("scenes/image/resnet", ["mcse-resnet"]),
    ]


def test_what_rounds_to_zero_has_no_minus():
    runs = [result(name, 0, score) for name, score in (("x", 0.001), ("y", -0.001))]
    comparison = compare_results(runs, "x", comparisons=[Comparison("x", "y")])
    for format_ in ("terminal", "markdown", "latex", "html"):
        charts = charts_of(comparison) if format_ == "html" else None
        text = to_text(document_of(comparison, charts=charts), format_)
        assert not re.search(r"(?<!\")[-−]0\.00", text)
    assert "+0.00 over x" in comparison.gains[0].sentence


def test_scores_that_print_alike_are_bold_alike():
    def bold(*scores: float) -> list[bool]:
        table = make_table([result(f"r{n}", 0, score) for n, score in enumerate(scores)])
        return [row.cells[1].bold for row in grid_of_table("", table).rows]

    assert bold(0.001, 0.004) == [False, False]  # both print 0.00
    assert bold(1.001, 1.004, 0.5) == [True, True, False]


def test_bars_with_one_label_have_one_length():
    table = make_table([result("a", 0, 0.001), result("b", 0, 0.004), result("c", 0, 5.0)])
    figure = score_chart(table)
    assert figure is not None
    (axis,) = figure.axes
    widths = [bar.get_width() for bar in axis.patches]  # pyright: ignore[reportAttributeAccessIssue]
    assert widths == [0.0, 0.0, 5.0]


def test_whiskers_are_explained_only_where_there_are_some(results):
    def how_to_read(*members: RunResult) -> str:
        comparison = compare_results(members)
        document = document_of(comparison, charts=charts_of(comparison))
        return document.sections[0].drawings[0].note

    said = "Whisker: ± one sample standard deviation. Dots: the seeds."
    assert how_to_read(*results[:2]) == said
    assert how_to_read(results[0], results[3]) == ""


def test_titles_of_panels_do_not_overprint_each_other():
    names = tuple(f"MTEB average over all of the {n} reranking tasks" for n in range(3))
    scores = dict.fromkeys(names, 50.0)
    figure = score_chart(make_table([made_result("a", scores=scores)]))
    assert figure is not None
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    titles = [axis._left_title for axis in figure.axes if axis.get_visible()]  # pyright: ignore
    boxes = [title.get_window_extent(canvas.get_renderer()) for title in titles]
    assert len(boxes) == 3
    assert not any(one.overlaps(two) for one, two in pairwise(boxes))


@pytest.mark.parametrize("highest", [84.12, 520.0, 1520.0])
def test_the_text_behind_the_longest_bar_stays_in_its_panel(highest):
    cell = Cell(highest, 0.3 * highest, (0.7 * highest, 1.3 * highest))
    names = ("one", "two", "three", "four")
    figure = score_chart(Table(names, (Row("a", "", (0, 1), dict.fromkeys(names, cell)),)))
    assert figure is not None
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for axis in figure.axes:
        (label,) = axis.texts
        assert label.get_window_extent(canvas.get_renderer()).x1 <= axis.get_window_extent().x1


def test_lower_is_better_is_said_of_scores_that_are_shown():
    scores = {"far": 1.0, "near": 2.0}
    run = made_result("a", scores=scores, hidden=("near",), lower_is_better=tuple(scores))
    assert "lower is better: far" in compare_results([run]).notes


def test_a_task_whose_scores_are_all_hidden_has_no_table_and_no_chart(tmp_path):
    runs = [made_result(name, scores={"count": 1.0}, hidden=("count",)) for name in ("a", "b")]
    files = write_report(runs, tmp_path, "t")
    assert "scores.png" not in {file.name for file in files}
    assert '<section id="scores">' not in (tmp_path / "report.html").read_text()
    found = [FoundRun(run.run, (tmp_path / run.run,), (run,)) for run in runs]
    with pytest.raises(SightlineError, match="no score that reports show"):
        curve_of(found, RUN)
