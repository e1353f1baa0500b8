"""What a run records of itself: the state in its checkpoint, and run.json when it is done."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from sightline.cache import FeatureSet, key_of_file
from sightline.cache.record import Doubt
from sightline.digest import Pinned, digest
from sightline.errors import SightlineError
from sightline.user_files import read_json
from train.run_spec import OF_THE_MACHINE

FILE_NAME = "run.json"
SCHEMA = "sightline.run/1"
DEV = "dev"
"""The dev score (Spearman's ρ × 100), in the log of a run."""


def digest_of_run(folder: Path) -> str:
    """SHA-256 (hex) of run.json, which every training rewrites."""
    return key_of_file(folder / FILE_NAME).hex()


class FeatureUse(BaseModel):
    """A feature set that a run learned from.

    Attributes:
        name: `<dataset>/<kind>/<encoder>`, as under data/features.
        encoder: architecture; `source`: where its weights came from.
        untrained: its weights are random; every table says so.
        provenance: who computed the rows, as `sightline.cache.record.Provenance` says it.
        doubt: about imported rows that were not recomputed, or not with the same result; every
            table says so.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    encoder: str
    source: str
    revision: str = ""
    weights_sha256: str
    fingerprint: str
    content_digest: str = ""
    dim: int
    rows: int
    untrained: bool
    provenance: str = "computed here"
    doubt: Doubt = ""

    @classmethod
    def of_set(cls, features: FeatureSet) -> FeatureUse:
        """From an open feature set: `<dataset>/<kind>/<encoder>` in that layout, else its name."""
        record, places = features.record, features.path.parts
        in_layout = len(places) > 2 and places[-2] == record.spec.kind
        encoder = record.spec.encoder
        return cls(
            name="/".join(places[-3:] if in_layout else places[-1:]),
            encoder=encoder.name,
            source=encoder.source,
            revision=encoder.revision,
            weights_sha256=encoder.weights_sha256,
            fingerprint=record.fingerprint,
            content_digest=record.content_digest,
            dim=record.spec.dim,
            rows=record.rows,
            untrained=encoder.untrained,
            provenance=str(record.provenance),
            doubt=record.provenance.doubt,
        )


class RunProgress(BaseModel):
    """What a run has done so far, and has done in the end.

    Attributes:
        log: entries of the training loop, each with its ``step``: means since the last one, or the
            dev score.
        best_step: step whose weights are the best by the dev score; None without a dev set.
        stopped_early: the early stop ended the run.
        seconds: spent in training steps, without dev scores and checkpoints.
        saving_seconds: spent in writing checkpoints and best weights.
        sentences: rows trained on.
        peak_memory: peak bytes, see `sightline.devices.peak_memory`.
        processes: how many trained it; several numbers if it was resumed with a different number
            of them.
    """

    log: list[dict[str, float]] = []
    best_step: int | None
    stopped_early: bool
    seconds: float
    saving_seconds: float = 0.0
    sentences: int
    peak_memory: dict[str, int] = {}
    processes: tuple[int, ...] = ()

    @property
    def reached(self) -> dict[str, Any]:
        """These fields, for the record of the finished run."""
        return {name: getattr(self, name) for name in RunProgress.model_fields}


class RunState(RunProgress):
    """How far a run is: all that its checkpoint records besides tensors.

    Attributes:
        spec_digest, code: digests of the run and of the code that trains it (`train.run_inputs`).
        optimizer: its `train.optimizer`.
        steps: optimiser steps of the whole run.
        step: those that are done.
        best: dev score of the best weights, or None; `best_tensors`: their file → its BLAKE3.
        tensors: file of the checkpoint → its BLAKE3.
        should_stop: end after this step, with a checkpoint; a callback may set it, in any process.
        signal: number of the signal that asked for it, or 0; the same in all processes.
    """

    model_config = ConfigDict(extra="forbid")

    schema_: Literal["sightline.checkpoint/2"] = Field(
        default="sightline.checkpoint/2", alias="schema"
    )

    spec_digest: str = ""
    code: str = ""
    optimizer: str = ""
    steps: int = 0
    step: int = 0
    # where a run starts; the record of a finished one has to name them
    best_step: int | None = None
    stopped_early: bool = False
    seconds: float = 0.0
    sentences: int = 0
    best: float | None = None
    best_tensors: dict[str, str] = {}
    tensors: dict[str, str] = {}
    should_stop: bool = Field(default=False, exclude=True)
    signal: int = Field(default=0, exclude=True)


class RunSummary(RunProgress):
    """One finished run; `best_step` is that of the exported weights.

    Attributes:
        spec_digest: SHA-256 over the specification and the content of every input.
        code: module → digest of its syntax tree, for every module that trained it
            (`train.code_digest`).
        accepted_code: digests of later states of that code, accepted as not changing the results
            (`sightline accept`).
        data: stream → where it was read from.
        dropped_pairs, dropped_phrases: left out, as their image or object could not be extracted.
        base_model: name of the student on the hub; empty for a folder.
        licence, licence_name, licence_link: of the student, as its model card says
            (`sightline.models.sentence_transformers_folder.Licence`); empty: not known.
        pinned: commit of the student on the hub, and digests of its files.
        hub_datasets: names on the hub of the data that it was trained on, where they are known.
        dev: name of the dev set, or None.
        dev_sha256: digest of its pairs.
        steps: optimiser steps done; fewer than planned after an early stop.
        steps_on_pairs: those of them that had a batch of pairs; the others had sentences alone.
        trained_parameters: of encoder and heads.
        device, precision: used for training.
        versions: package → version that trained it.
        processor: model of the CPU, where it was the device.
        files: what the run left beside this file, by name.
    """

    # a field that is no longer written does not make a finished run unreadable
    model_config = ConfigDict(extra="ignore", frozen=True, populate_by_name=True)

    schema_: Literal["sightline.run/1"] = Field(default=SCHEMA, alias="schema")

    run: str
    objective: str
    seed: int
    parameters: dict[str, Any]
    student: dict[str, Any]
    train: dict[str, Any]
    data: dict[str, str]
    dropped_pairs: int
    dropped_phrases: int = 0
    features: dict[str, FeatureUse]
    base_model: str = ""
    licence: str | tuple[str, ...] = ""
    licence_name: str = ""
    licence_link: str = ""
    pinned: Pinned = Pinned()
    hub_datasets: tuple[str, ...] = ()
    dev: str | None
    dev_sha256: str = ""
    steps: int
    steps_on_pairs: int = 0
    sentences_per_second: float
    trained_parameters: int = 0
    device: str = ""
    processor: str = ""
    precision: str = ""
    versions: dict[str, str] = {}
    spec_digest: str
    code: dict[str, str]
    accepted_code: tuple[str, ...] = ()
    files: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _student_is_named(self) -> RunSummary:
        for name in ("name", "model", "pooling"):
            if not isinstance(self.student.get(name), str):
                raise ValueError(f"student has no {name}")
        return self

    @model_validator(mode="after")
    def _log_has_the_best_step(self) -> RunSummary:
        # a report keeps summaries without their logs
        if self.log and self.best_step is not None and self.best_dev is None:
            raise ValueError(f"best_step is {self.best_step}, of which the log has no {DEV} score")
        return self

    def curve(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of the entry ``name`` of the log, in the order of the steps."""
        return [(int(entry["step"]), entry[name]) for entry in self.log if name in entry]

    @property
    def data_sets(self) -> dict[str, str]:
        """Stream → name of its data set, the folder of its manifests."""
        names = {}
        for stream, source in self.data.items():
            places = map(Path, source.split(", "))
            folders = [place.parent if place.suffix == ".parquet" else place for place in places]
            names[stream] = ", ".join(dict.fromkeys(folder.name for folder in folders))
        return names

    @property
    def dev_history(self) -> list[tuple[int, float]]:
        """(step, Spearman × 100) of every dev score."""
        return self.curve(DEV)

    @property
    def best_dev(self) -> float | None:
        """Dev score of the exported weights; None without a dev set."""
        return None if self.best_step is None else dict(self.dev_history).get(self.best_step)

    @property
    def peak_memory_bytes(self) -> int | None:
        """Peak memory of the GPU if there was one, otherwise of the process."""
        return self.peak_memory.get("device", self.peak_memory.get("host"))

    def missing(self, folder: Path) -> list[str]:
        """Those of its files, but the model's card, that are no longer in its ``folder``."""
        names = [name for name in self.files if Path(name).name != "README.md"]
        return [name for name in names if not (folder / name).is_file()]

    def is_of(self, code: Mapping[str, str]) -> bool:
        """Whether ``code`` trained it, or is accepted as equivalent."""
        return self.code == dict(code) or digest(dict(code)) in self.accepted_code

    def is_seed_of(self, other: RunSummary) -> bool:
        """Whether both are of one training but for the seed."""
        return self._settings == other._settings

    @property
    def _settings(self) -> tuple[object, ...]:
        """What the seeds of one training share."""
        student = {name: value for name, value in self.student.items() if name != "model"}
        train = {name: value for name, value in self.train.items() if name not in OF_THE_MACHINE}
        features = {name: use.fingerprint for name, use in self.features.items()}
        settings = self.objective, self.parameters, student, self.pinned, train
        return (*settings, self.data_sets, features)

    def to_bytes(self) -> bytes:
        """The content of ``run.json``."""
        body = self.model_dump(mode="json", by_alias=True)
        last = {name: body.pop(name) for name in RunProgress.model_fields}  # the log is long
        return (json.dumps({**body, **last}, indent=2, ensure_ascii=False) + "\n").encode()

    @classmethod
    def read(cls, folder: Path) -> RunSummary:
        """The finished run in ``folder``.

        Raises:
            SightlineError: there is none, or it is from another version.
        """
        file = folder / FILE_NAME
        if not file.is_file():
            raise SightlineError(f"{folder}: no finished run here (no {FILE_NAME}); train it first")
        expected = "a run of this version; train it again, or use the version that wrote it"
        return read_json(file, TypeAdapter(cls), expected)

    def __str__(self) -> str:
        parts = [f"{self.run}, seed {self.seed}: {self.steps:,} steps"]
        if self.features:
            parts.append(f"{self.steps_on_pairs:,} of {self.steps:,} steps on pairs")
        parts.append(f"{self.seconds:.0f} s ({self.sentences_per_second:,.0f} sentences/s)")
        if self.best_dev is not None:
            parts.append(f"best dev score {self.best_dev:.2f} at step {self.best_step:,}")
        if any(used.untrained for used in self.features.values()):
            parts.append("features from untrained weights")
        doubts = dict.fromkeys(used.doubt for used in self.features.values() if used.doubt)
        parts += [f"features {doubt}" for doubt in doubts]
        return " · ".join(parts)
