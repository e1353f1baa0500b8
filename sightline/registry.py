"""Things chosen by name: Sightline's own, and those that other packages add by entry points."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, TypeVar

from sightline.errors import SightlineError
from sightline.parameter_errors import unknown

T = TypeVar("T")


class Registry:
    """Name → ``module:attribute``; nothing is imported until it is needed.

    Args:
        what: what is registered, in the singular, for error messages.
        group: the entry points with which other packages add to it.
        own: Sightline's own entries.
    """

    def __init__(self, what: str, group: str, own: Mapping[str, str]) -> None:
        self.what, self.group = what, group
        self._own = dict(own)

    @cached_property
    def places(self) -> dict[str, str]:
        """Name → ``module:attribute``, Sightline's own first.

        Raises:
            SightlineError: a package registers a name that is taken.
        """
        found = dict(self._own)
        owners = dict.fromkeys(found, "Sightline")
        for point in entry_points(group=self.group):
            package = point.dist.name if point.dist else point.module
            if point.name in found and found[point.name] != point.value:
                raise SightlineError(
                    f"{package}: its entry point {self.group}:{point.name} ({point.value}) has the "
                    f"same name as the {self.what} of {owners[point.name]} "
                    f"({found[point.name]}); rename it, or uninstall one of the packages"
                )
            found[point.name] = point.value
            owners.setdefault(point.name, package)
        return found

    def add(self, name: str, place: str) -> None:
        """Add ``module:attribute`` for this process; a package uses an entry point instead.

        Raises:
            SightlineError: the name is taken.
        """
        if self.places.get(name, place) != place:
            raise SightlineError(
                f"the {self.what} {name!r} is {self.places[name]}, so {place} needs another name"
            )
        self.places[name] = place

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.places

    def place(self, name: str) -> str:
        """``module:attribute`` of ``name``.

        Raises:
            SightlineError: there is none; lists the available ones and suggests the nearest.
        """
        if name not in self.places:
            raise SightlineError(unknown(name, self.places, self.what))
        return self.places[name]

    def subclass(self, name: str, base: type[T]) -> type[T]:
        """The subclass of ``base`` registered as ``name``.

        Raises:
            SightlineError: there is none, another package's cannot be imported, or it is not such
                a subclass.
        """
        found = self.load(name)
        if not (isinstance(found, type) and issubclass(found, base)):
            raise SightlineError(
                f"{self._whose(name)}: found {found!r}, expected a subclass of "
                f"{base.__module__}.{base.__name__}; see docs/extending.md"
            )
        return found

    def load(self, name: str, attribute: str | None = None) -> Any:
        """What is registered as ``name``.

        Args:
            attribute: load this attribute of its module instead.

        Raises:
            SightlineError: there is none, or another package's cannot be imported.
        """
        module = self.module(name)
        wanted = attribute or self.places[name].partition(":")[2]
        if not hasattr(module, wanted):
            raise SightlineError(
                f"{self._whose(name)}: its module {module.__name__} has no {wanted!r}; add it, or "
                "correct the entry"
            )
        return getattr(module, wanted)

    def module(self, name: str) -> ModuleType:
        """The module of what is registered as ``name``.

        Raises:
            SightlineError: there is none, or another package's cannot be imported.
        """
        module = self.place(name).partition(":")[0]
        try:
            return importlib.import_module(module)
        except Exception as error:
            if name in self._own:
                raise
            raise SightlineError(
                f"{self._whose(name)}: {module} cannot be imported: {type(error).__name__}: "
                f"{error}. Fix that package, or uninstall it"
            ) from error

    def _whose(self, name: str) -> str:
        return f"{self.what} {name!r} ({self.places[name]}, entry point of {self.group})"
