"""params.yaml: one pydantic model for all parameters of the graph."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from pipeline.datasets.source import Source
from pipeline.encoders.config import EncoderConfig
from pipeline.extract.settings import ExtractSettings
from pipeline.grounding.grounding_settings import GroundingSettings
from pipeline.machine import Machine
from sightline import user_files
from sightline.cache.feature_kind import feature_kind
from sightline.cache.record import Kind
from sightline.errors import SightlineError
from sightline.settings import Settings, explain, unknown
from train.evaluate.task import TASKS
from train.run_spec import StudentConfig, TrainConfig

T = TypeVar("T")

FILE_NAME, GRAPH_FILE = "params.yaml", Path("dvc.yaml")

_NO_NUMBER = r"(?i:(?!\d[\d_]*(e[\d_]+)?$|0[box][\da-f_]+$))"
"""Readers of YAML differ in what they take for a number: DVC's reads 1e3 as 1000.0."""
_STAGE = "train-"  # prefix of the systems' stages
_LENGTHS = {"epochs", "max_steps"}


class ParamsError(SightlineError):
    """params.yaml is missing, not YAML, or invalid."""


def _distinct(values: list[Any]) -> list[Any]:
    for at, value in enumerate(values):
        if (first := values.index(value)) < at:
            raise ValueError(
                f"found {value!r} twice, as entries {first + 1} and {at + 1}; remove one"
            )
    return values


def _require_name(name: object, extra: str = "") -> None:
    """Check a name for its uses in DVC, a shell and folders; ``extra`` are further characters."""
    if not isinstance(name, str) or not re.fullmatch(rf"{_NO_NUMBER}\w[\w{extra}-]*", name):
        dot = "., " if extra else ""
        why = "" if extra else " (DVC reads a dot as the next key)"
        raise ValueError(
            f"found the name {name!r}, expected letters, digits, {dot}_ and -, and no number{why}; "
            "rename it"
        )


def _with_names(entries: object) -> object:
    for name in entries if isinstance(entries, dict) else ():
        _require_name(name)
    return entries


def _of_train(values: dict[str, Any]) -> dict[str, Any]:
    for key in values.keys() - TrainConfig.model_fields.keys():
        raise ValueError(unknown(key, TrainConfig.model_fields, "key"))
    return values


Named = Annotated[dict[str, T], BeforeValidator(_with_names)]
"""Entries by their names, which DVC, a shell and folders use."""
Names = Annotated[list[str], AfterValidator(_distinct)]
Overrides = Annotated[dict[str, Any], AfterValidator(_of_train)]
Seed = Annotated[int, Field(strict=True, ge=0, lt=1 << 32)]  # as DVC writes it into commands


class Joined(Settings):
    """Two data sets of pairs joined into one; either may itself be joined."""

    first: str
    second: str


class Graph(Settings):
    """What `dvc repro` runs.

    Attributes:
        pairs: data set that provides images and captions for paired batches; a data set of
            sentences has no pairs, so then all batches are text-only.
        text: data set that provides sentences for text-only batches.
        image_encoders, text_encoders, teachers: names under `encoders` to run over `pairs`.
        object_encoders: names under `encoders.image` to run over the objects of `pairs`.
        grounded: data sets whose captions are grounded.
        seeds: every run is trained once per seed.
    """

    pairs: str
    text: str
    image_encoders: Names = []
    object_encoders: Names = []
    text_encoders: Names = []
    teachers: Names = []
    grounded: Names = []
    seeds: Annotated[list[Seed], Field(min_length=1), AfterValidator(_distinct)]


class Encoders(Settings):
    """The frozen models, by their names in runs and folders."""

    image: Named[EncoderConfig] = {}
    text: Named[EncoderConfig] = {}
    teacher: Named[EncoderConfig] = {}


