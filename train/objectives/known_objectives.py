"""An objective from its name and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from sightline.errors import SightlineError
from sightline.settings import explain
from train.objective_registry import OBJECTIVES
from train.objectives.objective import Objective


def objective_class(name: str) -> type[Objective[Any]]:
    """The objective called ``name``.

    Raises:
        SightlineError: there is none (lists the available ones), or another package's is unusable.
    """
    return OBJECTIVES.subclass(name, Objective)


def make_objective(name: str, parameters: Mapping[str, Any]) -> Objective[Any]:
    """The objective called ``name`` with ``parameters``, defaults filled in.

    Raises:
        SightlineError: unknown objective, or a parameter that it does not have or allow.
    """
    found = objective_class(name)
    try:
        return found(found.Params.model_validate(parameters))
    except ValidationError as error:
        raise SightlineError(f"objective {name}: {'; '.join(explain(error))}") from error
