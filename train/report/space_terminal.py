"""Embedding spaces on a terminal."""

from __future__ import annotations

import math

from rich import box
from rich.table import Table
from rich.text import Text

from train.evaluate.space_study import SpaceStudy
from train.report.grids import printable

_COLUMNS = ("Spearman", "alignment", "uniformity", "mean cosine", "rank", "silhouette")


def space_table(study: SpaceStudy) -> Table:
    """A row per model with its figures; a dash where one is not defined.

    `rank` is the effective rank and the width of the embeddings.
    """
    table = Table(
        title=Text(f"{len(study.pairs):,} pairs of {printable(study.pairs.name)}", style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("model", overflow="fold")
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for each in study.models:
        table.add_row(
            Text(printable(each.name)),
            _number(each.similarity.spearman, 2),
            _number(each.geometry.alignment),
            _number(each.geometry.uniformity),
            _number(each.mean_cosine),
            f"{each.spectrum.effective_rank:.1f} / {each.width}",
            _number(None if each.map is None else each.map.silhouette),
        )
    return table


def _number(value: float | None, decimals: int = 3) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.{decimals}f}"
