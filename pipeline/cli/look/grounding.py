"""`sightline look grounding`: one HTML page to inspect a grounding."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import DATA, JSON, print_json


def grounding(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="GROUNDING", help="A grounding, or a phrases manifest.", show_default=False
        ),
    ],
    data: DATA,
    out: Annotated[
        Path, typer.Option(dir_okay=False, help="HTML file to write.", show_default=False)
    ],
    limit: Annotated[
        int, typer.Option(min=1, help="Maximum images; more are sampled at even spacing.")
    ] = 1000,
    as_json: JSON = False,
) -> None:
    """Show photographs with boxes, masks, phrases and cut-outs on one self-contained page.

    Example: sightline look grounding data/objects/scenes --data data/datasets/scenes
    --out grounding.html
    """
    from pipeline.grounding.gallery.cards import read_contents
    from pipeline.grounding.gallery.page import write_gallery
    from sightline.cache.prepared import PreparedDataset
    from sightline.machine.progress import progress

    dataset = PreparedDataset.open(data)
    inputs = path, dataset.captions_manifest, dataset.images_manifest
    contents = read_contents(*inputs, limit)
    with progress("grounding", len(contents.cards), "images") as advance:
        root = dataset.require_images()
        size = write_gallery(contents, root, out, advance=advance, inputs=inputs)
    shown, dropped = len(contents.cards), sum(contents.reasons.values())
    if as_json:
        about = {"images": shown, "grounded": contents.grounded, "phrases": contents.phrases}
        print_json({**about, "drops": dropped, "size": size})
        return
    part = f" of {contents.grounded:,}" if contents.grounded > shown else ""
    print(
        f"{out}: {shown:,}{part} images, {contents.phrases:,} phrases, {dropped:,} dropped, "
        f"{size / 1e6:,.1f} MB"
    )
