"""Write a report: report.html, .md, .txt and .json, charts, and data for DVC's plots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from sightline.output import Output, json_record
from train.log_names import DEV
from train.report.drawing import to_png, to_svg
from train.report.gains import Comparison, compute_gains
from train.report.html import Drawing, feature_uses, to_html
from train.report.plots import dev_chart, score_chart
from train.report.published import PublishedRow
from train.report.render import escape_markdown, to_json, to_markdown, to_text
from train.report.results import RunResult
from train.report.table import Table, make_table

CURVES = {
    DEV: "dev score",
    "learning_rate": "learning rate",
    "grad_norm": "gradient norm",
    "sentences_per_second": "sentences/s",
}
"""What an entry of a training log is called in `curves_of`; loss terms are named after the term."""

RECORD, SCHEMA = "report.json", "sightline.report/1"

_CAPTIONS = {
    "scores.png": ("Final scores", "Whisker: ± one sample standard deviation. Dots: the seeds."),
    "dev.png": ("Dev score during training", "One line per seed. Dots: the checkpoint kept."),
}


def write_report(
    results: Sequence[RunResult],
    out: str | Path,
    title: str,
    *,
    comparisons: Sequence[Comparison] = (),
    published: Sequence[PublishedRow] = (),
    inputs: Sequence[Path] = (),
) -> list[Path]:
    """Write the report into the folder `out`; equal input gives equal bytes.

    Args:
        results: of every run and seed; rows are in their order.
        comparisons: gains to compute, each by the names of its runs.
        published: rows from papers, shown after the measured ones and marked as published.
        inputs: files that the results come from.

    Returns:
        The files written.

    Raises:
        SightlineError: no result, one seed of a run twice, a comparison of a run without a result,
            or files in ``out`` that are not Sightline's (`sightline.output`).
    """
    table = make_table(results, published)
    gains = compute_gains(table, comparisons)
    charts = {"scores.png": score_chart(table)}
    curves = dev_chart(results)
    if curves is not None:
        charts["dev.png"] = curves
    drawings = [Drawing(*_CAPTIONS[name], to_svg(figure)) for name, figure in charts.items()]
    body = {
        "schema": SCHEMA,
        "title": title,
        **to_json(table, gains),
        "features": [
            {**feature.model_dump(mode="json"), "used_by": runs}
            for feature, runs in feature_uses(results)
        ],
        "results": [
            result.model_dump(mode="json", by_alias=True, exclude={"training": {"log"}})
            for result in results
        ],
    }
    images = "".join(f"\n![{_CAPTIONS[name][0]}]({name})\n" for name in charts)
    contents = {
        "report.html": to_html(title, table, results, gains, drawings).encode(),
        "report.md": f"# {escape_markdown(title)}\n\n{to_markdown(table, gains)}{images}".encode(),
        "report.txt": to_text(title, table, gains).encode(),
        "curves.json": _json(curves_of(results)),
        "metrics.json": _json(means_of(table)),
        **{name: to_png(figure) for name, figure in charts.items()},
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
