"""`sightline compare`: runs side by side, tested against a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import FORMAT

if TYPE_CHECKING:
    from train.evaluate.results import RunResult
    from train.report.comparison import RunComparison
    from train.report.curve import Curve
    from train.report.grid import Section


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
    format_: FORMAT = "terminal",
    geometry: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, help="Folder of sightline geometry; its figures, for --format html."
        ),
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
    from pipeline import graph
    from sightline.extras import require
    from train.report.comparison import compare_runs, find_runs
    from train.report.curve import curve_of
    from train.report.papers import select_published
    from train.report.render import show
    from train.report.sections import document_of, document_of_curve

    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise typer.BadParameter(
            f"found {plot}, expected FILE.png or FILE.svg", param_hint="--plot"
        )
    if curve is None and metric is not None:
        raise typer.BadParameter("give it with --curve", param_hint="--metric")
    if curve is not None and published:
        raise typer.BadParameter("a curve has no published rows", param_hint="--published")
    page = format_ == "html"
    for option, given in (("--geometry", geometry), ("--root", root)):
        if given is not None and (curve is not None or not page):
            raise typer.BadParameter("only the page of a comparison has it", param_hint=option)
    if (images_manifest is None) != (root is None):
        raise typer.BadParameter("give both or neither", param_hint="--images-manifest and --root")
    if page or plot is not None:
        require("matplotlib", "a chart")
    rows = select_published(published)
    found, reference = find_runs(runs, graph.results_folder(), baseline)
    if curve is None:
        shown = compare_runs(found, reference, rows)
        included = _included(shown.results, geometry, images_manifest, root) if page else ()
        document = document_of(shown, included=included, page=page)
    else:
        shown = curve_of(found, curve, metric, reference if baseline else None)
        document = document_of_curve(shown, page=page)
    drawn = None if plot is None else _drawn(shown, plot.suffix)
    show(document, format_, out, [p for p in (geometry, images_manifest, root) if p is not None])
    if plot is not None and drawn is not None:
        from sightline.output import write_file
        from train.report.charts import MARK

        write_file(plot, drawn, MARK)


def _drawn(shown: RunComparison | Curve, suffix: str) -> bytes:
    """The figure of --plot."""
    from sightline.errors import SightlineError
    from train.report.charts import curve_chart, to_png, to_svg
    from train.report.comparison import RunComparison
    from train.report.sections import chart_of_subsets

    if not isinstance(shown, RunComparison):
        figure = curve_chart(shown)
    elif shown.subset_differences:
        figure = chart_of_subsets(shown)
    else:
        raise SightlineError(
            "no differences on subsets to plot: expected two runs with scores of STS12-16's "
            "subsets; evaluate the runs on the STS sets, or remove --plot"
        )
    return to_png(figure) if suffix == ".png" else to_svg(figure).encode()


def _included(
    results: Sequence[RunResult], geometry: Path | None, manifest: Path | None, root: Path | None
) -> tuple[Section, ...]:
    """What stands on the page besides scores: figures of the folder `geometry`, and neighbours."""
    from pipeline.grounding.pictures import photographs
    from train.report.neighbours import neighbours_in
    from train.report.space_page import geometry_section

    figures = () if geometry is None else (geometry_section(geometry),)
    if manifest is None or root is None:
        return (*figures, *neighbours_in(results))
    return (
        *figures,
        *neighbours_in(
            results, lambda _, image_ids, keys: photographs(manifest, root, image_ids, keys)
        ),
    )
