"""The public names of a package, imported when they are first used."""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # these would take as long to import as all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__`, so that importing the package stays cheap.

    Args:
        package: its name.
        places: public name → the module that defines it.
    """

    def get(name: str) -> Any:
        place = places.get(name)
        if place is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(place), name)

    return get
