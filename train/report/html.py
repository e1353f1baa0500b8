"""One self-contained HTML report: no script, no link to another file, all text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from sightline.html_templates import html_templates
from train.feature_use import FeatureUse
from train.report.gains import Gain, headline
from train.report.render import cell_text, seeds_text
from train.report.results import RunResult
from train.report.table import Table, flatten


@dataclass(frozen=True)
class Drawing:
    """A figure of the report: `svg` from `plots.to_svg`; `note` says how to read it."""

    caption: str
    note: str
    svg: str


def to_html(
    title: str,
    table: Table,
    results: Sequence[RunResult],
    gains: Sequence[Gain] = (),
    figures: Sequence[Drawing] = (),
) -> str:
    """The report as one HTML document.

    Args:
        figures: their SVG text is the only input that is not escaped.
    """
    environment = html_templates(Path(__file__).parent)
    return environment.get_template("report.html.j2").render(
        title=title,
        table=table,
        parts=[
            (
                heading,
                part.tasks,
                [
                    (row, seeds_text(row), [cell_text(part, row, task) for task in part.tasks])
                    for row in part.rows
                ],
            )
            for heading, part in table.parts
        ],
        headline=[gain.sentence for gain in headline(gains)],
        gains=gains,
        reasons=_reasons(table),
        figures=[(figure.caption, figure.note, Markup(figure.svg)) for figure in figures],
        features=feature_uses(results),
        parameters=parameter_rows(results),
        runs=list(dict.fromkeys(result.run for result in results)),
        trainings=[(result, result.training) for result in results if result.training],
    )


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


def _reasons(table: Table) -> list[str]:
    return [
        f"{row.name}, {', '.join(tasks)}: {reason}"
        for row in table.rows
        for reason, tasks in row.undefined.items()
    ]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    if value is None or value == {}:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
