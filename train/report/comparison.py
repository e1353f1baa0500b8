"""Runs side by side: their scores, gains, differences, training, features and parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sightline.errors import SightlineError
from sightline.settings import flatten
from train.evaluate.results import UNTRAINED, RunResult, TaskResult
from train.evaluate.sts import EXPECTED_PAIRS, STS_AVERAGE
from train.records import DEV, FeatureUse
from train.report.found_runs import FoundRun, comparable
from train.report.run_tables import (
    by_run,
    make_table,
    notes_on_scores,
    notes_on_training,
    training_table,
    undefined_in,
)
from train.report.scores import (
    ALPHA,
    Change,
    Comparison,
    changes_from,
    gains_of,
    lead_of,
    p_text,
)
from train.report.tables import (
    SIGN,
    Cell,
    Column,
    Document,
    Row,
    Section,
    Table,
    form_of,
    to_json,
)

SCHEMA = "sightline.comparison/3"
_SHARE = "@share"
_SPREAD = "Mean ± sample standard deviation over seeds."
_GAINS = (
    "Positive is better, also where lower scores are. The share is what the control, whose signal "
    "was removed on purpose, gains of it; it is stated only for a gain that is significant over "
    "the seeds (with one seed, for any) and larger than what the control changes."
)


@dataclass(frozen=True)
class RunComparison:
    """The content of a comparison, in any format.

    Attributes:
        baseline: name of the run that the others are tested against.
        table: the runs in the requested order, then references and published rows.
        differences: from the baseline, by task; `subset_differences`: by subset.
        subsets: the runs again, with subsets such as "STS12 MSRpar" as tasks; None if no result
            has any.
        training: what the training of each run took; None if Sightline trained none of them.
        notes: what a reader must know before trusting a figure.
        gains: of a treatment and its control, where they are named.
        results: what was compared.
    """

    baseline: str
    table: Table
    differences: tuple[Change, ...]
    subsets: Table | None
    subset_differences: tuple[Change, ...]
    training: Table | None
    notes: tuple[str, ...]
    gains: tuple[Change, ...]
    results: tuple[RunResult, ...]


def compare_runs(
    runs: Sequence[FoundRun], baseline: str, published: Sequence[Row] = ()
) -> RunComparison:
    """Compare `runs` with the one named `baseline`.

    Published rows are shown beside them but not tested, because their scores per seed are unknown.
    """
    runs, reduced = comparable(runs)
    results = [result for run in runs for result in run.results]
    return compare_results(results, baseline, published, notes=reduced)


def compare_results(
    results: Sequence[RunResult],
    baseline: str | None = None,
    published: Sequence[Row] = (),
    comparisons: Sequence[Comparison] = (),
    notes: Sequence[str] = (),
) -> RunComparison:
    """As `compare_runs`, of results without their files, which are not checked.

    Args:
        baseline: None: the first run.
        comparisons: gains to compute, each by the names of its runs.
        notes: to put first.
    """
    tasks = tuple(dict.fromkeys(task for result in results for task in result.scores))
    table = make_table(results, [_fitted(row, tasks) for row in published])
    baseline = next(iter(table.measured)) if baseline is None else baseline
    if baseline not in table.measured:
        raise SightlineError(
            f"the baseline {baseline!r} has no result; there are {', '.join(table.measured)}"
        )
    parts = [_subsets_as_tasks(result) for result in results]
    subsets = make_table(parts) if any(part.scores for part in parts) else None
    differences = changes_from(baseline, table)
    lower = [column.name for column in table.columns if column.better == "low"]
    every_note = [
        *notes,
        *_notes_on_tests(table, differences),
        *([f"lower is better: {', '.join(lower)}"] if lower else []),
        *_notes_on_published(results, published),
        *_notes_on_code(results),
        *notes_on_scores(results),
        *notes_on_training(results),
    ]
    return RunComparison(
        baseline,
        table,
        differences,
        subsets,
        changes_from(baseline, subsets) if subsets else (),
        training_table(results),
        tuple(every_note),
        gains_of(table, comparisons),
        tuple(results),
    )


def _subsets_as_tasks(result: RunResult) -> RunResult:
    scores: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for task, parts in result.subsets.items():
        for part, score in parts.items():
            scores[f"{task} {part}"] = score
            if score is None:
                reasons[f"{task} {part}"] = result.reasons[f"{task}/{part}"]
    return result.model_copy(
        update={"tasks": {"subsets": TaskResult(scores=scores, reasons=reasons)}}
    )


def _fitted(row: Row, tasks: Sequence[str]) -> Row:
    """A published row as comparable with `tasks`: its average only if it is over the same tasks."""
    if not set(row.cells) & set(tasks) - {STS_AVERAGE}:
        raise SightlineError(
            f"{row.label} has {', '.join(row.cells)}, but these runs were scored on "
            f"{', '.join(tasks)}; they share no task: remove --published"
        )
    if set(row.cells) <= set(tasks):
        return row
    kept = {task: cell for task, cell in row.cells.items() if task in tasks and task != STS_AVERAGE}
    return replace(row, cells=kept)


def _notes_on_tests(table: Table, differences: Sequence[Change]) -> list[str]:
    """Why a deviation, a test or a score is missing."""
    rows = list(table.measured.values())
    single = [row for row in rows if len(row.seeds) == 1]
    notes = []
    if len(single) == 1:
        notes.append(
            f"{single[0].name} has one seed ({single[0].seeds[0]}): no deviation and no test; "
            "train it with at least two"
        )
    elif single:
        who = "all runs" if len(single) == len(rows) else ", ".join(row.name for row in single)
        notes.append(f"{who} have one seed: no deviation and no test; train them with at least two")
    if len(rows) == 1:
        notes.append(f"{rows[0].name} is the only run: no difference to test")
    notes += [line for row in rows for line in undefined_in(row)]
    if not single:
        notes += [
            f"{change.run}, {change.task}: no test: {change.reason}"
            for change in differences
            if change.change is not None and change.p_value is None
        ]
    return notes


def _notes_on_published(results: Sequence[RunResult], published: Sequence[Row]) -> list[str]:
    """Where a published row and the measured ones do not measure the same thing."""
    if not published:
        return []
    tasks = {task for row in published for task in row.cells}
    notes = ["published rows are copied from the papers named and are not tested"]
    missing = [task for task in EXPECTED_PAIRS if task in tasks - results[0].scores.keys()]
    if missing and STS_AVERAGE in tasks:
        notes.append(
            f"{STS_AVERAGE} of published rows is left out: it is over {', '.join(missing)} too"
        )
    measured = {
        task: tested.examples for result in results for task, tested in result.evaluated_on.items()
    }
    notes += [
        f"{task}: scored on {measured[task]} pairs, the published results on {expected}: not "
        "comparable"
        for task, expected in EXPECTED_PAIRS.items()
        if task in tasks and measured.get(task, expected) != expected
    ]
    return notes


def _notes_on_code(results: Sequence[RunResult]) -> list[str]:
    """Which tasks were scored by different code; of some results it is not known."""
    notes = []
    for name in dict.fromkeys(name for result in results for name in result.tasks):
        scored = [(result.run, result.tasks[name]) for result in results if name in result.tasks]
        codes = {task.code: (run, {task.code, *task.accepted_code}) for run, task in scored}
        codes.pop("", None)
        if codes and not set.intersection(*(accepted for _, accepted in codes.values())):
            runs = " and ".join(dict.fromkeys(run for run, _ in codes.values()))
            notes.append(
                f"{name}: {runs} were scored by different code; score them again, or say with "
                "`sightline accept` that it makes no difference"
            )
    return notes


def document_of(
    comparison: RunComparison,
    title: str = "",
    included: Sequence[Section] = (),
    schema: str = SCHEMA,
    *,
    page: bool = False,
) -> Document:
    """The comparison for any format: scores, gains, differences, subsets and training.

    Args:
        title: "": by the baseline.
        included: more sections of a page.
        page: also with figures, what the runs learned from, and ``included``.
    """
    charts = _charts(comparison) if page else {}
    bold = ("Bold: the best of the measured rows.",) if page else ()
    notes = (*meaning(comparison), *bold, *(f"Note: {note}." for note in comparison.notes))
    training = comparison.training
    sections = [
        Section("Scores", scores_of(comparison), notes=notes),
        Section("Gains", _gains(comparison.gains), notes=(_GAINS,)),
        Section("Differences", _differences(comparison, "task")),
        Section("Subsets", _differences(comparison, "subset"), charts.get("subsets", ())),
        Section("Alignment and uniformity", charts=charts.get("plane", ())),
        Section(
            "Training",
            () if training is None else (training.with_seeds,),
            (*charts.get("dev", ()), *charts.get("loss", ())),
        ),
    ]
    sections = [section for section in sections if section.tables or section.charts]
    if page:
        sections += [*included, *_inputs_of(comparison.results)]
    tables = {"table": comparison.table, "subsets": comparison.subsets, "training": training}
    data = {"alpha": ALPHA, **vars(comparison)}
    data |= {name: table and to_json(table) for name, table in tables.items()}
    del data["results"]
    lead = lead_of(comparison.table, comparison.gains)
    title = title or f"Runs against {comparison.baseline}"
    return Document(title, schema, tuple(sections), data, lead)


def _charts(comparison: RunComparison) -> dict[str, tuple[str, ...]]:
    """HTML of every figure that the results allow."""
    from train.report import figures

    table, results = comparison.table, comparison.results
    charts = {
        "subsets": (
            figures.subset_chart(comparison.subsets, comparison.subset_differences),
            "Differences by subset",
            "As in MCSE's figure 4.",
        ),
        "plane": (
            figures.plane_of_runs(table),
            "Alignment and uniformity",
            "A shape per run, mean over seeds, coloured by its score. (MCSE, figure 2.)",
        ),
        "dev": (
            figures.training_chart(results, DEV),
            "Dev score during training",
            "One line per seed. Dots: the checkpoint kept.",
        ),
        "loss": (
            figures.training_chart(results, "loss"),
            "Loss during training",
            "One line per seed. Losses of different objectives are sums of different terms: "
            "compare their course, not their height.",
        ),
    }
    return {
        name: (figures.to_html(figure, caption, note, titled=name != "plane"),)
        for name, (figure, caption, note) in charts.items()
        if figure is not None
    }


def scores_of(comparison: RunComparison) -> tuple[Table, ...]:
    """The scores as a document shows them; gains name the baseline themselves."""
    baseline = "" if comparison.gains else comparison.baseline
    marked = {(change.run, change.task) for change in comparison.differences if change.significant}

    def shown(row: Row) -> Row:
        cells = {
            task: replace(cell, significant=row.measured and (row.name, task) in marked)
            for task, cell in row.cells.items()
        }
        return replace(row, cells=cells, marks=_marks_of(row, baseline))

    table = replace(comparison.table, rows=tuple(map(shown, comparison.table.rows)))
    return tuple(part.with_seeds for part in table.parts)


def meaning(comparison: RunComparison) -> list[str]:
    """What figures and marks mean."""
    cells = (cell for row in comparison.table.rows for cell in row.cells.values())
    lines = [_SPREAD] if any(cell.sd is not None for cell in cells) else []
    if any(change.p_value is not None for change in comparison.differences):
        lines.append(
            f"{SIGN} differs from {comparison.baseline}, p < {ALPHA:g}: independent "
            "two-sided t-test over seeds, equal variances, not corrected for the number of tests."
        )
    return lines


def _inputs_of(results: Sequence[RunResult]) -> tuple[Section, ...]:
    """What the runs learned from, and with which parameters."""
    uses, parameters = feature_uses(results), _parameters(results)
    if uses:
        note = "Provenance is what the maker of a feature set claims."
        features = Section("Features", (_features(uses),), notes=(note,))
    else:
        features = Section("Features", notes=("No run used cached features.",))
    return (features, *([Section("Parameters", parameters)] if parameters else []))


def feature_uses(results: Sequence[RunResult]) -> list[tuple[FeatureUse, list[str]]]:
    """Every feature set used, once per fingerprint and content, with the runs that used it."""
    users: dict[tuple[str, str, str], tuple[FeatureUse, list[str]]] = {}
    for result in results:
        for feature in result.features:
            key = (feature.name, feature.fingerprint, feature.content_digest)
            _, runs = users.setdefault(key, (feature, []))
            if result.run not in runs:
                runs.append(result.run)
    return list(users.values())


def parameter_rows(results: Sequence[RunResult]) -> list[tuple[str, list[str], bool]]:
    """(name, value in each run, whether runs differ); the differing ones first.

    A value that differs between the seeds of one run is shown as "a / b".
    """
    runs = {
        name: [flatten(seed.parameters) for seed in seeds]
        for name, seeds in by_run(results).items()
    }
    names = dict.fromkeys(name for seeds in runs.values() for seed in seeds for name in seed)
    rows = []
    for name in names:
        values = [
            " / ".join(dict.fromkeys(_shown(seed[name]) for seed in seeds if name in seed))
            for seeds in runs.values()
        ]
        rows.append((name, values, len(set(values)) > 1))
    return sorted(rows, key=lambda row: not row[2])


def _marks_of(row: Row, baseline: str) -> tuple[str, ...]:
    """What stands in brackets behind the label of ``row``."""
    return ("baseline", *row.marks) if row.measured and row.name == baseline else row.marks


def _gains(gains: Sequence[Change]) -> tuple[Table, ...]:
    """A table for each comparison, of the tasks on which there is a gain to report."""
    of_runs: dict[tuple[str, str, str | None], list[Change]] = {}
    for gain in gains:
        if gain.change is not None:
            of_runs.setdefault((gain.baseline, gain.run, gain.control), []).append(gain)
    tables = []
    for (baseline, run, control), members in of_runs.items():
        name_of = members[0].named
        columns = [Column(run, _signed, run=run, shown=name_of(run))]
        if control is not None:
            columns.append(Column(control, _signed, run=control, shown=name_of(control)))
            columns.append(Column(_SHARE, _percent, run=control, shown="share of the gain"))
        rows = []
        for gain in members:
            cells = {run: _change_cell(gain)}
            if control is not None:
                cells[control] = Cell(gain.control_change)
                cells[_SHARE] = Cell(gain.share, text=gain.reason)
            rows.append(Row(gain.task, cells))
        tables.append(Table(f"Gain over {baseline}", "task", tuple(columns), tuple(rows)))
    return tuple(tables)


def _differences(comparison: RunComparison, unit: str) -> tuple[Table, ...]:
    """Rows of the tasks or subsets that the baseline has a score on, if there are any."""
    if unit == "task":
        table, differences = comparison.table, comparison.differences
    else:
        table, differences = comparison.subsets, comparison.subset_differences
    if table is None or (unit == "task" and not differences):
        return ()
    by_cell = {(change.run, change.task): change for change in differences}
    baseline = table.measured[comparison.baseline]
    compared = [row for row in table.measured.values() if row is not baseline]
    label = replace(baseline, marks=_marks_of(baseline, baseline.name)).label
    columns = [
        Column(baseline.name, form_of(".2f"), shown=label),
        *(Column(row.name, _signed, run=row.name, shown=row.label) for row in compared),
    ]
    rows = []
    for task in table.names:
        score = baseline.cells.get(task)
        if score is not None and score.value is not None:
            changes = {
                row.name: _change_cell(by_cell[row.name, task])
                for row in compared
                if (row.name, task) in by_cell
            }
            rows.append(Row(task, {baseline.name: replace(score, strong=False), **changes}))
    if not rows:
        return ()
    title = f"Score of {comparison.baseline}"
    title += f", and difference from it, by {unit}" if compared else f" by {unit}"
    return (Table(title, unit, tuple(columns), tuple(rows)),)


_signed = form_of("+.2f")


def _percent(share: float) -> str:
    return f"{round(100 * share)} %"


def _change_cell(change: Change) -> Cell:
    if change.change is None:
        return Cell(hint=change.reason)
    p_value = "" if change.p_value is None else f"({p_text(change.p_value)})"
    return Cell(change.change, second=p_value, significant=change.significant)


def _features(uses: Sequence[tuple[FeatureUse, list[str]]]) -> Table:
    rows = []
    for feature, runs in uses:
        marks = [UNTRAINED] if feature.untrained else []
        marks += [feature.provenance] if feature.provenance != "computed here" else []
        revision = f", revision {feature.revision}" if feature.revision else ""
        digests = {
            "weights": feature.weights_sha256,
            "fingerprint": feature.fingerprint,
            "content": feature.content_digest,
        }
        cells = {
            "used by": Cell(text=", ".join(runs)),
            "encoder": Cell(text=feature.encoder),
            "source": Cell(text=f"{feature.source}{revision}"),
            **{name: Cell(text=digest[:12], hint=digest) for name, digest in digests.items()},
            "rows × dim": Cell(feature.rows, text=f"{feature.rows} × {feature.dim}"),
        }
        doubtful = feature.untrained or bool(feature.doubt)
        row = Row(feature.name, cells, marks=tuple(marks), doubtful=doubtful, runs=tuple(runs))
        rows.append(row)
    names = ("used by", "encoder", "source", "weights", "fingerprint", "content")
    columns = (*map(Column, names), Column("rows × dim", form_of(",.0f")))
    return Table("Features", "feature set", columns, tuple(rows))


def _parameters(results: Sequence[RunResult]) -> tuple[Table, ...]:
    """What differs between runs as a column for each, and the rest once."""
    runs = list(dict.fromkeys(result.run for result in results))
    rows = parameter_rows(results)
    differing = tuple(
        Row(name, {run: Cell(text=value) for run, value in zip(runs, values, strict=True)})
        for name, values, differs in rows
        if differs
    )
    same = tuple(
        Row(name, {"value": Cell(text=values[0])}) for name, values, differs in rows if not differs
    )
    tables = []
    if differing:
        columns = tuple(Column(run, run=run) for run in runs)
        tables.append(Table("Different between runs", "parameter", columns, differing))
    if same:
        title, value = "The same in all runs", Column("value")
        tables.append(Table(title, "parameter", (value,), same, folded=bool(differing)))
    return tuple(tables)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    if value is None or value == {}:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
