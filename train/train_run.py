"""One training run: open inputs → resume → loop → export → record."""

from __future__ import annotations

import math
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cache.prepared import hub_datasets
from sightline.devices import device_name, float32_products, has_tf32
from sightline.digest import digest
from sightline.errors import LostProcess, SightlineError, room_for
from sightline.machine.hardware import processor, versions
from sightline.machine.progress import Say, to_stderr
from train.distributed import Processes, joined
from train.evaluate.similarity import GradedPairs, evaluate_pairs
from train.export import HEADS_FILE, MODEL_FOLDER, check_export, export_heads, export_model
from train.records import FILE_NAME, FeatureUse, RunState, RunSummary
from train.run_folder import CHECKPOINTS, RunFolder
from train.run_inputs import RunInputs
from train.run_spec import RunSpec, StudentConfig, run_spec
from train.schedule import steps_on_pairs

if TYPE_CHECKING:
    import torch
    from torch import nn

    from sightline.cache import FeatureSet
    from train.embed import Embedder
    from train.loop import Callback
    from train.model import Student
    from train.objectives import Objective


def train_run(
    spec: RunSpec,
    *,
    say: Say | None = None,
    callbacks: Sequence[Callback] = (),
    track: Sequence[str] = (),
) -> RunSummary:
    """Train one objective with one seed and export the best weights.

    ``spec.out`` then holds ``model/`` (a sentence-transformers folder), ``heads.safetensors`` and
    ``run.json``, which has the whole log. While it trains, ``checkpoints/`` holds the newest
    checkpoint with the best weights so far, which go when the run is done.

    On SIGINT or SIGTERM the step is finished and a checkpoint saved before the signal takes effect.
    A stopped run resumes from its checkpoint, with the weights that an uninterrupted run would have
    (bit for bit on a CPU). A finished run of the same specification and inputs is returned
    unchanged; any other stays until the new one is done.

    Several processes started by `torchrun` or `accelerate launch` train one run together
    (`train.distributed`), and each gets its summary. Only process 0 writes and reports.

    Args:
        say: takes lines of progress; without it they go to stderr, or a bar on a terminal.
        callbacks: further callbacks of the loop, in every process.
        track: trackers that show the run, such as ``tensorboard``; see `train.tracking`.

    Raises:
        SightlineError: an input or a tracker is missing or does not match, reported before the
            model is loaded; the folder is not a run's, or its checkpoint is damaged or from another
            optimiser.
        BusyError: another run writes to the same folder.
        NonFiniteLoss: a loss or gradient became NaN or infinite.
        LostProcess: another process of the run ended; the last checkpoint is resumed from.
    """
    with joined(spec.device) as processes, ExitStack() as stack:
        is_main = processes.is_main
        tell: Say = (say or to_stderr) if is_main else lambda line: None

        # open the inputs
        inputs = RunInputs.open(spec, processes.count)
        folder = RunFolder(spec.out, inputs.files)
        shown: list[Callback] = []
        if folder.why_outdated(inputs.digest, inputs.code):
            training_device(spec, processes)  # a finished run needs none, nor PyTorch's import
            if track and is_main:
                from train.tracking import Tracking

                tracking = Tracking(track, inputs, folder.output.run_folder, tell)
                shown.append(stack.enter_context(closing(tracking)))
        starts = processes.gather_objects((inputs.digest, inputs.code))
        for rank, start in enumerate(starts):
            if start != starts[0]:
                raise SightlineError(
                    f"process {rank} was started with different parameters or inputs than process "
                    "0; start all with the same command, where they see the same files"
                )

        def claim() -> RunSummary | None:
            stack.enter_context(folder.claimed())
            finished = folder.finished(inputs.digest, inputs.code)
            if finished is not None:
                folder.output.remove_unlisted()  # if it was killed while it finished
            return finished

        finished = processes.on_main(claim)
        if finished is not None:
            tell(f"{finished.run}: already trained, nothing to do ({folder.path})")
            return finished

        # resume
        state = processes.on_main(lambda: to_resume(inputs, folder, tell)) or RunState(
            spec_digest=inputs.digest,
            code=digest(inputs.code),
            optimizer=spec.train.optimizer,
        )
        if state.processes[-1:] != (processes.count,):
            state.processes = (*state.processes, processes.count)
        device = training_device(spec, processes)
        model, embedder, pooler = build_model(inputs)

        def begin() -> None:
            of_objective = (f"warning: {line}" for line in inputs.warnings())
            for note in (*inputs.notes(device.type), *of_objective):
                tell(f"{spec.run}: {note}")
            if state.step:
                return
            if (folder.path / FILE_NAME).is_file():
                why = folder.why_outdated(inputs.digest, inputs.code)
                tell(f"{spec.run}: replacing the finished run in {spec.out}: {why}")
                tell(f"{spec.run}: that one stays until this one is done")
            folder.begin(state)

        processes.on_main(begin)

        # loop
        from train.loop import Loop
        from train.progress import ProgressReport, StopAtStep

        dev, size = inputs.dev, spec.train.eval_batch_size
        stop = StopAtStep()
        if is_main:
            shown.append(stack.enter_context(closing(ProgressReport(spec.run, say))))
        loop = Loop(
            model,
            inputs.data,
            spec.train,
            seed=spec.seed,
            device=device,
            processes=processes,
            folder=folder,
            state=state,
            dev_score=None if dev is None else lambda: dev_score(embedder, dev, size),
            callbacks=[*shown, stop, *callbacks],
        )
        if state.step:
            loop.load(folder.tensors_of(state))
        try:
            with stop, float32_products(tf32=spec.train.precision == "tf32"):
                loop.run()
        except LostProcess:
            if stop.received is not None:  # by the launcher, because of the process that was lost
                signal.raise_signal(stop.received)
            raise
        except BaseException as error:
            if stop.received is not None and not isinstance(error, Exception):
                error.add_note(_kept(inputs, folder))
            raise

        # export and record
        return processes.on_main(
            lambda: _export(inputs, folder, state, model, embedder, pooler, device)
        )


