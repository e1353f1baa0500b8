"""A comparison of runs in each format, and its figure."""

from __future__ import annotations

import json
from typing import Literal

from rich.console import Console

from sightline.errors import SightlineError
from train.report.compare import SCHEMA, RunComparison
from train.report.grids import grids_of, legend, printable
from train.report.latex import to_latex
from train.report.markdown import to_markdown
from train.report.terminal import print_grids, terminal_text

MARK = SCHEMA.encode()
"""Begins every file of a comparison, so that a later command may replace it."""


def print_comparison(comparison: RunComparison, console: Console) -> None:
    """Print the comparison on a terminal, at its full width."""
    print_grids(console, grids_of(comparison), legend(comparison))


def to_text(
    comparison: RunComparison, format_: Literal["terminal", "markdown", "latex", "json"]
) -> str:
    """The comparison as text for a file; `terminal` is 100 characters wide and has no colours."""
    if format_ == "json":
        return json.dumps(comparison.to_json(), indent=2, ensure_ascii=False) + "\n"
    draw = {"terminal": terminal_text, "markdown": to_markdown, "latex": to_latex}[format_]
    return draw(grids_of(comparison), legend(comparison))


def to_file(
    comparison: RunComparison, format_: Literal["terminal", "markdown", "latex", "json"]
) -> bytes:
    """`to_text`, with `MARK` at its beginning as a comment of the format."""
    comment = {"terminal": f"({SCHEMA})\n\n", "markdown": f"<!-- {SCHEMA} -->\n\n"}
    comment |= {"latex": f"% {SCHEMA}\n", "json": ""}
    return (comment[format_] + to_text(comparison, format_)).encode()


def draw_subsets(comparison: RunComparison, suffix: str) -> bytes:
    """The differences on each subset as an image; `suffix` is .png or .svg.

    Raises:
        SightlineError: there is no run besides the baseline, or none with scores of subsets.
    """
    from train.report.drawing import to_png, to_svg
    from train.report.plots import subset_chart

    differences = comparison.subset_differences
    if comparison.subsets is None or not differences:
        raise SightlineError(
            "no differences on subsets to plot: expected two runs with scores of STS12-16's "
            "subsets; evaluate the runs on the STS sets, or remove --plot"
        )
    labels = {row.name: printable(row.label) for row in comparison.subsets.rows}
    figure = subset_chart(comparison.baseline, differences, labels)
    return to_png(figure) if suffix == ".png" else to_svg(figure).encode()
