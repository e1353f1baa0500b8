"""`sightline extract`: run one frozen model over images or texts, with explicit paths."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

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
    Retry,
    computing_here,
    engine_of,
    print_json,
    worker_of,
)

if TYPE_CHECKING:
    from pipeline.encoders.config import EncoderConfig
    from pipeline.extract.engine import Engine
    from pipeline.extract.inputs import FeatureInputs
    from pipeline.extract.runner import RunSettings, SetSummary

app = typer.Typer(help="Run one frozen model and cache its features.", no_args_is_help=True)

_WEIGHTS = Annotated[
    str, typer.Option(help="pretrained:TAG, file:PATH or random:SEED.", show_default=False)
]
_IMAGE_ENCODER = Annotated[
    str,
    typer.Option(
        help="resnet50, ViT-B-32, …, a model config (JSON) or FAMILY:MODEL.", show_default=False
    ),
]
_TEXTS = Annotated[
    Path,
    typer.Option(help="A text file, one per line, or a captions or sentences manifest (Parquet)."),
]
_PRECISION = Annotated[str, typer.Option(help="Compute precision: fp32, bf16 or fp16.")]
_DTypeName = Literal["float16", "float32"]
_DTYPE = Annotated[_DTypeName, typer.Option(help="Stored dtype: float16 or float32.")]
_BATCH = Annotated[int, typer.Option(min=1, help="Rows per batch; part of the plan.")]
_WORKERS = Annotated[int, typer.Option(min=0, help="Decode processes.")]
_MAX_FAILED = Annotated[float, typer.Option(min=0, max=1, help="Fraction of rows that may fail.")]

_COMPILE = Annotated[
    bool,
    typer.Option("--compile", help="Compile the model with torch.compile; part of the plan."),
]
_CHANNELS_LAST = Annotated[
    bool,
    typer.Option(
        "--channels-last",
        help="Memory layout of an open_clip tower of convolutions; part of the plan.",
    ),
]
_COPY_FROM = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        help="Folder of feature sets; rows with the same fingerprint are copied.",
    ),
]


@app.command()
def image(
    images: Annotated[
        Path, typer.Option(help="A folder of images, or an images manifest (Parquet).")
    ],
    encoder: _IMAGE_ENCODER,
    weights: _WEIGHTS,
    out: OUT,
    root: Annotated[Path | None, typer.Option(help="Base folder of the manifest's paths.")] = None,
    device: DEVICE = "auto",
    precision: _PRECISION = "fp32",
    compile: _COMPILE = False,
    channels_last: _CHANNELS_LAST = False,
    dtype: _DTYPE = "float16",
    batch_size: _BATCH = 64,
    workers: _WORKERS = 2,
    max_failed: _MAX_FAILED = 0.01,
    retry: RETRY = None,
    copy_from: _COPY_FROM = None,
    threads: THREADS = None,
    worker: WORKER = None,
    devices: DEVICES = None,
    engine: ENGINE = None,
    ray_address: RAY_ADDRESS = None,
    actors: ACTORS = None,
    dry_run: DRY_RUN = False,
    as_json: JSON = False,
) -> None:
    """Encode images with a ResNet or CLIP.

    Example: sightline extract image --images photos --encoder resnet50 --weights random:0
    --out features/resnet50
    """
    from pipeline.encoders.config import named_encoder
    from pipeline.extract.inputs import inputs_of

    config = named_encoder(encoder, weights, "image", compile=compile, channels_last=channels_last)
    settings = _settings(
        retry,
        worker,
        precision=precision,
        threads=threads,
        device=device,
        dry_run=dry_run,
        dtype=dtype,
        batch_size=batch_size,
        copy_from=copy_from,
        workers=workers,
        max_failed=max_failed,
    )
    inputs = partial(inputs_of, "image", images, root)
    _run(inputs, config, out, settings, engine_of(devices, engine, ray_address, actors), as_json)


@app.command("object")
def objects(
    phrases: Annotated[Path, typer.Option(help="A phrases manifest (Parquet).")],
    images_manifest: Annotated[Path, typer.Option(help="The images manifest it belongs to.")],
    encoder: _IMAGE_ENCODER,
    weights: _WEIGHTS,
    out: OUT,
    root: Annotated[Path | None, typer.Option(help="Base folder of the manifest's paths.")] = None,
    cutouts: Annotated[
        Path | None,
        typer.Option(help="Stored cut-outs; photographs are read only for those it lacks."),
    ] = None,
    margin: Annotated[
        float,
        typer.Option(min=0, max=1, help="Margin around an object, relative to its longer side."),
    ] = 0.1,
    background: Annotated[
        Literal["mean", "white", "black", "keep"],
        typer.Option(help="mean (the encoder's mean colour), white, black or keep."),
    ] = "mean",
    device: DEVICE = "auto",
    precision: _PRECISION = "fp32",
    compile: _COMPILE = False,
    channels_last: _CHANNELS_LAST = False,
    dtype: _DTYPE = "float16",
    batch_size: _BATCH = 64,
    workers: _WORKERS = 2,
    max_failed: _MAX_FAILED = 0.01,
    retry: RETRY = None,
    copy_from: _COPY_FROM = None,
    threads: THREADS = None,
    worker: WORKER = None,
    devices: DEVICES = None,
    engine: ENGINE = None,
    ray_address: RAY_ADDRESS = None,
    actors: ACTORS = None,
    dry_run: DRY_RUN = False,
    as_json: JSON = False,
) -> None:
    """Encode the objects that phrases name, cut out by their masks, with a ResNet or CLIP.

    Example: sightline extract object --phrases data/mine/phrases.parquet --images-manifest
    data/mine/images.parquet --root photos --encoder ViT-B-32 --weights random:0
    --out features/objects
    """
    from pipeline.encoders.config import named_encoder
    from pipeline.extract.inputs import CutoutRules, inputs_of

    config = named_encoder(encoder, weights, "image", compile=compile, channels_last=channels_last)
    settings = _settings(
        retry,
        worker,
        precision=precision,
        threads=threads,
        device=device,
        dry_run=dry_run,
        dtype=dtype,
        batch_size=batch_size,
        copy_from=copy_from,
        workers=workers,
        max_failed=max_failed,
    )
    inputs = partial(
        inputs_of,
        "object",
        images_manifest,
        root,
        phrases=phrases,
        rules=CutoutRules(margin=margin, background=background),
        cutouts=cutouts,
    )
    _run(inputs, config, out, settings, engine_of(devices, engine, ray_address, actors), as_json)


@app.command()
def text(
    texts: _TEXTS,
    encoder: Annotated[
        str, typer.Option(help="An open_clip model, its config (JSON) or FAMILY:MODEL.")
    ],
    weights: _WEIGHTS,
    out: OUT,
    device: DEVICE = "auto",
    precision: _PRECISION = "fp32",
    compile: _COMPILE = False,
    dtype: _DTYPE = "float16",
    batch_size: _BATCH = 64,
    retry: RETRY = None,
    copy_from: _COPY_FROM = None,
    threads: THREADS = None,
    worker: WORKER = None,
    devices: DEVICES = None,
    engine: ENGINE = None,
    ray_address: RAY_ADDRESS = None,
    actors: ACTORS = None,
    dry_run: DRY_RUN = False,
    as_json: JSON = False,
) -> None:
    """Encode texts with CLIP's text tower.

    Example: sightline extract text --texts captions.txt --encoder ViT-B-32 --weights random:0
    --out features/clip-text
    """
    from pipeline.encoders.config import named_encoder
    from pipeline.extract.inputs import inputs_of

    config = named_encoder(encoder, weights, "text", compile=compile)
    settings = _settings(
        retry,
        worker,
        precision=precision,
        threads=threads,
        device=device,
        dry_run=dry_run,
        dtype=dtype,
        batch_size=batch_size,
        copy_from=copy_from,
    )
    inputs = partial(inputs_of, "text", texts)
    _run(inputs, config, out, settings, engine_of(devices, engine, ray_address, actors), as_json)


@app.command()
def teacher(
    texts: _TEXTS,
    encoder: Annotated[
        str, typer.Option(help="Folder of a Hugging Face encoder, a hub name or FAMILY:MODEL.")
    ],
    out: OUT,
    weights: Annotated[
        str, typer.Option(help="pretrained[:REVISION], file:PATH or random:SEED.")
    ] = "pretrained",
    pooling: Annotated[
        str | None,
        typer.Option(
            help="cls (raw last layer), pooler, mean or first_last_mean.", show_default="cls"
        ),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(min=2, help="Maximum tokens; default: the encoder's own.")
    ] = None,
    device: DEVICE = "auto",
    precision: _PRECISION = "fp32",
    compile: _COMPILE = False,
    dtype: _DTYPE = "float16",
    batch_size: _BATCH = 64,
    retry: RETRY = None,
    copy_from: _COPY_FROM = None,
    threads: THREADS = None,
    worker: WORKER = None,
    devices: DEVICES = None,
    engine: ENGINE = None,
    ray_address: RAY_ADDRESS = None,
    actors: ACTORS = None,
    dry_run: DRY_RUN = False,
    as_json: JSON = False,
) -> None:
    """Encode texts with a teacher: any Hugging Face encoder.

    Example: sightline extract teacher --texts captions.txt --encoder princeton-nlp/sup-simcse-bert
    --out features/simcse
    """
    from pipeline.encoders.config import named_encoder
    from pipeline.extract.inputs import inputs_of

    config = named_encoder(
        encoder, weights, "teacher", pooling=pooling, max_length=max_length, compile=compile
    )
    settings = _settings(
        retry,
        worker,
        precision=precision,
        threads=threads,
        device=device,
        dry_run=dry_run,
        dtype=dtype,
        batch_size=batch_size,
        copy_from=copy_from,
    )
    inputs = partial(inputs_of, "teacher", texts)
    _run(inputs, config, out, settings, engine_of(devices, engine, ray_address, actors), as_json)


def _settings(retry: Retry | None, worker: str | None, **given: Any) -> RunSettings:
    """How a command runs; ``given`` are further fields, as they are."""
    from pipeline.extract.runner import RunSettings

    return RunSettings(retry_failed=retry is not None, worker=worker_of(worker), **given)


def _run(
    inputs: Callable[[], FeatureInputs],
    config: EncoderConfig,
    out: Path,
    settings: RunSettings,
    engine: Engine,
    as_json: bool,
) -> None:
    from pipeline.extract.encode_missing import extract
    from sightline.devices import check_precision

    check_precision(settings.precision)
    here = computing_here(settings, engine, [out])
    if here is not None:
        _print(extract(inputs(), config, out, here), out, as_json)


def _print(summary: SetSummary, out: Path, as_json: bool) -> None:
    from sightline.cache import FeatureSetRecord

    record = summary.record
    if not as_json:
        print(f"{out}: {summary}")
        return
    if summary.to_do is not None:
        print_json(summary.of_a_dry_run())
        return
    shown: dict[str, Any] = {
        "out": out.as_posix(),
        "published": record is not None,
        "computed": summary.computed,
        "copied": summary.copied,
        "resumed": summary.resumed,
        "failed": summary.failed,
        "seconds": round(summary.seconds, 3),
    }
    if isinstance(record, FeatureSetRecord):
        shown |= {
            "rows": record.rows,
            "untrained": record.spec.encoder.untrained,
            "fingerprint": record.fingerprint,
            "content_digest": record.content_digest,
        }
    print_json(shown)
