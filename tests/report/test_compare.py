"""`sightline compare`: its statistics checked by hand, its formats, and what it refuses."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import pytest
from invented_runs import SCORES, SUBSETS, invented, write_invented
from made_results import made_result

from train.evaluate.results import EvaluationSet, TaskResult, save_result
from train.report.comparison import compare_results, compare_runs, document_of
from train.report.figures import colour_of, subset_chart
from train.report.formats import escape_latex, terminal_text
from train.report.formats import to_text as render
from train.report.found_runs import FoundRun, find_run, find_runs
from train.report.published import published_rows, select_published
from train.report.run_tables import make_table, notes_on_scores
from train.report.scores import Comparison, changes_from, p_text, t_test
from train.report.tables import Cell, parts_of

ROOT = Path(__file__).parents[2]
NASTY = r'a_b|[x] & <i> $y$ 50% #1 {\z} ~^ "q" `c` -- *s* é λ 漢'
PUBLISHED = "MCSE-BERT:wiki+flickr"
OTHER_SET = {"STS12": EvaluationSet(examples=15, sha256="77" * 32)}


def to_text(comparison, format_):
    document = document_of(comparison, page=format_ == "html")
    if format_ == "terminal":  # wide enough to break no label
        return terminal_text(document.tables, document.lines, 200)
    return render(document, format_)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with the invented runs below results/."""
    write_invented(tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def sightline(said):
    return partial(said, "compare")


def cell(*seeds):
    rows = [invented("simcse", n, (value, 0.0)) for n, value in enumerate(seeds)]
    return make_table(rows).rows[0].cells["STS12"]


def compared(*names, published="", **renamed):
    """The invented results of some runs; `renamed` renames them."""
    results = [
        invented(name, seed, scores).model_copy(update={"run": renamed.get(name, name)})
        for name in names
        for seed, scores in enumerate(SCORES[name])
    ]
    return compare_results(results, published=select_published([published] if published else []))


def test_the_t_test_by_hand():
    # means 68 and 72, both variances 1: t = 4 / sqrt(1 · (1/3 + 1/3)) = 4.89898 with 4 degrees of
    # freedom, whose distribution is 1/2 + 3/8 · t/√(1+t²/4) · (1 − t²/(12 (1+t²/4)))
    assert t_test(cell(71, 72, 73), cell(67, 68, 69))[0] == pytest.approx(0.0080498, abs=1e-6)
    # means 2 and 4, sums of squares 2 and 8, 3 degrees of freedom: pooled variance 10/3,
    # t = 2 / sqrt(10/3 · (1/3 + 1/2)) = 1.2; Welch's test would give 0.49
    assert t_test(cell(1, 2, 3), cell(2, 6))[0] == pytest.approx(0.3162621, abs=1e-6)


def test_the_threshold_is_that_of_the_tables_of_t():
    # 2.776 at 0.05, two-sided, 4 degrees of freedom: with variances 1 a difference of 2.267
    for gain, significant in ((2.26, False), (2.27, True), (-2.26, False), (-2.27, True)):
        rows = [invented("simcse", seed, (value, 0.0)) for seed, value in enumerate((1, 2, 3))]
        rows += [invented("mcse", s, (value + gain, 0.0)) for s, value in enumerate((1, 2, 3))]
        found = changes_from("simcse", make_table(rows))[0]
        assert found.change == pytest.approx(gain)
        assert found.significant is significant


def test_a_task_without_a_score_of_the_baseline_is_left_out():
    runs = [made_result("simcse", scores={"STS12": 1.0})]
    runs += [made_result("mcse", scores={"STS12": 2.0, "STS13": 3.0})]
    assert [change.task for change in changes_from("simcse", make_table(runs))] == ["STS12"]


def test_untestable_differences_say_why():
    assert t_test(cell(1.0), cell(1, 2, 3)) == (None, "a test needs at least two seeds of each")
    assert "no spread" in t_test(cell(1, 1), cell(2, 2))[1]
    assert t_test(Cell(), cell(1, 2)) == (None, "a score is not defined")
    p_value, reason = t_test(cell(1, 1, 1), cell(3, 4, 5))  # a test works if only one has no spread
    assert 0 < p_value < 0.01
    assert reason == ""
    texts = {0.0009: "p < 0.001", 0.00805: "p = 0.0080", 0.0496: "p = 0.050", 1.0: "p = 1.0"}
    assert {p: p_text(p) for p in texts} == texts


def test_means_deviations_and_differences():
    comparison = compared("simcse", "mcse", "mcse-untrained")
    mcse = comparison.table.rows[1].cells
    assert (mcse["STS12"].value, mcse["STS12"].sd) == (72.0, 1.0)
    # 80.5, 81, 82.5: mean 81 1/3, squares 25/36 + 4/36 + 49/36 = 78/36, half of it, its root
    assert mcse["STS13"].value == pytest.approx(81 + 1 / 3)
    assert mcse["STS13"].sd == pytest.approx((78 / 72) ** 0.5)
    found = {(each.run, each.task): each for each in comparison.differences}
    assert len(found) == 6
    assert found["mcse", "STS12"].change == 4.0
    assert found["mcse", "STS12"].significant
    assert not found["mcse", "STS13"].significant
    assert found["mcse-untrained", "STS13"].change == pytest.approx(-1 / 6)
    assert comparison.notes == ()
    names = [f"{task} {name}" for task, parts in SUBSETS.items() for name in parts]
    of_mcse = comparison.subset_differences[:8]
    assert [each.task for each in of_mcse] == names
    gains = [each.change for each in of_mcse]
    assert gains == pytest.approx([2.5, 4.0, 5.5, 7.0, 8.5, -1 / 6, 4 / 3, 17 / 6])


def test_one_seed_has_no_deviation_and_no_test():
    first, *_ = compared("simcse").results
    out = to_text(compare_results([first, *compared("mcse").results]), "terminal")
    line = next(line for line in out.splitlines() if line.startswith("simcse"))
    assert line.split()[2:] == ["0", "67.00", "79.00", "73.00"]
    assert "simcse has one seed (0): no deviation and no test" in out
    assert "+5.00" in out
    assert "p =" not in out
    assert "†" not in out
    only = to_text(compared("simcse"), "terminal")
    assert "simcse is the only run: no difference to test" in only


def test_runs_are_named_by_name_folder_or_file(folder):
    results = folder / "results"
    (folder / "mcse").mkdir()  # a run of this name takes precedence over a folder of this name
    by_name = find_run("mcse", results)
    assert [result.seed for result in by_name.results] == [0, 1, 2]
    assert find_run("mcse/", results).results == by_name.results
    assert find_run("results/mcse", results).results == by_name.results
    assert find_run("results/mcse/seed-1.json", results).results == by_name.results[1:2]
    renamed = find_run("before=results/mcse", results)
    assert renamed.name == "before"
    assert {result.run for result in renamed.results} == {"before"}


@pytest.mark.parametrize(
    ("words", "baseline", "names"),
    [
        (["mcse", "simcse"], None, ["mcse", "simcse"]),
        (["mcse", "simcse"], "simcse", ["mcse", "simcse"]),
        (["mcse", "results/simcse"], "results/simcse", ["mcse", "simcse"]),  # as it was given
        (["mcse"], "simcse", ["simcse", "mcse"]),
    ],
)
def test_the_baseline_is_the_first_or_the_one_chosen(folder, words, baseline, names):
    runs, chosen = find_runs(words, folder / "results", baseline)
    assert [run.name for run in runs] == names
    assert chosen == ("simcse" if baseline else "mcse")


@pytest.mark.parametrize(
    ("changes", "words", "message"),
    [
        ({}, "simcs", "unknown run 'simcs'; did you mean 'simcse'"),
        ({}, "results", r"results: no result file here; expected seed-\*\.json.*simcse"),
        ({}, "notes.txt", r"notes\.txt: is not a result; expected a file of results \(\.json\)"),
        ({}, "a=simcse a=mcse", "'a' has seed 0 twice: .*simcse/seed-0.json and results/mcse/seed"),
        ({"run": "other"}, "mcse", r"results/mcse: holds results of 2 runs \(mcse, other\)"),
        (
            {"scores": {"similarity": 1.0}},
            "simcse mcse",
            "seed-3.json was scored on similarity, but .*simcse/seed-0.json on STS12, STS13, Avg",
        ),
        (
            {"scores": {"similarity": 1.0, "Avg": 1.0}},
            "results/mcse/seed-3.json --published DALR-BERT:wiki+coco",
            r"DALR-BERT, wiki\+coco \(published: DALR table 1\) has STS12.*they share no task",
        ),
        ({"scores": {}}, "mcse simcse", "seed-3.json: has no scores"),
        (
            {"evaluated_on": OTHER_SET},
            "simcse mcse",
            r"STS12 was scored on different test sets: 15 examples \(SHA-256 777777777777\) in "
            r"results/mcse/seed-3.json, 3108 examples",
        ),
        (
            {},
            "simcse --published MCSE",
            r"unknown published row 'MCSE'; did you mean 'MC.* MCSE-BERT:wiki\+coco, MCSE-B",
        ),
        ({}, "simcse --plot a.png", "no differences on subsets to plot"),
    ],
)
def test_a_mistake_is_one_clear_error(sightline, folder, changes, words, message):
    (folder / "notes.txt").write_text("x")
    if changes:
        fields = {key: value for key, value in changes.items() if key != "run"}
        result = invented("mcse", 3, (72.0, 81.0), **fields)
        result = result.model_copy(update={"run": changes.get("run", "mcse")})
        save_result(result, folder / "results/mcse/seed-3.json")
    code, out, err = sightline(*words.split())
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert re.search(message, err), err


@pytest.mark.parametrize("words", ["--plot a.pdf", "--format docx", "--out results"])
def test_misuse_exits_with_2(sightline, folder, words):
    assert sightline("mcse", *words.split())[0] == 2


@pytest.mark.parametrize("format_", ["terminal", "markdown", "latex", "html", "json"])
def test_marks_are_in_every_format(format_):
    comparison = compared("simcse", "mcse", "mcse-untrained", published=PUBLISHED)
    text = to_text(comparison, format_)
    if format_ == "json":
        rows = json.loads(text)["table"]["rows"]
        assert [row["doubtful"] for row in rows] == [False, False, True, False]
        marks = [[], [], ["untrained features"], ["published: MCSE table 1"]]
        assert [row["marks"] for row in rows] == marks
        return
    shown = " ".join(text.split())
    assert "published: MCSE table 1" in shown
    if format_ == "html":
        assert 'mcse-untrained<span class="mark warn">untrained features</span>' in shown
        return
    assert shown.count("untrained features") == 3  # scores, tasks, subsets
    assert "72.00† ± 1.00" in shown or r"\textbf{72.00}$^{\dagger}$ $\pm$ 1.00" in shown


@pytest.mark.parametrize("doubt", ["not checked", "differs when recomputed", ""])
def test_imported_features_are_marked_until_they_are_checked(doubt):
    (use,) = invented("mcse-untrained", 0, (1.0, 2.0)).features
    changed = {"provenance": "imported, …", "doubt": doubt, "untrained": False}
    result = invented("mcse", 0, (1.0, 2.0), features=[use.model_copy(update=changed)])
    (row,) = compare_results([result]).table.rows
    assert row.marks == ((f"features {doubt}",) if doubt else ())
    assert row.doubtful == bool(doubt)


def test_json_is_unrounded_and_strict():
    comparison = compared("simcse", "mcse")
    body = json.loads(to_text(comparison, "json"), parse_constant=pytest.fail)
    assert body["schema"] == "sightline.comparison/3"
    assert body["differences"][1]["change"] == comparison.differences[1].change
    assert body["differences"][0]["significant"] is True
    assert body["subset_differences"][0]["task"] == "STS12 MSRpar"
    assert body["subsets"]["rows"][1]["cells"]["STS12 MSRpar"]["mean"] == pytest.approx(68.5)


def test_names_that_are_headings_too_take_no_figures_place():
    """A metric called seeds, and runs named as the baseline and the share are shown."""
    scores = {"x": 1.0, "x (baseline)": 3.0, "share of the gain": 2.0}
    runs = [made_result(run, scores={"seeds": score}) for run, score in scores.items()]
    chosen = [Comparison("x", "x (baseline)", "share of the gain")]
    tables = {
        t.title: t for t in document_of(compare_results(runs, "x", comparisons=chosen)).tables
    }
    shown = {
        title: [
            [" ".join(parts_of(row.cells[c.name], c)) for c in table.columns] for row in table.rows
        ]
        for title, table in tables.items()
        if "x" in title or title == "Scores"
    }
    assert shown == {
        "Scores": [["0", "1.00"], ["0", "3.00"], ["0", "2.00"]],
        "Gain over x": [["+2.00", "+1.00", "50 %"]],
        "Score of x, and difference from it, by task": [["1.00", "+2.00", "+1.00"]],
    }


def test_an_average_is_shown_only_beside_one_over_the_same_tasks():
    comparison = compared("simcse", published=PUBLISHED)
    assert set(comparison.table.rows[-1].cells) == {"STS12", "STS13"}
    assert any("Avg of published rows is left out: it is over STS14" in n for n in comparison.notes)
    rows = select_published([PUBLISHED])
    result = invented("all", 0, (0.0, 0.0), scores=dict.fromkeys(rows[0].cells, 50.0))
    average = compare_results([result], published=rows).table.rows[-1].cells["Avg"]
    assert (average.value, average.sd) == (77.3, 0.5)
    result = invented("few", 0, (1.0, 2.0), evaluated_on=OTHER_SET)
    notes = compare_results([result], published=rows).notes
    assert any("STS12: scored on 15 pairs, the published results on 3108" in note for note in notes)


def test_an_undefined_score_is_reported_and_not_averaged():
    scores = {"STS12": None, "STS13": 2.0, "Avg": None}
    why = {"STS12": "constant", "Avg": "constant"}
    comparison = compare_results(
        [
            invented("simcse", 0, (1.0, 2.0)),
            invented("simcse", 1, (1.0, 2.0), scores=scores, reasons=why),
            *(invented("mcse", seed, (1.0 + seed, 2.0)) for seed in range(2)),
        ]
    )
    assert comparison.differences[0].change is None
    assert "simcse, STS12, Avg: not defined: seed 1: constant" in comparison.notes
    assert "mcse, STS13: no test: neither varies over its seeds" in " ".join(comparison.notes)
    assert "not defined" in to_text(comparison, "terminal")


def test_markdown_escapes_names():
    lines = to_text(compared("simcse", "mcse", mcse=NASTY), "markdown").splitlines()
    name = r"a\_b\|\[x\] &amp; &lt;i&gt; \$y\$"
    rows = [line for line in lines if name in line]
    # scores, two headers, and training
    assert [row.index(name) == 2 for row in rows] == [True, False, False, True]
    assert [len(re.findall(r"(?<!\\)\|", row)) for row in rows] == [6, 4, 4, 6]


def test_latex_escapes_names_and_is_well_formed():
    names = {"mcse": NASTY, "simcse": "[2] *x*\nb\x1b[2J"}
    text = to_text(compared("simcse", "mcse", published=PUBLISHED, **names), "latex")
    assert all(line.isprintable() for line in text.splitlines())
    assert text.startswith("% needs \\usepackage{booktabs}\n")
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    body = "\n".join(lines)
    bare = re.sub(r"\\[\\{}$&#%_]", "", body)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    assert not set("#%~<>|") & set(bare)
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == 4
    width = 0
    for line in lines:
        columns = re.match(r"\\begin\{tabular\}\{(l+r+)\}", line)
        width = len(columns[1]) if columns else width
        if line.endswith(r"\\"):
            assert len(re.findall(r"(?<!\\)&", line)) == width - 1
            assert line[0] not in "[*"  # would be an argument of the \\ or the rule before it
    assert {lines[i + 1] for i, line in enumerate(lines) if "begin" in line} == {r"\toprule"}
    assert {lines[i - 1] for i, line in enumerate(lines) if r"\end{" in line} == {r"\bottomrule"}
    signs = {
        "a--b-c é λ 漢": "a-{}-b-c é λ 漢",
        "72 ± 1": r"72 $\pm$ 1",
        "a < b | c": r"a \textless{} b \textbar{} c",
        r"\x{}": r"\textbackslash{}x\{\}",
    }
    assert {sign: escape_latex(sign) for sign in signs} == signs


@pytest.mark.parametrize("width", [20, 60, 72, 100, 200])
def test_no_figure_is_truncated_on_a_narrow_terminal(width):
    tables = document_of(compared("simcse", "mcse", "mcse-untrained")).tables
    words = terminal_text(tables, [], width).split()
    parts = (
        part
        for table in tables
        for row in table.rows
        for column in table.columns
        for part in parts_of(row.cells.get(column.name), column)
    )
    for part in " ".join(parts).replace("†", "").split():
        assert part in words or f"{part}†" in words


def test_control_characters_of_a_name_do_not_reach_the_terminal():
    text = to_text(compared("simcse", "mcse", mcse="\x1b[31mred\u202e\nline"), "terminal")
    assert not {"\x1b", "\u202e"} & set(text)
    assert "[31mred" in text


def test_the_figure_has_a_dot_per_run_and_subset():
    comparison = compared("simcse", "mcse", "mcse-untrained")
    figure = subset_chart(comparison.subsets, comparison.subset_differences)
    axis = figure.axes[0]
    dots = [line for line in axis.lines if line.get_marker() == "o" and len(line.get_xdata()) == 1]
    assert len(dots) == 16
    colour = {"mcse": colour_of(0), "mcse-untrained": colour_of(1)}
    expected = {(colour[each.run], each.change) for each in comparison.subset_differences}
    assert {(dot.get_color(), *dot.get_xdata()) for dot in dots} == expected
    filled = [dot for dot in dots if dot.get_markerfacecolor() != "white"]
    assert len(filled) == sum(each.significant for each in comparison.subset_differences) == 6
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["mcse", "mcse-untrained (untrained features)"]


@pytest.mark.parametrize(
    ("task", "unit"), [("STS12", ", Spearman × 100"), ("MTEB AmazonCounterfactual", "")]
)
def test_the_figure_names_the_unit_of_sts_and_no_other(task, unit):
    parts = {"scores": {task: 1.0}, "subsets": {task: {"a": 1.0, "b": 2.0}}}
    runs = [invented(run, seed, (1.0, 2.0), **parts) for run in "xy" for seed in (0, 1)]
    found = compare_results(runs)
    figure = subset_chart(found.subsets, found.subset_differences)
    label = figure.axes[0].get_xlabel()
    assert label == f"difference from x{unit} (filled: p < 0.05)"


def test_a_subset_without_a_score_says_why_and_without_subsets_there_is_no_table():
    why = {"STS12/MSRpar": "all gold scores are equal"}
    subsets = {"STS12": {"MSRpar": None, "MSRvid": 2.0}}
    result = invented("x", 0, (1.0, 2.0), subsets=subsets, reasons=why)
    (row,) = compare_results([result]).subsets.rows
    assert row.cells["STS12 MSRpar"].hint == "seed 0: all gold scores are equal"
    assert row.cells["STS12 MSRvid"].value == 2.0
    assert compare_results([invented("plain", 0, (1.0, 2.0), subsets={})]).subsets is None


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<svg")])
def test_the_figure_is_written_and_repeatable(sightline, folder, name, start):
    words = ("simcse", "mcse-untrained", "--plot", name)
    assert sightline(*words)[0] == 0
    first = (folder / name).read_bytes()
    assert first.startswith(start)
    assert sightline(*words)[0] == 0
    assert (folder / name).read_bytes() == first


@pytest.mark.parametrize("format_", ["terminal", "markdown", "latex", "json"])
def test_a_file_holds_what_would_be_printed(sightline, folder, format_):
    words = ("simcse", "mcse", "--format", format_)
    _, printed, _ = sightline(*words)
    assert sightline(*words, "--out", "new/table.txt") == (0, "", "")
    marked = (folder / "new/table.txt").read_text()
    head, mark, written = marked.partition("sightline.comparison/3")
    if format_ == "json":
        written = head + mark + written
    else:  # the mark is in a separate comment
        _, _, written = written.partition("\n\n" if format_ != "latex" else "\n")
    assert written == "".join(f"{line.rstrip()}\n" for line in printed.splitlines())


def test_the_published_rows_are_whole():
    rows = published_rows()
    assert len(rows) == 27
    for row in rows.values():
        scores = [cell.value for cell in row.cells.values()]
        assert len(scores) == 8
        # papers average before they round
        assert sum(scores[:7]) / 7 == pytest.approx(row.cells["Avg"].value, abs=0.11)
        assert len({cell.sd is None for cell in row.cells.values()}) == 1


def test_the_example_of_the_documentation(sightline, folder):
    page = (ROOT / "docs/evaluation.md").read_text()
    command, shown = re.search(r"```\n\$ sightline compare (.*?)\n\n?(.*?)```", page, re.S).groups()
    code, out, _ = sightline(*command.split())
    assert code == 0
    parts = "".join(f"{line.rstrip()}\n" for line in out.splitlines()).split("\n\n")
    assert shown.split("\n\n") == [each for each in parts if not each.startswith("Score of simcse")]


def test_scores_of_different_settings_of_a_task_are_marked():
    one, other = (
        invented(run, 0, (1.0, 2.0), settings={"folds": folds, "split": "test"})
        for run, folds in (("x", 1), ("y", 5))
    )
    assert notes_on_scores([one]) == notes_on_scores([other]) == []
    (note,) = notes_on_scores([one, other])
    assert note == "own was scored with different folds: not comparable"


def test_runs_of_different_precisions_are_marked():
    alike = [invented(run, 0, (1.0, 2.0), training={"precision": "bf16"}) for run in "xy"]
    other = invented("z", 0, (1.0, 2.0), training={"precision": "fp32"})
    assert notes_on_scores(alike) == []
    (note,) = notes_on_scores([*alike, other])
    assert "different precisions (bf16: x, y; fp32: z)" in note


def test_only_tasks_that_all_runs_have_are_compared():
    shared, more = ({name: TaskResult(scores={name: 1.0})} for name in ("shared", "more"))
    runs = [
        FoundRun(name, (Path(name),), (made_result(name, tasks=tasks),))
        for name, tasks in (("a", shared), ("b", {**more, **shared}))
    ]
    table = compare_runs(runs, "a")
    assert table.table.names == ("shared",)
    assert "left out, as not every run was scored on it: more" in table.notes
