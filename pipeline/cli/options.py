"""Options: those that commands share, and those that are generated from a model's fields."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from sightline.errors import SightlineError
from sightline.settings import FamilySettings, explain, field_help

if TYPE_CHECKING:
    from pipeline.encode_again import Checked
    from pipeline.extract.runner import SetSummary
    from pipeline.extract.settings import Machine
    from sightline.cache.plan import WorkerNumber

OUT = Annotated[Path, typer.Option("--out", help="Folder to write to.", show_default=False)]
DEVICE = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
FORMAT = Annotated[
    Literal["terminal", "markdown", "latex", "json", "html"],
    typer.Option("--format", help="terminal, markdown, latex, json or html."),
]
JSON = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
DATA = Annotated[
    Path,
    typer.Option("--data", help="Folder that `sightline prepare` wrote.", show_default=False),
]
MODELS = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="Folder of a training run or of a model, or a name on the hub; NAME=MODEL renames it; "
        "repeatable.",
        show_default=False,
    ),
]
POOLING = Annotated[
    str | None,
    typer.Option(help="cls, pooler, mean, lasttoken or first_last_mean; default: from the folder."),
]
SET = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A parameter of what is chosen by name, in YAML unless it is text; repeatable.",
        show_default=False,
    ),
]
RETRY_FAILED = Annotated[bool, typer.Option("--retry-failed", help="Compute failed rows again.")]
DRY_RUN = Annotated[
    bool,
    typer.Option("--dry-run", help="Say which rows are there and which are to do; write nothing."),
]
CHECK = Annotated[
    int,
    typer.Option(
        "--check",
        min=0,
        metavar="<int>",
        help="Of features: encode this many rows of the set again, drawn at random, and compare.",
        show_default=False,
    ),
]


def _worker(text: str) -> WorkerNumber:
    from sightline.cache.plan import WorkerNumber

    try:
        return (
            WorkerNumber.of_environment(os.environ) if text == "env" else WorkerNumber.parse(text)
        )
    except SightlineError as error:
        raise typer.BadParameter(str(error)) from error


WORKER = Annotated[
    Any,  # a `WorkerNumber` or None
    typer.Option(
        "--worker",
        metavar="<str>",
        parser=_worker,
        help="Run as worker I (from 0) of N that fill one folder together, I/N; env: as srun or "
        "torchrun numbers this process.",
    ),
]
MOST_SEED = (1 << 32) - 1  # the largest that NumPy and PyTorch both accept

Model = TypeVar("Model", bound=BaseModel)


def takes(
    parameter: str,
    model: type[BaseModel],
    *,
    only: Collection[str] | None = None,
    names: Mapping[str, str] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command one option for each field of ``model``; its ``parameter`` is the model.

    A wrong value is misuse (exit code 2), in the words of the model. The command's attribute
    `models` tells which options come from which model: parameter → model.

    Args:
        only: these fields; None: all.
        names: field → name of its option, where it differs.
    """
    shown = [name for name in model.model_fields if only is None or name in only]
    flags, helps = {name: _flag(name, names) for name in shown}, field_help(model)
    options = [_option(model.model_fields[name], name, flags[name], helps[name]) for name in shown]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def call(**values: Any) -> Any:
            texts = {name: values.pop(f"{parameter}_{name}") for name in shown}
            words = {name: value for name, value in texts.items() if value not in (None, [])}
            return command(**values, **{parameter: from_words(model, words, names)})

        kept = [
            p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for p in signature.parameters.values()
            if p.name != parameter
        ]
        added = [option.replace(name=f"{parameter}_{option.name}") for option in options]
        call.__signature__ = signature.replace(parameters=[*kept, *added])  # pyright: ignore
        call.__annotations__ = {option.name: option.annotation for option in [*kept, *added]}
        del call.__wrapped__  # pyright: ignore
        models = getattr(command, "models", {}) | {option.name: model for option in added}
        call.models = models  # pyright: ignore
        return call

    return decorate


