"""A comparison of runs as a document: its sections, figures, features, parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.settings import flatten
from train.evaluate.results import UNTRAINED, RunResult
from train.records import DEV, FeatureUse
from train.report.comparison import RunComparison
from train.report.differences import ALPHA, Difference, Gain, lead_of, p_text
from train.report.grid import (
    SIGN,
    Document,
    Drawing,
    Grid,
    GridCell,
    GridRow,
    Section,
    grid_of_table,
    marks_of,
    mean_cell,
    number,
    only,
    printable,
    text_cell,
)
from train.report.table import Table, by_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = "sightline.comparison/2"
CAPTIONS = {
    "dev": "Dev score during training",
    "loss": "Loss during training",
    "plane": "Alignment and uniformity",
    "subsets": "Differences by subset",
}
"""Figure → its title."""
_HOW_TO_READ = {
    "dev": "One line per seed. Dots: the checkpoint kept.",
    "loss": (
        "One line per seed. Losses of different objectives are sums of different terms: compare "
        "their course, not their height."
    ),
    "plane": "A shape per run, mean over seeds, coloured by its score. (MCSE, figure 2.)",
    "subsets": "As in MCSE's figure 4.",
}
_SPREAD = "Mean ± sample standard deviation over seeds."
_GAINS = (
    "Positive is better, also where lower scores are. The share is what the control, whose signal "
    "was removed on purpose, gains of it; it is stated only for a gain that is significant over "
    "the seeds (with one seed, for any) and larger than what the control changes."
)


def document_of(
    comparison: RunComparison,
    title: str = "",
    included: Sequence[Section] = (),
    charts: Mapping[str, Figure] | None = None,
    schema: str = SCHEMA,
) -> Document:
    """The comparison for any format: scores, gains, differences, subsets and training.

    Args:
        title: "": by the baseline.
        charts: from `charts_of`, for a page, which also has what the runs learned from, and
            ``included``; None for other formats.
    """
    drawings = _drawings(charts or {})

    def drawn(*names: str) -> tuple[Drawing, ...]:
        return tuple(drawings[name] for name in names if name in drawings)

    bold = () if charts is None else ("Bold: the best of the measured rows.",)
    lines = (f"Note: {printable(note)}." for note in comparison.notes)
    notes = (*meaning(comparison), *bold, *lines)
    parts = () if comparison.training is None else comparison.training.parts
    training = tuple(grid_of_table(*part) for part in parts)
    sections = only(
        [
            Section("Scores", scores_of(comparison), notes=notes),
            Section("Gains", _gains(comparison.gains), notes=(_GAINS,)),
            Section("Differences", _differences(comparison, "task")),
            Section("Subsets", _differences(comparison, "subset"), drawn("subsets")),
            Section("Alignment and uniformity", drawings=drawn("plane")),
            Section("Training", training, drawn("dev", "loss")),
        ]
    )
    if charts is not None:
        sections = (*sections, *included, *_inputs_of(comparison.results))
    body = {name: value for name, value in vars(comparison).items() if name != "results"}
    lead = lead_of(comparison.table, comparison.gains)
    title = title or f"Runs against {printable(comparison.baseline)}"
    return Document(title, schema, sections, {"alpha": ALPHA, **body}, lead)


def charts_of(comparison: RunComparison) -> dict[str, Figure]:
    """Every figure that the results allow, by its name in `CAPTIONS`."""
    from train.report import charts

    table, results = comparison.table, comparison.results
    figures = {
        "plane": charts.plane_of_runs(table),
        "dev": charts.training_chart(results, DEV),
        "loss": charts.training_chart(results, "loss"),
        "subsets": charts.subset_chart(comparison),
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def scores_of(comparison: RunComparison) -> tuple[Grid, ...]:
    """A grid for each part of the table; gains name the baseline themselves."""
    baseline = "" if comparison.gains else comparison.baseline
    marked = {(change.run, change.task) for change in comparison.differences if change.significant}
    return tuple(grid_of_table(*part, baseline, marked) for part in comparison.table.parts)


def meaning(comparison: RunComparison) -> list[str]:
    """What figures and marks mean."""
    lines = [_SPREAD] if _spread(comparison.table) else []
    if any(change.p_value is not None for change in comparison.differences):
        lines.append(
            f"{SIGN} differs from {printable(comparison.baseline)}, p < {ALPHA:g}: independent "
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


def _drawings(charts: Mapping[str, Figure]) -> dict[str, Drawing]:
    """The charts with how to read them, as SVG."""
    if not charts:
        return {}
    from train.report.charts import to_svg

    return {
        name: Drawing(CAPTIONS[name], _HOW_TO_READ[name], to_svg(chart))
        for name, chart in charts.items()
    }


def _spread(table: Table) -> bool:
    """Whether a row has a deviation."""
    cells = [row.cells.get(task) for row in table.rows for task in table.tasks]
    return any(cell is not None and cell.sd is not None for cell in cells)


def _gains(gains: Sequence[Gain]) -> tuple[Grid, ...]:
    """A grid for each comparison, of the tasks on which there is a gain to report."""
    comparisons = dict.fromkeys(gain.comparison for gain in gains if gain.gain is not None)
    grids = []
    for names in comparisons:
        of_pair = [gain for gain in gains if gain.comparison == names and gain.gain is not None]
        runs = ["", names.treatment]
        header = ["task", printable(of_pair[0].named(names.treatment))]
        if names.control is not None:
            header += [printable(of_pair[0].named(names.control)), "share of the gain"]
            runs += [names.control] * 2
        rows = []
        for gain in of_pair:
            cells = [_change_cell(gain.gain, gain.p_value)]
            if names.control is not None:
                cells.append(_change_cell(gain.control_gain, None))
                text = gain.reason if gain.share is None else f"{round(100 * gain.share)} %"
                cells.append(GridCell((text or "–",), value=gain.share))
            rows.append(GridRow(printable(gain.task), tuple(cells)))
        title = f"Gain over {printable(names.baseline)}"
        grids.append(Grid(title, tuple(header), tuple(rows), runs=tuple(runs)))
    return tuple(grids)


def _differences(comparison: RunComparison, unit: str) -> tuple[Grid, ...]:
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
    rows = []
    for task in table.tasks:
        score = baseline.cells.get(task)
        if score is not None and score.mean is not None:
            changes = [_difference_cell(by_cell.get((row.name, task))) for row in compared]
            rows.append(GridRow(printable(task), (mean_cell(score), *changes)))
    if not rows:
        return ()
    names = [
        GridRow(printable(row.name), (), marks=marks_of(row, comparison.baseline)).text
        for row in (baseline, *compared)
    ]
    title = f"Score of {printable(comparison.baseline)}"
    title += f", and difference from it, by {unit}" if compared else f" by {unit}"
    runs = ("", "", *(row.name for row in compared))
    return (Grid(title, (unit, *names), tuple(rows), runs=runs),)


def _difference_cell(difference: Difference | None) -> GridCell:
    if difference is None:
        return GridCell(("–",))
    if difference.difference is None:
        return GridCell(("not", "defined"), hint=difference.reason)
    return _change_cell(difference.difference, difference.p_value)


def _change_cell(change: float | None, p_value: float | None) -> GridCell:
    if change is None:
        return GridCell(("–",))
    text = number(change, "+.2f")
    if p_value is None:
        return GridCell((text,), value=change)
    parts = (text, f"({p_text(p_value)})")
    return GridCell(parts, significant=p_value < ALPHA, value=change)


def _features(uses: Sequence[tuple[FeatureUse, list[str]]]) -> Grid:
    rows = []
    for feature, runs in uses:
        marks = [UNTRAINED] if feature.untrained else []
        marks += [feature.provenance] if feature.provenance != "computed here" else []
        revision = f", revision {feature.revision}" if feature.revision else ""
        digests = (feature.weights_sha256, feature.fingerprint, feature.content_digest)
        cells = (
            text_cell(", ".join(runs)),
            text_cell(feature.encoder),
            text_cell(f"{feature.source}{revision}"),
            *(text_cell(digest[:12], hint=digest) for digest in digests),
            GridCell((f"{feature.rows} × {feature.dim}",), value=feature.rows),
        )
        rows.append(
            GridRow(
                printable(feature.name),
                cells,
                marks=tuple(map(printable, marks)),
                warn=feature.untrained or bool(feature.doubt),
                runs=tuple(runs),
            )
        )
    header = ("feature set", "used by", "encoder", "source", "weights", "fingerprint", "content")
    return Grid("Features", (*header, "rows × dim"), tuple(rows), left=len(header))


def _parameters(results: Sequence[RunResult]) -> tuple[Grid, ...]:
    """What differs between runs as a column for each, and the rest once."""
    runs = list(dict.fromkeys(result.run for result in results))
    rows = parameter_rows(results)
    differing = [
        GridRow(name, tuple(map(text_cell, values))) for name, values, differs in rows if differs
    ]
    same = [GridRow(name, (text_cell(values[0]),)) for name, values, differs in rows if not differs]
    grids = []
    if differing:
        header = ("parameter", *map(printable, runs))
        grids.append(
            Grid("Different between runs", header, tuple(differing), len(header), ("", *runs))
        )
    if same:
        title = "The same in all runs"
        grids.append(Grid(title, ("parameter", "value"), tuple(same), 2, folded=bool(differing)))
    return tuple(grids)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    if value is None or value == {}:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
