"""`sightline compare`: runs side by side, or beside what a paper printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import FORMAT, of_dataset, print_json

if TYPE_CHECKING:
    from train.evaluate.results import RunResult
    from train.report.comparison import RunComparison
    from train.report.formats import Format
    from train.report.tables import Section

LIST = "list"
"""In place of a paper's table: show what there is."""


def compare(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="A run's name, a folder of result files (also MTEB's) or one file; NAME=RUN "
            "renames it. With --paper: folders of results; default: results.",
            show_default=False,
        ),
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="A table or figure of a paper, such as mcse:1 or mcse:figure-2, beside what was "
            "measured; `list` shows all, `mcse` those of one paper.",
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Run to test the others against; default: the first.")
    ] = None,
    published: Annotated[
        list[str], typer.Option(help="SYSTEM or SYSTEM:SETTING from the papers; repeatable.")
    ] = [],  # noqa: B006
    format_: FORMAT = "terminal",
    data: Annotated[
        Path | None,
        of_dataset("Prepared data set, or its URL: photographs of neighbours, for --format html."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File to write; default: print.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="PNG or SVG: differences per subset of STS12-16."),
    ] = None,
) -> None:
    """Compare runs with each other and with the papers.

    Mean and standard deviation over seeds, t-tests, differences per subset. With --paper, what a
    paper printed beside what was measured; the list has the configurations and commands of each
    table and figure.

    Example: sightline compare simcse mcse-clip --baseline simcse --published MCSE-BERT:wiki+flickr
    """
    if paper is not None:
        excluded = {"--baseline": baseline, "--published": published}
        excluded |= {"--data": data, "--plot": plot}
        if hint := " and ".join(option for option, value in excluded.items() if value):
            raise typer.BadParameter("not with --paper", param_hint=hint)
        if ":" in paper:
            _compare_with(paper, [Path(run) for run in runs or ()], format_, out)
        else:
            _list_tables(paper, format_, out)
        return
    if not runs:
        raise typer.BadParameter("name at least one, or give --paper", param_hint="RUN...")
    from pipeline import layout
    from sightline.optional_imports import require
    from train.report.comparison import compare_runs, document_of
    from train.report.formats import show
    from train.report.found_runs import find_runs
    from train.report.published import select_published

    if plot is not None and plot.suffix not in (".png", ".svg"):
        raise typer.BadParameter(
            f"found {plot}, expected FILE.png or FILE.svg", param_hint="--plot"
        )
    page = format_ == "html"
    if data is not None and not page:
        raise typer.BadParameter("only the page of a comparison has it", param_hint="--data")
    if page or plot is not None:
        require("matplotlib", "a chart")
    rows = select_published(published)
    measured, reference = find_runs(runs, layout.RESULTS, baseline)
    shown = compare_runs(measured, reference, rows)
    included = _neighbours(shown.results, data) if page else ()
    document = document_of(shown, included=included, page=page)
    figure = None if plot is None else _drawn(shown, plot.suffix)
    show(document, format_, out, [] if data is None else [data])
    if plot is not None and figure is not None:
        from sightline.files.output import write_file
        from train.report.figures import MARK

        write_file(plot, figure, MARK)


def _drawn(shown: RunComparison, suffix: str) -> bytes:
    """The figure of --plot."""
    from sightline.errors import SightlineError
    from train.report.figures import subset_chart, to_png, to_svg

    if (figure := subset_chart(shown.subsets, shown.subset_differences)) is None:
        raise SightlineError(
            "no differences on subsets to plot: expected two runs with scores of STS12-16's "
            "subsets; evaluate the runs on the STS sets, or remove --plot"
        )
    return to_png(figure) if suffix == ".png" else to_svg(figure).encode()


def _neighbours(results: Sequence[RunResult], data: Path | None) -> tuple[Section, ...]:
    """Neighbours of sentences, with photographs of the data set ``data``."""
    from pipeline.grounding.page_pictures import photographs
    from sightline.cache.prepared import PreparedDataset
    from train.report.neighbour_tables import neighbours_in

    if data is None:
        return neighbours_in(results)
    dataset = PreparedDataset.open(data)
    manifest, root = dataset.images_manifest, dataset.require_images()
    return neighbours_in(
        results, lambda _, image_ids, keys: photographs(manifest, root, image_ids, keys)
    )


def _compare_with(table: str, folders: list[Path], format_: Format, out: Path | None) -> None:
    """What a table or figure of a paper printed beside what was measured of it."""
    from pipeline import layout
    from pipeline.paper_recipes import PaperRecipes
    from sightline.errors import SightlineError
    from train.report.formats import show
    from train.report.paper import compare_entry, document_of
    from train.report.published import find_entries

    if gone := [folder for folder in folders if not folder.is_dir()]:
        raise SightlineError(f"{gone[0]}: no such folder; with --paper, name folders of results")
    recipes, (entry,) = PaperRecipes(), find_entries(table)
    rows = compare_entry(entry, folders or [layout.RESULTS], recipes.expected)
    if not rows and format_ == "terminal" and out is None:
        print(f"{entry.id}: {entry.shows}")
    show(document_of(entry, rows, **recipes.about(entry)), format_, out, folders)
    if format_ == "terminal" and out is None:
        print("\n".join(recipes.lines(entry)))


def _list_tables(paper: str, format_: Format, out: Path | None) -> None:
    """What produces the tables and figures of a paper, or of all; for `LIST`."""
    from pipeline.paper_recipes import APART, PaperRecipes
    from train.report.published import every_entry, find_entries

    if format_ not in ("terminal", "json") or out is not None:
        hint = "--format" if out is None else "--out"
        raise typer.BadParameter("a list is printed, as text or as JSON", param_hint=hint)
    recipes, entries = PaperRecipes(), [*every_entry()] if paper == LIST else find_entries(paper)
    if format_ == "json":
        names = {"id", "kind", "shows"}
        tables = [entry.model_dump(include=names) | recipes.about(entry) for entry in entries]
        print_json({"entries": tables})
        return
    for entry in entries:
        print(f"{entry.id} ({entry.kind}): {entry.shows}")
        for line in recipes.lines(entry, short=True):
            print(f"    {line}")
    print(f"\n{APART}")
