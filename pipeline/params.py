"""params.yaml: one pydantic model for all parameters of the graph."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pipeline.datasets.kinds import KINDS, source_type
from pipeline.datasets.source import Source
from pipeline.encoders.config import EncoderConfig
from pipeline.extract.engine import Engine
from pipeline.extract.inputs import CutoutRules
from pipeline.grounding.settings import GroundingSettings
from sightline import outside
from sightline.cache.record import DTypeName, Kind
from sightline.errors import SightlineError
from sightline.settings import Settings, explain, unknown
from train.evaluate.task import TASKS
from train.run_spec import Precision, StudentConfig, TrainConfig

FILE_NAME = "params.yaml"

_LENGTHS = {"epochs", "max_steps"}


class ParamsError(SightlineError):
    """params.yaml is missing, not YAML, or invalid."""


@dataclass(frozen=True)
class Dataset:
    """One entry of `datasets`.

    Attributes:
        kind: name in the registry of `pipeline.datasets.kinds`.
        source: its parameters, with resolved paths.
    """

    kind: str
    source: Source


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
        threads: CPU threads of every stage, on which the last bits of what it computes depend;
            None: all cores, or a job's share of them. No stage depends on it.
    """

    pairs: str
    text: str
    image_encoders: list[str] = []
    object_encoders: list[str] = []
    text_encoders: list[str] = []
    teachers: list[str] = []
    grounded: list[str] = []
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 32)]], Field(min_length=1)]
    threads: int | None = Field(default=None, ge=1)


class Encoders(Settings):
    """The frozen models, by their names in runs and folders."""

    image: dict[str, EncoderConfig] = {}
    text: dict[str, EncoderConfig] = {}
    teacher: dict[str, EncoderConfig] = {}


class Extract(Settings):
    """How to run the frozen models; see `pipeline.extract.runner.RunSettings`.

    Attributes:
        cutouts: preprocessing of objects for image encoders.
    """

    device: str = "auto"
    precision: Precision = "fp32"
    dtype: DTypeName = "float16"
    batch_size: int = Field(default=64, ge=1, le=4096)
    workers: int = Field(default=2, ge=0, le=256)
    max_failed: float = Field(default=0.01, ge=0, le=1)
    cutouts: CutoutRules = CutoutRules()


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
    tasks: dict[Annotated[str, Field(pattern=r"^[\w-]+$")], EvaluationTask]

    @model_validator(mode="after")
    def _known_tasks(self) -> Evaluation:
        for name, given in self.tasks.items():
            wanted = given.task or name
            if wanted not in TASKS:
                raise ValueError(f"tasks.{name}: {unknown(wanted, TASKS, TASKS.what)}")
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
    train: dict[str, Any] = {}


class System(Settings):
    """An objective with its encoders: one train stage of dvc.yaml.

    Attributes:
        objective: name in the registry of `train.objectives`; a system without runs needs none.
        parameters: the objective's parameters, including the names of its encoders; validated by
            the objective.
        train: parameters of `train` that this system overrides.
        runs: name → run. Names are folder names, so they are unique across systems, of
            letters, digits, _ and -.
    """

    objective: str | None = None
    parameters: dict[str, Any] = {}
    train: dict[str, Any] = {}
    runs: dict[str, Run] = {}


@dataclass(frozen=True)
class ConfiguredRun:
    """A run with everything inherited from its system.

    Attributes:
        system: name of its system.
        label: its name in reports.
        objective, parameters: see `System`.
        train: parameters of `train` that it overrides.
    """

    system: str
    label: str
    objective: str
    parameters: dict[str, Any]
    train: dict[str, Any]


class Report(Settings):
    """What the report compares.

    Attributes:
        title: its heading.
        baseline: run that gains are measured against.
        gain: run whose gain over the baseline `control` should not reach.
        control: run with the signal deliberately removed, if there is one.
        photographs: whether neighbours are shown with photographs, which the report then contains.
    """

    title: str
    baseline: str
    gain: str | None = None
    control: str | None = None
    photographs: bool = False


