"""The inputs of a training run, and what an earlier run of them left to resume from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cache.keys import key_of_file
from sightline.digest import digest
from sightline.encoder_folder import files_of
from sightline.errors import SightlineError
from sightline.progress import Say
from train.checkpoints import Best
from train.code_digest import code_of, objectives_of
from train.data import TrainingData
from train.evaluate.similarity import GradedPairs
from train.evaluate.sts import load_dev_set
from train.objectives import Objective, make_objective
from train.processes import Processes
from train.run_folder import RunFolder
from train.run_spec import RunSpec

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from train.model import GroundedModel


@dataclass(frozen=True)
class RunInputs:
    """The inputs of a run, checked against each other.

    Attributes:
        content: digests of what they contain.
        code: digests of the code that trains on them.
    """

    spec: RunSpec
    objective: Objective
    processes: Processes
    data: TrainingData
    dev: GradedPairs | None
    content: Mapping[str, Any]
    code: dict[str, str]

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over what determines the result: parameters and content of every input.

        The paths of inputs and result, and how often something is logged, do not change it.
        """
        return spec_digest(self.spec, self.objective, self.content)

    @classmethod
    def open(cls, spec: RunSpec, processes: Processes) -> RunInputs:
        size = spec.train.batch_size
        if size % processes.count:
            raise SightlineError(
                f"batch_size is {size}, which {processes.count} processes cannot share evenly; "
                f"give a multiple of {processes.count}, or start a different number of processes"
            )
        objective = make_objective(spec.objective, spec.parameters)
        data = TrainingData(spec, objective)
        dev = None if spec.dev is None else load_dev_set(spec.dev)
        code = code_of(objectives_of(spec.objective, spec.parameters))
        return cls(spec, objective, processes, data, dev, content_of(spec, data, dev), code)

    @cached_property
    def device(self) -> torch.device:
        """Where this process trains; a finished run needs none.

        Raises:
            SightlineError: it is not available, or has not the precision.
        """
        found = self.processes.device(self.spec.train.device)
        if self.spec.train.precision == "fp16" and found.type == "cpu":
            raise SightlineError("precision fp16 needs a GPU; on a CPU use fp32 or bf16")
        return found


def build_model(
    inputs: RunInputs, processes: Processes
) -> tuple[GroundedModel, PreTrainedTokenizerBase]:
    """The student with its heads, drawn from the global random state, and its tokenizer.

    Raises:
        SightlineError: the student cannot be loaded, or the token ids are not its tokenizer's.
    """
    from train.model import GroundedModel, check_tokenizer, load_student

    student, train, data = inputs.spec.student, inputs.spec.train, inputs.data
    encoder, tokenizer = load_student(student)
    check_tokenizer(tokenizer, encoder, data.samples, student.max_length, data.vocabulary_size)
    model = GroundedModel(
        encoder,
        inputs.objective,
        student.pooling,
        data.dims,
        precision=train.precision,
        compiled=train.compile == "on",
    )
    return model, tokenizer


def spec_digest(spec: RunSpec, objective: Objective, content: Mapping[str, Any]) -> str:
    """As `RunInputs.digest`, with the ``content`` of the inputs."""
    body: dict[str, Any] = spec.model_dump(
        mode="json",
        exclude={"out", "pairs", "text", "features", "dev", "parameters", "run"},
    )
    body["parameters"] = objective.describe()
    for name in ("logging_steps", "save_steps", "device_cache"):
        body["train"].pop(name)
    if spec.train.compile == "off":  # as before it could be on
        body["train"].pop("compile")
    if spec.train.chunk is None:  # as before chunks existed
        body["train"].pop("chunk")
    body["train"]["keep_last"] = True  # as when a run could leave its last weights out
    return digest({**body, **content})


def content_of(spec: RunSpec, data: TrainingData, dev: GradedPairs | None) -> dict[str, Any]:
    """Digests of every input of ``spec``, opened as ``data`` and ``dev``."""
    files: dict[str, Path] = {}
    if spec.pairs is not None:
        files |= {"captions": spec.pairs.captions, "images": spec.pairs.images}
    if spec.text is not None:
        files["sentences"] = spec.text.sentences
    student = Path(spec.student.model)
    if student.is_dir():
        files |= {f"student {path.relative_to(student)}": path for path in files_of(student)}
    tokens = {f"of {name}": content for name, content in data.token_digests.items()}
    if data.phrases_digest is not None:
        tokens["of phrases"] = data.phrases_digest
    return {
        "files": {name: key_of_file(path).hex() for name, path in files.items()},
        "tokens": tokens,
        "dev": None if dev is None else dev.sha256,
        "features": {
            name: [features.fingerprint, features.record.content_digest]
            for name, features in data.feature_sets.items()
        },
    }


def checkpoint_to_resume(inputs: RunInputs, folder: RunFolder, tell: Say) -> str:
    """Name of the checkpoint to resume from; empty if there is none.

    Raises:
        SightlineError: it is damaged, was made by another optimiser, or lacks the best weights.
    """
    spec, path = inputs.spec, folder.checkpoints.newest()
    if path is None:
        return ""
    progress = folder.checkpoints.read(path)
    code = digest(inputs.code)
    if (progress.digest, progress.code) == (inputs.digest, code):
        if inputs.dev is not None:
            _require_best(path, folder.best)
        tell(f"{spec.run}: resuming from {path.name}")
        return path.name
    if progress.optimizer not in ("", spec.train.optimizer):
        raise SightlineError(
            f"{path}: was made with train.optimizer {progress.optimizer}, but this run has "
            f"{spec.train.optimizer}; set {progress.optimizer} to resume, or delete "
            f"{folder.checkpoints.folder} to start over"
        )
    changed = "code" if progress.digest == inputs.digest else "parameters or inputs"
    tell(f"{spec.run}: the {changed} changed since {path}; starting over")
    return ""


def _require_best(resume: Path, best: Best) -> None:
    from train.loop import read_state

    if read_state(resume).best is not None and best.load() is None:
        raise SightlineError(
            f"{best.path}: missing or damaged, and {resume.name} was made after it; delete "
            f"{resume.parent} to train again"
        )


def paths_of(spec: RunSpec) -> list[Path]:
    """Files and folders that the run reads."""
    paths: list[Path | None] = [Path(spec.student.model), spec.dev, *spec.features.values()]
    if spec.pairs is not None:
        paths += [spec.pairs.captions, spec.pairs.images, spec.pairs.tokens, spec.pairs.phrases]
    if spec.text is not None:
        paths += [spec.text.sentences, spec.text.tokens]
    return [path for path in paths if path is not None]
