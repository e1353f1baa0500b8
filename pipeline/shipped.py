"""Files that come with Sightline: the graph, its configurations, and a template of DVC's plots.

A wheel has them in the package; in a clone they are the root's own.
"""

from __future__ import annotations

from pathlib import Path

_IN_A_WHEEL = Path(__file__).parent / "shipped_files"
_CLONE = Path(__file__).parents[1]
_ROOT = _IN_A_WHEEL if _IN_A_WHEEL.is_dir() else _CLONE

GRAPH = _ROOT / "dvc.yaml"
"""The stages, see docs/start.md."""
CONFIGURATIONS = _ROOT / "configs"
"""What `sightline configure` lists."""
PLOT = _ROOT / (".dvc/plots/curves.json" if _ROOT is _CLONE else "curves.json")
"""How `dvc plots` draws a run."""
