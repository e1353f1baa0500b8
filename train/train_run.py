"""One training run, from explicit paths to an exported model; resumes where it was stopped."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sightline.devices import device_name
from sightline.digest import digest
from sightline.errors import SightlineError
from sightline.hardware import cpu_warning, processor
from sightline.hub_datasets import hub_datasets
from sightline.progress import Say, to_stderr
from train.checkpoints import Best, Checkpoints, Progress, step_of
from train.data import first_paired
from train.export import HEADS_FILE, MODEL_FOLDER, export_heads, export_model
from train.feature_use import FeatureUse
from train.processes import ARRIVAL_LIMIT, Processes
from train.run_folder import RunFolder
from train.run_inputs import (
    RunInputs,
    build_model,
    checkpoint_to_resume,
    paths_of,
)
from train.run_spec import RunSpec
from train.run_summary import RunSummary

if TYPE_CHECKING:
    from train.loop import Callback, LoopState
    from train.model import GroundedModel


def train_run(
    spec: RunSpec, *, say: Say | None = None, callbacks: list[Callback] | None = None
) -> RunSummary:
    """Train one objective with one seed and export the best weights.

    ``spec.out`` then holds ``model/`` (a sentence-transformers folder), ``heads.safetensors`` and
    ``run.json``, which has the whole log. While it trains, ``checkpoints/`` holds the newest
    checkpoint and ``best.safetensors`` the best weights; both go when the run is done.

    On SIGINT or SIGTERM the step is finished and a checkpoint saved before the signal takes effect.
    A stopped run resumes from its checkpoint, with the weights that an uninterrupted run would have
    (bit for bit on a CPU). A finished run of the same specification and inputs is returned
    unchanged; any other is replaced, once everything that the new one needs is loaded.

    Several processes started by `torchrun` or `accelerate launch` train one run together
    (`train.processes`), and each gets its summary. Only process 0 writes and reports.

    Args:
        say: takes lines of progress; without it they go to stderr, or a bar on a terminal.
        callbacks: further callbacks of the loop, in every process.

    Raises:
        SightlineError: an input is missing or does not match, reported before the model is loaded;
            the folder is not a run's, or its checkpoint is damaged or from another optimiser.
        BusyError: another run writes to the same folder.
        NonFiniteLoss: a loss or gradient became NaN or infinite.
        LostProcess: another process of the run ended; the last checkpoint is resumed from.
        SaidElsewhere: in the other processes, whatever one of them raises.
    """
    with Processes.joined(spec.train.device, ARRIVAL_LIMIT) as processes:
        inputs = processes.together(lambda: RunInputs.open(spec, processes))
        _require_one_run(processes, digest([inputs.digest, inputs.code]))
        folder = RunFolder(spec.out, paths_of(spec))
        tell = (say or to_stderr) if processes.main else _nobody
        # a finished run needs no device, and not the seconds in which PyTorch is imported
        if processes.count > 1 or not folder.finished(inputs.digest, inputs.code):
            processes.together(lambda: inputs.device)
        with ExitStack() as stack:
            made = processes.together(lambda: _claimed(stack, folder, processes))
            text = processes.from_main(lambda: _finished(folder, inputs, tell))
            if not text:
                text = _run(inputs, folder, made, processes, say, callbacks or [])
            return RunSummary.model_validate_json(text)


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
    """What `train_run` would do, once its inputs are checked; nothing is written.

    Raises:
        SightlineError: as `train_run` before it trains.
    """
    from train.loop import micro_batches, read_state

    inputs = RunInputs.open(spec, Processes())
    folder = RunFolder(spec.out, paths_of(spec))
    folder.output.check_place()
    finished = folder.finished(inputs.digest, inputs.code)
    if finished is not None:
        return StepsToDo(spec.out.as_posix(), finished.steps, 0)
    steps = -(-micro_batches(spec.train, inputs.data) // spec.train.gradient_accumulation)
    name = checkpoint_to_resume(inputs, folder, to_stderr)
    done = read_state(folder.checkpoints.folder / name).step if name else 0
    return StepsToDo(spec.out.as_posix(), done, steps - done)


def _nobody(line: str) -> None:
    """Discards progress lines, in every process but 0."""


def _claimed(stack: ExitStack, folder: RunFolder, processes: Processes) -> Path | None:
    return stack.enter_context(folder.claimed()) if processes.main else None


def _finished(folder: RunFolder, inputs: RunInputs, tell: Say) -> str:
    """The summary of the finished run of these inputs, as JSON; empty if there is none."""
    finished = folder.finished(inputs.digest, inputs.code)
    if finished is None:
        return ""
    folder.tidy()
    tell(f"{finished.run}: already trained, nothing to do ({folder.path})")
    return finished.model_dump_json(by_alias=True)


def _require_one_run(processes: Processes, digest: str) -> None:
    """Refuse processes with different parameters or inputs."""
    found = processes.exchange(digest)

    def check() -> None:
        for rank, other in enumerate(found):
            if other != found[0]:
                raise SightlineError(
                    f"process {rank} was started with different parameters or inputs than process "
                    "0; start all with the same command, where they see the same files"
                )

    processes.together(check)


def _run(
    inputs: RunInputs,
    folder: RunFolder,
    made: Path | None,
    processes: Processes,
    say: Say | None,
    callbacks: list[Callback],
) -> str:
    """Train and export; the summary as JSON, in every process.

    Args:
        made: process 0's folder for work in progress.
    """
    import torch

    from sightline.loading import quiet
    from train.callbacks import ProgressReport
    from train.card import model_card
    from train.embed import Embedder
    from train.loop import Loop
    from train.selection import dev_score
    from train.stop import StopAtStep

    tell = (say or to_stderr) if processes.main else _nobody
    spec, data, dev = inputs.spec, inputs.data, inputs.dev
    found = processes.from_main(lambda: checkpoint_to_resume(inputs, folder, tell))
    resume, progress = processes.together(lambda: _progress(inputs, folder, found))
    if progress.processes[-1:] != [processes.count]:
        progress.processes.append(processes.count)
    processes.from_main(lambda: _warn(inputs, tell))

    torch.manual_seed(spec.seed)  # before the heads are drawn
    model, tokenizer = processes.together(lambda: build_model(inputs, processes))
    embedder = Embedder(model.encoder, tokenizer, spec.student.pooling)
    processes.from_main(lambda: _begin(inputs, folder, resume, tell))
    size = spec.train.eval_batch_size
    shown = [ProgressReport(spec.run, say)] if processes.main else []
    stop = StopAtStep()
    loop = Loop(
        model,
        data,
        spec.train,
        seed=spec.seed,
        device=inputs.device,
        processes=processes,
        checkpoints=folder.checkpoints,
        best=folder.best,
        progress=progress,
        dev_score=None if dev is None else lambda: dev_score(embedder, dev, size),
        callbacks=[*shown, stop, *callbacks],
    )
    try:
        with stop:
            state = loop.run(resume)
    except BaseException as error:
        if stop.asked is not None and not isinstance(error, Exception):
            error.add_note(_kept(spec.run, folder.checkpoints, loop.state.steps))
        raise
    finally:
        for each in shown:
            each.close()

    def finish() -> str:
        assert made is not None
        results = made / "results"
        results.mkdir()
        best_step = None if dev is None else _load_best(model, folder.best)
        trained = sum(each.numel() for each in model.parameters())
        summary = _summarise(inputs, state, progress, best_step, trained)
        card = model_card(summary, inputs.objective.source, spec.student.pooling)
        with quiet():
            folder_of_model = results / MODEL_FOLDER
            export_model(folder_of_model, model.encoder, tokenizer, spec.student.pooling, card)
        export_heads(results / HEADS_FILE, model.heads)
        return folder.finish(summary, results).model_dump_json(by_alias=True)

    return processes.from_main(finish)


def _warn(inputs: RunInputs, tell: Say) -> str:
    from train.loop import micro_batches

    spec, data = inputs.spec, inputs.data
    if warning := cpu_warning(inputs.device.type):
        tell(f"{spec.run}: warning: {warning}")
    if data.dropped_pairs:
        tell(f"{spec.run}: {data.dropped_pairs} pairs left out: their images were not extracted")
    for line in inputs.objective.warnings(first_paired(data, micro_batches(spec.train, data))):
        tell(f"{spec.run}: warning: {line}")
    return ""


def _begin(inputs: RunInputs, folder: RunFolder, resume: Path | None, tell: Say) -> str:
    """Remove what is not from this run."""
    spec = inputs.spec
    before = RunSummary.load(folder.path)
    if resume is None and folder.begin():
        why = "this version cannot read it"
        if before is not None:
            why = folder.outdated(before, inputs.digest, inputs.code)
        tell(f"{spec.run}: replacing the finished run in {spec.out}: {why}")
    return ""


def _manifests(spec: RunSpec) -> list[Path]:
    pairs = [] if spec.pairs is None else [spec.pairs.captions]
    return pairs if spec.text is None else [*pairs, spec.text.sentences]


def _progress(
    inputs: RunInputs, folder: RunFolder, checkpoint: str
) -> tuple[Path | None, Progress]:
    """The checkpoint that process 0 found, and the run's progress; a new run without one."""
    optimizer = inputs.spec.train.optimizer
    if not checkpoint:
        code = digest(inputs.code)
        return None, Progress(inputs.digest, code, processes=[], optimizer=optimizer)
    path = folder.checkpoints.folder / checkpoint
    if not path.is_dir():
        raise SightlineError(
            f"{path}: process 0 resumes from this checkpoint, but this process cannot see it; "
            "put the run's folder where all processes can see it"
        )
    progress = folder.checkpoints.read(path)
    progress.optimizer = optimizer
    return path, progress


