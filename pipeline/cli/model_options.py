"""Options of commands, made from the fields of pydantic models."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from typer.models import OptionInfo

from sightline.errors import SightlineError
from sightline.settings import FamilySettings, field_help

Model = TypeVar("Model", bound=BaseModel)

PANELS = ("Data", "Model", "Objective", "Training", "Machine", "Output")
"""The panels of options in help, in their order."""


def takes(
    parameter: str,
    model: type[BaseModel],
    *,
    panel: str,
    panels: Mapping[str, str] | None = None,
    only: Collection[str] | None = None,
    names: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] = MappingProxyType({}),
    as_words: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command one option for each field of ``model``; its ``parameter`` is the model.

    A wrong value is misuse (exit code 2), in the words of the model. The command's attribute
    `models` tells which options come from which model: parameter → model.

    Args:
        panel: of `PANELS`; ``panels`` has others, by field.
        only: these fields; None: all but the one that chooses the model.
        names: field → name of its option, where it differs.
        extra: fields that have no option, with their values.
        as_words: the parameter is the text of the options instead, for `from_words`.
    """
    helps = field_help(model)
    shown = [name for name in helps if only is None or name in only]
    flags = {name: _flag(name, names) for name in shown}
    options = [
        _option(
            model.model_fields[name],
            name,
            flags[name],
            as_typed(helps[name], flags).replace("`", ""),
            (panels or {}).get(name, panel),
        )
        for name in shown
    ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(command, eval_str=True)

        @functools.wraps(command)
        def call(**values: Any) -> Any:
            texts = {name: values.pop(f"{parameter}_{name}") for name in shown}
            words = {name: value for name, value in texts.items() if value not in (None, [])}
            argument = words if as_words else from_words(model, words, names, extra)
            try:
                return command(**values, **{parameter: argument})
            except SightlineError as error:
                error.args = (as_typed(str(error), flags), *error.args[1:])
                raise

        kept = [
            p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for p in signature.parameters.values()
            if p.name != parameter
        ]
        kept_flags = {flag for p in kept for flag in flags_of(p)}
        for option in options:
            if clash := sorted(kept_flags & flags_of(option)):
                raise SightlineError(
                    f"{model.__module__}.{model.__qualname__}: its field `{option.name}` would be "
                    f"the option {clash[0]}, which the command has already; rename the field"
                )
        added = [option.replace(name=f"{parameter}_{option.name}") for option in options]
        parameters = sorted([*kept, *added], key=_place)
        call.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore
        call.__annotations__ = {option.name: option.annotation for option in parameters}
        del call.__wrapped__  # pyright: ignore
        models = getattr(command, "models", {}) | {option.name: model for option in added}
        call.models = models  # pyright: ignore
        return call

    return decorate


def options_in(model: type[BaseModel]) -> dict[str, str]:
    """Field → its option, where `takes` gives it that of its name."""
    return {name: _flag(name, None) for name in field_help(model)}


def as_typed(text: str, flags: Mapping[str, str]) -> str:
    """``text`` with the fields in it, such as `beside: txt`, as their options: --beside txt.

    A mapping, `captions: {train: FILE}`, is --captions train=FILE.

    Args:
        flags: field → its option.
    """

    def option(match: re.Match[str]) -> str:
        name, value = match.groups(default="")
        value = re.sub(r"\{(\w+): (.*)\}", r"\1=\2", value)
        return f"{flags[name]} {value}".rstrip() if name in flags else match[0]

    return re.sub(r"`(\w+)(?:: ([^`]*))?`", option, text)


def flags_of(parameter: inspect.Parameter) -> set[str]:
    """The options that a parameter of a command has, such as ``--out``."""
    flags: set[str] = set()
    for about in getattr(parameter.annotation, "__metadata__", ()):
        if isinstance(about, OptionInfo):
            words = [about.default, *(about.param_decls or ())]
            declared = [flag for word in words if isinstance(word, str) for flag in word.split("/")]
            flags.update(declared or [_flag(parameter.name, None)])
    return flags


def _place(parameter: inspect.Parameter) -> int:
    """Options in the order of their panels, after arguments."""
    for about in getattr(parameter.annotation, "__metadata__", ()):
        if about.rich_help_panel in PANELS:
            return PANELS.index(about.rich_help_panel)
    return -1


def _flag(name: str, names: Mapping[str, str] | None) -> str:
    return f"--{(names or {}).get(name, name).replace('_', '-')}"


def _option(field: FieldInfo, name: str, flag: str, about: str, panel: str) -> inspect.Parameter:
    """The option of one field; a value is taken as text, and the model turns it into its type."""
    arms = types_of(field.annotation)
    values = [value for arm in arms if get_origin(arm) is Literal for value in get_args(arm)]
    form, kind, repeatable = _metavar(arms), str | None, ""
    if bool in arms:
        kind, form = bool | None, ""
        flag = flag if not field.default else f"{flag}/--no-{flag[2:]}"
    elif any(get_origin(arm) in (list, dict, tuple) for arm in arms):
        kind, repeatable = list[str], "; repeatable"
    default = field.get_default(call_default_factory=True)
    told = "" if default in (None, "", (), False, [], {}, Path()) else str(default)
    end = rf" [dim]\[default: {'on' if default is True else told}][/dim]" if told else ""
    option = typer.Option(
        flag,
        help=f"{_in_short(about, values)}{repeatable}.{'' if field.is_required() else end}",
        metavar=form,
        show_default=False,
        rich_help_panel=panel,
    )
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if field.is_required() else [] if repeatable else None,
        annotation=Annotated[kind, option],
    )


