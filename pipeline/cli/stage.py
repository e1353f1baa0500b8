"""`sightline stage`: the stages of dvc.yaml; they read params.yaml and write to DVC's outputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.options import (
    ACTORS,
    DEVICES,
    DRY_RUN,
    ENGINE,
    MOST_SEED,
    PARAMS,
    RAY_ADDRESS,
    RETRY,
    THREADS,
    WORKER,
    Retry,
    computing_here,
    engine_of,
    worker_of,
)

if TYPE_CHECKING:
    from pipeline.extract.runner import RunSettings
    from pipeline.params import Params
    from sightline.cache.record import Kind

app = typer.Typer(help="Run one stage of the graph, as `dvc repro` does.", no_args_is_help=True)

_DATASET = Annotated[str, typer.Argument(help="Name under `datasets` or `joined`.")]
_ENCODER = Annotated[str, typer.Argument(help="Name under `encoders`.")]
_RUN = Annotated[str, typer.Argument(help="Name under `runs` of a system.")]
_SEED = Annotated[int, typer.Argument(min=0, max=MOST_SEED)]
_FILE: Path = Path("params.yaml")


@app.command()
def prepare(dataset: _DATASET, params: PARAMS = _FILE) -> None:
    """Write the manifests of one data set.

    Example: sightline stage prepare scenes
    """
    from pipeline import stages

    print(stages.prepare(load_here(params), dataset))


@app.command("image-features")
def image_features(
    dataset: _DATASET,
    encoder: _ENCODER,
    retry: RETRY = None,
    threads: THREADS = None,
    worker: WORKER = None,
    devices: DEVICES = None,
    engine: ENGINE = None,
    ray_address: RAY_ADDRESS = None,
    actors: ACTORS = None,
    dry_run: DRY_RUN = False,
    params: PARAMS = _FILE,
) -> None:
    """Encode every image with one image encoder.

    Example: sightline stage image-features scenes clip
    """
    how = _settings(retry, threads, worker, dry_run)
    given = (devices, engine, ray_address, actors)
    _features(params, dataset, "image", encoder, how, given)


@app.command()
def ground(
    dataset: _DATASET,
    retry: RETRY = None,
    threads: THREADS = None,
    worker: WORKER = None,
    devices: DEVICES = None,
    engine: ENGINE = None,
    ray_address: RAY_ADDRESS = None,
    actors: ACTORS = None,
    dry_run: DRY_RUN = False,
    params: PARAMS = _FILE,
) -> None:
    """Find phrases, boxes, masks and cut-outs for a data set's captions.

    Example: sightline stage ground flickr30k
    """
    from pipeline import graph, stages

    loaded = load_here(params)
    how = computing_here(
        _settings(retry, threads, worker, dry_run),
        engine_of(devices, engine, ray_address, actors, loaded.engine),
        [graph.grounding_folder(dataset), graph.cutouts_folder(dataset)],
    )
    if how is not None:
        print(f"{dataset}: {stages.ground(loaded, dataset, how)}")


@app.command("object-features")
def object_features(
    dataset: _DATASET,
    encoder: _ENCODER,
    retry: RETRY = None,
    threads: THREADS = None,
    worker: WORKER = None,
    devices: DEVICES = None,
    engine: ENGINE = None,
    ray_address: RAY_ADDRESS = None,
    actors: ACTORS = None,
    dry_run: DRY_RUN = False,
    params: PARAMS = _FILE,
) -> None:
    """Encode every object that a caption names with one image encoder.

    Example: sightline stage object-features scenes clip
    """
    how = _settings(retry, threads, worker, dry_run)
    given = (devices, engine, ray_address, actors)
    _features(params, dataset, "object", encoder, how, given)


@app.command("text-features")
def text_features(
    dataset: _DATASET,
    encoder: _ENCODER,
    retry: RETRY = None,
    threads: THREADS = None,
    worker: WORKER = None,
    devices: DEVICES = None,
    engine: ENGINE = None,
    ray_address: RAY_ADDRESS = None,
    actors: ACTORS = None,
    dry_run: DRY_RUN = False,
    params: PARAMS = _FILE,
) -> None:
    """Encode every caption with CLIP's text tower.

    Example: sightline stage text-features scenes clip
    """
    how = _settings(retry, threads, worker, dry_run)
    given = (devices, engine, ray_address, actors)
    _features(params, dataset, "text", encoder, how, given)


@app.command()
def teachers(
    dataset: _DATASET,
    encoder: _ENCODER,
    retry: RETRY = None,
    threads: THREADS = None,
    worker: WORKER = None,
    devices: DEVICES = None,
    engine: ENGINE = None,
    ray_address: RAY_ADDRESS = None,
    actors: ACTORS = None,
    dry_run: DRY_RUN = False,
    params: PARAMS = _FILE,
) -> None:
    """Encode every caption with one teacher.

    Example: sightline stage teachers scenes similarity
    """
    how = _settings(retry, threads, worker, dry_run)
    given = (devices, engine, ray_address, actors)
    _features(params, dataset, "teacher", encoder, how, given)


@app.command()
def tokens(params: PARAMS = _FILE) -> None:
    """Tokenise every training text with the student's tokenizer.

    Example: sightline stage tokens
    """
    from pipeline import stages

    print(stages.tokens(load_here(params)))


@app.command("phrase-tokens")
def phrase_tokens(dataset: _DATASET, params: PARAMS = _FILE) -> None:
    """Find the student's tokens for the phrases of a data set's captions.

    Example: sightline stage phrase-tokens scenes
    """
    from pipeline import stages

    print(stages.phrase_tokens(load_here(params), dataset))


@app.command()
def code(params: PARAMS = _FILE) -> None:
    """Write digests of the source files that train each system to data/code.

    Example: sightline stage code
    """
    from pipeline import stages

    for line in stages.code(load_here(params)):
        print(line)


@app.command()
def train(run: _RUN, seed: _SEED, dry_run: DRY_RUN = False, params: PARAMS = _FILE) -> None:
    """Train one run with one seed.

    Example: sightline stage train mcse-clip 0
    """
    from pipeline import stages
    from sightline.devices import is_first_process

    summary = stages.train(load_here(params), run, seed, dry_run=dry_run)
    if is_first_process():
        print(summary)


@app.command("evaluation-data")
def evaluation_data(
    task: Annotated[str, typer.Argument(help="A name under evaluation.tasks in params.yaml.")],
    params: PARAMS = _FILE,
) -> None:
    """Check the data of an evaluation task and record its digests.

    Example: sightline stage evaluation-data sts
    """
    from pipeline import stages

    print(stages.evaluation_data(load_here(params), task))


@app.command()
def evaluate(params: PARAMS = _FILE) -> None:
    """Score every run with every seed on every task; keep scores that are still current.

    Example: sightline stage evaluate
    """
    from pipeline import stages

    for line in stages.evaluate(load_here(params)):
        print(line, flush=True)


@app.command()
def report(
    params: PARAMS = _FILE,
    out: Annotated[Path, typer.Option("--out", help="Folder of the report.")] = Path("report"),
) -> None:
    """Compare all runs in a table, plots and one HTML page.

    Example: sightline stage report
    """
    from pipeline import stages

    print(stages.report(load_here(params), out))


def _features(
    path: Path,
    dataset: str,
    kind: Kind,
    encoder: str,
    how: RunSettings,
    engine: tuple[str | None, str | None, str | None, int | None],
) -> None:
    from pipeline import graph, stages

    params = load_here(path)
    out = graph.features_folder(dataset, kind, encoder)
    here = computing_here(how, engine_of(*engine, params.engine), [out])
    if here is not None:
        found = stages.features(params, dataset, kind, encoder, here)
        print(f"{dataset}/{kind}/{encoder}: {found}")


def _settings(
    retry: Retry | None, threads: int | None, worker: str | None, dry_run: bool
) -> RunSettings:
    from pipeline.extract.runner import RunSettings

    return RunSettings(retry is not None, threads, worker_of(worker), dry_run=dry_run)


def load_here(path: Path) -> Params:
    """The parameters, after checking that this is the root of a DVC repository.

    From here on this process computes with the threads that they ask for.
    """
    from pipeline.params import ParamsError, load_params
    from sightline.devices import compute_with

    params = load_params(path)
    if not Path(".dvc").is_dir():
        raise ParamsError(
            f"{Path.cwd()}: not a DVC repository (no .dvc here). Run stages in the root of a clone "
            "of Sightline, or create one with `git init && dvc init`; commands with explicit "
            "paths work anywhere (`sightline --help`)."
        )
    compute_with(params.graph.threads)
    return params
