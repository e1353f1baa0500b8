"""Results: what a model scored on which data, and the training that it comes from. No torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from sightline.digest import Pinned
from sightline.files.output import write_file
from sightline.user_files import read_json
from train.records import FeatureUse, RunSummary, digest_of_run

FILE_NAME = "result.json"
SCHEMA = "sightline.result/1"
NOT_TRAINED = "not trained by Sightline"
"""The objective of a model that is not a training run."""
UNTRAINED = "untrained weights"
"""The mark of features of random weights."""
UNTRAINED_FEATURES = "untrained features"
"""The mark of a run that learned from them."""

Score = Annotated[float, Field(allow_inf_nan=False)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class EvaluationSet(BaseModel):
    """What identifies a test set.

    Attributes:
        examples: how many there are; None = not known, as in results of another program.
        sha256: of their content, or of the names and revision that determine it (hex).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    examples: Annotated[int, Field(ge=0)] | None
    sha256: str

    @classmethod
    def of(cls, examples: int | None, *sha256: str) -> EvaluationSet:
        """A set from the digests (hex) of its parts."""
        return cls(examples=examples, sha256=hashlib.sha256("".join(sha256).encode()).hexdigest())


@dataclass(frozen=True)
class Neighbour:
    """One neighbour of a sentence.

    Attributes:
        text: the caption; of an image one of its captions, or empty.
        captions: ids of the captions that read so.
        images: ids of the images that it describes, or of the image that it is.
        own: whether one of them is an image of the query.
    """

    text: str
    captions: tuple[str, ...]
    images: Annotated[tuple[str, ...], Field(min_length=1)]
    cosine: Score
    own: bool


@dataclass(frozen=True)
class Hits:
    """What one model finds.

    Attributes:
        neighbours: of each query, nearest first; empty if there is a reason.
        reason: why the model finds nothing, or None.
        warning: why the order says nothing, or None.
    """

    neighbours: tuple[tuple[Neighbour, ...], ...] = ()
    reason: str | None = None
    warning: str | None = None


@dataclass(frozen=True)
class ModelNeighbours:
    """What one model finds, with what it was asked.

    Attributes:
        queries: q sentences.
        images: of each query, the images that it is a caption of; often empty.
        pool: what the neighbours were found among, in words.
        k: neighbours asked for.
        captions: nearest captions; None if only images were asked for.
        pictures: nearest images; None if none were asked for.
        keys: id → SHA-256 (hex) of the images that are named, by which pages know a photograph.
    """

    queries: tuple[str, ...]
    images: tuple[tuple[str, ...], ...]
    pool: str
    k: int
    captions: Hits | None = None
    pictures: Hits | None = None
    keys: dict[str, Sha256] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = [len(self.images)]
        answers = (self.captions, self.pictures)
        counts += [len(answer.neighbours) for answer in answers if answer and answer.reason is None]
        if any(count != len(self.queries) for count in counts):
            raise ValueError(f"not of {len(self.queries)} queries")

    @property
    def named_images(self) -> list[str]:
        """Every image that it names, each once."""
        ids = dict.fromkeys(image for images in self.images for image in images)
        for answer in filter(None, (self.captions, self.pictures)):
            for answers in answer.neighbours:
                ids.update(dict.fromkeys(image for hit in answers for image in hit.images))
        return list(ids)

    @property
    def query_set(self) -> tuple[object, ...]:
        """What models must share to stand side by side."""
        return self.queries, self.images, self.pool, self.k, self.pictures is None


