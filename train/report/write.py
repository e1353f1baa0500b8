"""Write a report: a page, its text and its JSON, and what DVC shows of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic_core import to_jsonable_python

from sightline.files.output import Output, json_record
from sightline.optional_imports import require
from train.evaluate.results import RunResult
from train.records import DEV
from train.report.comparison import (
    compare_results,
    document_of,
    feature_uses,
    meaning,
    scores_of,
)
from train.report.formats import terminal_text
from train.report.page import to_page
from train.report.scores import Comparison
from train.report.tables import Section, Table, printable

CURVES = {
    DEV: "dev score",
    "learning_rate": "learning rate",
    "grad_norm": "gradient norm",
    "sentences_per_second": "sentences/s",
}
"""What an entry of a training log is called in `curves_of`; loss terms are named after the term."""

RECORD, SCHEMA = "report.json", "sightline.report/3"


def write_report(
    results: Sequence[RunResult],
    out: str | Path,
    title: str,
    *,
    baseline: str | None = None,
    comparisons: Sequence[Comparison] = (),
    included: Sequence[Section] = (),
    inputs: Sequence[Path] = (),
) -> list[Path]:
    """Write the report into the folder `out`; equal input gives equal bytes.

    Args:
        results: of every run and seed; rows are in their order.
        baseline: run that the others are tested against; None: the first.
        comparisons: gains to compute, each by the names of its runs.
        included: more sections for report.html, such as neighbours.
        inputs: files that the results come from.

    Returns:
        The files written.

    Raises:
        SightlineError: matplotlib is not installed, there is no result, a run has one seed twice,
            the baseline or a comparison names a run without a result, or ``out`` has files that
            are not Sightline's (`sightline.files.output`).
    """
    require("matplotlib", "a report with charts")
    comparison = compare_results(results, baseline, (), comparisons)
    document = document_of(comparison, title, included, SCHEMA, page=True)
    body = {
        "schema": SCHEMA,
        "title": title,
        **to_jsonable_python(document.data),
        "features": [
            {**feature.model_dump(mode="json"), "used_by": runs}
            for feature, runs in feature_uses(results)
        ],
        "results": [
            result.model_dump(mode="json", by_alias=True, exclude={"training": {"log"}})
            for result in results
        ],
    }
    scores = list(scores_of(comparison))
    scores[:1] = [replace(table, title=title) for table in scores[:1]]
    lines = map(printable, [*document.lead, *meaning(comparison)])
    contents = {
        "report.html": to_page(document).encode(),
        "report.txt": terminal_text(scores, [*lines]).encode(),
        "curves.json": _json(curves_of(results)),
        "metrics.json": _json(means_of(comparison.table)),
    }
    target = Output(Path(out), RECORD, json_record(SCHEMA), inputs)
    with target as output, output.scratch() as scratch:
        for name, data in contents.items():
            (scratch / name).write_bytes(data)
        output.publish(scratch, body)
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
    """Run → task → mean over seeds; None where a score is not defined."""
    return {
        name: {task: cell.value for task, cell in row.cells.items()}
        for name, row in table.measured.items()
    }


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
