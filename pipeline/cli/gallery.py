"""`sightline gallery`: one HTML page to inspect a grounding."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import JSON, print_json


def gallery(
    phrases: Annotated[Path, typer.Option(help="A grounding (folder) or a phrases manifest.")],
    captions: Annotated[Path, typer.Option(help="The captions manifest it belongs to.")],
    images_manifest: Annotated[Path, typer.Option(help="The images manifest it belongs to.")],
    root: Annotated[Path, typer.Option(help="Base folder of the manifest's paths.")],
    out: Annotated[
        Path, typer.Option("--out", dir_okay=False, help="HTML file to write.", show_default=False)
    ],
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Phrases and objects",
    limit: Annotated[
        int, typer.Option(min=1, help="Maximum images; more are sampled at even spacing.")
    ] = 1000,
    side: Annotated[
        int, typer.Option(min=32, max=2048, help="Longer side of a photograph, in pixels.")
    ] = 384,
    as_json: JSON = False,
) -> None:
    """Show photographs with boxes, masks, phrases and cut-outs on one self-contained page.

    Example: sightline gallery --phrases data/datasets/scenes/phrases.parquet
    --captions data/datasets/scenes/captions.parquet
    --images-manifest data/datasets/scenes/images.parquet --root data/datasets/scenes/images
    --out gallery.html
    """
    from pipeline.grounding.gallery.cards import read_contents
    from pipeline.grounding.gallery.page import write_gallery
    from sightline.progress import progress

    inputs = [phrases, captions, images_manifest]
    contents = read_contents(phrases, captions, images_manifest, limit)
    with progress("gallery", len(contents.cards), "images") as advance:
        size = write_gallery(contents, root, out, title, side, advance, inputs)
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
