"""Objectives: which loss terms a batch has, with which weights, heads and cached features."""

from train.objective_registry import OBJECTIVES
from train.objectives.known_objectives import make_objective, objective_class
from train.objectives.objective import FeatureNeed, Objective, ObjectiveParams, Views

__all__ = [
    "OBJECTIVES",
    "FeatureNeed",
    "Objective",
    "ObjectiveParams",
    "Views",
    "make_objective",
    "objective_class",
]
