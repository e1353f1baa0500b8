"""Objectives: which loss terms a batch has, with which weights, heads and cached features.

An objective is one class, which imports no torch until it computes, so that its parameters are
checked before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError

from sightline.errors import SightlineError
from sightline.lazy_names import lazy_names
from sightline.plugins import expect, expect_seam, expect_valid, wrong
from sightline.settings import Registry, explain

if TYPE_CHECKING:
    from train.objectives.module import ObjectiveModule, text_head
    from train.objectives.needs import FeatureNeed
    from train.objectives.objective import GroundedObjective, Objective

__all__ = [
    "OBJECTIVES",
    "FeatureNeed",
    "GroundedObjective",
    "Objective",
    "ObjectiveModule",
    "make_objective",
    "objective_class",
    "text_head",
]

OBJECTIVES = Registry(
    "objective",
    "sightline.objectives",
    {
        "simcse": "train.objectives.simcse:SimCSE",
        "mcse": "train.objectives.mcse:MCSE",
        "kdmcse": "train.objectives.kdmcse:KDMCSE",
        "dalr": "train.objectives.dalr:DALR",
        "mcseo": "train.objectives.mcseo:MCSEO",
    },
)
"""Where the class of each objective is: a line here, or an entry point of another package."""
_Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]

__getattr__ = lazy_names(
    __name__,
    {
        "FeatureNeed": "train.objectives.needs",
        **dict.fromkeys(("GroundedObjective", "Objective"), "train.objectives.objective"),
        **dict.fromkeys(("ObjectiveModule", "text_head"), "train.objectives.module"),
    },
)


def objective_class(name: str) -> type[Objective]:
    """The class of the objective called ``name``."""
    from train.objectives.objective import Objective

    return OBJECTIVES.subclass(name, Objective)


def make_objective(name: str, parameters: Mapping[str, Any]) -> Objective:
    """The objective called ``name`` with ``parameters``, defaults filled in.

    Raises:
        SightlineError: unknown objective, or a parameter that it does not have or allow.
    """
    from train.objectives.needs import FeatureNeed
    from train.objectives.objective import Objective

    kind = objective_class(name)
    try:
        objective = kind.model_validate(parameters)
        for attribute in ("name", "source"):
            expect(getattr(objective, attribute, None), str, objective, attribute)
        if objective.name != name:
            raise wrong(objective, "name", objective.name, f"{name!r}, as the entry point has it")
        expect_valid(objective.weights, dict[str, _Weight], objective, "weights")
        expect_valid(objective.features, Sequence[FeatureNeed], objective, "features")
        for need in objective.features:
            _check_need(objective, need)
        expect_seam(objective, Objective, "describe")
        return objective
    except ValidationError as error:
        raise SightlineError(f"objective {name}: {'; '.join(explain(error))}") from error


def _check_need(objective: Objective, need: FeatureNeed) -> None:
    """SightlineError for a need of a kind, a term or a head that an objective cannot have."""
    from sightline.cache.feature_kind import KINDS

    if need.kind not in KINDS:
        raise wrong(objective, "features, kind", need.kind, f"one of {', '.join(KINDS)}")
    for term in need.terms:
        if term not in objective.weights:
            weighed = f"terms that have a weight ({', '.join(objective.weights)})"
            raise wrong(objective, "features, terms", term, weighed)
    if need.head is not None and (need.head in ("", "text", "grounding") or "." in need.head):
        expected = "a name without dots, neither text nor grounding"
        raise wrong(objective, "features, head", need.head, expected)