_OF_STUDENTS = StudentConfig.model_fields.keys() - {"model"}


def train_model(
    objective: Objective,
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
    device: str = "auto",
    say: Say | None = None,
    track: Sequence[str] = (),
    **settings: Any,
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
        device: `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.
        say: takes lines of progress; None: stderr, or a bar on a terminal.
        track: trackers that show the run, such as ``tensorboard``.
        settings: as under `train` and `student` in params.yaml, such as ``learning_rate``,
            ``max_steps`` (3 epochs by default), ``pooling`` or ``layers``.

    Raises:
        SightlineError: an unknown or invalid parameter; or as `train_run`.
    """
    encoder = {"model": str(student)}
    encoder |= {name: settings.pop(name) for name in [*settings] if name in _OF_STUDENTS}
    spec = run_spec(
        out=out,
        tokens=tokens,
        pairs=pairs,
        sentences=sentences,
        phrases=phrases,
        objective=objective.name,
        parameters=objective.describe(),
        student=encoder,
        train=settings,
        features={name: opened.path for name, opened in (features or {}).items()},
        dev=dev,
        seed=seed,
        device=device,
    )
    return train_run(spec, say=say, track=track)


@dataclass(frozen=True)
class StepsToDo:
    """What a run still has to do.

    Attributes:
        out: its folder.
        done, to_do: optimiser steps that are kept, and that are not.
    """

    out: str
    done: int
    to_do: int

    def __str__(self) -> str:
        return f"{self.out}: {self.done:,} steps there, {self.to_do:,} to do"


def steps_to_do(spec: RunSpec) -> StepsToDo:
    """What `train_run` would do, once its inputs are checked; nothing is written."""
    inputs = RunInputs.open(spec)
    folder = RunFolder(spec.out, inputs.files)
    folder.output.check_place()
    finished = folder.finished(inputs.digest, inputs.code)
    if finished is not None:
        return StepsToDo(spec.out.as_posix(), finished.steps, 0)
    state = to_resume(inputs, folder, to_stderr)
    done = state.step if state else 0
    return StepsToDo(spec.out.as_posix(), done, inputs.steps - done)


def training_device(spec: RunSpec, processes: Processes) -> torch.device:
    """Where this process trains."""
    device = processes.device(spec.device)
    if spec.train.precision == "fp16" and device.type == "cpu":
        raise SightlineError("precision fp16 needs a GPU; on a CPU use fp32 or bf16")
    if spec.train.precision == "tf32" and not has_tf32(device):
        raise SightlineError(
            "precision tf32 needs an NVIDIA GPU of compute capability 8.0 or higher, but this run "
            f"computes on {device_name(device)}; use fp32"
        )
    return device


def to_resume(inputs: RunInputs, folder: RunFolder, tell: Say) -> RunState | None:
    """The state of the checkpoint to resume from, or None if there is none of these inputs."""
    state, run, optimizer = folder.state(), inputs.spec.run, inputs.spec.train.optimizer
    if state is None or not state.step:
        return None
    if (state.spec_digest, state.code) == (inputs.digest, digest(inputs.code)):
        folder.check(state)
        tell(f"{run}: resuming after step {state.step:,}")
        return state
    if state.optimizer != optimizer:
        raise SightlineError(
            f"{folder.path}: its checkpoint was made with train.optimizer {state.optimizer}, but "
            f"this run has {optimizer}; set {state.optimizer} to resume, or delete "
            f"{folder.path / CHECKPOINTS} to start over"
        )
    changed = "code" if state.spec_digest == inputs.digest else "parameters or inputs"
    tell(f"{run}: the {changed} changed since the checkpoint of step {state.step:,}; starting over")
    return None


def build_model(inputs: RunInputs) -> tuple[Student, Embedder, nn.Module | None]:
    """The student with its heads, drawn from the seed; its encoder, and the pooler set aside."""
    import torch

    from train.model import Student
    from train.student import check_dev, check_tokens, load_student

    spec, train, data = inputs.spec, inputs.spec.train, inputs.data
    torch.manual_seed(spec.seed)
    embedder, pooler = load_student(spec.student)
    check_tokens(embedder, spec.student, data.tokens)
    if inputs.dev is not None and spec.dev is not None:
        check_dev(embedder, inputs.dev, spec.dev)
    model = Student(
        embedder.model,
        inputs.objective,
        inputs.pooling,
        data.dims,
        precision=train.precision,
        compiled=train.compile == "on",
    )
    return model, embedder, pooler


def dev_score(embedder: Embedder, pairs: GradedPairs, batch_size: int) -> float:
    """Spearman × 100 of ``pairs``, which picks the best weights; NaN if it is not defined."""
    result = evaluate_pairs(lambda texts: embedder.encode(texts, batch_size=batch_size), pairs)
    return math.nan if result.spearman is None else result.spearman


def _kept(inputs: RunInputs, folder: RunFolder) -> str:
    state, run = folder.state(), inputs.spec.run
    if state is None or not state.step:
        return f"{run}: no step was finished; rerun the same command"
    kept = f"{run}: step {state.step:,} of {state.steps:,} is kept"
    return f"{kept}; rerun the same command to resume"


def _export(
    inputs: RunInputs,
    folder: RunFolder,
    state: RunState,
    model: Student,
    embedder: Embedder,
    pooler: nn.Module | None,
    device: torch.device,
) -> RunSummary:
    """Write the best weights, the heads and the record of the run."""
    from safetensors.torch import load_file

    from sightline.models.pretrained import quiet
    from train.card import model_card

    if state.best_step is not None:
        (best,) = state.best_tensors
        model.load_trainable_state_dict(load_file(folder.path / best))
    results = folder.scratch / "results"
    results.mkdir()
    trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
    summary = _summary(inputs, state, trained, device)
    card = model_card(summary, inputs.objective.source, inputs.pooling)
    with room_for("the model", folder.path):
        with quiet():
            export_model(results / MODEL_FOLDER, embedder, card, inputs.recipe, pooler)
            check_export(results / MODEL_FOLDER, embedder)
        export_heads(results / HEADS_FILE, model.objective.heads)
        return folder.finish(summary, results)


def _summary(
    inputs: RunInputs, state: RunState, parameters: int, device: torch.device
) -> RunSummary:
    spec, data, seconds = inputs.spec, inputs.data, state.seconds
    data_sets = [folder for folder in (spec.pairs, spec.sentences) if folder is not None]
    return RunSummary(
        **spec.model_dump(mode="json", include={"run", "objective", "seed", "train"}),
        parameters=inputs.objective.describe(),
        student={
            **spec.student.model_dump(mode="json"),
            "pooling": inputs.pooling,
            "prompt": inputs.recipe.prompt,
        },
        data=data.source,
        dropped_pairs=data.dropped_pairs,
        dropped_phrases=data.dropped_phrases,
        features={name: FeatureUse.of_set(used) for name, used in data.feature_sets.items()},
        base_model="" if Path(spec.student.model).is_dir() else spec.student.model,
        licence=inputs.licence.licence,
        licence_name=inputs.licence.name,
        licence_link=inputs.licence.link,
        pinned=inputs.student,
        hub_datasets=hub_datasets(data_sets),
        dev=None if inputs.dev is None else inputs.dev.name,
        dev_sha256="" if inputs.dev is None else inputs.dev.sha256,
        steps=state.step,
        steps_on_pairs=steps_on_pairs(spec.train, data.schedule, state.step),
        sentences_per_second=state.sentences / seconds if seconds else 0.0,
        trained_parameters=parameters,
        device=device_name(device),
        processor=processor().model if device.type == "cpu" else "",
        precision=spec.train.precision,
        versions=versions(),
        spec_digest=inputs.digest,
        code=inputs.code,
        **state.reached,
    )
