"""`sightline look features`: features before training on them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipeline.cli.model_options import takes
from pipeline.cli.options import JSON, of_dataset, option, set_folder
from train.diagnose.settings import DiagnosisSettings

if TYPE_CHECKING:
    from sightline.cache.prepared import PreparedDataset


@takes(
    "chosen",
    DiagnosisSettings,
    panel="Training",
    only=DiagnosisSettings.model_fields.keys() - {"data_seed", "configured", "run"},
    names={"thresholds": "threshold"},
)
def features(
    sets: Annotated[
        list[Path],
        typer.Argument(
            metavar="SET",
            parser=set_folder,
            help="A feature set, or its URL; or an image and a text set of a model, such as CLIP.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path | None,
        of_dataset(
            "Prepared data set, or its URL, that says which caption belongs to which image; "
            "default: the one of sets below data/features."
        ),
    ] = None,
    out: Annotated[Path | None, option("Output", "HTML page to write.", dir_okay=False)] = None,
    as_json: JSON = False,
    *,
    chosen: DiagnosisSettings,
) -> None:
    """Look at features before training: matches, ranks, thresholds, rows without a direction.

    For sets below data/features, the data set follows from the path, and batch size and thresholds
    come from params.yaml; the options override them.

    Example: sightline look features data/features/scenes/image/clip data/features/scenes/text/clip
    --out features.html
    """
    from sightline.cache.prepared import PreparedDataset
    from sightline.files.output import check_output_file
    from sightline.machine.progress import phase_progress
    from train.diagnose.diagnosis import diagnose
    from train.diagnose.diagnosis_document import SCHEMA, document_of
    from train.report.formats import show

    dataset = _dataset_of(sets) if data is None else PreparedDataset.open(data)
    captions = images = None
    if dataset is not None:
        manifests = dataset.captions_manifest, dataset.images_manifest
        captions, images = (path if path.is_file() else None for path in manifests)
    fields = {name: getattr(chosen, name) for name in chosen.model_fields_set}
    settings = _configured(sets).model_copy(update=fields)
    inputs = [*sets, *(path for path in (captions, images) if path is not None)]
    if out is not None:
        check_output_file(out, SCHEMA.encode(), inputs)
    with phase_progress() as tell:
        diagnosis = diagnose(sets, captions, images, settings, tell)
    document = document_of(diagnosis)
    show(document, "json" if as_json else "terminal")
    if out is not None:
        show(document, "html", out, inputs)
        print(f"{out}: written", file=sys.stderr)


def _dataset_of(sets: list[Path]) -> PreparedDataset | None:
    """The data set that all ``sets`` below data/features belong to, if it is one."""
    from pipeline import layout
    from sightline.cache.prepared import RECORD, PreparedDataset

    places = [layout.below_features(path) for path in sets]
    names = {place[0] if len(place) == 3 else "" for place in places}
    folder = layout.dataset_folder(names.pop()) if len(names) == 1 and all(names) else None
    if folder is None or not (folder / RECORD).is_file():
        return None
    return PreparedDataset.open(folder)


def _configured(sets: list[Path]) -> DiagnosisSettings:
    """As the runs of params.yaml read ``sets``; the defaults where there is no such file."""
    from pipeline import layout
    from pipeline.params import FILE_NAME, load_params
    from train.diagnose.settings import kdmcse_settings, settings_of_runs

    if not Path(FILE_NAME).is_file() or not all(map(layout.below_features, sets)):
        return kdmcse_settings()
    params = load_params()
    objectives = {name: str(params.run(name).objective) for name in params.runs}
    seed = params.graph.seeds[0]
    settings = settings_of_runs(sets, objectives, lambda name: layout.run_spec(params, name, seed))
    return settings or kdmcse_settings().model_copy(update={"batch_size": params.train.batch_size})
