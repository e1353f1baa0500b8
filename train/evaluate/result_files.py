"""Files of results: one for each name and seed, which gains tasks and loses none."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

from sightline.errors import SightlineError
from sightline.files.lock import WriterLock
from train.evaluate.results import FILE_NAME, RunResult, TaskResult, load_result, save_result

SEEDS = "seed-*.json"
"""The results of a run's seeds, in its folder."""
_PATIENCE = 60.0  # seconds; another command writes its result in much less


def result_folder(out: Path, run: str) -> Path:
    """Where the results of the run or model called ``run`` are; no two names have one folder.

    ``/`` becomes ``--``, as in the cache of Hugging Face; what could then be mistaken, or means
    something else at the beginning of a file's name, is quoted as in a URL.
    """
    quoted = run.replace("%", "%25")
    quoted = re.sub(r"(?<=[-/])-|-(?=[-/])|^-", "%2D", quoted)
    quoted = re.sub(r"^[./]", lambda first: "%2E" if first[0] == "." else quote("/", ""), quoted)
    return out / quoted.replace("/", "--")


def run_of(folder: Path) -> str:
    """The run or model of which ``folder`` is the `result_folder`."""
    return unquote(folder.name.replace("--", "/"))


def result_file(out: Path, run: str, seed: int | None) -> Path:
    """The file of a result below ``out``.

    Args:
        seed: of the training; None for a model that Sightline did not train.
    """
    return result_folder(out, run) / (FILE_NAME if seed is None else f"seed-{seed}.json")


def file_of(result: RunResult, out: Path) -> Path:
    """The file of ``result`` below ``out``."""
    return result_file(out, result.run, None if result.training is None else result.seed)


def results_in(folder: Path) -> list[Path]:
    """The result files of a run's folder."""
    return sorted(folder.glob(SEEDS)) or sorted(folder.glob(FILE_NAME))


@contextmanager
def alone_with(file: Path) -> Iterator[None]:
    """No other command changes the result in ``file`` between a look at it and its replacement."""
    folder = file.parent / ".run"
    with WriterLock(folder, patience=_PATIENCE) as lock:
        try:
            yield
        finally:
            lock.path.unlink()
            folder.rmdir()


def add_result(file: Path, result: RunResult, failed: Collection[str], source: str) -> list[str]:
    """Write a result, beside the tasks that the same model has in ``file`` already.

    Args:
        failed: tasks of the result that replace no scores.
        source: the model, as the command line has it.

    Returns:
        Those of ``failed`` whose earlier scores are kept.
    """
    with alone_with(file):
        earlier = earlier_result(file, result, result.tasks, source)
        tasks = {} if earlier is None else dict(earlier.tasks)
        kept = [name for name in failed if name in tasks]
        tasks |= {name: task for name, task in result.tasks.items() if name not in kept}
        save_result(result.model_copy(update={"tasks": tasks}), file)
    return kept


def earlier_result(
    file: Path, result: RunResult, tasks: Mapping[str, TaskResult], source: str
) -> RunResult | None:
    """The result in ``file``, which ``tasks`` of the same model can join; None without one.

    Args:
        result: of the model; its tasks are ignored.
        source: the model, as the command line has it.

    Raises:
        SightlineError: the file, or one beside it, is of another model.
    """
    remedy = f"give this one a name, `--model NAME={source}`, or name another --out"
    for path in results_in(file.parent):
        if path == file:
            continue
        theirs, ours = load_result(path).training, result.training
        if theirs is None or ours is None or not theirs.is_seed_of(ours):
            raise SightlineError(
                f"{path}: has the scores of what {source} is not another seed of; {remedy}"
            )
    if not file.exists():
        return None
    try:
        earlier = load_result(file)
    except SightlineError as error:
        raise SightlineError(
            f"{file}: is not a result that can gain tasks; move it away, or name another --out. "
            f"({error})"
        ) from error
    if (earlier.run_sha256, earlier.pinned) != (result.run_sha256, result.pinned):
        kind = "run" if result.training is not None else "model"
        raise SightlineError(f"{file}: has the scores of another {kind} than {source}; {remedy}")
    if _scoring(earlier) != _scoring(result):
        raise SightlineError(
            f"{file}: has the scores of {source} {_scored_as(earlier)}, not {_scored_as(result)}; "
            + remedy
        )
    for name, task in earlier.tasks.items():
        if name in tasks and tasks[name].task != task.task:
            raise SightlineError(
                f"{file}: {name!r} is a task {task.task!r} there; name another --out"
            )
        shared = {metric for new in tasks.values() for metric in new.evaluated_on} & {*task.scores}
        if name not in tasks and shared:
            raise SightlineError(
                f"{file}: has a metric {min(shared)!r} of another task, {name!r}; name another "
                "--out"
            )
    return earlier


def _scoring(result: RunResult) -> tuple[str, ...]:
    """How a model was asked to embed."""
    if result.training is not None:
        return result.other_scoring
    return result.pooling, result.precision, result.recipe


def _scored_as(result: RunResult) -> str:
    pooled = f"pooled by {result.pooling}" if result.pooling else "pooled as its folder says"
    return f"{pooled} in {result.precision or 'fp32'}"
