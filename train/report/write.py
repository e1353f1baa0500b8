"""Write a report: report.html, .md, .txt and .json, charts, and data for DVC's plots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sightline.extras import require
from sightline.output import Output, json_record
from train.records import DEV
from train.report.compare import compare_results
from train.report.gains import Comparison, headline
from train.report.grid import printable
from train.report.grids import grids_of, grids_of_scores, legend, meaning
from train.report.html import NOTHING, Included
from train.report.markdown import escape_markdown, to_markdown
from train.report.published import PublishedRow
from train.report.results import RunResult
from train.report.table import Table
from train.report.terminal import terminal_text

CURVES = {
    DEV: "dev score",
    "learning_rate": "learning rate",
    "grad_norm": "gradient norm",
    "sentences_per_second": "sentences/s",
}
"""What an entry of a training log is called in `curves_of`; loss terms are named after the term."""

RECORD, SCHEMA = "report.json", "sightline.report/1"


def write_report(
    results: Sequence[RunResult],
    out: str | Path,
    title: str,
    *,
    baseline: str | None = None,
    comparisons: Sequence[Comparison] = (),
    published: Sequence[PublishedRow] = (),
    included: Included = NOTHING,
    inputs: Sequence[Path] = (),
) -> list[Path]:
    """Write the report into the folder `out`; equal input gives equal bytes.

    Args:
        results: of every run and seed; rows are in their order.
        baseline: run that the others are tested against; None: the first.
        comparisons: gains to compute, each by the names of its runs.
        published: rows from papers, shown after the measured ones and marked as published.
        included: more sections for report.html, such as neighbours.
        inputs: files that the results come from.

    Returns:
        The files written.

    Raises:
        SightlineError: matplotlib is not installed, there is no result, a run has one seed twice,
            the baseline or a comparison names a run without a result, or ``out`` has files that
            are not Sightline's (`sightline.output`).
    """
    require("matplotlib", "a report with charts")
    from train.report.comparison_page import CAPTIONS, charts_of, feature_uses, page_of
    from train.report.drawing import to_png

    comparison = compare_results(results, baseline, published, comparisons)
    body = {
        "schema": SCHEMA,
        "title": title,
        **comparison.table.to_json(),
        "gains": [gain.to_json() for gain in comparison.gains],
        "differences": [each.to_json() for each in comparison.differences],
        "notes": list(comparison.notes),
        "features": [
            {**feature.model_dump(mode="json"), "used_by": runs}
            for feature, runs in feature_uses(results)
        ],
        "results": [
            result.model_dump(mode="json", by_alias=True, exclude={"training": {"log"}})
            for result in results
        ],
    }
    charts = {f"{name}.png": to_png(figure) for name, figure in charts_of(comparison).items()}
    images = "".join(f"\n![{CAPTIONS[name[:-4]][0]}]({name})\n" for name in charts)
    text = to_markdown(grids_of(comparison), legend(comparison))
    scores = grids_of_scores(comparison)
    scores[0] = replace(scores[0], title=printable(title))
    stated = [printable(gain.sentence) for gain in headline(comparison.gains)]
    stated += meaning(comparison)
    contents = {
        "report.html": page_of(comparison, title, f"Sightline, {SCHEMA}", included).encode(),
        "report.md": f"# {escape_markdown(title)}\n\n{text}{images}".encode(),
        "report.txt": terminal_text(scores, stated).encode(),
        "curves.json": _json(curves_of(results)),
        "metrics.json": _json(means_of(comparison.table)),
        **charts,
    }
    target = Output(Path(out), RECORD, json_record(SCHEMA), inputs)
    with target as output, output.scratch() as made:
        for name, data in contents.items():
            (made / name).write_bytes(data)
        output.publish(made, body)
    return [Path(out) / name for name in (RECORD, *contents)]


def curves_of(results: Sequence[RunResult]) -> list[dict[str, str | int | float]]:
    """The training logs in long form: a row for each run, seed, step and metric."""
    return [
        {
            "run": result.run,
            "seed": result.seed,
            "step": int(entry["step"]),
            "metric": CURVES.get(name, name.replace("_", " ")),
            "value": value,
        }
        for result in results
        if result.training is not None
        for entry in result.training.log
        for name, value in entry.items()
        if name != "step"
    ]


def means_of(table: Table) -> dict[str, dict[str, float | None]]:
    """Run → task → mean over seeds, of the measured rows; None where a score is not defined."""
    return {
        row.name: {task: cell.mean for task, cell in row.cells.items()}
        for row in table.rows
        if row.measured
    }


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
