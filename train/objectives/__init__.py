"""Objectives: which loss terms a batch has, with which weights, heads and cached features."""

from train.objectives.known_objectives import OBJECTIVES, make_objective, objective_class
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
