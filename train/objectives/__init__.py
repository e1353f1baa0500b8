"""Objectives: which loss terms a batch has, with which weights, heads and cached features.

Imports no torch, so that parameters are checked before anything heavy is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sightline.errors import SightlineError
from sightline.lazy_names import lazy_names
from sightline.plugins import expect_all, expect_class, expect_json, expect_valid
from sightline.settings import Registry, explain

if TYPE_CHECKING:
    from train.objectives.objective import Embeddings, FeatureNeed, Objective, ObjectiveParams

__all__ = [
    "OBJECTIVES",
    "Embeddings",
    "FeatureNeed",
    "Objective",
    "ObjectiveParams",
    "make_objective",
    "objective_class",
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
        "combined": "train.objectives.combined:Combined",
    },
)
"""Where each objective is: a line here, or an entry point of another package."""

__getattr__ = lazy_names(
    __name__,
    dict.fromkeys(
        ("Embeddings", "FeatureNeed", "Objective", "ObjectiveParams"), "train.objectives.objective"
    ),
)


def objective_class(name: str) -> type[Objective[Any]]:
    """The objective called ``name``.

    Raises:
        SightlineError: there is none (lists the available ones), or another package's is unusable.
    """
    from train.objectives.objective import Objective, ObjectiveParams

    kind = OBJECTIVES.subclass(name, Objective)
    expect_class(getattr(kind, "Params", None), ObjectiveParams, kind, "Params")
    return kind


def make_objective(name: str, parameters: Mapping[str, Any]) -> Objective[Any]:
    """The objective called ``name`` with ``parameters``, defaults filled in.

    Raises:
        SightlineError: unknown objective, or a parameter that it does not have or allow.
    """
    from pydantic import ValidationError

    from train.objectives.objective import FeatureNeed

    kind = objective_class(name)
    try:
        objective = kind(kind.Params.model_validate(parameters))
        features = expect_all(objective.features, FeatureNeed, objective, "features")
        expect_valid(list(features), list[FeatureNeed], objective, "features")
        expect_valid(objective.weights, dict[str, float], objective, "weights")
        expect_json(objective.describe(), objective, "describe")
        return objective
    except ValidationError as error:
        raise SightlineError(f"objective {name}: {'; '.join(explain(error))}") from error
