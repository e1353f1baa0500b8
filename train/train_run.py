"""One training run, from explicit paths to an exported model; resumes where it was stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from pipeline.cache.keys import key_of_file
from sightline.devices import device_name
from sightline.digest import digest
from sightline.encoder_folder import files_of
from sightline.errors import BusyError, SaidElsewhere, SightlineError
from sightline.hub_datasets import hub_datasets
from sightline.silenced_libraries import quiet
from train.callbacks import ProgressReport, Say, to_stderr
from train.card import model_card
from train.checkpoints import Best, Checkpoints, Progress, step_of
from train.code_digest import code_of
from train.data import TrainingData, first_paired
from train.embed import Embedder
from train.evaluate.similarity import GradedPairs
from train.evaluate.sts import load_dev_set
from train.export import (
    HEADS_FILE,
    LAST_FILE,
    MODEL_FOLDER,
    check_exportable,
    export_heads,
    export_last,
    export_model,
)
from train.feature_use import FeatureUse
from train.gradient_cache import chunks_of
from train.loop import Callback, Loop, LoopState, micro_batches, read_state
from train.model import GroundedModel, check_tokenizer, load_student
from train.objective_registry import modules_of
from train.objectives import Objective, make_objective
from train.precision_probe import probed
from train.probe_record import PrecisionProbe
from train.processes import ARRIVAL_LIMIT, LostProcess, Processes
from train.run_folder import RunFolder
from train.run_spec import AUTO, Precision, RunSpec
from train.run_summary import RunSummary
from train.selection import dev_score
from train.stop import StopAtStep


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
        LostProcess: another process of the run ended; the last step is kept.
        SaidElsewhere: in the other processes, whatever one of them raises.
    """
    stop = StopAtStep()
    try:
        with Processes.joined(spec.train.device, ARRIVAL_LIMIT) as processes:
            inputs = processes.together(lambda: _Inputs.open(spec, processes))
            _require_one_run(processes, digest([inputs.digest, inputs.code]))
            folder = RunFolder(spec.out, _paths(spec), 0.0 if processes.main else _PATIENCE)
            tell = (say or to_stderr) if processes.main else _nobody
            if spec.train.precision == AUTO:
                inputs = _with_precision(inputs, folder, processes, tell)
            with ExitStack() as stack:
                made = processes.together(lambda: _claimed(stack, folder, processes))
                text = processes.from_main(lambda: _finished(folder, inputs, tell))
                if not text:
                    text = _run(inputs, folder, made, processes, stop, say, callbacks or [])
                return RunSummary.model_validate_json(text)
    finally:
        stop.restore()


_PATIENCE = 2.0
"""Seconds for the system to release the lock of a process 0 that was killed."""


def _nobody(line: str) -> None:
    """Discards progress lines, in every process but 0."""


def _claimed(stack: ExitStack, folder: RunFolder, processes: Processes) -> Path | None:
    return stack.enter_context(folder.claimed()) if processes.main else None


