"""`sightline evaluate`: score sentence encoders on evaluation tasks."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.options import DEVICE, JSON, MODELS, POOLING, models_of, print_json
from sightline.errors import SightlineError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from train.evaluate.models import EvaluatedModel
    from train.evaluate.results import RunResult

LIST = "list"
"""In place of tasks: show what there is."""

_TASKS = Annotated[
    list[str], typer.Argument(help="Names of tasks; `list` shows them and their settings.")
]
_OUT = Annotated[
    Path | None,
    typer.Option(help="Folder for result files, which `sightline compare` reads."),
]


def evaluate(
    tasks: _TASKS,
    models: MODELS = None,
    pooling: POOLING = None,
    device: DEVICE = "auto",
    out: _OUT = None,
    as_json: JSON = False,
) -> None:
    """Score models on tasks. Each model encodes every distinct sentence once.

    Settings of tasks are options too: --data PATH sets it for every task that has it, --sts.data
    PATH for one task. Several seeds of a run make one row.

    Example: sightline evaluate sts --model runs/mcse-clip/seed-0 --data senteval/downstream
    """
    names, settings = _tasks_and_settings(tasks)
    if names == [LIST]:
        _list_tasks(settings, as_json)
        return
    given = _settings_of(names, settings)
    sources = models_of(models)
    from train.evaluate.evaluation import Evaluation, evaluate_model
    from train.evaluate.models import load_each, name_models

    named = name_models(sources)
    evaluation = Evaluation.load(given)  # before any model, so that a missing file fails fast
    results: list[RunResult] = []
    partial: list[RunResult] = []
    failures: list[str] = []
    for one in named:
        failed: dict[str, SightlineError] = {}
        try:
            ((_, model),) = load_each([one], pooling, device)
            if one is named[0]:
                _say_where(model)
            result = evaluate_model(model, evaluation, one.run, failed)
            if len(failed) < len(evaluation.tasks):
                results.append(result)
                partial += [result] if failed else []
        except SightlineError as error:  # of the model itself
            if len(named) == 1:
                raise
            failures.append(f"{one.name} was not scored: {error}")
        failures += [f"{task} failed for {one.name}: {error}" for task, error in failed.items()]
    if not results:
        raise SightlineError("\n".join(failures))
    if as_json:
        print_json([result.model_dump(mode="json", by_alias=True) for result in results])
    else:
        for warning in evaluation.warnings:
            print(f"warning: {warning}")
        _print_results(results)
    if out is not None:
        _save(results, out, partial)
    if failures:
        raise SightlineError("\n".join(failures))


def _say_where(model: EvaluatedModel) -> None:
    """The first line: where the models compute."""
    from sightline.devices import device_name
    from sightline.hardware import cpu_warning

    device = model.embedder.model.device
    where = f"{device_name(device)} in {model.embedder.precision}"
    print(f"evaluate: computing on {where}", file=sys.stderr)
    if warning := cpu_warning(device.type):
        print(f"warning: {warning}", file=sys.stderr)


def _tasks_and_settings(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Names of tasks, and the values of ``--name value`` and ``--name=value`` between them."""
    names: list[str] = []
    settings: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            names.append(word)
            continue
        option, equals, value = word.partition("=")
        if not equals:
            if not rest or rest[0].startswith("-"):
                raise typer.BadParameter(f"{option} has no value")
            value = rest.pop(0)
        settings[option] = value
    return names, settings


def _settings_of(names: Sequence[str], settings: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Task → its settings, from the values of the options."""
    from sightline.settings import unknown
    from train.evaluate.task import task_class

    classes = {name: task_class(name) for name in names}
    given: dict[str, dict[str, str]] = {name: {} for name in names}
    options: list[str] = ["--model", "--pooling", "--device", "--out", "--json"]
    for name, task in classes.items():
        for key in task.Settings.model_fields:
            of_all, of_one = f"--{key.replace('_', '-')}", f"--{name}.{key.replace('_', '-')}"
            options += [of_all, of_one]
            for option in (of_all, of_one):
                if option in settings:
                    given[name][key] = settings[option]
    for option in settings:
        if option not in options:
            raise typer.BadParameter(unknown(option, dict.fromkeys(options), "option"))
    for name, task in classes.items():
        for key, field in task.Settings.model_fields.items():
            if field.is_required() and key not in given[name]:
                needs = task.needs if key == "data" else field.description
                raise typer.BadParameter(f"{name} needs --{key.replace('_', '-')}: {needs}")
    return given


def _list_tasks(settings: Mapping[str, str], as_json: bool) -> None:
    """What there is, and whether the data that params.yaml or --data names is here."""
    from pipeline.params import FILE_NAME, load_params
    from train.evaluate.task import TASKS, task_class

    configured: dict[str, dict[str, dict[str, Any]]] = {}
    if Path(FILE_NAME).is_file():
        for name, entry in load_params().evaluation.tasks.items():
            rest = {key: value for key, value in entry.settings.items() if key != "task"}
            configured.setdefault(entry.task or name, {})[f"{FILE_NAME}, {name}"] = rest
    found = {}
    for name in TASKS:
        task = task_class(name)
        places = dict(configured.get(name, {}))
        if "--data" in settings:
            places["--data"] = {"data": settings["--data"]}
        found[name] = {
            "about": task.about,
            "needs": task.needs,
            "settings": {
                f"--{key.replace('_', '-')}": field.description
                + (f" (default: {field.default})" if _has_default(field) else "")
                for key, field in task.Settings.model_fields.items()
                if key != "data" and field.description
            },
            "data": {where: _state(name, given) for where, given in places.items()},
        }
    if as_json:
        print_json(found)
        return
    for name, about in found.items():
        print(f"{name}: {about['about']}")
        print(f"    --data: {about['needs']}")
        for option, what in about["settings"].items():
            print(f"    {option}: {what}")
        for where, state in about["data"].items():
            print(f"    {where}: {state}")


def _has_default(field: FieldInfo) -> bool:
    return not field.is_required() and field.default is not None


def _state(name: str, settings: Mapping[str, Any]) -> str:
    from train.evaluate.task import make_task

    try:
        task = make_task(name, settings)
    except SightlineError as error:
        return f"missing: {error}"
    return f"here, {max(metric.data.examples or 0 for metric in task.metrics):,} examples"


def _print_results(results: Sequence[RunResult]) -> None:
    from rich.console import Console

    from train.report.grid import grid_of_table, printable
    from train.report.render import print_grids
    from train.report.table import make_table

    table = make_table(results)
    lines = [
        f"{row.name}, {', '.join(metrics)}: not defined: {reason}"
        for row in table.rows
        for reason, metrics in row.undefined.items()
    ]
    lines += [f"Note: {note}." for note in table.notes]
    grids = [grid_of_table(*part) for part in table.parts]
    print_grids(Console(), grids, [printable(line) for line in lines])


def _save(results: Sequence[RunResult], out: Path, partial: Sequence[RunResult]) -> None:
    """One file for each result, where `sightline compare` finds them.

    A result in ``partial``, of which a task failed, replaces no file.
    """
    from train.evaluate.results import FILE_NAME, NOT_TRAINED, save_result

    for result in results:
        folder = out / result.run.strip("/.").replace("/", "--")
        trained = result.objective != NOT_TRAINED
        file = folder / (f"seed-{result.seed}.json" if trained else FILE_NAME)
        if result in partial and file.exists():
            print(f"{file}: kept, as a task failed this time", file=sys.stderr)
            continue
        folder.mkdir(parents=True, exist_ok=True)
        save_result(result, file)
        print(f"{file}: written", file=sys.stderr)
