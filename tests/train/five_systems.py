"""SimCSE, MCSE, KDMCSE, DALR and MCSEO on the tiny world, with every term counting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conftest import World
from feature_sets import Features
from phrase_world import Objects
from step_oracle import Case

TEACHERS = [{"encoder": "first", "weight": 0.33}, {"encoder": "alike", "weight": 0.67}]
GIVEN: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "simcse": ({}, {}),
    "mcse": ({"image": "clip", "weight": 0.5}, {"image-clip": "clip"}),
    "kdmcse": (
        {
            "image": "clip",
            "text": "clip-text",
            "weight": 0.5,
            "text_margin": 0.1,
            "image_threshold": 0.3,
            "teacher_text_threshold": 0.5,
        },
        {"image-clip": "clip", "text-clip-text": "clip-text"},
    ),
    "dalr": (
        {"image": "clip", "teachers": TEACHERS, "consistency_margin": -0.5},
        {"image-clip": "clip", "teacher-first": "first", "teacher-alike": "alike"},
    ),
    "mcseo": (
        {"image": "clip", "image_weight": 0.5, "object_weight": 0.5},
        {"image-clip": "clip", "object-clip": "clip-objects"},
    ),
}
"""Objective → parameters in which every term counts, and the feature sets that it reads."""


def features_of(world: World, root: Path) -> Features:
    """The feature sets that the five read, but for those of objects."""
    made = Features(world, root)
    made.add("clip", "image", dim=7)
    made.add("clip-text", "text", dim=7)
    made.add("first", "teacher", dim=9)
    made.add("alike", "teacher", dim=9)
    return made


def cases_of(world: World, features: Features) -> dict[str, Case]:
    """The five, over the sets of `features_of`."""
    objects = Objects(world, features, "clip-objects", dim=7)
    made = {}
    for name, (parameters, sets) in GIVEN.items():
        pairs = {"phrases": objects.path} if name == "mcseo" else {}
        made[name] = Case(world, features, name, {"caption": "all", **parameters}, sets, pairs)
    return made