def _flag(name: str, names: Mapping[str, str] | None) -> str:
    return f"--{(names or {}).get(name, name).replace('_', '-')}"


def _option(field: FieldInfo, name: str, flag: str, about: str) -> inspect.Parameter:
    """The option of one field; a value is taken as text, and the model turns it into its type."""
    arms, about = types_of(field.annotation), about.replace("None:", "default:")
    form, kind, repeatable = _metavar(arms), str | None, ""
    if bool in arms:
        kind, form = bool | None, None
        flag = flag if not field.default else f"{flag}/--no-{flag[2:]}"
    elif any(get_origin(arm) in (list, dict) for arm in arms):
        kind, repeatable = list[str], "; repeatable"
    default = field.get_default(call_default_factory=True)
    told = "" if field.is_required() or default in (None, (), False, [], {}) else str(default)
    option = typer.Option(
        flag,
        help=about[:1].upper() + about[1:].rstrip(".") + repeatable + ".",
        metavar=form,
        show_default=told.lower() if default is True else told or False,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if field.is_required() else [] if repeatable else None,
        annotation=Annotated[kind, option],
    )


def from_words(
    model: type[Model], words: Mapping[str, Any], names: Mapping[str, str] | None = None
) -> Model:
    """``model`` from the text of its options; misuse (exit code 2) if it refuses them.

    Args:
        words: field → text, or texts of a repeatable option.
        names: field → name of its option, where it differs.
    """
    values = dict(words)
    for name, value in words.items():
        if any(get_origin(arm) is dict for arm in types_of(model.model_fields[name].annotation)):
            values[name] = pairs_of(value, _flag(name, names))
    try:
        return model.model_validate(values)
    except ValidationError as error:
        mistake = error.errors()[0]  # under the name of its option
        message, place = mistake["msg"].removeprefix("Value error, "), [*map(str, mistake["loc"])]
        where = ".".join([_flag(place[0], names), *place[1:]]) if place else ""
        raise typer.BadParameter(": ".join(filter(None, (where, message)))) from error


def set_values(model: type[BaseModel], words: Sequence[str]) -> dict[str, Any]:
    """The parameters of ``--set NAME=VALUE``, for a model that checks them.

    A VALUE is YAML, except where the model has text: there it is taken as it is (but for a list,
    ``[a, b]``, where the model has one too). Dots lead into a
    model within the model, such as ``rules.min_score=0.2``.

    Raises:
        typer.BadParameter: not NAME=VALUE, a name that appears twice, or not YAML.
    """
    tree: dict[str, Any] = {}
    for name, text in pairs_of(words, "--set").items():
        *above, last = name.split(".")
        place = tree
        for part in above:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise typer.BadParameter(f"{name}: {part} has a value", param_hint="--set")
        if last in place:
            raise typer.BadParameter(f"{name} appears twice", param_hint="--set")
        place[last] = text
    return typed(model, tree)


def typed(model: type[BaseModel], tree: Mapping[str, Any]) -> dict[str, Any]:
    """Field → value, of the texts in ``tree``; within another model, a tree of its own."""
    if issubclass(model, FamilySettings) and "families" in vars(model):
        family = tree.get(model.chosen_by, "")
        if family in model.families:
            model = model.families.subclass(family, FamilySettings)
    fields = model.model_fields
    arms = {name: types_of(fields[name].annotation) if name in fields else [] for name in tree}
    return {name: _value(arms[name], name, value) for name, value in tree.items()}


def _value(arms: Sequence[Any], name: str, value: Any) -> Any:
    """The value of a text, or of a tree of them, for a field of these types."""
    if isinstance(value, Mapping):
        for arm in arms:
            if _is_model(arm):
                return typed(arm, value)
        inner = next((get_args(arm)[1] for arm in arms if get_origin(arm) is dict), Any)
        return {key: _value(types_of(inner), f"{name}.{key}", text) for key, text in value.items()}
    if NoneType in arms and value == "null":
        return None
    is_list = value.startswith("[") and any(get_origin(arm) is list for arm in arms)
    if _takes_text(arms) and not is_list:
        return value
    from sightline.user_files import parse_yaml

    try:
        return parse_yaml(value)
    except ValueError as error:
        raise typer.BadParameter(f"{name}: {value!r} is not YAML", param_hint="--set") from error


