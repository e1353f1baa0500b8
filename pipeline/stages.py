"""One function per stage of dvc.yaml: parameters in, files in the graph's layout out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from inspect import signature
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline import layout
from pipeline.extract.run_options import RunOptions
from pipeline.machine import OF_TRAINING, Machine
from pipeline.params import Params, ParamsError, load_params
from pipeline.side_by_side import JOBS, visible_gpus
from sightline.cache.feature_kind import KINDS
from sightline.cache.prepared import PreparedDataset
from sightline.cache.record import Kind, read_record
from sightline.devices import compute_with
from sightline.errors import SightlineError
from sightline.files.output import write_file
from sightline.machine.progress import phase_progress

if TYPE_CHECKING:
    from pipeline.encode_again import Checked
    from pipeline.extract.runner import SetSummary
    from sightline.html_pages import Thumbnail
    from train.evaluate.evaluation import Evaluation
    from train.evaluate.results import RunResult
    from train.records import RunSummary
    from train.train_run import StepsToDo

EVALUATION_DATA_SCHEMA = "sightline.evaluation_data/1"

_OF_RUN = {field.name for field in fields(RunOptions)}
_WHO_COMPUTES = ("devices", "engine")


def load_here(options: Machine = Machine()) -> Params:  # noqa: B008  (frozen)
    """params.yaml of the DVC repository that this is the root of.

    What the command's ``options`` say of the machine replaces what the file says; its devices or
    its engine replace both. From here on this process computes with the threads that they ask for.

    Raises:
        ParamsError: there is no params.yaml, it is invalid, or this is no DVC repository.
    """
    params = load_params()
    if not Path(".dvc").is_dir():
        raise ParamsError(
            f"{Path.cwd()}: not a DVC repository (no .dvc here). Run stages in the folder of a "
            "project, which `sightline init FOLDER` makes; the other commands work anywhere "
            "(`sightline --help`)."
        )
    machine = params.machine.among(visible_gpus()) if JOBS in os.environ else params.machine
    replaced = {*options.model_fields_set}
    if replaced.intersection(_WHO_COMPUTES):
        replaced.update(_WHO_COMPUTES)
    machine = machine.model_copy(update={name: getattr(options, name) for name in replaced})
    compute_with(machine.threads)
    return params.model_copy(update={"machine": machine})


def prepare(params: Params, dataset: str) -> str:
    """Write the manifests of one data set; returns a one-line summary."""
    from pipeline.datasets.prepare import prepare as prepare_source

    if pair := params.joined.get(dataset):
        from pipeline.datasets.joined import JoinedSource

        parts = {part: layout.dataset_folder(part) for part in (pair.first, pair.second)}
        source = JoinedSource(parts=parts)
    else:
        source = params.dataset(dataset)
    out = layout.dataset_folder(dataset)
    with phase_progress() as tell:
        return prepare_source(source, out, tell).summary()


def features(
    kind: Kind,
    params: Params,
    dataset: str,
    encoder: str,
    *,
    options: RunOptions = RunOptions(),  # noqa: B008  (frozen)
    check: int = 0,
) -> SetSummary | Checked | str:
    """Encode the images, objects or captions of ``dataset`` with one encoder, or check a few."""
    from pipeline.encode_again import check as encode_again
    from pipeline.extract.encode_missing import fill_features

    config = params.encoder(kind, encoder)
    inputs = layout.feature_inputs(dataset, kind)
    out = layout.features_folder(dataset, kind, encoder)
    if check:
        return encode_again(inputs, config, out, check, params.extract, params.machine)
    options = replace(options, copy_from=layout.FEATURES)
    return fill_features(inputs, config, out, params.extract, params.machine, options)


def ground(
    params: Params,
    dataset: str,
    *,
    options: RunOptions = RunOptions(),  # noqa: B008  (frozen)
) -> SetSummary:
    """Ground the captions of ``dataset`` and cut the objects out."""
    from pipeline.grounding.ground import ground_dataset
    from sightline.machine.heap import keep_heap

    if params.grounding is None:
        raise ParamsError("params.yaml: has no section `grounding`; see docs/grounding.md")
    keep_heap(of_threads=True)
    return ground_dataset(
        layout.prepared(dataset),
        params.grounding,
        layout.grounding_folder(dataset),
        layout.cutouts_folder(dataset),
        params.extract,
        params.machine,
        options,
    )


def tokens(params: Params) -> str:
    """Tokenise every training text for the student; returns a one-line summary."""
    from pipeline.tokenize_texts import texts_of, tokenize

    student, sources = params.student, layout.training_texts(params)
    out = layout.tokens_folder(student.name)
    texts, prompt = texts_of(sources), student.prompt
    count = tokenize(texts, student.source, student.max_length, out, sources, prompt)
    cut = read_record(out).cut_in_words
    return f"{out}: {', '.join(filter(None, (f'{count:,} distinct texts', cut)))}"


def phrase_tokens(params: Params, dataset: str) -> str:
    """Find the student's tokens of the phrases; returns a one-line summary."""
    from pipeline.tokenize_phrases import summary, tokenize_phrases

    student = params.student
    out = layout.phrase_tokens_folder(dataset, student.name)
    header = tokenize_phrases(
        layout.grounding_folder(dataset),
        PreparedDataset(layout.dataset_folder(dataset)).captions_manifest,
        student.source,
        student.max_length,
        out,
        student.prompt,
    )
    return f"{out}: {summary(header)}"


