"""A package of somebody else, as an installation leaves it: found by its entry points."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from sightline import source_code
from sightline.settings import Registry, installed_entry_points


def install(site: Path, name: str, points: Mapping[str, Mapping[str, str]]) -> None:
    """Write the metadata of an installed package.

    Args:
        points: group → name → place, its entry points.
    """
    folder = site / f"{name}-0.1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
    lines = []
    for group, of_group in points.items():
        lines += [f"[{group}]", *(f"{key} = {place}" for key, place in of_group.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n")


_OF_SOURCES = tuple(
    getattr(source_code, f"_{what}") for what in ("file", "tree", "digest", "imported")
)


def forget_sources() -> None:
    """Let digests of code be of the sources as they are now."""
    for remembered in _OF_SOURCES:
        remembered.cache_clear()


def forget(registries: Iterable[Registry], package: str = "") -> None:
    """Let the registries look again for what is installed, and drop the modules of a package."""
    installed_entry_points.cache_clear()
    for registry in registries:
        vars(registry).pop("places", None)
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]