def _in_short(about: str, values: Collection[Any]) -> str:
    """The first clause of what a field means, and what its default does; docs have the whole."""
    text = re.sub(r" \((?:see|the extra)[^)]*\)", "", about.rstrip("."))
    first, *parts = re.split(r"[;.] (?![^(]*\))", text)
    default = next((part for part in parts if re.match(r"None: |by default |default: ", part)), "")
    word = first.split(" ")[0]
    is_symbol = len(word) == 1 and word != "a"
    if word.isascii() and not is_symbol and word not in values:
        first = first[:1].upper() + first[1:]
    clauses = [first, default.replace("None: ", "default: ")]
    return "; ".join(filter(None, clauses)).replace("[", r"\[")


def from_words(
    model: type[Model],
    words: Mapping[str, Any],
    names: Mapping[str, str] | None = None,
    extra: Mapping[str, Any] = MappingProxyType({}),
) -> Model:
    """``model`` from the text of its options; misuse (exit code 2) if it refuses them.

    Args:
        words: field → text, or texts of a repeatable option.
        names: field → name of its option, where it differs.
        extra: further fields, which have no option, with their values.
    """
    fields = model.model_fields
    values = {
        name: _of_words(types_of(fields[name].annotation), _flag(name, names), value)
        for name, value in words.items()
    }
    try:
        return model.model_validate({**extra, **values})
    except ValidationError as error:
        mistake = error.errors()[0]  # under the name of its option
        flags = {name: _flag(name, names) for name in fields.keys() - extra.keys()}
        message = as_typed(mistake["msg"].removeprefix("Value error, "), flags)
        place = [*map(str, mistake["loc"])]
        if place:
            place[0] = f"--set {place[0]}" if place[0] in extra else _flag(place[0], names)
        raise typer.BadParameter(": ".join(filter(None, (".".join(place), message)))) from error


def _of_words(arms: Sequence[Any], flag: str, value: Any) -> Any:
    """The value of an option's text or texts, as a model that turns text into its types takes it.

    A mapping is given as NAME=VALUE, where the field has one; where it has a single value as well,
    one word without ``=`` is that.
    """
    if value == "null" and NoneType in arms:
        return None
    if not isinstance(value, list):
        return value
    is_single = len(value) == 1 and any(arm in (str, Path) for arm in arms)
    inner = next((get_args(arm)[1] for arm in arms if get_origin(arm) is dict), None)
    if inner is not None and not (is_single and "=" not in value[0]):
        return {
            name: _value(types_of(inner), name, text)
            for name, text in pairs_of(value, flag).items()
        }
    return value[0] if is_single else value


def set_values(
    model: type[BaseModel],
    words: Sequence[str],
    options: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """The parameters of ``--set NAME=VALUE``, for a model that checks them.

    A VALUE is YAML, except where the model has text: there it is taken as it is (but for a list,
    ``[a, b]``, where the model has one too). Dots lead into a model within the model, such as
    ``rules.min_score=0.2``.

    Args:
        options: parameter → the option of the command that gives it.

    Raises:
        typer.BadParameter: not NAME=VALUE, a name that appears twice or has an option, or not YAML.
    """
    tree: dict[str, Any] = {}
    for name, text in pairs_of(words, "--set").items():
        if option := options.get(name):
            raise typer.BadParameter(f"{name} is an option: give {option}", param_hint="--set")
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
        raise typer.BadParameter(
            f"{name}: {value!r} is not YAML: {error}", param_hint="--set"
        ) from error


def about(model: type[BaseModel]) -> str:
    """The first line of a model's docstring."""
    return (model.__doc__ or "").strip().partition("\n")[0]


def names_models(annotation: Any) -> bool:
    """Whether a field holds other models, or a list or mapping of them."""
    inner = [part for arm in types_of(annotation) for part in (arm, *get_args(arm))]
    return any(_is_model(part) for part in inner)


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
    inner = get_args(first)[0] if get_origin(first) in (list, tuple) else first
    return words.get(inner, "<str>")


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
