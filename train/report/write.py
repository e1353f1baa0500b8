"""Write a report: report.html, report.md, report.json, scores.png and, with dev curves, dev.png."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from train.report.gains import Comparison, compute_gains
from train.report.html import Drawing, feature_uses, to_html
from train.report.plots import dev_chart, score_chart, to_png, to_svg
from train.report.published import PublishedRow
from train.report.render import escape_markdown, to_json, to_markdown
from train.report.results import RunResult
from train.report.table import make_table

SCHEMA = "sightline.report/1"

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
) -> list[Path]:
    """Write the report into the folder `out`; equal input gives equal bytes.

    Args:
        results: of every run and seed; rows stand in their order.
        comparisons: gains to compute, each by the names of its runs.
        published: rows of papers, shown after the measured ones and marked as published.

    Returns:
        The files written.

    Raises:
        SightlineError: no result, one seed of a run twice, or a comparison of a run without result.
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
        "results": [result.model_dump(mode="json", by_alias=True) for result in results],
    }
    images = "".join(f"\n![{_CAPTIONS[name][0]}]({name})\n" for name in charts)
    contents = {
        "report.html": to_html(title, table, results, gains, drawings).encode(),
        "report.md": f"# {escape_markdown(title)}\n\n{to_markdown(table, gains)}{images}".encode(),
        "report.json": (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode(),
        **{name: to_png(figure) for name, figure in charts.items()},
    }
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    if curves is None:
        # A figure of an earlier report must not pass for one of this.
        (folder / "dev.png").unlink(missing_ok=True)
    paths = []
    for name, data in contents.items():
        path = folder / name
        path.write_bytes(data)
        paths.append(path)
    return paths
