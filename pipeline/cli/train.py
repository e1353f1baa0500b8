"""`sightline train`: one training run with explicit paths."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.cli.options import DRY_RUN, JSON, MOST_SEED, OUT, first_mistake, pairs_of, print_json


def train(
    objective: Annotated[str, typer.Option(help="Name of an objective, such as simcse or mcse.")],
    student: Annotated[str, typer.Option(help="Folder of an encoder, or its hub name.")],
    tokens: Annotated[Path, typer.Option(help="Token set of every training text.")],
    out: OUT,
    captions: Annotated[Path | None, typer.Option(help="Captions manifest.")] = None,
    images: Annotated[Path | None, typer.Option(help="Images manifest.")] = None,
    sentences: Annotated[Path | None, typer.Option(help="Sentences manifest.")] = None,
    phrases: Annotated[
        Path | None, typer.Option(help="Phrase tokens, for an objective with objects.")
    ] = None,
    features: Annotated[
        list[str],
        typer.Option(help="KIND-ENCODER=FOLDER of a set that it needs; repeatable."),
    ] = [],  # noqa: B006
    dev: Annotated[
        Path | None, typer.Option(help="Similarity TSV or SentEval folder for model selection.")
    ] = None,
    set_: Annotated[
        list[str], typer.Option("--set", help="NAME=VALUE of an objective's parameter; repeatable.")
    ] = [],  # noqa: B006
    seed: Annotated[
        int, typer.Option(min=0, max=MOST_SEED, help="Seed for heads, dropout and row order.")
    ] = 0,
    pooling: Annotated[str, typer.Option(help="cls (raw last layer) or mean.")] = "cls",
    max_length: Annotated[int, typer.Option(min=3, help="Maximum tokens per text.")] = 32,
    layers: Annotated[int | None, typer.Option(min=1, help="Keep the first N layers.")] = None,
    batch_size: Annotated[int, typer.Option(min=2, help="Rows per batch.")] = 64,
    chunk: Annotated[
        int | None, typer.Option(min=2, help="Rows encoded at once; fewer use less memory.")
    ] = None,
    learning_rate: Annotated[float, typer.Option(help="Peak learning rate of AdamW.")] = 3e-5,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs; default: 3, unless --max-steps is given.")
    ] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, help="Maximum optimiser steps.")] = None,
    precision: Annotated[
        str, typer.Option(help="fp32, bf16 or fp16; `sightline doctor` names the faster one.")
    ] = "fp32",
    eval_steps: Annotated[int, typer.Option(min=1, help="Steps between dev evaluations.")] = 125,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    dry_run: DRY_RUN = False,
    as_json: JSON = False,
) -> None:
    """Fine-tune a student on cached features. If killed, rerun the same command to resume.

    Example: sightline train --objective mcse --set image=clip --features image-clip=features/clip
    --captions data/mine/captions.parquet --images data/mine/images.parquet --tokens tokens
    --student bert-base-uncased --epochs 3 --out runs/mcse
    """
    from dataclasses import asdict

    from pydantic import ValidationError

    from sightline.devices import is_first_process
    from sightline.errors import SightlineError
    from train.run_spec import RunSpec
    from train.train_run import steps_to_do, train_run

    if (captions is None) != (images is None):
        raise typer.BadParameter(
            "--captions and --images go together, for pairs; sentences alone, which SimCSE trains "
            "on, are given with --sentences",
            param_hint="--captions",
        )
    body: dict[str, Any] = {
        "run": out.name,
        "out": out,
        "objective": objective,
        "parameters": {name: _value(name, text) for name, text in pairs_of(set_, "--set").items()},
        "student": {
            "name": Path(student).name,
            "model": student,
            "pooling": pooling,
            "max_length": max_length,
            "layers": layers,
        },
        "train": {
            "batch_size": batch_size,
            "chunk": chunk,
            "learning_rate": learning_rate,
            "max_steps": max_steps,
            "epochs": epochs if epochs or max_steps else 3,
            "precision": precision,
            "eval_steps": eval_steps,
            "device": device,
        },
        "features": pairs_of(features, "--features"),
        "dev": dev,
        "seed": seed,
    }
    if captions is not None:
        manifests = {"captions": captions, "images": images}
        body["pairs"] = {**manifests, "tokens": tokens, "phrases": phrases}
    if sentences is not None:
        body["text"] = {"sentences": sentences, "tokens": tokens}
    try:
        spec = RunSpec.model_validate(body)
    except ValidationError as error:
        raise SightlineError(first_mistake(error)) from error
    if dry_run:
        left = steps_to_do(spec)
        print_json(asdict(left)) if as_json else print(left)
        return
    summary = train_run(spec)
    if not is_first_process():
        return
    if as_json:
        print_json(summary.model_dump(mode="json", by_alias=True))
    else:
        print(summary)


def _value(name: str, text: str) -> Any:
    """``text`` parsed as YAML, as in params.yaml: a number, a Boolean, a list, …"""
    from sightline.outside import parse_yaml

    try:
        return parse_yaml(text)
    except ValueError as error:
        raise typer.BadParameter(f"{name}: {text!r} is not YAML", param_hint="--set") from error
