"""The objectives there are, by name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError

from pipeline.cache import SightlineError
from train.objectives.base import Objective
from train.objectives.combined import Combined
from train.objectives.dalr import DALR
from train.objectives.kdmcse import KDMCSE
from train.objectives.mcse import MCSE
from train.objectives.mcseo import MCSEO
from train.objectives.simcse import SimCSE

OBJECTIVES: dict[str, type[Objective[Any]]] = {
    SimCSE.name: SimCSE,
    MCSE.name: MCSE,
    KDMCSE.name: KDMCSE,
    DALR.name: DALR,
    MCSEO.name: MCSEO,
    Combined.name: Combined,
}


def objective_class(name: str) -> type[Objective[Any]]:
    """The objective called ``name``.

    Raises:
        SightlineError: there is none; lists those there are.
    """
    if name not in OBJECTIVES:
        raise SightlineError(f"unknown objective {name!r}; there are {', '.join(OBJECTIVES)}")
    return OBJECTIVES[name]


def make_objective(name: str, parameters: dict[str, Any]) -> Objective[Any]:
    """The objective called ``name`` with ``parameters``, defaults filled in.

    Raises:
        SightlineError: unknown objective, or a parameter that it does not have or allow.
    """
    found = objective_class(name)
    try:
        return found(found.Params.model_validate(parameters))
    except ValidationError as error:
        known = found.Params.model_fields
        problems = "; ".join(_problem(dict(part), known) for part in error.errors())
        raise SightlineError(
            f"objective {name}: {problems}; it takes {', '.join(known)}"
        ) from error


def _problem(error: dict[str, Any], known: Iterable[str]) -> str:
    where = ".".join(map(str, error["loc"]))
    message = f"{where}: {error['msg'].lower()}"
    if error["type"] == "value_error":  # one of our own, which names its parameters
        return str(error["ctx"]["error"])
    if error["type"] == "missing":
        return message
    if error["type"] == "extra_forbidden":
        near = difflib.get_close_matches(where, known, n=1)
        return f"{message} (did you mean {near[0]!r}?)" if near else message
    return f"{message}, found {error['input']!r}"