def _finished(folder: RunFolder, inputs: _Inputs, tell: Say) -> str:
    """The summary of the finished run of these inputs, as JSON; empty if there is none."""
    finished = folder.finished(inputs.digest, inputs.code)
    if finished is None:
        return ""
    folder.tidy(finished)
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


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a run, checked against each other, their digest, and that of the code."""

    spec: RunSpec
    objective: Objective
    device: torch.device
    data: TrainingData
    dev: GradedPairs | None
    digest: str
    code: dict[str, str]
    precision_probe: PrecisionProbe | None = None

    def of_probe(self, probe: PrecisionProbe) -> _Inputs:
        """The same with the precision that a probe chose; the digest is that of asking for it."""
        train = self.spec.train.model_copy(update={"precision": probe.choice})
        spec = self.spec.model_copy(update={"train": train})
        digest = spec_digest(spec, self.objective, self.data, self.dev)
        return replace(self, spec=spec, digest=digest, precision_probe=probe)

    @classmethod
    def open(cls, spec: RunSpec, processes: Processes) -> _Inputs:
        size = spec.train.batch_size
        if size % processes.count:
            raise SightlineError(
                f"batch_size is {size}, which {processes.count} processes cannot share evenly; "
                f"give a multiple of {processes.count}, or start a different number of processes"
            )
        objective = make_objective(spec.objective, spec.parameters)
        check_exportable(spec.student.pooling)
        device = processes.device(spec.train.device)
        if spec.train.precision == "fp16" and device.type == "cpu":
            raise SightlineError("precision fp16 needs a GPU; on a CPU use fp32 or bf16")
        data = TrainingData(spec, objective)
        dev = None if spec.dev is None else load_dev_set(spec.dev)
        code = code_of(modules_of(spec.objective, spec.parameters))
        digest = spec_digest(spec, objective, data, dev)
        return cls(spec, objective, device, data, dev, digest, code)


def _with_precision(inputs: _Inputs, folder: RunFolder, processes: Processes, tell: Say) -> _Inputs:
    """``inputs`` with the precision of the finished or begun run that they are of, or a new one."""

    def chosen() -> str:
        for probe in _earlier_probes(folder):
            begun = folder.checkpoints.newest()
            same = inputs.of_probe(probe).digest
            finished = RunSummary.load(folder.path)
            if (finished is not None and finished.spec_digest == same) or (
                begun is not None and folder.checkpoints.read(begun).digest == same
            ):
                return probe.model_dump_json()
        rows = _rows_at_once(inputs.spec, processes)
        return probed(inputs.spec, inputs.data, inputs.device, rows).model_dump_json()

    probe = PrecisionProbe.model_validate_json(processes.from_main(chosen))
    tell(f"{inputs.spec.run}: precision auto: {probe}")
    return inputs.of_probe(probe)


def _earlier_probes(folder: RunFolder) -> Iterator[PrecisionProbe]:
    """What the runs in ``folder`` measured."""
    finished = RunSummary.load(folder.path)
    if finished is not None and finished.precision_probe is not None:
        yield finished.precision_probe
    newest = folder.checkpoints.newest()
    if newest is not None and (text := folder.checkpoints.read(newest).precision_probe):
        yield PrecisionProbe.model_validate_json(text)


def _run(
    inputs: _Inputs,
    folder: RunFolder,
    made: Path | None,
    processes: Processes,
    stop: StopAtStep,
    say: Say | None,
    callbacks: list[Callback],
) -> str:
    """Train and export; the summary as JSON, in every process.

    Args:
        made: process 0's folder for work in progress.
        stop: holds signals back from code that they would interrupt.
    """
    tell = (say or to_stderr) if processes.main else _nobody
    spec, objective, data, dev = inputs.spec, inputs.objective, inputs.data, inputs.dev
    found = processes.from_main(lambda: _checkpoint_to_resume(spec, inputs, folder, tell))
    resume, progress = processes.together(lambda: _progress(spec, inputs, folder, found))
    if progress.processes[-1:] != [processes.count]:
        progress.processes.append(processes.count)
    processes.from_main(lambda: _warn(spec, objective, data, tell))

    torch.manual_seed(spec.seed)  # before the heads are drawn
    encoder, tokenizer = processes.together(lambda: _student(spec, data))
    model = GroundedModel(
        encoder,
        objective,
        spec.student.pooling,
        data.dims,
        precision=_settled(spec.train.precision),
        compiled_rows=_rows_at_once(spec, processes) if spec.train.compile == "on" else None,
    )
    embedder = Embedder(encoder, tokenizer, spec.student.pooling)
    processes.from_main(lambda: _begin(spec, inputs, folder, resume, tell))
    size = spec.train.eval_batch_size
    shown = [ProgressReport(spec.run, say)] if processes.main else []
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
            try:
                state = loop.run(resume)
            except LostProcess as error:
                stop.hold()
                processes.leave()
                raise _lost(spec, folder, loop, processes, error) from error
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
        best_step = None
        if dev is not None:
            if spec.train.keep_last and folder.best.step != state.step:
                export_last(results / LAST_FILE, encoder)
            best_step = _load_best(model, folder.best)
        trained = sum(each.numel() for each in model.parameters())
        summary = _summarise(spec, inputs, state, progress, best_step, trained)
        card = model_card(summary, objective.source, spec.student.pooling)
        with quiet():
            export_model(results / MODEL_FOLDER, encoder, tokenizer, spec.student.pooling, card)
        export_heads(results / HEADS_FILE, model.heads)
        return folder.finish(summary, results).model_dump_json(by_alias=True)

    return processes.from_main(finish)


def _settled(precision: Precision | Literal["auto"]) -> Precision:
    assert precision != AUTO
    return precision


def _rows_at_once(spec: RunSpec, processes: Processes) -> int:
    """Rows that the encoder gets in a call, in every full batch."""
    share = processes.shares(spec.train.batch_size)[processes.rank]
    return len(chunks_of(share, spec.train.chunk)[0])


def _warn(spec: RunSpec, objective: Objective, data: TrainingData, tell: Say) -> str:
    if data.dropped_pairs:
        tell(f"{spec.run}: {data.dropped_pairs} pairs left out: their images were not extracted")
    for line in objective.warnings(first_paired(data, micro_batches(spec.train, data))):
        tell(f"{spec.run}: warning: {line}")
    return ""


def _student(spec: RunSpec, data: TrainingData) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    encoder, tokenizer = load_student(spec.student)
    check_tokenizer(tokenizer, encoder, data.samples, spec.student.max_length, data.vocabulary_size)
    return encoder, tokenizer


def _begin(
    spec: RunSpec, inputs: _Inputs, folder: RunFolder, resume: Path | None, tell: Say
) -> str:
    """Remove what is not from this run."""
    before = RunSummary.load(folder.path)
    if resume is None and folder.begin():
        why = "this version cannot read it"
        if before is not None:
            why = folder.outdated(before, inputs.digest, inputs.code)
        tell(f"{spec.run}: replacing the finished run in {spec.out}: {why}")
    return ""


def _lost(
    spec: RunSpec, folder: RunFolder, loop: Loop, processes: Processes, error: LostProcess
) -> SightlineError:
    """The error to raise after another process was lost, with the last step saved.

    Process 0 holds the folder's lock as long as it lives, so it saves the step and reports it;
    otherwise the first other process to get the lock does, which still names the killed one.
    """
    with ExitStack() as stack:
        if not processes.main:
            try:
                stack.enter_context(folder.claimed())
            except BusyError:
                return SaidElsewhere(str(error))
            if not folder.output.abandoned:
                return SaidElsewhere(str(error))
        step = loop.keep()
    kept = f"step {step:,} of {loop.state.steps:,} is kept" if step else "no step was finished"
    return LostProcess(f"{spec.run}: {error}. {kept[0].upper()}{kept[1:]}")


def _paths(spec: RunSpec) -> list[Path]:
    """Files and folders that the run reads."""
    paths: list[Path | None] = [Path(spec.student.model), spec.dev, *spec.features.values()]
    if spec.pairs is not None:
        paths += [spec.pairs.captions, spec.pairs.images, spec.pairs.tokens, spec.pairs.phrases]
    if spec.text is not None:
        paths += [spec.text.sentences, spec.text.tokens]
    return [path for path in paths if path is not None]


def _manifests(spec: RunSpec) -> list[Path]:
    pairs = [] if spec.pairs is None else [spec.pairs.captions]
    return pairs if spec.text is None else [*pairs, spec.text.sentences]


def spec_digest(
    spec: RunSpec, objective: Objective, data: TrainingData, dev: GradedPairs | None
) -> str:
    """SHA-256 (hex) over what determines the result: parameters and the content of every input.

    The paths of inputs and result, and how often something is logged, do not change it.
    """
    body: dict[str, Any] = spec.model_dump(
        mode="json",
        exclude={"out", "pairs", "text", "features", "dev", "parameters", "run", "precision_file"},
    )
    body["parameters"] = objective.describe()
    for name in ("logging_steps", "save_steps", "device_cache"):
        body["train"].pop(name)
    if spec.train.compile == "off":  # as before it could be on
        body["train"].pop("compile")
    if spec.train.chunk is None:  # as before chunks existed
        body["train"].pop("chunk")
    files: dict[str, Path] = {}
    if spec.pairs is not None:
        files |= {"captions": spec.pairs.captions, "images": spec.pairs.images}
    if spec.text is not None:
        files["sentences"] = spec.text.sentences
    files |= {f"tokens of {name}": path for name, path in data.token_files.items()}
    if data.phrases_file is not None:
        files["tokens of phrases"] = data.phrases_file
    student = Path(spec.student.model)
    if student.is_dir():
        files |= {f"student {path.relative_to(student)}": path for path in files_of(student)}
    body["files"] = {name: key_of_file(path).hex() for name, path in files.items()}
    body["dev"] = None if dev is None else dev.sha256
    body["features"] = {
        slot: [features.fingerprint, features.record.content_digest]
        for slot, features in data.feature_sets.items()
    }
    return digest(body, spaced=True, escaped=True)


def _checkpoint_to_resume(spec: RunSpec, inputs: _Inputs, folder: RunFolder, tell: Say) -> str:
    """Name of the checkpoint to resume from; empty if there is none.

    Raises:
        SightlineError: it is damaged, was made by another optimiser, or lacks the best weights.
    """
    path = folder.checkpoints.newest()
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


def _progress(
    spec: RunSpec, inputs: _Inputs, folder: RunFolder, checkpoint: str
) -> tuple[Path | None, Progress]:
    """The checkpoint that process 0 found, and the run's progress; a new run without one."""
    if not checkpoint:
        probe = inputs.precision_probe
        return None, Progress(
            inputs.digest,
            digest(inputs.code),
            processes=[],
            optimizer=spec.train.optimizer,
            precision_probe="" if probe is None else probe.model_dump_json(),
        )
    path = folder.checkpoints.folder / checkpoint
    if not path.is_dir():
        raise SightlineError(
            f"{path}: process 0 resumes from this checkpoint, but this process cannot see it; "
            "put the run's folder where all processes can see it"
        )
    progress = folder.checkpoints.read(path)
    progress.optimizer = spec.train.optimizer
    return path, progress


def _require_best(resume: Path, best: Best) -> None:
    if read_state(resume).best is not None and best.load() is None:
        raise SightlineError(
            f"{best.path}: missing or damaged, and {resume.name} was made after it; delete "
            f"{resume.parent} to train again"
        )


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
    spec: RunSpec,
    inputs: _Inputs,
    state: LoopState,
    progress: Progress,
    best_step: int | None,
    parameters: int,
) -> RunSummary:
    data = inputs.data
    seconds = progress.seconds
    return RunSummary(
        run=spec.run,
        objective=spec.objective,
        seed=spec.seed,
        parameters=inputs.objective.describe(),
        student=spec.student.model_dump(mode="json"),
        train=spec.train.model_dump(mode="json"),
        data=data.source,
        dropped_pairs=data.dropped_pairs,
        features={slot: FeatureUse.of_set(used) for slot, used in data.feature_sets.items()},
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
        precision=spec.train.precision,
        precision_probe=inputs.precision_probe,
        spec_digest=inputs.digest,
        code=inputs.code,
    )
