"""The demo's parameters, whatever the params.yaml of this clone has become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline.configure import configuration, to_yaml

_ROOT = Path(__file__).parents[2]


def demo_params() -> dict[str, Any]:
    """As `sightline configure scenes` writes them."""
    return configuration("scenes", folder=_ROOT / "configs", graph_file=_ROOT / "dvc.yaml")


def demo_params_text() -> str:
    """The same as a file."""
    return to_yaml(demo_params(), ["scenes"])