class EvaluationTask(BaseModel):
    """An evaluation task; its other settings are checked when it reads its data.

    Attributes:
        task: the task; default: the name of the entry.
        data: the file or folder that it reads.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    task: str | None = None
    data: Path

    @property
    def settings(self) -> dict[str, Any]:
        """All keys except those left at their defaults."""
        return self.model_dump(exclude_unset=True)


class Evaluation(Settings):
    """Data for model selection, and the tasks that score every run.

    Attributes:
        dev: a graded similarity file (``score<TAB>sentence1<TAB>sentence2``) or a folder in
            SentEval's layout (``downstream/STS/…``); it picks the best checkpoint.
        tasks: name → task and its settings.
    """

    dev: Path
    tasks: Named[EvaluationTask]

    @model_validator(mode="after")
    def _known_tasks(self) -> Evaluation:
        for name, entry in self.tasks.items():
            task = entry.task or name
            if task not in TASKS:
                raise ValueError(f"tasks.{name}: {unknown(task, TASKS, TASKS.noun)}")
        return self


class Run(Settings):
    """A run of a system, as in `systems`: its differences from the system.

    Attributes:
        label: its name in reports; default: the run's name.
        parameters: parameters of the objective, overriding the system's. They cannot change which
            features are read: that requires a separate system.
        train: parameters of `train`, overriding the system's.
    """

    label: str | None = None
    parameters: dict[str, Any] = {}
    train: Overrides = {}


class System(Settings):
    """An objective with its encoders: one train stage of dvc.yaml.

    Attributes:
        objective: name in the registry of `train.objectives`; a system without runs needs none.
        parameters: the objective's parameters, including the names of its encoders; validated by
            the objective.
        train: parameters of `train` that this system overrides.
        runs: name → run. Names are folder names, so they are unique across systems; letters,
            digits, _ and -.
    """

    objective: str | None = None
    parameters: dict[str, Any] = {}
    train: Overrides = {}
    runs: Named[Run] = {}


@dataclass(frozen=True)
class ConfiguredRun:
    """A run with everything inherited from its system.

    Attributes:
        system: name of its system.
        label: its name in reports.
        objective, parameters: see `System`.
        train: `train` with its overrides.
    """

    system: str
    label: str
    objective: str
    parameters: dict[str, Any]
    train: TrainConfig


class Report(Settings):
    """What the report compares.

    Attributes:
        title: its heading; `sightline configure` titles several configurations with their names.
        baseline: run that gains are measured against.
        gain: run whose gain over the baseline `control` should not reach.
        control: run with the signal deliberately removed, if there is one.
        photographs: whether neighbours are shown with photographs, which the report then contains.
    """

    title: str = "Comparison of runs"
    baseline: str
    gain: str | None = None
    control: str | None = None
    photographs: bool = False


class Params(Settings):
    """The whole of params.yaml, section by section.

    Attributes:
        datasets: name → kind, where it comes from, and the parameters of its kind
        joined: pairs of data sets that are used as one
        graph: the data sets and frozen models that are used, and the seeds
        encoders: frozen models, by the names that folders and runs use
        extract: what the rows of the frozen models depend on, besides the models
        machine: where stages compute; changing it reruns none (docs/scale.md)
        grounding: which words of a caption name which pixels (docs/grounding.md)
        student: the encoder to train
        train: settings for every run, which those of a system or a run override
        evaluation: the data that picks the best checkpoint, and the tasks (sightline evaluate list)
        systems: a system is an objective with its encoders: a stage of dvc.yaml; a run is a line
        report: what the report compares
    """

    datasets: Named[Source]
    joined: Named[Joined] = {}
    graph: Graph
    encoders: Encoders
    extract: ExtractSettings = ExtractSettings()
    machine: Machine = Machine()
    grounding: GroundingSettings | None = None
    student: StudentConfig
    train: TrainConfig
    evaluation: Evaluation
    systems: Named[System]
    report: Report

    @field_validator("student")
    @classmethod
    def _student_names_a_folder(cls, student: StudentConfig) -> StudentConfig:
        _require_name(student.name, extra=".")
        return student

    @model_validator(mode="after")
    def _names_exist(self) -> Params:
        datasets, graph = [*self.datasets, *self.joined], self.graph
        if both := self.datasets.keys() & self.joined.keys():
            raise ValueError(f"joined.{min(both)}: is also a name under `datasets`; choose another")
        for name in self.joined:
            self._parts(name)
        for name, dataset in self.datasets.items():
            if dataset.source == Path():
                raise ValueError(
                    f"datasets.{name}.source: found nothing, expected the folder (or file) that it "
                    "comes from, which DVC watches"
                )
        for where, names, choices in [
            ("graph.pairs", [graph.pairs], datasets),
            ("graph.text", [graph.text], datasets),
            ("graph.grounded", graph.grounded, datasets),
            ("graph.image_encoders", graph.image_encoders, self.encoders.image),
            ("graph.object_encoders", graph.object_encoders, self.encoders.image),
            ("graph.text_encoders", graph.text_encoders, self.encoders.text),
            ("graph.teachers", graph.teachers, self.encoders.teacher),
            ("report.baseline", [self.report.baseline], self.runs),
            ("report.gain", [self.report.gain] if self.report.gain else [], self.runs),
            ("report.control", [self.report.control] if self.report.control else [], self.runs),
        ]:
            for name in names:
                if name not in choices:
                    raise ValueError(f"{where}: {unknown(name, choices, 'name')}")
        if graph.object_encoders and graph.pairs not in graph.grounded:
            raise ValueError(
                f"graph.object_encoders: `ground` finds the objects; add {graph.pairs} to "
                "graph.grounded"
            )
        if graph.grounded and self.grounding is None:
            raise ValueError("graph.grounded: needs a section `grounding`")
        return self

    @model_validator(mode="after")
    def _runs_make_sense(self) -> Params:
        owners: dict[str, str] = {}
        labels: dict[str, str] = {}
        for system, entry in self.systems.items():
            if entry.runs and entry.objective is None:
                raise ValueError(f"systems.{system}.objective: is missing")
            for name in entry.runs:
                if name in owners:
                    raise ValueError(
                        f"systems.{system}.runs.{name}: {owners[name]} has a run of this name, and "
                        "both would use the same folder; choose another"
                    )
                owners[name] = system
                run, label = f"systems.{system}.runs.{name}", self.runs[name].label
                if (first := labels.setdefault(label, run)) != run:
                    raise ValueError(
                        f"{first} and {run}: reports would call both {label!r}; change the `label` "
                        "of one"
                    )
        return self

    def _parts(self, name: str, *above: str) -> set[str]:
        """The data sets that ``name`` is joined from; ``above`` are those that contain it."""
        if name in self.datasets:
            return {name}
        if name not in self.joined:
            choices = [*self.datasets, *self.joined]
            raise ValueError(f"joined.{above[-1]}: {unknown(name, choices, 'data set')}")
        if name in above:
            cycle = " → ".join(f"joined.{part}" for part in (*above[above.index(name) :], name))
            raise ValueError(f"{cycle}: a data set cannot be a part of itself; change one of these")
        pair = self.joined[name]
        first, second = (self._parts(part, *above, name) for part in (pair.first, pair.second))
        if both := first & second:
            raise ValueError(
                f"joined.{name}.first and joined.{name}.second: both are {min(both)!r} or contain "
                "it; join two different data sets"
            )
        return first | second

    def dataset(self, name: str) -> Source:
        """The source of a data set that is not joined."""
        return _named(self.datasets, name, "datasets", "data set", self.joined)

    @cached_property
    def runs(self) -> dict[str, ConfiguredRun]:
        """Name → run, of every system."""
        return {
            name: ConfiguredRun(
                system,
                run.label or name,
                entry.objective or "",
                {**entry.parameters, **run.parameters},
                self._train(f"systems.{system}.runs.{name}.train", entry.train, run.train),
            )
            for system, entry in self.systems.items()
            for name, run in entry.runs.items()
        }

    def _train(self, where: str, *overrides: dict[str, Any]) -> TrainConfig:
        values = self.train.model_dump()
        for override in overrides:
            if override.keys() & _LENGTHS:  # a length replaces all others
                values = {key: value for key, value in values.items() if key not in _LENGTHS}
            values |= override
        try:
            return TrainConfig.model_validate(values)
        except ValidationError as error:
            raise ValueError("; ".join(explain(error, where))) from error

    def encoder(self, kind: Kind, name: str) -> EncoderConfig:
        """The encoder of a kind of features, in the section that the kind names."""
        section = feature_kind(kind).encoders
        return _named(getattr(self.encoders, section), name, f"encoders.{section}", "encoder")

    def run(self, name: str) -> ConfiguredRun:
        """Configuration of a run."""
        return _named(self.runs, name, "systems", "run")

    def task(self, name: str) -> EvaluationTask:
        """An evaluation task."""
        return _named(self.evaluation.tasks, name, "evaluation.tasks", "task")


def _named(
    entries: Mapping[str, T], name: str, section: str, kind: str, further: Iterable[str] = ()
) -> T:
    if name not in entries:
        wrong = unknown(name, [*entries, *further], kind)
        raise ParamsError(f"{FILE_NAME}: {section}: {wrong}")
    return entries[name]


def load_params(path: Path | str = FILE_NAME) -> Params:
    """Read and check ``path``; an error names the key, what it has and what it may have."""
    path = Path(path)
    if not path.is_file():
        raise ParamsError(
            f"{path}: no such file; stages read it in the folder of a project. Change to that "
            "folder, make one with `sightline init FOLDER`, or use the commands with explicit "
            "paths (`sightline --help`)."
        )
    return validate_params(read_yaml(path), str(path), path.parent / GRAPH_FILE)


def validate_params(values: dict[str, Any], where: str, graph_file: Path | None = None) -> Params:
    """Check the content of a parameter file.

    Args:
        where: its name in errors.
        graph_file: dvc.yaml; if it trains any system, it has a stage for each.
    """
    try:
        params = Params.model_validate(values)
    except ValidationError as error:
        raise ParamsError("\n".join(f"{where}: {line}" for line in explain(error))) from error
    systems = trained_systems(graph_file) if graph_file else []
    for name in params.systems if systems else ():
        if name not in systems:
            raise ParamsError(
                f"{where}: systems: {unknown(name, systems, 'system')}; a new one needs a stage "
                f"train-{name} in {graph_file}"
            )
    return params


def trained_systems(graph_file: Path) -> list[str]:
    """The systems that have a train stage in dvc.yaml."""
    stages = read_yaml(graph_file).get("stages") if graph_file.is_file() else None
    if not isinstance(stages, dict):
        return []
    return [name.removeprefix(_STAGE) for name in map(str, stages) if name.startswith(_STAGE)]


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in ``path``."""
    content = user_files.read_yaml(path)
    if not isinstance(content, dict):
        raise ParamsError(f"{path}: found {type(content).__name__}, expected a mapping of sections")
    return content