def inputs(params: Params) -> Iterator[str]:
    """Write what the other stages read that DVC does not see; yields what there is to say."""
    from pipeline.inputs import Inputs

    files = Inputs(params)
    files.write()
    yield str(files)


def _write_json(out: Path, body: dict[str, Any]) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    write_file(out, (json.dumps(body, indent=1) + "\n").encode(), body["schema"].encode())


def train(
    params: Params, run: str, seed: int | str, *, dry_run: bool = False
) -> RunSummary | StepsToDo:
    """Train one run, or only say what there is to do.

    Raises:
        SightlineError: the seed is not a whole number; an evaluation task cannot read the data that
            it has here, so that the run's scores could not be reported; or as `train_run`.
    """
    from train.train_run import steps_to_do, train_run

    if not str(seed).isdecimal():
        raise SightlineError(f"seed {seed!r}: expected a whole number, as in graph.seeds")
    spec = layout.run_spec(params, run, int(seed))
    if dry_run:
        return steps_to_do(spec)
    tasks = (name for name, task in params.evaluation.tasks.items() if task.data.exists())
    try:
        _evaluation(params, tasks)
    except SightlineError as error:
        message = f"{error} (evaluation would fail; {run} is not trained yet)"
        raise SightlineError(message) from error
    return train_run(spec, track=params.machine.track)


def evaluation_data(params: Params, task: str) -> str:
    """Check the data of an evaluation task and record its digests; returns a one-line summary."""
    evaluation = _evaluation(params, [task])
    sets = {name: measured.model_dump() for name, measured in evaluation.evaluated_on.items()}
    settings = evaluation.measured[task].settings
    body = {"schema": EVALUATION_DATA_SCHEMA, "task": task, "metrics": sets, "settings": settings}
    out = layout.evaluation_file(task)
    _write_json(out, body)
    return "\n".join([*(f"warning: {warning}" for warning in evaluation.warnings), str(out)])


def evaluate(params: Params) -> Iterator[str]:
    """Score every run with every seed that has no current result; yields a line for each.

    Runs are scored side by side: one on each GPU, or as many as there are cores and memory for.

    Raises:
        SightlineError: after all others, what failed; a later call scores only that.
    """
    from train.evaluate.evaluation import current_result

    evaluation = _evaluation(params, params.evaluation.tasks)
    yield from (f"warning: {warning}" for warning in evaluation.warnings)
    left, failures = list[tuple[str, int]](), list[str]()
    for run, seed in product(params.runs, params.graph.seeds):
        folder, out = layout.run_folder(run, seed), layout.result_file(run, seed)
        try:
            result = current_result(folder, evaluation, out)
        except SightlineError as error:
            failures.append(f"{run}, seed {seed}: {error}")
            continue
        if result is None:
            left.append((run, seed))
        else:
            yield f"{run}, seed {seed}: {_scores_of(result, [])}"
    for line, failed in _score(params, evaluation, left) if left else ():
        if failed:
            failures.append(line)
        else:
            yield line
    if failures:
        raise SightlineError("\n".join(sorted(failures)))