class Params(Settings):
    """The whole of params.yaml.

    Attributes:
        datasets: name → data set; in the file `kind`, `source` and the parameters of its kind.
        engine: how workers are started; no stage depends on it.
    """

    datasets: dict[str, Dataset]
    joined: dict[str, Joined] = {}
    graph: Graph
    encoders: Encoders
    extract: Extract = Extract()
    engine: Engine = Engine()
    grounding: GroundingSettings | None = None
    student: StudentConfig
    train: TrainConfig
    evaluation: Evaluation
    systems: dict[str, System]
    report: Report

    @field_validator("datasets", mode="before")
    @classmethod
    def _known_sources(cls, datasets: Any) -> dict[str, Dataset]:
        if not isinstance(datasets, dict):
            raise ValueError(f"found {type(datasets).__name__}, expected names of data sets")
        return {name: _dataset(name, given) for name, given in datasets.items()}

    @model_validator(mode="after")
    def _names_exist(self) -> Params:
        datasets, graph = [*self.datasets, *self.joined], self.graph
        if both := self.datasets.keys() & self.joined.keys():
            raise ValueError(f"joined.{min(both)}: is also a name under `datasets`; choose another")
        for name, pair in self.joined.items():
            for part in (pair.first, pair.second):
                if part not in datasets or part == name:
                    raise ValueError(f"joined.{name}: {unknown(part, datasets, 'data set')}")
        for where, wanted, known in [
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
            for name in wanted:
                if name not in known:
                    raise ValueError(f"{where}: {unknown(name, known, 'name')}")
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
        for system, given in self.systems.items():
            if given.runs and given.objective is None:
                raise ValueError(f"systems.{system}.objective: is missing")
            parts = {"": given, **{f".runs.{name}": run for name, run in given.runs.items()}}
            for where, part in parts.items():
                for key in part.train.keys() - TrainConfig.model_fields.keys():
                    wrong = unknown(key, TrainConfig.model_fields, "key")
                    raise ValueError(f"systems.{system}{where}.train: {wrong}")
            for name in given.runs:
                if not re.fullmatch(r"[\w-]+", name):
                    raise ValueError(
                        f"systems.{system}.runs: found the name {name!r}, expected letters, "
                        "digits, _ and - (DVC reads a dot as the next key); rename the run"
                    )
                if name in owners:
                    raise ValueError(
                        f"systems.{system}.runs.{name}: {owners[name]} has a run of this name, and "
                        "both would use the same folder; choose another"
                    )
                owners[name] = system
                self.train_of(name)
        return self

    def dataset(self, name: str) -> Dataset:
        """Kind and source of a data set; a joined one is of kind `joined`.

        Raises:
            ParamsError: there is no such data set.
        """
        if name in self.datasets:
            return self.datasets[name]
        known = [*self.datasets, *self.joined]
        raise ParamsError(f"{FILE_NAME}: datasets: {unknown(name, known, 'data set')}")

    @cached_property
    def runs(self) -> dict[str, ConfiguredRun]:
        """Name → run, of every system."""
        return {
            name: ConfiguredRun(
                system,
                run.label or name,
                given.objective or "",
                {**given.parameters, **run.parameters},
                _override(given.train, run.train),
            )
            for system, given in self.systems.items()
            for name, run in given.runs.items()
        }

    def encoder(self, kind: Kind, name: str) -> EncoderConfig:
        """The encoder of a kind of features; objects are encoded as images.

        Raises:
            ParamsError: there is no encoder with that name and kind.
        """
        section = "image" if kind == "object" else kind
        known: dict[str, EncoderConfig] = getattr(self.encoders, section)
        if name not in known:
            raise ParamsError(f"{FILE_NAME}: encoders.{section}: {unknown(name, known, 'encoder')}")
        return known[name]

    def run(self, name: str) -> ConfiguredRun:
        """Configuration of a run.

        Raises:
            ParamsError: there is no run of that name.
        """
        if name not in self.runs:
            raise ParamsError(f"{FILE_NAME}: systems: {unknown(name, self.runs, 'run')}")
        return self.runs[name]

    def train_of(self, run: str) -> TrainConfig:
        """`train` with the run's overrides."""
        return TrainConfig.model_validate(_override(self.train.model_dump(), self.runs[run].train))


def _dataset(name: str, given: Any) -> Dataset:
    """An entry of `datasets`; its relative paths are resolved against `source`."""
    if not isinstance(given, dict):
        raise ValueError(f"{name}: found {type(given).__name__}, expected a mapping")
    rest = dict(given)
    kind, source = rest.pop("kind", None), rest.pop("source", None)
    if kind is None:
        raise ValueError(f"{name}.kind: is missing; choose one of {', '.join(KINDS)}")
    if kind not in KINDS:
        raise ValueError(f"{name}.kind: {unknown(str(kind), KINDS, KINDS.what)}")
    if not isinstance(source, str) or not source:
        raise ValueError(
            f"{name}.source: found {source!r}, expected the folder (or file) that it comes from"
        )
    model = source_type(kind)
    try:
        return Dataset(kind, model.model_validate(rest).below(Path(source)))
    except ValidationError as error:
        raise ValueError(f"{name}: {'; '.join(explain(error))}") from error


def _override(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Training parameters, ``own`` overriding ``common``; a run length replaces all others."""
    if own.keys() & _LENGTHS:
        common = {name: value for name, value in common.items() if name not in _LENGTHS}
    return {**common, **own}


def load_params(path: Path | str = FILE_NAME) -> Params:
    """Read and check ``path``.

    Raises:
        ParamsError: no such file, not YAML, an unknown key (suggests the nearest), or an invalid
            value (gives the key, the value and what is allowed).
    """
    path = Path(path)
    if not path.is_file():
        raise ParamsError(
            f"{path}: no such file; stages read it from the root of a Sightline repository. "
            "Change to that folder, or use the commands with explicit paths "
            "(`sightline --help`)."
        )
    return validate_params(read_yaml(path), str(path))


def validate_params(given: dict[str, Any], where: str) -> Params:
    """Check the content of a parameter file; ``where`` is its name in errors.

    Raises:
        ParamsError: as `load_params`.
    """
    try:
        return Params.model_validate(given)
    except ValidationError as error:
        raise ParamsError("\n".join(f"{where}: {line}" for line in explain(error))) from error


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in ``path``.

    Raises:
        SightlineError: it is not YAML, or not a mapping.
    """
    found = outside.read_yaml(path)
    if not isinstance(found, dict):
        raise ParamsError(f"{path}: found {type(found).__name__}, expected a mapping of sections")
    return found
