"""`sightline compare`: runs side by side, tested against a baseline."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from train.report.html import Included
    from train.report.results import RunResult


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="A run's name, a folder of result files (also MTEB's) or one file; NAME=RUN "
            "renames it.",
        ),
    ],
    baseline: Annotated[
        str | None, typer.Option(help="Run to test the others against; default: the first.")
    ] = None,
    published: Annotated[
        list[str], typer.Option(help="SYSTEM or SYSTEM:SETTING from the papers; repeatable.")
    ] = [],  # noqa: B006
    curve: Annotated[
        str | None,
        typer.Option(metavar="PARAMETER", help="Score against it; `run`: a dot for every run."),
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="Score of --curve; default: the average or the first.")
    ] = None,
    format_: Annotated[
        Literal["terminal", "markdown", "latex", "json", "html"],
        typer.Option("--format", help="terminal, markdown, latex, json or html."),
    ] = "terminal",
    geometry: Annotated[
        Path | None,
        typer.Option(help="Folder of sightline geometry, to put into the page of --format html."),
    ] = None,
    images_manifest: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="With --root: photographs of neighbours on the page."),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(file_okay=False, help="Base folder of that manifest's paths.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File to write; default: print.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="PNG or SVG: the curve, or differences per subset of STS12-16."
        ),
    ] = None,
) -> None:
    """Compare runs: mean and standard deviation over seeds, t-tests, per-subset differences.

    Example: sightline compare simcse mcse-clip --baseline simcse --published MCSE-BERT:wiki+flickr
    """
    from rich.console import Console

    from pipeline import graph
    from sightline.output import write_file
    from train.report.compare import RunComparison, compare_runs
    from train.report.curve import curve_of
    from train.report.find_runs import find_runs
    from train.report.html import NOTHING
    from train.report.published import published_rows, select_published
    from train.report.side_by_side import draw, mark_of, print_comparison, to_file, to_text

    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise typer.BadParameter(
            f"found {plot}, expected FILE.png or FILE.svg", param_hint="--plot"
        )
    if curve is None and metric is not None:
        raise typer.BadParameter("give it with --curve", param_hint="--metric")
    if curve is not None and published:
        raise typer.BadParameter("a curve has no published rows", param_hint="--published")
    page = format_ == "html" and curve is None
    for option, given in (("--geometry", geometry), ("--root", root)):
        if given is not None and not page:
            raise typer.BadParameter("only the page of a comparison has it", param_hint=option)
    if (images_manifest is None) != (root is None):
        raise typer.BadParameter("give both or neither", param_hint="--images-manifest and --root")
    rows = select_published(published, published_rows())
    found, reference = find_runs(runs, graph.results_folder(), baseline)
    if curve is None:
        shown = compare_runs(found, reference, rows)
    else:
        shown = curve_of(found, curve, metric, reference if baseline else None)
    drawn = None if plot is None else draw(shown, plot.suffix)
    included = NOTHING
    if page and isinstance(shown, RunComparison):
        included = _included(shown.results, geometry, images_manifest, root)
    if out is not None:
        inputs = [path for path in (geometry, images_manifest, root) if path is not None]
        write_file(out, to_file(shown, format_, included), mark_of(shown), inputs)
    elif format_ == "terminal":
        print_comparison(shown, Console(width=None if sys.stdout.isatty() else 100))
    else:
        print(to_text(shown, format_, included), end="")
    if plot is not None and drawn is not None:
        from train.report.drawing import MARK as FIGURE_MARK

        write_file(plot, drawn, FIGURE_MARK)


def _included(
    results: Sequence[RunResult], geometry: Path | None, manifest: Path | None, root: Path | None
) -> Included:
    """What stands on the page besides scores: the folder of `geometry`, and neighbours."""
    from pipeline.grounding.pictures import photographs
    from sightline.extras import require
    from train.report.html import Included
    from train.report.neighbours_page import neighbours_in

    require("matplotlib", "a page with charts")
    from train.report.read_geometry import geometry_sections

    sections = () if geometry is None else tuple(geometry_sections(geometry))
    if manifest is None or root is None:
        return Included(sections) + neighbours_in(results)
    return Included(sections) + neighbours_in(
        results, lambda _, image_ids, keys: photographs(manifest, root, image_ids, keys)
    )
