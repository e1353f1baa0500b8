"""`sightline train`: one training run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import (
    DEVICE,
    JSON,
    MOST_SEED,
    OUT,
    SET,
    pairs_of,
    print_json,
    set_values,
    takes,
)
from train.run_spec import StudentConfig, TrainConfig


@takes("settings", TrainConfig)
@takes(
    "student",
    StudentConfig,
    only=StudentConfig.model_fields.keys() - {"name"},
    names={"model": "student"},
)
def train(
    objective: Annotated[
        str, typer.Argument(help="simcse, mcse, kdmcse, dalr, mcseo or combined.")
    ],
    student: StudentConfig,
    tokens: Annotated[Path, typer.Option(help="Token set of every training text.")],
    out: OUT,
    settings: TrainConfig,
    data: Annotated[
        Path | None, typer.Option(help="Prepared data set whose images and captions are pairs.")
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="Prepared data set whose sentences are trained on alone.")
    ] = None,
    phrases: Annotated[
        Path | None, typer.Option(help="Phrase tokens, for an objective with objects.")
    ] = None,
    features: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=FOLDER",
            help="A feature set that it needs, such as image-clip=features/clip; repeatable.",
        ),
    ] = [],  # noqa: B006
    dev: Annotated[
        Path | None, typer.Option(help="Similarity TSV or SentEval folder for model selection.")
    ] = None,
    set_: SET = [],  # noqa: B006
    seed: Annotated[
        int, typer.Option(min=0, max=MOST_SEED, help="Seed for heads, dropout and row order.")
    ] = 0,
    device: DEVICE = "auto",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many steps are done and to do.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Fine-tune a student on cached features.

    --set gives a parameter of the objective, in YAML: weight=0.1. If killed, the same command
    resumes.

    Example: sightline train mcse --set image=clip --features image-clip=features/clip
    --data data/mine --tokens tokens --student bert-base-uncased --epochs 3 --out runs/mcse
    """
    from dataclasses import asdict

    from sightline.devices import is_first_process
    from train.objectives import objective_class
    from train.run_spec import run_spec
    from train.train_run import steps_to_do, train_run

    spec = run_spec(
        objective=objective,
        parameters=set_values(objective_class(objective), set_),
        student=student,
        train=settings,
        tokens=tokens,
        pairs=data,
        sentences=text,
        phrases=phrases,
        features=pairs_of(features, "--features"),
        dev=dev,
        seed=seed,
        device=device,
        out=out,
    )
    if dry_run:
        left = steps_to_do(spec)
        print_json(asdict(left)) if as_json else print(left)
        return
    summary = train_run(spec)
    if not is_first_process():
        return
    print_json(summary.model_dump(mode="json", by_alias=True)) if as_json else print(summary)
