"""`sightline ground`: phrases, boxes, masks and cut-outs of captioned images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import (
    ACTORS,
    DEVICE,
    DEVICES,
    DRY_RUN,
    ENGINE,
    JSON,
    OUT,
    RAY_ADDRESS,
    RETRY,
    THREADS,
    WORKER,
    computing_here,
    engine_of,
    print_json,
    worker_of,
)

app = typer.Typer(help="Ground captions: link words to pixels.", no_args_is_help=True)


@app.command()
def run(
    settings: Annotated[
        Path, typer.Option(help="YAML with grounder, segmenter and rules, as in params.yaml.")
    ],
    images_manifest: Annotated[Path, typer.Option(help="Images manifest (Parquet).")],
    captions: Annotated[Path, typer.Option(help="Captions manifest (Parquet).")],
    root: Annotated[Path, typer.Option(help="Base folder of the manifest's paths.")],
    out: OUT,
    cutouts: Annotated[
        Path | None, typer.Option(help="Folder for cut-outs; without it, none are made.")
    ] = None,
    device: DEVICE = "auto",
    precision: Annotated[str, typer.Option(help="Compute precision: fp32, bf16 or fp16.")] = "fp32",
    workers: Annotated[int, typer.Option(min=1, help="Decode threads.")] = 2,
    max_failed: Annotated[
        float, typer.Option(min=0, max=1, help="Fraction of images that may fail.")
    ] = 0.01,
    retry: RETRY = None,
    threads: THREADS = None,
    worker: WORKER = None,
    devices: DEVICES = None,
    engine: ENGINE = None,
    ray_address: RAY_ADDRESS = None,
    actors: ACTORS = None,
    dry_run: DRY_RUN = False,
    as_json: JSON = False,
) -> None:
    """Find phrases, boxes and masks, and cut the objects out.

    Example: sightline ground run --settings grounding.yaml
    --images-manifest data/datasets/scenes/images.parquet
    --captions data/datasets/scenes/captions.parquet --root data/datasets/scenes/images
    --out objects/scenes --cutouts cutouts/scenes
    """
    from pipeline.extract.runner import RunSettings
    from pipeline.grounding.ground import GroundPaths, ground_dataset
    from pipeline.grounding.settings import read_settings
    from sightline.cache.groundings import grounding_counts

    paths = GroundPaths(images_manifest, captions, root, out, cutouts)
    found = read_settings(settings)
    how = computing_here(
        RunSettings(
            retry is not None,
            threads,
            worker_of(worker),
            device,
            dry_run,
            max_failed,
            workers=workers,
            precision=precision,
        ),
        engine_of(devices, engine, ray_address, actors),
        [out, *filter(None, [cutouts])],
    )
    if how is None:
        return
    summary = ground_dataset(paths, found, how)
    if not as_json:
        print(f"{out}: {summary}")
        return
    if summary.to_do is not None:
        print_json(summary.of_a_dry_run())
        return
    print_json(
        {
            "out": out.as_posix(),
            "published": summary.record is not None,
            "counts": grounding_counts(out) if summary.record is not None else {},
            "computed": summary.computed,
            "resumed": summary.resumed,
            "halved_to": summary.halved_to,
            "seconds": round(summary.seconds, 3),
        }
    )
