"""`sightline extract`: run one frozen model over images, objects or texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.model_options import set_values, takes
from pipeline.cli.options import (
    CHECK,
    DRY_RUN,
    JSON,
    OUT,
    RETRY_FAILED,
    WORKER,
    launched_workers,
    option,
    place,
    print_check,
    print_summary,
    set_option,
)
from pipeline.extract.run_options import RunOptions
from pipeline.extract.settings import CutoutRules, ExtractSettings
from pipeline.machine import OF_TRAINING, Machine
from sightline.cache.feature_kind import KINDS, feature_kind
from sightline.settings import unknown


@takes("machine", Machine, panel="Machine", only=Machine.model_fields.keys() - OF_TRAINING)
@takes(
    "settings",
    ExtractSettings,
    panel="Model",
    panels={"max_failed": "Output"},
    only=ExtractSettings.model_fields.keys() - {"cutouts"},
)
@takes("rules", CutoutRules, panel="Model")
def extract(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help="image, object (what phrases name), text (CLIP), teacher, or one that a package "
            "adds.",
        ),
    ],
    data: Annotated[
        Path,
        option(
            "Data",
            "Folder that `sightline prepare` wrote, or a folder of images, or its URL; or, for "
            "texts, a file with one a line.",
            parser=place,
            metavar="<path>",
        ),
    ],
    encoder: Annotated[
        str,
        option(
            "Model",
            "resnet50, ViT-B-32, … or FAMILY:MODEL; for a teacher a folder or a name on the hub; "
            "or a model config (JSON).",
        ),
    ],
    out: OUT,
    machine: Machine,
    settings: ExtractSettings,
    rules: CutoutRules,
    weights: Annotated[
        str | None,
        option(
            "Model", "pretrained:TAG, file:PATH or random:SEED; default of a teacher: pretrained."
        ),
    ] = None,
    set_: Annotated[
        list[str],
        set_option("Model", "A further parameter of the encoder's family, such as resize=64"),
    ] = [],  # noqa: B006
    phrases: Annotated[
        Path | None, option("Data", "For objects: a grounding, or a phrases manifest.")
    ] = None,
    cutouts: Annotated[
        Path | None,
        option("Data", "Stored cut-outs; photographs are read only for those it lacks."),
    ] = None,
    as_json: JSON = False,
    worker: WORKER = None,
    retry_failed: RETRY_FAILED = False,
    dry_run: DRY_RUN = False,
    check: CHECK = 0,
    copy_from: Annotated[
        Path | None,
        option(
            "Output", "Folder of other feature sets; rows with the same fingerprint are copied."
        ),
    ] = None,
) -> None:
    """Run one frozen model and cache its features.

    With --check N nothing is written: N rows of --out are encoded again and compared.

    Example: sightline extract image --data photos --encoder resnet50 --weights random:0
    --out features/resnet50
    """
    from pipeline.encoders.names import encoder_class, named_encoder
    from pipeline.extract.encode_missing import fill_features
    from pipeline.extract.inputs import inputs_of

    if copy_from is not None and not copy_from.is_dir():
        raise typer.BadParameter(f"{copy_from}: no such folder", param_hint="--copy-from")
    if weights is None and kind != "teacher":
        raise typer.BadParameter("--weights is missing; it has no default here")
    if kind not in KINDS:
        raise typer.BadParameter(unknown(kind, KINDS, "kind"), param_hint="KIND")
    encoder_kind = feature_kind(kind).encoders
    flags = {"family": "--encoder", "model": "--encoder", "weights": "--weights"}
    parameters = set_values(encoder_class(encoder, encoder_kind), set_, flags)
    config = named_encoder(encoder, weights or "pretrained", encoder_kind, **parameters)
    if not (check or dry_run) and launched_workers(machine, worker, [out]):
        return
    settings = settings.model_copy(update={"cutouts": rules})
    inputs = inputs_of(kind, data, phrases=phrases, cutouts=cutouts)
    if check:
        from pipeline.encode_again import check as encode_again

        print_check(encode_again(inputs, config, out, check, settings, machine), out, as_json)
        return
    options = RunOptions(worker, retry_failed, dry_run, copy_from)
    summary = fill_features(inputs, config, out, settings, machine, options)
    print_summary(summary, as_json)