def checked(model: type[Model], values: Mapping[str, Any]) -> Model:
    """``model`` with the values of ``--set``; misuse (exit code 2) if it refuses them."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise typer.BadParameter("; ".join(explain(error)), param_hint="--set") from error


def settings_help(model: type[BaseModel]) -> str:
    """The fields of a model that ``--set`` takes, a paragraph each, for the help of a command."""
    lines = []
    for name, about in field_help(model).items():
        field = model.model_fields[name]
        default = field.get_default(call_default_factory=True)
        end = " Required." if field.is_required() else f" Default: {default}." if default else ""
        lines.append(f"--set {name}=…: {about.rstrip('.')}.{end}")
    return "\n\n".join(lines)


def _is_model(arm: Any) -> bool:
    return isinstance(arm, type) and issubclass(arm, BaseModel)


def _takes_text(arms: Sequence[Any]) -> bool:
    return any(
        arm in (str, Path) or (get_origin(arm) is Literal and isinstance(get_args(arm)[0], str))
        for arm in arms
    )


def types_of(annotation: Any) -> list[Any]:
    """The types of a union, without what annotates them."""
    if get_origin(annotation) is Annotated:
        return types_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [arm for inner in get_args(annotation) for arm in types_of(inner)]
    return [annotation]


def _metavar(arms: Sequence[Any]) -> str:
    """What a value looks like, for help."""
    words = {int: "<int>", float: "<float>", Path: "<path>"}
    first = next(arm for arm in arms if arm is not NoneType)
    if get_origin(first) is Literal:
        return f"<{'|'.join(map(str, get_args(first)))}>"
    if get_origin(first) is dict:
        return "NAME=VALUE"
    inner = get_args(first)[0] if get_origin(first) is list else first
    return words.get(inner, "<str>")


def launched_workers(machine: Machine, worker: WorkerNumber | None, sets: Sequence[Path]) -> bool:
    """Run this command as the workers that ``machine`` asks for, and print their result.

    Args:
        worker: this process among others that were started in the same way.
        sets: the folders that this command fills.

    Returns:
        False, without doing anything, if this process itself is to compute.
    """
    if not machine.starts_workers:
        return False
    from pipeline.extract.workers import run_workers

    print(run_workers(sys.argv[1:], machine, sets, worker=worker), end="")
    return True


def print_summary(summary: SetSummary, as_json: bool, **fields: Any) -> None:
    """What a command did to a set; ``fields`` is for JSON alone."""
    if as_json:
        print_json({**summary.body(), **fields})
    else:
        print(f"{summary.folder}: {summary}")


def print_check(checked: Checked, out: Path) -> None:
    """Say what was compared; exit code 1 if rows differ."""
    print(f"{out}: {checked}")
    if checked.faults:
        raise typer.Exit(1)


def models_of(models: list[str] | None) -> list[str]:
    """The models of ``--model``; misuse (exit code 2) if there are none."""
    if not models:
        raise typer.BadParameter(
            "give at least one, a folder or a name on the hub", param_hint="--model"
        )
    return models


def print_json(value: Any) -> None:
    """Print ``value`` as indented JSON on standard output."""
    print(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=False))


def pairs_of(words: Sequence[str], option: str) -> dict[str, str]:
    """``NAME=VALUE`` options as a dictionary; misuse (exit code 2) for anything else."""
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not (name and equals and value):
            raise typer.BadParameter(f"found {word!r}, expected NAME=VALUE", param_hint=option)
        if name in pairs:
            raise typer.BadParameter(f"{name} appears twice", param_hint=option)
        pairs[name] = value
    return pairs
