"""A comparison of runs, or a curve through them, in each format, and its figure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

from rich.console import Console

from sightline.errors import SightlineError
from sightline.extras import require
from train.report.compare import SCHEMA, RunComparison
from train.report.curve import SCHEMA as CURVE_SCHEMA
from train.report.curve import Curve
from train.report.grid import Grid, printable
from train.report.grids import grid_of_curve, grids_of, legend, legend_of_curve
from train.report.html import NOTHING, Drawing, Included, Section, to_page
from train.report.latex import to_latex
from train.report.markdown import to_markdown
from train.report.terminal import print_grids, terminal_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Format = Literal["terminal", "markdown", "latex", "json", "html"]


def mark_of(shown: RunComparison | Curve) -> bytes:
    """Begins every file of a comparison or a curve, so that a later command may replace it."""
    return _schema(shown).encode()


def print_comparison(shown: RunComparison | Curve, console: Console) -> None:
    """Print a comparison or a curve on a terminal, at its full width."""
    print_grids(console, *_texts(shown))


def to_text(shown: RunComparison | Curve, format_: Format, included: Included = NOTHING) -> str:
    """It as text for a file; `terminal` is 100 characters wide and has no colours.

    Args:
        included: more sections for the page of a comparison.

    Raises:
        SightlineError: `html` without matplotlib.
    """
    if format_ == "json":
        return json.dumps(shown.to_json(), indent=2, ensure_ascii=False) + "\n"
    if format_ == "html":
        return _page(shown, included)
    draw = {"terminal": terminal_text, "markdown": to_markdown, "latex": to_latex}[format_]
    return draw(*_texts(shown))


def to_file(shown: RunComparison | Curve, format_: Format, included: Included = NOTHING) -> bytes:
    """`to_text`, with `mark_of` at its beginning, in a comment where the format has those."""
    schema = _schema(shown)
    comment = {"terminal": f"({schema})\n\n", "markdown": f"<!-- {schema} -->\n\n"}
    comment |= {"latex": f"% {schema}\n", "json": "", "html": ""}
    return (comment[format_] + to_text(shown, format_, included)).encode()


def draw(shown: RunComparison | Curve, suffix: str) -> bytes:
    """Its figure; `suffix` is .png or .svg.

    Raises:
        SightlineError: a comparison without a run besides the baseline, or without scores of
            subsets.
    """
    require("matplotlib", "a chart")
    from train.report.curve_plot import curve_chart
    from train.report.drawing import to_png, to_svg

    figure = curve_chart(shown) if isinstance(shown, Curve) else _subsets(shown)
    return to_png(figure) if suffix == ".png" else to_svg(figure).encode()


def _page(shown: RunComparison | Curve, included: Included) -> str:
    require("matplotlib", "a page with charts")
    if isinstance(shown, RunComparison):
        from train.report.comparison_page import page_of

        title = f"Runs against {printable(shown.baseline)}"
        return page_of(shown, title, _schema(shown), included)
    grid = grid_of_curve(shown)
    drawing = Drawing(grid.title, "", draw(shown, ".svg").decode())
    section = Section(grid.title, (grid,), (drawing,), tuple(legend_of_curve(shown)))
    return to_page(grid.title, [section], _schema(shown))


def _subsets(comparison: RunComparison) -> Figure:
    differences = comparison.subset_differences
    if comparison.subsets is None or not differences:
        raise SightlineError(
            "no differences on subsets to plot: expected two runs with scores of STS12-16's "
            "subsets; evaluate the runs on the STS sets, or remove --plot"
        )
    from train.report.plots import subset_chart

    labels = {row.name: printable(row.label) for row in comparison.subsets.rows}
    return subset_chart(comparison.baseline, differences, labels)


def _texts(shown: RunComparison | Curve) -> tuple[list[Grid], list[str]]:
    if isinstance(shown, Curve):
        return [grid_of_curve(shown)], legend_of_curve(shown)
    return grids_of(shown), legend(shown)


def _schema(shown: RunComparison | Curve) -> str:
    return CURVE_SCHEMA if isinstance(shown, Curve) else SCHEMA
