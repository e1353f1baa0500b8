"""Objectives: which loss terms a batch has, with which weights, heads and cached features.

An objective is one class, which imports no torch until it computes, so that its parameters are
checked before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
    from pydantic import ValidationError

    from sightline.cache.feature_kind import KINDS
    from train.objectives.needs import FeatureNeed
    from train.objectives.objective import Objective

    kind = objective_class(name)
    try:
        objective = kind.model_validate(parameters)
        for attribute in ("name", "source"):
            expect(getattr(objective, attribute, None), str, objective, attribute)
        if objective.name != name:
            raise wrong(objective, "name", objective.name, f"{name!r}, as the entry point has it")
        expect_valid(objective.features, Sequence[FeatureNeed], objective, "features")
        for need in objective.features:
            if need.kind not in KINDS:
                expected = f"one of {', '.join(KINDS)}"
                raise wrong(objective, "features, kind", need.kind, expected)
        expect_valid(objective.weights, dict[str, float], objective, "weights")
        expect_seam(objective, Objective, "describe")
        return objective
    except ValidationError as error:
        raise SightlineError(f"objective {name}: {'; '.join(explain(error))}") from error
