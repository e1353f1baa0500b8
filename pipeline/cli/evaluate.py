"""`sightline evaluate`: score sentence encoders on evaluation tasks."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipeline.cli.commands import Command, command_of
from pipeline.cli.model_options import (
    flags_of,
    from_words,
    options_in,
    pairs_of,
    set_values,
    takes,
    typed,
)
from pipeline.cli.options import (
    DEVICE,
    JSON,
    MODELS,
    POOLING,
    models_of,
    of_dataset,
    option,
    print_json,
    set_option,
)
from sightline.errors import SightlineError
from sightline.settings import field_help

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from train.evaluate.models import EvaluatedModel
    from train.evaluate.results import RunResult

LIST = "list"
"""In place of tasks: show what there is."""


def evaluate(
    tasks: Annotated[
        list[str] | None,
        typer.Argument(metavar="TASK", help="`list` shows them and their settings."),
    ] = None,
    models: MODELS = None,
    data: Annotated[
        Path | None,
        of_dataset("What the tasks read, if all read the same; of a data set also its URL."),
    ] = None,
    set_: Annotated[
        list[str],
        set_option(
            "Data", "A setting of the tasks, such as subsets=[STS-B], or of one: sts.data=PATH"
        ),
    ] = [],  # noqa: B006
    pooling: POOLING = None,
    device: DEVICE = "auto",
    precision: Annotated[
        Literal["fp32", "bf16"],
        option(
            "Machine",
            "Arithmetic of the encoders; results say it.",
            metavar="<fp32|bf16>",
            show_default=True,
        ),
    ] = "fp32",
    out: Annotated[
        Path | None,
        option(
            "Output",
            "Folder for results, which `sightline compare` reads; each keeps its other tasks.",
            file_okay=False,
            writable=True,
        ),
    ] = None,
    card: Annotated[
        Path | None,
        option(
            "Output",
            "Without tasks: print the model card with the scores of a file.",
            metavar="RESULT",
        ),
    ] = None,
    as_json: JSON = False,
) -> None:
    """Score models on tasks.

    With one task its settings are options: `sightline evaluate TASK --help` shows them. With
    several, --set gives a setting of each task that has it, or of one: sts.data=PATH. Several seeds
    of a run make one row.

    Example: sightline evaluate sts --model runs/mcse-clip/seed-0 --data senteval/downstream
    """
    names = tasks or []
    if card is not None:
        _print_card(names, models_of(models), card)
        return
    if not names:
        raise typer.BadParameter("name a task; `sightline evaluate list` shows them")
    if names == [LIST]:
        _list_tasks(data, as_json)
        return
    settings = _settings_of(names, data, set_)
    _score(settings, models, pooling, device, precision, out, as_json)


def _score(
    settings: Mapping[str, Mapping[str, Any]],
    models: list[str] | None,
    pooling: Any,
    device: str,
    precision: Any,
    out: Path | None,
    as_json: bool,
) -> None:
    """Score the models on the tasks, by name in ``settings``; the other options of `evaluate`."""
    sources = models_of(models)
    from train.evaluate.evaluation import Evaluation, evaluate_model, unscored
    from train.evaluate.models import EvaluatedModel, name_models
    from train.evaluate.result_files import add_result, earlier_result, file_of

    named_models = name_models(sources)
    evaluation = Evaluation.load(settings)  # before any model, so that a missing file fails fast
    results: list[RunResult] = []
    failures: list[str] = []
    for source in named_models:
        failed: dict[str, SightlineError] = {}
        try:
            model = EvaluatedModel.load(source.source, pooling, device, precision)
            model.shows_progress = True
            if source is named_models[0]:
                _say_where(model)
            if out is not None:  # before it is scored, so that a refused one fails fast
                result = unscored(model, source.run)
                earlier_result(file_of(result, out), result, evaluation.measured, source.source)
            result = evaluate_model(model, evaluation, source.run, failed)
        except SightlineError as error:  # of the model itself
            if len(named_models) == 1:
                raise
            failures.append(f"{source.name} was not scored: {error}")
            continue
        failures += [f"{task} failed for {source.name}: {error}" for task, error in failed.items()]
        if len(failed) < len(evaluation.tasks):
            results.append(result)
            if out is not None:
                file = file_of(result, out)
                for task in add_result(file, result, failed, source.source):
                    print(f"{file}: keeps its scores of {task}, which failed", file=sys.stderr)
                print(f"{file}: written", file=sys.stderr)
    if not results:
        raise SightlineError("\n".join(failures))
    if as_json:
        print_json([result.model_dump(mode="json", by_alias=True) for result in results])
    else:
        for warning in evaluation.warnings:
            print(f"warning: {warning}")
        _print_results(results)
    if failures:
        raise SightlineError("\n".join(failures))


def _say_where(model: EvaluatedModel) -> None:
    """The first line: where the models compute."""
    from sightline.devices import device_name
    from sightline.machine.hardware import cpu_warning

    device = model.embedder.model.device
    where = f"{device_name(device)} in {model.embedder.precision}"
    print(f"evaluate: computing on {where}", file=sys.stderr)
    if warning := cpu_warning(device.type):
        print(f"warning: {warning}", file=sys.stderr)


def _print_card(tasks: Sequence[str], models: Sequence[str], results: Path) -> None:
    from train.card import card_with_scores

    if tasks or len(models) > 1:
        raise typer.BadParameter("takes one --model and no task", param_hint="--card")
    print(card_with_scores(Path(models[0]), results), end="")


def _settings_of(
    names: Sequence[str], data: Path | None, words: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Task → its settings, from ``--set``; a name without a task is for all that have it."""
    from sightline.settings import unknown
    from train.evaluate.task import task_class

    classes = {name: task_class(name).Settings for name in names}
    texts = pairs_of(words, "--set")
    choices = [
        setting
        for name, model in classes.items()
        for key in model.model_fields
        for setting in (key, f"{name}.{key}")
    ]
    for setting in texts:
        if setting not in choices:
            raise typer.BadParameter(unknown(setting, set(choices), "setting"), param_hint="--set")
    if "data" in texts:
        raise typer.BadParameter("data is an option: give --data", param_hint="--set")
    if data is not None:
        texts["data"] = str(data)
    settings: dict[str, dict[str, Any]] = {}
    for name, model in classes.items():
        raw = {key: texts.get(f"{name}.{key}", texts.get(key)) for key in model.model_fields}
        settings[name] = typed(model, {key: text for key, text in raw.items() if text is not None})
    for name, model in classes.items():
        for key, field in model.model_fields.items():
            if field.is_required() and key not in settings[name]:
                if key == "data":
                    raise typer.BadParameter(f"{name} needs --data: {task_class(name).needs}")
                raise typer.BadParameter(f"{name} needs --set {key}=…: {field.description}")
    return settings


