"""The objectives there are, by name."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from sightline.errors import SightlineError
from sightline.parameter_errors import explain, unknown
from train.objectives.combined import Combined
from train.objectives.dalr import DALR
from train.objectives.kdmcse import KDMCSE
from train.objectives.mcse import MCSE
from train.objectives.mcseo import MCSEO
from train.objectives.objective import Objective
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
        raise SightlineError(unknown(name, OBJECTIVES, "objective"))
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
        raise SightlineError(
            f"objective {name}: {'; '.join(explain(error, found.Params))}"
        ) from error
