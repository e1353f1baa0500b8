"""One training run, from explicit paths to an exported model; goes on where it was stopped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.cache.keys import key_of_file
from sightline.devices import device_name, pick_device
from sightline.digest import digest
from sightline.encoder_folder import files_of
from sightline.errors import SightlineError
from sightline.silenced_libraries import quiet
from train.callbacks import DVCLiveCallback, ProgressReport, Say, to_stderr
from train.card import model_card
from train.checkpoints import Best, Checkpoints, Progress, step_of
from train.data import TrainingData, first_paired
from train.embed import Embedder
from train.evaluate.similarity import GradedPairs
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
from train.loop import DEV, Callback, Loop, LoopState, micro_batches, read_state
from train.model import GroundedModel, check_tokenizer, load_student
from train.objectives import Objective, make_objective
from train.run_folder import LIVE_FOLDER, RunFolder
from train.run_spec import RunSpec
from train.run_summary import RunSummary
from train.selection import dev_score, load_dev_set
from train.stop import StopAtStep


def train_run(
    spec: RunSpec, *, say: Say | None = None, callbacks: list[Callback] | None = None
) -> RunSummary:
    """Train one objective with one seed and export the best weights.

    ``spec.out`` then holds ``model/`` (a sentence-transformers folder), ``heads.safetensors``,
    ``run.json`` and ``dvclive/``. While it trains, ``checkpoints/`` holds the newest checkpoint and
    ``best.safetensors`` the best weights; both go when the run is done.

    On SIGINT or SIGTERM the step is finished and a checkpoint saved before the signal takes effect.
    A run that was stopped goes on from its checkpoint, with the weights that an unbroken run would
    have (bit for bit on a CPU). A finished run of the same specification and inputs is returned as
    it is; one of another is replaced, once everything that the new one needs is loaded.

    Args:
        say: takes lines of progress; without it they go to stderr, or a bar on a terminal.
        callbacks: further callbacks of the loop.

    Raises:
        SightlineError: an input is missing or does not fit, said before the model is loaded; the
            folder is not a run's, or its checkpoint is damaged.
        BusyError: another run writes to the same folder.
        NonFiniteLoss: a loss or gradient became NaN or infinite.
    """
    inputs = _Inputs.open(spec)
    folder = RunFolder(spec.out, _paths(spec))
    with folder.claimed() as made:
        finished = folder.finished(inputs.digest)
        if finished is None:
            return _run(spec, inputs, folder, made, say, callbacks or [])
        folder.tidy(finished)
        (say or to_stderr)(f"{spec.run}: already trained, nothing to do ({spec.out})")
        return finished


@dataclass(frozen=True)
class _Inputs:
    """What a run reads, checked against each other, and the digest of all of it."""

    objective: Objective
    device: torch.device
    data: TrainingData
    dev: GradedPairs | None
    digest: str

    @classmethod
    def open(cls, spec: RunSpec) -> _Inputs:
        objective = make_objective(spec.objective, spec.parameters)
        check_exportable(spec.student.pooling)
        device = pick_device(spec.train.device)
        if spec.train.precision == "fp16" and device.type == "cpu":
            raise SightlineError("precision fp16 needs a GPU; on a CPU use fp32 or bf16")
        data = TrainingData(spec, objective)
        dev = None if spec.dev is None else load_dev_set(spec.dev)
        return cls(objective, device, data, dev, spec_digest(spec, objective, data, dev))


def _run(
    spec: RunSpec,
    inputs: _Inputs,
    folder: RunFolder,
    made: Path,
    say: Say | None,
    callbacks: list[Callback],
) -> RunSummary:
    tell = say or to_stderr
    objective, data, dev, digest = inputs.objective, inputs.data, inputs.dev, inputs.digest
    checkpoints, best = folder.checkpoints, folder.best
    resume, progress = _checkpoint_to_resume(checkpoints, digest, spec.run, tell)
    if resume is not None and dev is not None:
        _require_best(resume, best)
    if data.dropped_pairs:
        tell(f"{spec.run}: {data.dropped_pairs} pairs left out: their images were not extracted")
    for line in objective.warnings(first_paired(data, micro_batches(spec.train, data))):
        tell(f"{spec.run}: warning: {line}")

    torch.manual_seed(spec.seed)  # before the heads are drawn
    encoder, tokenizer = load_student(spec.student)
    check_tokenizer(tokenizer, encoder, data.samples, spec.student.max_length, data.vocabulary_size)
    model = GroundedModel(encoder, objective, spec.student.pooling, data.dims)
    embedder = Embedder(encoder, tokenizer, spec.student.pooling)
    if resume is None and folder.begin():
        why = "it is of other parameters or inputs, or lost its model"
        tell(f"{spec.run}: the finished run in {spec.out} is replaced ({why})")
    size = spec.train.eval_batch_size
    folder.drop_curves()
    report, live = (
        ProgressReport(spec.run, say),
        DVCLiveCallback(spec.out / LIVE_FOLDER, folder.claim),
    )
    stop = StopAtStep()
    loop = Loop(
        model,
        data,
        spec.train,
        seed=spec.seed,
        device=inputs.device,
        checkpoints=checkpoints,
        best=best,
        progress=progress,
        dev_score=None if dev is None else lambda: dev_score(embedder, dev, size),
        callbacks=[live, report, stop, *callbacks],
    )
    try:
        with stop:
            state = loop.run(resume)
    except BaseException as error:
        if stop.asked is not None and not isinstance(error, Exception):
            error.add_note(_kept(spec.run, checkpoints, loop.state.steps))
        raise
    finally:
        report.close()
        live.close()
    results = made / "results"
    results.mkdir()
    best_step = None
    if dev is not None:
        if spec.train.keep_last and best.step != state.step:
            export_last(results / LAST_FILE, encoder)
        best_step = _load_best(model, best)
    summary = _summarise(
        spec, inputs, state, progress, best_step, sum(each.numel() for each in model.parameters())
    )
    card = model_card(summary, objective.source, spec.student.pooling)
    with quiet():
        export_model(results / MODEL_FOLDER, encoder, tokenizer, spec.student.pooling, card)
    export_heads(results / HEADS_FILE, model.heads)
    return folder.finish(summary, results)


def _paths(spec: RunSpec) -> list[Path]:
    """Files and folders that the run reads."""
    paths: list[Path | None] = [Path(spec.student.model), spec.dev, *spec.features.values()]
    if spec.pairs is not None:
        paths += [spec.pairs.captions, spec.pairs.images, spec.pairs.tokens, spec.pairs.phrases]
    if spec.text is not None:
        paths += [spec.text.sentences, spec.text.tokens]
    return [path for path in paths if path is not None]


def spec_digest(
    spec: RunSpec, objective: Objective, data: TrainingData, dev: GradedPairs | None
) -> str:
    """SHA-256 (hex) over what decides the result: parameters and the content of every input.

    Where the inputs lie, where the result goes and what is logged how often leave it as it is.
    """
    body: dict[str, Any] = spec.model_dump(
        mode="json", exclude={"out", "pairs", "text", "features", "dev", "parameters", "run"}
    )
    body["parameters"] = objective.describe()
    for name in ("logging_steps", "save_steps"):
        body["train"].pop(name)
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


def _checkpoint_to_resume(
    checkpoints: Checkpoints, digest: str, run: str, tell: Say
) -> tuple[Path | None, Progress]:
    path = checkpoints.newest()
    if path is None:
        return None, Progress(digest)
    progress = checkpoints.read(path)
    if progress.digest != digest:
        tell(f"{run}: {path} is of other parameters or inputs; starting over")
        return None, Progress(digest)
    tell(f"{run}: going on from {path.name}")
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
        return f"{run}: no step was finished; run the same command again"
    step = step_of(found)
    return f"{run}: step {step:,} of {steps:,} is kept; run the same command again to go on"


def _load_best(model: GroundedModel, best: Best) -> int:
    found = best.load()
    if found is None:
        raise SightlineError(f"{best.path}: the best weights are gone; run it again")
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
    history = [(int(entry["step"]), entry[DEV]) for entry in state.log if DEV in entry]
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
        dev=None if inputs.dev is None else inputs.dev.name,
        dev_history=history,
        best_step=best_step,
        steps=state.step,
        stopped_early=progress.stopped_early,
        sentences=progress.sentences,
        seconds=seconds,
        sentences_per_second=progress.sentences / seconds if seconds else 0.0,
        peak_memory=progress.peak_memory,
        trained_parameters=parameters,
        negatives_per_anchor=spec.train.batch_size - 1,
        device=device_name(inputs.device),
        precision=spec.train.precision,
        spec_digest=inputs.digest,
    )
