"""result.json of one run: its scores, and everything needed to trace where they came from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sightline.errors import SightlineError
from sightline.output import write_file
from train.evaluate.evaluation_set import EvaluationSet
from train.evaluate.found_neighbours import ModelNeighbours
from train.records import DEV, FeatureUse

FILE_NAME = "result.json"
SCHEMA = "sightline.run_result/2"
NOT_TRAINED = "not trained by Sightline"
"""The objective of a model that is not a training run."""

_Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TrainingSummary(_Strict):
    """How the training went. Times in seconds, memory in bytes; None if not measured.

    Attributes:
        peak_memory_bytes: of the GPU if there was one, otherwise of the process.
        trained_parameters: of encoder and heads.
        processes: see `train.records.RunSummary`.
        processor: model of the CPU, where it was the device.
        log: entries of the training loop, each with its ``step`` (`train.loop`).
    """

    steps: int
    seconds: _Finite | None = None
    sentences_per_second: _Finite | None = None
    peak_memory_bytes: int | None = None
    trained_parameters: int | None = None
    processes: tuple[int, ...] = ()
    device: str = ""
    processor: str = ""
    precision: str = ""
    dev_metric: str = ""
    best_step: int | None = None
    best_dev: _Finite | None = None
    log: tuple[dict[str, _Finite], ...] = ()

    @property
    def dev_curve(self) -> list[tuple[int, float]]:
        """(step, dev score), in the order of the steps."""
        return self.curve(DEV)

    def curve(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of the entry ``name`` of the log, in the order of the steps."""
        return sorted((int(entry["step"]), entry[name]) for entry in self.log if name in entry)


class TaskRecord(_Strict):
    """An evaluation task as a result records it.

    Attributes:
        task: the name that it is registered under.
        title: heading of its table; tasks with an empty one share the main table.
        settings: what its scores depend on besides model and data.
        metrics: its scores, by name.
        lower_is_better: those of them that are better when lower.
        hidden: those of them without a column in reports.
    """

    task: str
    title: str = ""
    settings: dict[str, Any] = {}
    metrics: tuple[str, ...]
    lower_is_better: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()


class RunResult(_Strict):
    """One run with one seed.

    Attributes:
        run: name of the system, the same for all its seeds.
        parameters: every parameter of the run, nested as in params.yaml.
        scores: metric → score, such as Spearman ×100; None = not defined.
        subsets: metric → subset → score, for metrics with several.
        reasons: metric, or "metric/subset", → why its score is not defined.
        references: name → metric → score, of what needs no run: chance, or a frozen model.
        notes: evaluation task → what a reader must know about its scores.
        neighbours: evaluation task → what it found nearest to some sentences.
        evaluated_on: metric → what it was scored on.
        tasks: name of an evaluation task → what it is.
        pooling: the one that the evaluation was asked for; empty if the model's own was used.
        trained_on: stream → what its rows were read from; empty if it is not known.
        run_sha256: of the run.json that the scores belong to.
        code_accepted: whether code was edited after the training and accepted as not changing
            results.
        features: every feature set that the run learned from; empty for a text-only run.
    """

    schema_: Annotated[Literal["sightline.run_result/2"], Field(alias="schema")] = SCHEMA
    run: Annotated[str, Field(min_length=1)]
    objective: Annotated[str, Field(min_length=1)]
    seed: int
    parameters: dict[str, Any] = {}
    scores: dict[str, _Finite | None]
    subsets: dict[str, dict[str, _Finite | None]] = {}
    reasons: dict[str, str] = {}
    references: dict[str, dict[str, _Finite]] = {}
    notes: dict[str, tuple[str, ...]] = {}
    neighbours: dict[str, ModelNeighbours] = {}
    evaluated_on: dict[str, EvaluationSet] = {}
    tasks: dict[str, TaskRecord] = {}
    pooling: str = ""
    trained_on: dict[str, str] = {}
    run_sha256: str = ""
    code_accepted: bool = False
    features: tuple[FeatureUse, ...] = ()
    training: TrainingSummary | None = None

    @model_validator(mode="after")
    def _undefined_scores_have_a_reason(self) -> RunResult:
        named = {f"scores.{task}": (task, score) for task, score in self.scores.items()}
        for task, parts in self.subsets.items():
            for name, score in parts.items():
                named[f"subsets.{task}.{name}"] = (f"{task}/{name}", score)
        for where, (name, score) in named.items():
            if score is None and name not in self.reasons:
                raise ValueError(f"{where} is null but reasons does not say why")
        return self

    @property
    def untrained(self) -> tuple[str, ...]:
        """Names of the feature sets that came from encoders with random weights."""
        return tuple(feature.name for feature in self.features if feature.untrained)

    @property
    def doubts(self) -> tuple[str, ...]:
        """What is to be said about imported feature sets."""
        return tuple(dict.fromkeys(each.doubt for each in self.features if each.doubt))

    @property
    def marks(self) -> tuple[str, ...]:
        """What a reader must know before comparing it with another."""
        return marks_of(bool(self.untrained), self.doubts, self.code_accepted)


def marks_of(untrained: bool, doubts: Iterable[str], code_accepted: bool) -> tuple[str, ...]:
    """What a reader must know about a run: untrained weights, doubts of features, edited code."""
    return (
        *(["untrained weights"] if untrained else []),
        *(f"features {doubt}" for doubt in doubts),
        *(["code edited since, accepted"] if code_accepted else []),
    )


def save_result(result: RunResult, path: str | Path) -> Path:
    """Write `result` to the file `path` (or to result.json in the folder `path`), atomically.

    Raises:
        SightlineError: the path exists and is not a result.
    """
    file = _result_file(path)
    body = result.model_dump(mode="json", by_alias=True)
    data = (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode()
    write_file(file, data, SCHEMA.encode())
    return file


def load_result(path: str | Path) -> RunResult:
    """Read one result from a file, or from result.json in a folder.

    Raises:
        SightlineError: missing, not JSON, another schema, or a field that is unknown, missing or
            of the wrong type (named).
    """
    file = _result_file(path)
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SightlineError(
            f"{file}: no such file; expected the result of a finished run. Run its train and "
            "evaluate stages first"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SightlineError(f"{file}: cannot be read ({error}); run the stage again") from error
    try:
        body = json.loads(text)
    except ValueError as error:
        raise SightlineError(
            f"{file}: truncated or not JSON ({error}); run its evaluate stage again"
        ) from error
    found = body.get("schema") if isinstance(body, dict) else type(body).__name__
    if found != SCHEMA:
        raise SightlineError(
            f"{file}: schema {found!r}, expected {SCHEMA!r}; run its evaluate stage again"
        )
    try:
        return RunResult.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the result"
        raise SightlineError(
            f"{file}: {where}: {first['msg']}; run its evaluate stage again"
        ) from error


def load_results(paths: Iterable[str | Path]) -> list[RunResult]:
    """Results of several files or folders, in the order given."""
    return [load_result(path) for path in paths]


def _result_file(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == ".json" else path / FILE_NAME