class TaskResult(BaseModel):
    """A model's scores on one evaluation task, and what was measured.

    A task fills in the first six; `Evaluation` knows the others.

    Attributes:
        scores: metric → score, such as Spearman × 100; None = not defined.
        subsets: metric → part of its data → score.
        reasons: metric, or "metric/part" → why its score is not defined.
        references: name → metric → score, of what needs no model: chance, or a frozen model's own
            score. Reports show them below the measured rows, and compare nothing with them.
        notes: what a reader must know about these scores, such as rows that were left out.
        neighbours: what the model finds nearest to some sentences, which pages show.
        task: the name that the task is registered under.
        title: heading of its table; tasks with an empty one share the main table.
        settings: what the scores depend on besides model and data.
        evaluated_on: metric → what it was measured on.
        lower_is_better: the metrics that are better when lower.
        hidden: those without a column in reports.
        code: digest of the code that scored (`train.code_digest`); empty: unknown.
        accepted_code: later digests, accepted as not changing the scores (`sightline accept`).
        versions: package → version that scored.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    scores: dict[str, Score | None] = {}
    subsets: dict[str, dict[str, Score | None]] = {}
    reasons: dict[str, str] = {}
    references: dict[str, dict[str, Score]] = {}
    notes: tuple[str, ...] = ()
    neighbours: ModelNeighbours | None = None
    task: str = ""
    title: str = ""
    settings: dict[str, Any] = {}
    evaluated_on: dict[str, EvaluationSet] = {}
    lower_is_better: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    code: str = ""
    accepted_code: tuple[str, ...] = ()
    versions: dict[str, str] = {}

    @model_validator(mode="after")
    def _undefined_scores_have_a_reason(self) -> TaskResult:
        scores = {f"scores.{metric}": (metric, score) for metric, score in self.scores.items()}
        for metric, parts in self.subsets.items():
            for part, score in parts.items():
                scores[f"subsets.{metric}.{part}"] = (f"{metric}/{part}", score)
        for where, (name, score) in scores.items():
            if score is None and name not in self.reasons:
                raise ValueError(f"{where} is null but reasons does not say why")
        return self

    def measures_as(self, result: TaskResult) -> bool:
        """Whether both are of one task, with the same settings and data."""
        scored = {"scores", "subsets", "reasons", "references", "notes", "neighbours"}
        scored |= {"code", "accepted_code", "versions"}
        return self.model_dump(exclude=scored) == result.model_dump(exclude=scored)

    def is_of(self, code: str) -> bool:
        """Whether this code scored it, or may have: of some results it is not known."""
        return not self.code or code in (self.code, *self.accepted_code)


class RunResult(BaseModel):
    """The scores of one model: of one run with one seed, or of any other model.

    Attributes:
        run: name of the system, the same for all its seeds.
        tasks: name of an evaluation task → its result. A metric has one name among all tasks.
        pooling: the one that the evaluation was asked for; empty if the model's own was used.
        precision: the one that the evaluation was asked for; empty: fp32.
        training: the run, as its run.json has it; None for a model that Sightline did not train.
        run_sha256: of the run.json that the scores belong to.
        pinned: which model it was, of one that Sightline did not train; None: not known.
        recipe: digest of how its folder says to pool, cut and normalise, of such a model.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    schema_: Annotated[Literal["sightline.result/1"], Field(alias="schema")] = SCHEMA
    run: Annotated[str, Field(min_length=1)]
    tasks: dict[str, TaskResult] = {}
    pooling: str = ""
    precision: str = ""
    training: RunSummary | None = None
    run_sha256: str = ""
    pinned: Pinned | None = None
    recipe: str = ""

    @property
    def seed(self) -> int:
        """Seed of the training; 0 without one."""
        return 0 if self.training is None else self.training.seed

    @property
    def objective(self) -> str:
        """What it was trained with."""
        return NOT_TRAINED if self.training is None else self.training.objective

    @property
    def parameters(self) -> dict[str, Any]:
        """Every parameter of the run, nested as in params.yaml; empty if it is not known."""
        if (run := self.training) is None:
            return {}
        return {"objective": run.parameters, "student": run.student, "train": run.train}

    @property
    def features(self) -> list[FeatureUse]:
        """Every feature set that the run learned from; empty for a text-only run."""
        return [] if self.training is None else list(self.training.features.values())

    @property
    def scores(self) -> dict[str, float | None]:
        """Metric → score, over all tasks."""
        return {name: score for task in self.tasks.values() for name, score in task.scores.items()}

    @property
    def subsets(self) -> dict[str, dict[str, float | None]]:
        """Metric → part of its data → score, over all tasks."""
        return {name: parts for task in self.tasks.values() for name, parts in task.subsets.items()}

    @property
    def reasons(self) -> dict[str, str]:
        """Metric, or "metric/part", → why its score is not defined, over all tasks."""
        return {name: why for task in self.tasks.values() for name, why in task.reasons.items()}

    @property
    def evaluated_on(self) -> dict[str, EvaluationSet]:
        """Metric → what it was measured on, over all tasks."""
        return {name: on for task in self.tasks.values() for name, on in task.evaluated_on.items()}

    @property
    def untrained(self) -> tuple[str, ...]:
        """Names of the feature sets that came from encoders with random weights."""
        return tuple(feature.name for feature in self.features if feature.untrained)

    @property
    def other_scoring(self) -> tuple[str, ...]:
        """How the evaluation was asked to score a run otherwise than it is exported."""
        student = {} if self.training is None else self.training.student
        pooled = self.pooling and student.get("pooling", self.pooling) != self.pooling
        return (
            *([f"pooled by {self.pooling}"] if pooled else []),
            *(["without its prompt"] if self.pooling and student.get("prompt") else []),
            *([f"scored in {self.precision}"] if self.precision else []),
        )

    def restricted(self, tasks: Collection[str]) -> RunResult:
        """The same without the tasks that are not among ``tasks``."""
        kept = {name: task for name, task in self.tasks.items() if name in tasks}
        return self.model_copy(update={"tasks": kept})

    def is_of(self, folder: Path) -> bool:
        """Whether it scores the run in ``folder`` as that is exported."""
        return self.run_sha256 == digest_of_run(folder) and not self.other_scoring

    @property
    def marks(self) -> tuple[str, ...]:
        """What a reader must know before comparing it with another."""
        doubts = dict.fromkeys(use.doubt for use in self.features if use.doubt)
        accepted = self.training is not None and self.training.accepted_code
        return (
            *([UNTRAINED_FEATURES] if self.untrained else []),
            *(f"features {doubt}" for doubt in doubts),
            *(["code edited since, accepted"] if accepted else []),
            *self.other_scoring,
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
    expected = "the result of a finished run; run its train and evaluate stages again"
    return read_json(_result_file(path), TypeAdapter(RunResult), expected)


def _result_file(path: str | Path) -> Path:
    path = Path(path)
    return path if path.suffix == ".json" else path / FILE_NAME
