"""One run from the values that a command line or a script gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from sightline.errors import SightlineError
from sightline.settings import explain
from train.run_spec import PairSource, RunSpec, StudentConfig, TextSource, TrainConfig

if TYPE_CHECKING:
    from sightline.cache import FeatureSet
    from sightline.progress import Say
    from train.objectives import Objective
    from train.run_summary import RunSummary


def new_run(
    objective: str,
    student: str,
    out: Path,
    tokens: Path,
    *,
    captions: Path | None,
    images: Path | None,
    sentences: Path | None,
    phrases: Path | None,
    features: Mapping[str, Path],
    parameters: Mapping[str, Any],
    dev: Path | None,
    seed: int,
    student_options: Mapping[str, Any],
    train: Mapping[str, Any],
) -> RunSpec:
    """The specification of a run named after its folder.

    Args:
        captions, images: manifests of the pairs; without them there is no such stream.
        sentences: manifest of the plain sentences; likewise.
        student_options: fields of `StudentConfig` beside its name and model.
        train: fields of `TrainConfig`.

    Raises:
        ValidationError: of pydantic; names the field.
    """
    return RunSpec(
        run=out.name,
        student=StudentConfig.model_validate(
            {"name": Path(student).name, "model": student, **student_options}
        ),
        train=TrainConfig.model_validate(train),
        objective=objective,
        parameters=dict(parameters),
        seed=seed,
        pairs=PairSource(captions=captions, images=images, tokens=tokens, phrases=phrases)
        if captions and images
        else None,
        text=TextSource(sentences=sentences, tokens=tokens) if sentences else None,
        features=dict(features),
        dev=dev,
        out=out,
    )


def train_model(
    objective: Objective[Any],
    student: Path | str,
    out: Path | str,
    *,
    tokens: Path | str,
    pairs: Path | str | None = None,
    sentences: Path | str | None = None,
    features: Mapping[str, FeatureSet] | None = None,
    phrases: Path | str | None = None,
    dev: Path | str | None = None,
    seed: int = 0,
    pooling: str = "cls",
    max_length: int = 32,
    say: Say | None = None,
    **train: Any,
) -> RunSummary:
    """Fine-tune a student on cached features; after a kill, the same call resumes.

    Afterwards ``out`` holds ``model`` (a sentence-transformers folder), the trained heads and
    ``run.json``. A finished run of the same inputs is returned unchanged.

    Args:
        objective: from `make_objective`, or your own; its class is in `OBJECTIVES`.
        student: folder of an encoder, or its name on the hub.
        tokens: token set of every training text, as `pipeline.tokenize` wrote it.
        pairs: folder of a prepared data set whose images and captions are trained on.
        sentences: folder of a prepared data set whose sentences are trained on; default: none.
        features: what the objective reads, such as `image-clip` → feature set.
        phrases: phrase tokens, for an objective that reads objects.
        dev: SentEval's STSBenchmark folder or a similarity TSV, for the choice of the best step.
        seed: of heads, dropout and the order of rows.
        pooling: `cls` or `mean`.
        max_length: tokens of a training text, as in ``tokens``.
        say: takes lines of progress; None: stderr, or a bar on a terminal.
        train: as under `train` in params.yaml, such as ``batch_size``, ``learning_rate``,
            ``epochs`` or ``max_steps``; 3 epochs by default.

    Raises:
        SightlineError: an unknown or invalid parameter; or as `train.train_run.train_run`.
    """
    from train.train_run import train_run

    folder = None if pairs is None else Path(pairs)
    given = {"epochs": None if train.get("max_steps") else 3, **train}
    try:
        spec = new_run(
            objective.name,
            str(student),
            Path(out),
            Path(tokens),
            captions=None if folder is None else folder / "captions.parquet",
            images=None if folder is None else folder / "images.parquet",
            sentences=None if sentences is None else Path(sentences) / "sentences.parquet",
            phrases=None if phrases is None else Path(phrases),
            features={name: each.path for name, each in (features or {}).items()},
            parameters=objective.describe(),
            dev=None if dev is None else Path(dev),
            seed=seed,
            student_options={"pooling": pooling, "max_length": max_length},
            train=given,
        )
    except ValidationError as error:
        raise SightlineError(f"train_model: {'; '.join(explain(error))}") from error
    return train_run(spec, say=say)
