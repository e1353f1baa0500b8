"""params.yaml: one pydantic model for everything that a run of the graph is told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from pipeline.cache.record import DTypeName
from pipeline.datasets.kinds import KINDS, source_type
from pipeline.datasets.source import Source
from pipeline.encoders.encoder_config import EncoderConfig
from pipeline.extract.cutouts import CutoutRules
from pipeline.grounding.grounder_config import GroundingSettings
from sightline.errors import SightlineError
from sightline.parameter_errors import explain, unknown
from train.run_spec import Precision, StudentConfig, TrainConfig

FILE_NAME = "params.yaml"


class ParamsError(SightlineError):
    """params.yaml is missing, not YAML, or says something that it cannot say."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Graph(_Strict):
    """What `dvc repro` runs.

    Attributes:
        pairs: data set whose images and captions the paired batches come from.
        text: data set whose sentences the text-only batches come from.
        image_encoders, text_encoders, teachers: names under `encoders` to run over `pairs`.
        object_encoders: names under `encoders.image` to run over the objects of `pairs`.
        grounded: data sets whose captions are grounded.
        phrases: which words of the captions of `pairs` name which pixels: the records of a
            grounding, data/objects/NAME, or a phrases manifest.
        seeds: one training of every run for each.
        demo_seed: the one whose results `make demo` shows.
    """

    pairs: str
    text: str
    image_encoders: list[str] = []
    object_encoders: list[str] = []
    text_encoders: list[str] = []
    teachers: list[str] = []
    grounded: list[str] = []
    phrases: Path | None = None
    seeds: Annotated[list[Annotated[int, Field(ge=0, lt=1 << 32)]], Field(min_length=1)]
    demo_seed: int = 0


class Encoders(_Strict):
    """The frozen models, by the names that runs and folders call them."""

    image: dict[str, EncoderConfig] = {}
    text: dict[str, EncoderConfig] = {}
    teacher: dict[str, EncoderConfig] = {}


class Extract(_Strict):
    """How the frozen models are run; see `pipeline.extract.encode_missing.ExtractSettings`.

    Attributes:
        cutouts: what objects look like to an image encoder.
    """

    device: str = "auto"
    precision: Precision = "fp32"
    dtype: DTypeName = "float16"
    batch_size: int = Field(default=64, ge=1, le=4096)
    workers: int = Field(default=2, ge=0, le=256)
    max_failed: float = Field(default=0.01, ge=0, le=1)
    cutouts: CutoutRules = CutoutRules()


class Evaluation(_Strict):
    """What runs are selected and scored on.

    Each is a graded similarity file (``score<TAB>sentence1<TAB>sentence2``) or a folder in
    SentEval's layout (``downstream/STS/…``).
    """

    dev: Path
    test: Path


class Run(_Strict):
    """One system: an objective and its parameters.

    Attributes:
        label: how reports call it; default: its name.
        objective: name in the registry of `train.objectives`.
        parameters: the objective's own, the names of its encoders among them; it checks them.
        train: parameters of `train` that this run has its own values for.
    """

    label: str | None = None
    objective: str
    parameters: dict[str, Any] = {}
    train: dict[str, Any] = {}


class Report(_Strict):
    """What the report compares.

    Attributes:
        title: its heading.
        baseline: run that gains are measured from.
        control: run that has lost its signal on purpose, if there is one.
        shown: runs that a report on one seed compares; a study compares all. Empty means all.
        gain: run whose gain over the baseline `control` should not reach.
    """

    title: str
    baseline: str
    gain: str | None = None
    control: str | None = None
    shown: list[str] = []