def _settings_of_one(
    name: str, data: Path | None, set_: Sequence[str], words: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of the only task, from options; --set has those whose option is another's."""
    from train.evaluate.task import task_class

    task = task_class(name)
    options = {**_options_of(name), "data": "--data"}
    values = set_values(task.Settings, [word.removeprefix(f"{name}.") for word in set_], options)
    if data is None and task.Settings.model_fields["data"].is_required():
        raise typer.BadParameter(f"{name} needs --data: {task.needs}")
    extra = values if data is None else {**values, "data": data}
    settings = from_words(task.Settings, words, extra=extra)
    return {field: getattr(settings, field) for field in settings.model_fields_set}


def _options_of(name: str) -> dict[str, str]:
    """Setting of a task → its option, of those whose option the command has not already."""
    from train.evaluate.task import task_class

    parameters = inspect.signature(evaluate, eval_str=True).parameters.values()
    flags = {flag for parameter in parameters for flag in flags_of(parameter)}
    options = options_in(task_class(name).Settings)
    return {field: option for field, option in options.items() if option not in flags}


def _of_one_task(name: str) -> Callable[..., None]:
    """`evaluate` with the settings of a task as options."""
    from train.evaluate.task import task_class

    def command(
        *, tasks: list[str], data: Any, set_: Any, card: Any, words: Mapping[str, Any], **how: Any
    ) -> None:
        if tasks == [name] and card is None:
            _score({name: _settings_of_one(name, data, set_, words)}, **how)
        else:  # another word than the task is none: it gets its error
            evaluate(tasks, data=data, set_=set_, card=card, **how)

    whole = inspect.signature(evaluate, eval_str=True)
    words = inspect.Parameter("words", inspect.Parameter.KEYWORD_ONLY)
    every = [parameter.replace(kind=words.kind) for parameter in whole.parameters.values()]
    command.__signature__ = whole.replace(parameters=[*every, words])  # pyright: ignore
    task = task_class(name)
    command.__doc__ = (
        f"{task.about[:1].upper()}{task.about[1:]}.\n\nIt reads {task.needs}.\n\n"
        f"Example: sightline evaluate {name} --model runs/mcse-clip/seed-0 --data PATH"
    )
    options = _options_of(name)
    return takes("words", task.Settings, panel="Data", only=options, as_words=True)(command)


class _Evaluate(Command):
    """With one task, wherever it stands among the words, its settings are options."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        command = self.with_options_for(list(args), parent)
        return Command.make_context(command, info_name, args, parent, **extra)

    def with_options_for(self, args: list[str], parent: Any = None) -> Command:
        """The command that understands these words: with the settings of their only task."""
        name = self._only_task(args, parent)
        return self if name is None else command_of("evaluate", _of_one_task(name))

    def _only_task(self, args: list[str], parent: Any) -> str | None:
        from train.evaluate.task import TASKS

        context = typer.Context(
            self,
            parent=parent,
            resilient_parsing=True,
            ignore_unknown_options=True,
            allow_extra_args=True,
        )
        try:
            values, _, _ = self.make_parser(context).parse_args(args=args)
        except Exception:  # a mistake, which the command itself words
            return None
        names = [word for word in values.get("tasks") or () if not word.startswith("-")]
        of_tasks = [word for word in names if word in TASKS]
        return of_tasks[0] if len(of_tasks) == 1 and names[:1] != [LIST] else None


app = typer.Typer(add_completion=False)
app.command("evaluate", cls=_Evaluate)(evaluate)


def _list_tasks(data: Path | None, as_json: bool) -> None:
    """What there is, and whether the data that params.yaml or --data names is here."""
    from pipeline.params import FILE_NAME, load_params
    from train.evaluate.task import TASKS, task_class

    entries = load_params().evaluation.tasks if Path(FILE_NAME).is_file() else {}
    described = {}
    for name in TASKS:
        task = task_class(name)
        places = {
            f"{FILE_NAME}, {entry}": about.settings
            for entry, about in entries.items()
            if (about.task or entry) == name
        }
        if data is not None:
            places[f"--data {data}"] = {"data": data}
        described[name] = {
            "about": task.about,
            "needs": task.needs,
            "settings": {
                key: (about + _default_in_words(task.Settings.model_fields[key])).strip()
                for key, about in field_help(task.Settings).items()
                if key != "data"
            },
            "data": {where: _state(name, settings) for where, settings in places.items()},
        }
    if as_json:
        print_json(described)
        return
    for name, about in described.items():
        print(f"{name}: {about['about']}")
        print(f"    data: {about['needs']}")
        for key, help_text in about["settings"].items():
            print(f"    {key}: {help_text}")
        for where, state in about["data"].items():
            print(f"    {where}: {state}")


def _default_in_words(field: FieldInfo) -> str:
    unset = field.is_required() or field.default is None or field.default == ()
    return "" if unset else f" (default: {field.default})"


def _state(name: str, settings: Mapping[str, Any]) -> str:
    from train.evaluate.task import make_task

    try:
        task = make_task(name, settings)
    except SightlineError as error:
        return f"missing: {error}"
    return f"here, {max(metric.data.examples or 0 for metric in task.metrics):,} examples"


def _print_results(results: Sequence[RunResult]) -> None:
    from rich.console import Console

    from train.report.formats import print_tables
    from train.report.run_tables import make_table, notes_on_scores, undefined_in
    from train.report.tables import printable

    table = make_table(results)
    lines = [line for row in table.rows for line in undefined_in(row)]
    lines += [f"Note: {note}." for note in notes_on_scores(results)]
    tables = [part.with_seeds for part in table.parts]
    print_tables(Console(), tables, [printable(line) for line in lines])
