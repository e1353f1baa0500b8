"""Objectives: which loss terms a batch has, with which weights, heads and cached features.

An objective is its parameters, which import no torch, so that they are checked before anything
heavy is loaded; they build the module that is trained (`train.objectives.modules`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.errors import SightlineError
from sightline.lazy_names import lazy_names
from sightline.plugins import expect, expect_all, expect_json, expect_valid, wrong
from sightline.settings import Registry, explain, flatten

if TYPE_CHECKING:
    from train.objectives.modules.objective import (
        Embeddings,
        GroundedObjective,
        Objective,
        text_head,
    )
    from train.objectives.parameters import FeatureNeed, GroundedParams, ObjectiveParams

__all__ = [
    "OBJECTIVES",
    "Embeddings",
    "FeatureNeed",
    "GroundedObjective",
    "GroundedParams",
    "Objective",
    "ObjectiveParams",
    "make_objective",
    "objective_class",
    "text_head",
]

OBJECTIVES = Registry(
    "objective",
    "sightline.objectives",
    {
        "simcse": "train.objectives.simcse:SimCSEParams",
        "mcse": "train.objectives.mcse:MCSEParams",
        "kdmcse": "train.objectives.kdmcse:KDMCSEParams",
        "dalr": "train.objectives.dalr:DALRParams",
        "mcseo": "train.objectives.mcseo:MCSEOParams",
        "combined": "train.objectives.combined:CombinedParams",
    },
)
"""Where the parameters of each objective are: a line here, or an entry point of another package."""

__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(
            ("FeatureNeed", "GroundedParams", "ObjectiveParams"), "train.objectives.parameters"
        ),
        **dict.fromkeys(
            ("Embeddings", "GroundedObjective", "Objective", "text_head"),
            "train.objectives.modules.objective",
        ),
    },
)


def objective_class(name: str) -> type[ObjectiveParams]:
    """The parameters of the objective called ``name``."""
    from train.objectives.parameters import ObjectiveParams

    return OBJECTIVES.subclass(name, ObjectiveParams)


def make_objective(name: str, parameters: Mapping[str, Any]) -> ObjectiveParams:
    """The objective called ``name`` with ``parameters``, defaults filled in.

    Raises:
        SightlineError: unknown objective, or a parameter that it does not have or allow.
    """
    from pydantic import ValidationError

    from sightline.cache.feature_kind import KINDS
    from train.objectives.parameters import FeatureNeed

    kind = objective_class(name)
    try:
        objective = kind.model_validate(parameters)
        for attribute in ("name", "source"):
            expect(getattr(objective, attribute, None), str, objective, attribute)
        if objective.name != name:
            raise wrong(objective, "name", objective.name, f"{name!r}, as the entry point has it")
        features = expect_all(objective.features, FeatureNeed, objective, "features")
        expect_valid(list(features), list[FeatureNeed], objective, "features")
        for need in features:
            if need.kind not in KINDS:
                expected = f"one of {', '.join(KINDS)}"
                raise wrong(objective, "features, kind", need.kind, expected)
        expect_valid(objective.weights, dict[str, float], objective, "weights")
        fields = flatten(expect_json(objective.describe(), objective, "describe"))
        expect_valid(objective.files, Mapping[str, Path], objective, "files")
        if unknown := objective.files.keys() - fields:
            raise wrong(objective, "files", min(unknown), f"one of {', '.join(fields)}")
        return objective
    except ValidationError as error:
        raise SightlineError(f"objective {name}: {'; '.join(explain(error))}") from error
