"""Things chosen by name: our own, and those of other packages by their entry points."""

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
        owners = dict.fromkeys(found, "Sightline")
        for point in entry_points(group=self.group):
            package = point.dist.name if point.dist else point.module
            if point.name in found and found[point.name] != point.value:
                raise SightlineError(
                    f"{package}: its entry point {self.group}:{point.name} ({point.value}) has the "
                    f"name of another {self.what}, that of {owners[point.name]} "
                    f"({found[point.name]}); rename it, or uninstall one of the packages"
                )
            found[point.name] = point.value
            owners.setdefault(point.name, package)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

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

    def subclass(self, name: str, base: type[T]) -> type[T]:
        """What is registered as ``name``, a subclass of ``base``.

        Raises:
            SightlineError: there is none, another package's cannot be imported, or it is something
                else.
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
            attribute: something else that its module has, under this name.

        Raises:
            SightlineError: there is none, or another package's cannot be imported.
        """
        module = self.module(name)
        wanted = attribute or self.places[name].partition(":")[2]
        if not hasattr(module, wanted):
            raise SightlineError(
                f"{self._whose(name)}: its module {module.__name__} has no {wanted!r}; add it, or "
                "correct the place"
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
                f"{error}. Mend that package, or uninstall it"
            ) from error

    def _whose(self, name: str) -> str:
        return f"{self.what} {name!r} ({self.places[name]}, entry point of {self.group})"
