"""Objectives: which loss terms a batch has, with which weights, heads and cached features."""

from train.objectives.base import FeatureNeed, Objective, ObjectiveParams, Views
from train.objectives.registry import OBJECTIVES, make_objective, objective_class

__all__ = [
    "OBJECTIVES",
    "FeatureNeed",
    "Objective",
    "ObjectiveParams",
    "Views",
    "make_objective",
    "objective_class",
]
