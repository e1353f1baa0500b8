"""Score a finished training run, and save the scores with their full provenance."""

from __future__ import annotations

from pathlib import Path

from pipeline.cache.keys import key_of_file
from sightline.errors import SightlineError
from train.embed import Embedder
from train.evaluate.score import Evaluation
from train.export import LAST_FILE, MODEL_FOLDER, load_last
from train.report.results import (
    RunResult,
    TrainingSummary,
    load_result,
    save_result,
)
from train.run_summary import FILE_NAME, RunSummary


def current_result(folder: Path, evaluation: Evaluation, out: Path) -> RunResult | None:
    """The result in ``out``, if it is of the current run in ``folder`` and of these sets."""
    if not out.is_file():
        return None
    try:
        found = load_result(out)
    except SightlineError:
        return None  # damaged or from an earlier version: it is replaced
    same = found.run_sha256 == _sha256(folder) and found.evaluated_on == evaluation.evaluated_on
    return found if same else None


def evaluate_run(
    folder: Path, evaluation: Evaluation, out: Path, device: str = "auto"
) -> RunResult:
    """Score the model that a run exported and write its result.

    Args:
        folder: the run, as `train.train_run.train_run` left it.
        out: file of the result (JSON).

    Raises:
        SightlineError: the run is not finished.
    """
    summary = RunSummary.read(folder)
    embedder = Embedder.load(folder / MODEL_FOLDER, device=device)
    found = evaluation.score(embedder.encode)
    last = found
    if LAST_FILE in summary.files:
        load_last(folder / LAST_FILE, embedder.model)
        last = evaluation.score(embedder.encode)
    at_the_end = last is not found or summary.best_step in (None, summary.steps)
    history = dict(summary.dev_history)
    result = RunResult(
        run=summary.run,
        objective=summary.objective,
        seed=summary.seed,
        parameters={
            "objective": summary.parameters,
            "student": summary.student,
            "train": summary.train,
        },
        scores=found.scores,
        last_scores=last.scores if at_the_end else {},
        subsets=found.subsets,
        reasons=found.reasons,
        evaluated_on=evaluation.evaluated_on,
        run_sha256=_sha256(folder),
        code_accepted=bool(summary.accepted_code),
        features=tuple(summary.features.values()),
        training=TrainingSummary(
            steps=summary.steps,
            seconds=summary.seconds,
            sentences_per_second=summary.sentences_per_second,
            peak_memory_bytes=summary.peak_memory.get("device", summary.peak_memory.get("host")),
            device=summary.device,
            precision=summary.precision,
            dev_metric=summary.dev or "",
            best_step=summary.best_step,
            best_dev=history.get(summary.best_step) if summary.best_step is not None else None,
            log=tuple(summary.log),
        ),
    )
    save_result(result, out)
    return result


def _sha256(folder: Path) -> str:
    """SHA-256 (hex) of run.json, which every training rewrites."""
    return key_of_file(folder / FILE_NAME).hex()
