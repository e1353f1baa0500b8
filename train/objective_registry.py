"""Where to find each objective by name. Imports no torch: stages only need the source files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sightline.settings import Registry

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


def modules_of(name: str, parameters: Mapping[str, Any]) -> set[str]:
    """The modules of objective ``name`` and, in a combination, of its parts.

    Raises:
        SightlineError: there is no objective of that name.
    """
    modules = {OBJECTIVES.place(name).partition(":")[0]}
    parts = parameters.get("parts")
    if isinstance(parts, Mapping):
        for part, given in parts.items():
            named = given.get("objective") if isinstance(given, Mapping) else None
            modules |= modules_of(named or part, {})
    return modules
