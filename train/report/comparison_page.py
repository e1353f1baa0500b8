"""The page of a comparison of runs: its sections, figures, features and parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from train.records import FeatureUse
from train.report.compare import RunComparison
from train.report.drawing import to_svg
from train.report.gains import headline
from train.report.grid import Grid, GridCell, GridRow, number_cell, printable, text_cell
from train.report.grids import (
    grid_of_training,
    grids_of_differences,
    grids_of_gains,
    grids_of_scores,
    grids_of_subsets,
    meaning,
    notes_of,
)
from train.report.html import NOTHING, Drawing, Included, Section, to_page
from train.report.plots import dev_chart, loss_chart, plane_of_runs, score_chart, subset_chart
from train.report.results import RunResult, TrainingSummary
from train.report.table import flatten

CAPTIONS = {
    "scores": ("Final scores", "Whisker: ± one sample standard deviation. Dots: the seeds."),
    "dev": ("Dev score during training", "One line per seed. Dots: the checkpoint kept."),
    "loss": (
        "Loss during training",
        "One line per seed. Losses of different objectives are sums of different terms: compare "
        "their course, not their height.",
    ),
    "plane": (
        "Alignment and uniformity",
        "One dot per run, mean over seeds, coloured by its score. (MCSE, figure 2.)",
    ),
    "subsets": ("Differences by subset", "As in MCSE's figure 4."),
}
"""Figure → its title, and how to read it."""

_GAINS = (
    "Positive is better, also where lower scores are. The share is what the control, whose signal "
    "was removed on purpose, gains of it; it is stated only for a gain that is significant over "
    "the seeds (with one seed, for any) and larger than what the control changes."
)


def charts_of(comparison: RunComparison) -> dict[str, Figure]:
    """Every figure that the results allow, by its name in `CAPTIONS`."""
    table, results = comparison.table, comparison.results
    found = {
        "scores": score_chart(table),
        "plane": plane_of_runs(table),
        "dev": dev_chart(results),
        "loss": loss_chart(results),
    }
    if comparison.subsets is not None and comparison.subset_differences:
        labels = {row.name: printable(row.label) for row in comparison.subsets.rows}
        found["subsets"] = subset_chart(comparison.baseline, comparison.subset_differences, labels)
    return {name: figure for name, figure in found.items() if figure is not None}


def page_of(
    comparison: RunComparison,
    title: str,
    generator: str,
    included: Included = NOTHING,
) -> str:
    """One self-contained page.

    Args:
        generator: see `html.to_page`.
        included: sections to put between results and inputs.
    """
    lead = [gain.sentence for gain in headline(comparison.gains)]
    sections = [*results_of(comparison), *included.sections, *inputs_of(comparison.results)]
    return to_page(title, sections, generator, lead, included.style)


def results_of(comparison: RunComparison) -> list[Section]:
    """Scores, gains, differences, subsets, the plane and training, as far as there are any."""
    results = comparison.results
    drawn = {
        name: Drawing(*CAPTIONS[name], to_svg(figure))
        for name, figure in charts_of(comparison).items()
    }

    def figures(*names: str) -> tuple[Drawing, ...]:
        return tuple(drawn[name] for name in names if name in drawn)

    trained = [result for result in results if result.training]
    training = (grid_of_training(comparison.training), _checkpoints(trained)) if trained else ()
    notes = (*meaning(comparison), "Bold: the best of the measured rows.", *notes_of(comparison))
    found = [
        Section("Scores", tuple(grids_of_scores(comparison)), figures("scores"), notes),
        Section("Gains", tuple(grids_of_gains(comparison.gains)), notes=(_GAINS,)),
        Section("Differences", tuple(grids_of_differences(comparison))),
        Section("Subsets", tuple(grids_of_subsets(comparison)), figures("subsets")),
        Section("Alignment and uniformity", drawings=figures("plane")),
        Section("Training", training, figures("dev", "loss")),
    ]
    return [each for each in found if each.grids or each.drawings]


def inputs_of(results: Sequence[RunResult]) -> list[Section]:
    """What the runs learned from, and with which parameters."""
    uses, parameters = feature_uses(results), _parameters(results)
    if uses:
        note = "Provenance is what the maker of a feature set claims."
        features = Section("Features", (_features(uses),), notes=(note,))
    else:
        features = Section("Features", notes=("No run used cached features.",))
    return [features, *([Section("Parameters", parameters)] if parameters else [])]


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
    runs: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        runs.setdefault(result.run, []).append(flatten(result.parameters))
    names = dict.fromkeys(name for members in runs.values() for each in members for name in each)
    rows = []
    for name in names:
        values = [
            " / ".join(dict.fromkeys(_shown(each[name]) for each in members if name in each))
            for members in runs.values()
        ]
        rows.append((name, values, len(set(values)) > 1))
    return sorted(rows, key=lambda row: not row[2])


def _checkpoints(results: Sequence[RunResult]) -> Grid:
    """A row for each run with means over its seeds, which are its details."""
    runs: dict[str, list[tuple[int, TrainingSummary]]] = {}
    for result in results:
        if result.training is not None:
            runs.setdefault(result.run, []).append((result.seed, result.training))
    header = ("run", "precision", "best step", "best dev score")
    rows = []
    for run, seeds in runs.items():
        details = [
            GridRow(f"seed {seed}", _training_cells([training]), runs=(run,))
            for seed, training in sorted(seeds, key=lambda each: each[0])
        ]
        cells = _training_cells([training for _, training in seeds])
        found = tuple(details) if len(details) > 1 else ()
        rows.append(GridRow(printable(run), cells, runs=(run,), details=found))
    return Grid("Checkpoints", header, tuple(rows), left=2)


def _training_cells(trainings: Sequence[TrainingSummary]) -> tuple[GridCell, ...]:
    def mean(get: Callable[[TrainingSummary], float | None], form: str = ".0f") -> GridCell:
        values = [value for each in trainings if (value := get(each)) is not None]
        whole = len(values) == len(trainings)  # never a mean over some of the seeds
        return number_cell(sum(values) / len(values) if whole else None, form)

    return (
        text_cell(" / ".join(dict.fromkeys(each.precision for each in trainings))),
        mean(lambda each: each.best_step),
        mean(lambda each: each.best_dev, ".2f"),
    )


def _features(uses: Sequence[tuple[FeatureUse, list[str]]]) -> Grid:
    rows = []
    for feature, runs in uses:
        marks = ["untrained weights"] if feature.untrained else []
        marks += [feature.provenance] if feature.provenance != "computed here" else []
        revision = f", revision {feature.revision}" if feature.revision else ""
        size = GridCell((f"{feature.rows} × {feature.dim}",), value=feature.rows)
        cells = (
            text_cell(", ".join(runs)),
            text_cell(feature.encoder),
            text_cell(f"{feature.source}{revision}"),
            _digest(feature.weights_sha256),
            _digest(feature.fingerprint),
            _digest(feature.content_digest),
            size,
        )
        doubtful = feature.untrained or bool(feature.doubt)
        rows.append(
            GridRow(
                printable(feature.name),
                cells,
                marks=tuple(map(printable, marks)),
                warn=doubtful,
                runs=tuple(runs),
            )
        )
    header = ("feature set", "used by", "encoder", "source", "weights", "fingerprint", "content")
    return Grid("Features", (*header, "rows × dim"), tuple(rows), left=len(header))


def _digest(text: str) -> GridCell:
    """The start of a digest, with the whole of it as a hint."""
    return GridCell((printable(text)[:12] or "–",), hint=text)


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
