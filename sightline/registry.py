"""Things chosen by name: our own, and those of other packages by their entry points."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any

from sightline.errors import SightlineError
from sightline.parameter_errors import unknown


class Registry:
    """Name → ``module:attribute``; nothing is imported before it is asked for.

    Args:
        what: what is registered, in the singular, for error messages.
        group: of the entry points with which other packages add to it.
        own: ours.
    """

    def __init__(self, what: str, group: str, own: Mapping[str, str]) -> None:
        self.what, self.group = what, group
        self._own = dict(own)

    @cached_property
    def places(self) -> dict[str, str]:
        """Name → ``module:attribute``, ours first.

        Raises:
            SightlineError: a package gives a name that is taken.
        """
        found = dict(self._own)
        for point in entry_points(group=self.group):
            package = point.dist.name if point.dist else point.module
            if point.name in found and found[point.name] != point.value:
                raise SightlineError(
                    f"{package}: its entry point {self.group}:{point.name} ({point.value}) has the "
                    f"name of another {self.what} ({found[point.name]}); rename it, or uninstall "
                    "the package"
                )
            found[point.name] = point.value
        return found

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def place(self, name: str) -> str:
        """``module:attribute`` of ``name``.

        Raises:
            SightlineError: there is none; lists those there are and names the nearest.
        """
        if name not in self.places:
            raise SightlineError(unknown(name, self.places, self.what))
        return self.places[name]

    def load(self, name: str) -> Any:
        """What is registered as ``name``.

        Raises:
            SightlineError: there is none, or another package's cannot be imported.
        """
        place = self.place(name)
        module, _, attribute = place.partition(":")
        if name in self._own:
            return getattr(importlib.import_module(module), attribute)
        try:
            return getattr(importlib.import_module(module), attribute)
        except Exception as error:
            raise SightlineError(
                f"{self.what} {name!r} of {place} cannot be imported: "
                f"{type(error).__name__}: {error}"
            ) from error
