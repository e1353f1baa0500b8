"""Error messages for invalid parameters: the key, what was found, what is available."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError

from sightline.outside import short

_CONTAINERS = (dict, list, tuple)


def explain(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One line for each error that ``model`` found; for an unknown key, with the nearest one."""
    return [_line(dict(each), model) for each in error.errors()]


def unknown(name: str, known: Iterable[object], what: str) -> str:
    """``unknown key 'batchsize'; did you mean 'batch_size'? (available: …)``."""
    there = sorted(str(each) for each in known)
    near = difflib.get_close_matches(name, there, n=1, cutoff=0.5)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r}{guess} (available: {', '.join(there) or 'none'})"


def located(error: dict[str, Any], model: type[BaseModel]) -> tuple[tuple[Any, ...], str]:
    """Location and message of one error that ``model`` found, as pydantic lists it."""
    location: list[Any] = list(error["loc"])
    message: str = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        key = str(location.pop())
        message = unknown(key, _keys(location, model), "key")
    elif error["type"] == "missing":
        message = "is missing; it has no default"
    elif error["type"] != "value_error":  # our own messages say what they found
        message = f"{message[0].lower()}{message[1:]}; found {short(error['input'])}"
    return tuple(location), message


def _line(error: dict[str, Any], model: type[BaseModel]) -> str:
    location, message = located(error, model)
    where = ".".join(map(str, location))
    return f"{where}: {message}" if where else message


def _keys(location: Iterable[Any], model: type[BaseModel]) -> list[str]:
    """The keys that are allowed at a place below ``model``."""
    here: Any = model
    for part in location:
        container = get_origin(here)
        if container in _CONTAINERS:
            here = get_args(here)[container is dict]
            continue
        found = _models(here)
        if len(found) > 1:  # a union; pydantic names its member by the tag
            here = next((each for each in found if part in _tags(each)), None)
        else:
            field = found[0].model_fields.get(str(part)) if found else None
            here = field.annotation if field else None
    found = _models(here)
    return list(found[0].model_fields) if len(found) == 1 else []


def _models(annotation: Any) -> list[type[BaseModel]]:
    """The models that an annotation names itself or as members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (*_CONTAINERS, Literal):
        return []
    inside = get_args(annotation)[: 1 if get_origin(annotation) is Annotated else None]
    return [model for each in inside for model in _models(each)]


def _tags(model: type[BaseModel]) -> tuple[Any, ...]:
    """The values by which a member of a tagged union is chosen."""
    kinds = (get_args(field.annotation) for field in model.model_fields.values())
    return tuple(tag for values in kinds for tag in values)