def _score(
    params: Params, evaluation: Evaluation, runs: Sequence[tuple[str, int]]
) -> Iterator[tuple[str, bool]]:
    """A line about each run and seed, as they end, and whether scoring it failed."""
    import transformers.modeling_utils  # noqa: F401  (once, for all processes)

    from pipeline.side_by_side import Send, gpu_of, jobs_here, side_by_side
    from sightline.machine.hardware import cores
    from train.evaluate.evaluation import evaluate_run

    machine = params.machine
    gpus = machine.gpus(visible_gpus())
    jobs = min(len(runs), jobs_here(gpus, machine.threads))
    threads = machine.threads or max(1, cores() // jobs)
    device = machine.device.partition(":")[0]  # each process sees only its own GPU
    shows = jobs == 1 or not sys.stderr.isatty()  # bars would overwrite each other

    def score(job: int, send: Send) -> None:
        os.environ.update(gpu_of(gpus, job))
        compute_with(threads)
        for run, seed in runs[job::jobs]:
            folder, out = layout.run_folder(run, seed), layout.result_file(run, seed)
            try:
                scored = evaluate_run(folder, evaluation, out, device, shows_progress=shows)
                line, failed = _scores_of(*scored), False
            except SightlineError as error:
                line, failed = str(error), True
            send((f"{run}, seed {seed}: {line}", failed))

    calls = {f"scorer {job + 1} of {jobs}": partial(score, job) for job in range(jobs)}
    return (sent for _, sent in side_by_side(calls))


def _scores_of(result: RunResult, scored: Sequence[str]) -> str:
    """A result in one line; ``scored`` are the tasks that were scored now."""
    shown = [
        f"{metric} {value:.2f}" if value is not None else f"{metric} not defined"
        for metric, value in result.scores.items()
    ]
    marks = " · features from untrained weights" if result.untrained else ""
    return ", ".join(shown) + marks + ("" if scored else " (already scored)")


def _evaluation(params: Params, names: Iterable[str]) -> Evaluation:
    """Some of the tasks in params.yaml, with their data."""
    from train.evaluate.evaluation import Evaluation

    settings = {name: params.task(name).settings for name in names}
    return Evaluation.load(settings, "params.yaml: evaluation.tasks.")


def report(params: Params) -> Path:
    """Compare every run over every seed; returns the page that shows it."""
    from train.evaluate.results import load_result
    from train.report.neighbour_tables import neighbours_in
    from train.report.scores import Comparison
    from train.report.write import write_report

    about, runs, out = params.report, params.runs, layout.REPORT
    files: list[Path] = []
    results: list[RunResult] = []
    for run, seed in product(runs, params.graph.seeds):
        files.append(layout.result_file(run, seed))
        result = load_result(files[-1])
        if (result.run, result.seed) != (run, seed):
            raise SightlineError(
                f"{files[-1]}: found the scores of {result.run}, seed {result.seed}, expected "
                f"those of {run}, seed {seed}; delete the file and run `sightline repro`"
            )
        result = result.restricted(params.evaluation.tasks)
        results.append(result.model_copy(update={"run": runs[run].label}))
    baseline, comparisons = runs[about.baseline].label, []
    if about.gain is not None:
        control = None if about.control is None else runs[about.control].label
        comparisons = [Comparison(baseline, runs[about.gain].label, control)]
    write_report(
        results,
        out,
        about.title,
        baseline=baseline,
        comparisons=comparisons,
        included=neighbours_in(
            results, partial(_photographs, params) if about.photographs else None
        ),
        inputs=files,
    )
    return out / "report.html"


def _photographs(
    params: Params, task: str, image_ids: Sequence[str], keys: Mapping[str, bytes]
) -> Mapping[str, Thumbnail] | str:
    """Photographs of the data set that an evaluation task reads, or why there are none."""
    from pipeline.grounding.page_pictures import photographs

    try:
        data = PreparedDataset.open(params.task(task).data)
        return photographs(data.images_manifest, data.require_images(), image_ids, keys)
    except SightlineError as error:
        return str(error)


class Stage(NamedTuple):
    """A stage of dvc.yaml.

    Attributes:
        run: from parameters and words to what to say. Its keyword arguments are options of the
            command, of `options` those in a `RunOptions`; a stage that has some takes those of
            `Machine` as well, and of `OF_TRAINING` one that fills no sets.
        sets: words → the sets that it fills, which its workers share; None: it is of other kinds.
    """

    run: Callable[..., Any]
    sets: Callable[..., list[Path]] | None = None

    @property
    def words(self) -> list[str]:
        """The words that it takes."""
        parameters = signature(self.run).parameters.values()
        return [word.name for word in parameters if word.kind != word.KEYWORD_ONLY][1:]

    @property
    def options(self) -> set[str]:
        """The options that it takes."""
        parameters = signature(self.run).parameters.values()
        options = {option.name for option in parameters if option.kind == option.KEYWORD_ONLY}
        if "options" in options:  # of which a stage knows itself what is copied
            options = options - {"options"} | (_OF_RUN - {"copy_from"})
        of_machine = Machine.model_fields.keys() - (OF_TRAINING if self.sets else ())
        return options | of_machine if options else options

    def __call__(self, params: Params, *words: str, **options: Any) -> Any:
        """Run it.

        Args:
            options: by their names on the command line.
        """
        if "options" in signature(self.run).parameters:
            of_run = {name: options.pop(name) for name in _OF_RUN & options.keys()}
            options["options"] = RunOptions(**of_run)
        return self.run(params, *words, **options)


def _features_stage(kind: Kind) -> Stage:
    return Stage(
        partial(features, kind),
        lambda dataset, encoder: [layout.features_folder(dataset, kind, encoder)],
    )


STAGES: dict[str, Stage] = {
    "prepare": Stage(prepare),
    "ground": Stage(
        ground, lambda dataset: [layout.grounding_folder(dataset), layout.cutouts_folder(dataset)]
    ),
    **{f"{kind}-features": _features_stage(kind) for kind in KINDS if kind != "teacher"},
    "teachers": _features_stage("teacher"),
    "tokens": Stage(tokens),
    "phrase-tokens": Stage(phrase_tokens),
    "inputs": Stage(inputs),
    "train": Stage(train),
    "evaluation-data": Stage(evaluation_data),
    "evaluate": Stage(evaluate),
    "report": Stage(report),
}
"""By their names in dvc.yaml."""


def stage_words(command: str) -> list[str]:
    """The stage and the words of a `sightline stage` in dvc.yaml; empty for other commands."""
    words = command.split()
    return words[2:] if words[:2] == ["sightline", "stage"] else []


def to_do(params: Params, command: str, needs: Sequence[str]) -> str:
    """How much a stage would do, which nothing has begun yet; empty if it cannot say.

    Args:
        command: as in dvc.yaml.
        needs: the stages that it needs and that would run before it.
    """
    name, *words = stage_words(command) or [""]
    stage = STAGES.get(name)
    if stage is None or "dry_run" not in stage.options:
        return ""
    if before := [name for name in needs if name != "inputs"]:
        return f"unknown until {', '.join(before)}"
    try:
        return str(stage(params, *words, dry_run=True))
    except SightlineError as error:
        return str(error)


LIGHT = {"inputs", "tokens", "phrase-tokens", "evaluation-data", "report"}
"""Those that keep one core busy, or none."""
