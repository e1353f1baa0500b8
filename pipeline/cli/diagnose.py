"""`sightline cache diagnose`: look at features before training on them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pipeline.cli.options import JSON, MOST_SEED, PARAMS

if TYPE_CHECKING:
    from train.diagnose.diagnosis import Settings
    from train.objectives.kdmcse import KDMCSEParams


def diagnose(
    sets: Annotated[
        list[Path],
        typer.Argument(
            metavar="SET...",
            help="A feature set; or an image set and a text set of one model, such as CLIP.",
            show_default=False,
        ),
    ],
    captions: Annotated[
        Path | None, typer.Option(help="Captions manifest; default: the data set's.")
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="Images manifest; default: the data set's.")
    ] = None,
    caption: Annotated[
        Literal["random", "longest", "all"] | None,
        typer.Option(
            help="Captions of an image that batches are drawn from; default: as configured, or all."
        ),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=2, help="Rows per batch; default: as configured, or 64.")
    ] = None,
    batches: Annotated[
        int, typer.Option(min=1, help="Batches that thresholds are tried on.")
    ] = 100,
    threshold: Annotated[
        list[float],
        typer.Option(help="Threshold to try; repeatable; default: 0.1, 0.15 … 0.95."),
    ] = [],  # noqa: B006
    near: Annotated[
        float, typer.Option(min=0, max=1, help="Cosine from which rows are near-duplicates.")
    ] = 0.98,
    sample: Annotated[
        int | None,
        typer.Option(
            min=2, help="Rows compared with all others; default: what 5e11 multiplications allow."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=MOST_SEED, help="Seed of batches and samples.")
    ] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", dir_okay=False, help="HTML page to write.")
    ] = None,
    params: PARAMS = Path("params.yaml"),
    as_json: JSON = False,
) -> None:
    """Look at features before training: matches, ranks, thresholds, duplicates, rank, columns.

    For sets below data/features, manifests, batch size and thresholds come from the parameter
    file; the options override them.

    Example: sightline cache diagnose data/features/scenes/image/clip
    data/features/scenes/text/clip --out diagnosis.html
    """
    from pipeline import graph
    from sightline.extras import require
    from sightline.output import check_output_file
    from sightline.progress import PhaseProgress
    from train.diagnose.diagnosis import SCHEMA
    from train.diagnose.diagnosis import diagnose as look
    from train.diagnose.sections import document_of
    from train.report.render import show

    if dataset := _dataset(sets):
        captions = captions or _existing(graph.captions_manifest(dataset))
        images = images or _existing(graph.images_manifest(dataset))
    settings = _configured(sets, dataset, params)
    settings = replace(
        settings,
        batches=batches,
        thresholds=tuple(sorted(set(threshold))),
        near=near,
        sample=sample,
        seed=seed,
        caption=caption or settings.caption,
        batch_size=batch_size or settings.batch_size,
    )
    inputs = [*sets, *(path for path in (captions, images) if path is not None)]
    if out is not None:
        require("matplotlib", "a page with charts")
        check_output_file(out, SCHEMA.encode(), inputs)
    found = look(sets, captions, images, settings, PhaseProgress())
    show(document_of(found), "json" if as_json else "terminal")
    if out is not None:
        show(document_of(found, page=True), "html", out, inputs)
        print(f"{out}: written", file=sys.stderr)


def _dataset(sets: list[Path]) -> str | None:
    """The data set that all ``sets`` below data/features belong to, if it is one."""
    from pipeline import graph

    found = {parts[0] if len(parts := graph.below_features(each)) == 3 else None for each in sets}
    return found.pop() if len(found) == 1 else None


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None


def _configured(sets: list[Path], dataset: str | None, params_file: Path) -> Settings:
    """Batch size, captions and thresholds of the first KDMCSE run that reads ``sets``.

    Without such a run, KDMCSE's defaults with the configured batch size; outside a repository,
    all defaults.
    """
    from pipeline import graph
    from pipeline.params import load_params
    from train.diagnose.diagnosis import Settings
    from train.objectives.kdmcse import KDMCSEParams

    defaults = KDMCSEParams(weight=0)  # reads no encoder, so that none has to be named
    settings = _with(Settings(), defaults)
    if dataset is None or not params_file.is_file():
        return settings
    params = load_params(params_file)
    wanted = {each.resolve() for each in sets}
    for name in params.runs:
        if params.run(name).objective != "kdmcse":
            continue
        spec = graph.run_spec(params, name, params.graph.seeds[0])
        if wanted <= {path.resolve() for path in spec.features.values()}:
            own = KDMCSEParams.model_validate(spec.parameters)
            return replace(_with(settings, own), batch_size=spec.train.batch_size, run=name)
    return replace(settings, batch_size=params.train.batch_size)


def _with(settings: Settings, params: KDMCSEParams) -> Settings:
    from train.diagnose.thresholds import Terms

    configured = Terms(
        params.image_threshold, params.teacher_text_threshold, params.variant == "released"
    )
    return replace(
        settings, configured=configured, caption=params.caption, data_seed=params.data_seed
    )
