"""`sightline ground stats`: statistics of a grounding."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import JSON, print_json

if TYPE_CHECKING:
    from pipeline.grounding.stats import GroundStats


def stats(
    phrases: Annotated[Path, typer.Argument(help="A grounding (folder) or a phrases manifest.")],
    captions: Annotated[
        Path | None, typer.Option(help="Captions manifest, to measure coverage.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for the figures and the data for DVC plots."),
    ] = None,
    as_json: JSON = False,
) -> None:
    """Pairs per image, drops by reason, and the fraction of caption text in phrases.

    Example: sightline ground stats data/datasets/scenes/phrases.parquet
    --captions data/datasets/scenes/captions.parquet
    """
    from pipeline.grounding.stats import ground_stats, write_stats

    found = ground_stats(phrases, captions)
    if out is not None:
        write_stats(found, out, [phrases, *([captions] if captions else [])])
    if as_json:
        print_json(found.to_json())
        return
    _print(found)


def _print(stats: GroundStats) -> None:
    from rich.console import Console
    from rich.table import Table

    from pipeline.grounding.stats import PUBLISHED_PAIRS

    table = Table("", "", box=None, show_header=False)
    table.columns[1].justify = "right"
    published = f"(MCSEO on Flickr30k: {PUBLISHED_PAIRS})"
    coverage = stats.span_coverage
    for name, value, note in [
        ("images", f"{stats.images:,}", ""),
        *((f"  failed: {code}", f"{count:,}", "") for code, count in stats.failed.items()),
        ("captions", f"{stats.captions:,}", ""),
        ("  with two pairs or more", f"{stats.contrasted:,}", "(MCSEO's object term takes these)"),
        ("pairs", f"{stats.pairs:,}", ""),
        ("  per image", f"{stats.pairs_per_image:.2f}", published),
        ("objects", f"{stats.objects:,}", "(distinct cut-outs)"),
        ("caption in phrases", "–" if coverage is None else f"{coverage:.1%}", "(of characters)"),
        ("dropped", f"{sum(stats.drops.values()):,}", ""),
        *((f"  {reason}", f"{count:,}", "") for reason, count in stats.drops.items()),
    ]:
        table.add_row(name, value, note)
    Console().print(table)