def _kept(run: str, checkpoints: Checkpoints, steps: int) -> str:
    found = checkpoints.newest()
    if found is None:
        return f"{run}: no step was finished; rerun the same command"
    step = step_of(found)
    return f"{run}: step {step:,} of {steps:,} is kept; rerun the same command to resume"


def _load_best(model: GroundedModel, best: Best) -> int:
    found = best.load()
    if found is None:
        raise SightlineError(f"{best.path}: the best weights are missing; run it again")
    weights, step = found
    model.load_state_dict(weights)
    return step


def _summarise(
    inputs: RunInputs,
    state: LoopState,
    progress: Progress,
    best_step: int | None,
    parameters: int,
) -> RunSummary:
    spec, data, seconds = inputs.spec, inputs.data, progress.seconds
    return RunSummary(
        run=spec.run,
        objective=spec.objective,
        seed=spec.seed,
        parameters=inputs.objective.describe(),
        student=spec.student.model_dump(mode="json"),
        train=spec.train.model_dump(mode="json"),
        data=data.source,
        dropped_pairs=data.dropped_pairs,
        features={name: FeatureUse.of_set(used) for name, used in data.feature_sets.items()},
        base_model="" if Path(spec.student.model).is_dir() else spec.student.model,
        hub_datasets=hub_datasets(path.parent for path in _manifests(spec)),
        dev=None if inputs.dev is None else inputs.dev.name,
        dev_sha256="" if inputs.dev is None else inputs.dev.sha256,
        log=state.log,
        best_step=best_step,
        steps=state.step,
        stopped_early=progress.stopped_early,
        sentences=progress.sentences,
        seconds=seconds,
        sentences_per_second=progress.sentences / seconds if seconds else 0.0,
        peak_memory=progress.peak_memory,
        trained_parameters=parameters,
        negatives_per_anchor=spec.train.batch_size - 1,
        processes=tuple(progress.processes),
        device=device_name(inputs.device),
        processor=processor().model if inputs.device.type == "cpu" else "",
        precision=spec.train.precision,
        spec_digest=inputs.digest,
        code=inputs.code,
    )