class Params(_Strict):
    """The whole of params.yaml."""

    datasets: dict[str, dict[str, Any]]
    graph: Graph
    encoders: Encoders
    extract: Extract = Extract()
    grounding: GroundingSettings | None = None
    student: StudentConfig
    train: TrainConfig
    evaluation: Evaluation
    runs: dict[str, Run]
    report: Report

    @field_validator("datasets")
    @classmethod
    def _known_sources(cls, datasets: dict[str, dict[str, Any]]) -> dict[str, dict[str, Source]]:
        found: dict[str, dict[str, Source]] = {}
        for kind, some in datasets.items():
            if kind not in KINDS:
                raise ValueError(unknown(kind, KINDS, "kind of data set"))
            model, found[kind] = source_type(kind), {}
            for name, given in some.items():
                try:
                    found[kind][name] = model.model_validate(given)
                except ValidationError as error:
                    lines = explain(error, model)
                    raise ValueError(f"{kind}.{name}: {'; '.join(lines)}") from error
        return found

    @model_validator(mode="after")
    def _names_exist(self) -> Params:
        datasets = {name for some in self.datasets.values() for name in some}
        graph = self.graph
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
            ("report.shown", self.report.shown, self.runs),
            ("report.control", [self.report.control] if self.report.control else [], self.runs),
        ]:
            for name in wanted:
                if name not in known:
                    raise ValueError(f"{where}: {unknown(name, known, 'name')}")
        compared = {self.report.baseline, self.report.gain, self.report.control} - {None}
        if self.report.shown and not compared <= set(self.report.shown):
            hidden = ", ".join(sorted(compared - set(self.report.shown)))
            raise ValueError(f"report.shown: lacks {hidden}, which the report compares; add it")
        if graph.object_encoders and graph.phrases is None:
            raise ValueError("graph.object_encoders: objects are found by graph.phrases; name it")
        if graph.grounded and self.grounding is None:
            raise ValueError("graph.grounded: there is no section `grounding` that says how")
        if graph.demo_seed not in graph.seeds:
            raise ValueError(f"graph.demo_seed: {graph.demo_seed} is none of graph.seeds")
        for name, run in self.runs.items():
            for key in run.train.keys() - TrainConfig.model_fields.keys():
                raise ValueError(
                    f"runs.{name}.train: {unknown(key, TrainConfig.model_fields, 'key')}"
                )
            self.train_of(name)
        return self

    def source(self, dataset: str) -> tuple[str, Source]:
        """Kind and source of a data set.

        Raises:
            ParamsError: there is no such data set.
        """
        for kind, some in self.datasets.items():
            if dataset in some:
                return kind, some[dataset]  # pyright: ignore[reportReturnType]
        names = [name for some in self.datasets.values() for name in some]
        raise ParamsError(f"{FILE_NAME}: datasets: {unknown(dataset, names, 'data set')}")

    @property
    def phrases(self) -> Path:
        """`graph.phrases`.

        Raises:
            ParamsError: it is not given.
        """
        if self.graph.phrases is None:
            raise ParamsError(
                f"{FILE_NAME}: graph.phrases is not given; name the phrases of {self.graph.pairs}"
            )
        return self.graph.phrases

    def encoder(self, kind: Literal["image", "text", "teacher"], name: str) -> EncoderConfig:
        """Configuration of an encoder.

        Raises:
            ParamsError: there is no encoder of that name and kind.
        """
        known: dict[str, EncoderConfig] = getattr(self.encoders, kind)
        if name not in known:
            raise ParamsError(f"{FILE_NAME}: encoders.{kind}: {unknown(name, known, 'encoder')}")
        return known[name]

    def run(self, name: str) -> Run:
        """Configuration of a run.

        Raises:
            ParamsError: there is no run of that name.
        """
        if name not in self.runs:
            raise ParamsError(f"{FILE_NAME}: runs: {unknown(name, self.runs, 'run')}")
        return self.runs[name]

    def train_of(self, run: str) -> TrainConfig:
        """`train` with the values that the run has of its own."""
        own = self.runs[run].train
        common = self.train.model_dump()
        if own.keys() & {"epochs", "max_steps"}:
            common["epochs"] = common["max_steps"] = None
        return TrainConfig.model_validate({**common, **own})


def load_params(path: Path | str = FILE_NAME) -> Params:
    """Read and check ``path``.

    Raises:
        ParamsError: no such file, not YAML, an unknown key (names the nearest), or a value that
            is not allowed (names the key, what was found and what is).
    """
    path = Path(path)
    if not path.is_file():
        raise ParamsError(
            f"{path}: no such file; stages read it from the root of a Sightline repository. "
            "Change to that folder, or use the commands that take explicit paths "
            "(`sightline --help`)."
        )
    try:
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ParamsError(f"{path}: not YAML: {error}") from error
    if not isinstance(given, dict):
        raise ParamsError(f"{path}: found {type(given).__name__}, expected a mapping of sections")
    try:
        return Params.model_validate(given)
    except ValidationError as error:
        raise ParamsError(
            "\n".join(f"{path}: {line}" for line in explain(error, Params))
        ) from error
