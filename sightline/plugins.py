"""Code of other packages: whose it is, and what Sightline expects of it where it enters."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from itertools import chain
from typing import Any, TypeVar

from sightline.errors import SightlineError
from sightline.user_files import short

T = TypeVar("T")

_OURS = {"pipeline", "sightline", "train"}


def wrong(code: object, what: str, found: object, expected: str) -> SightlineError:
    """The error of a package whose ``code`` gives something that no seam accepts.

    Args:
        code: an object, a class or a function of that package.
        what: was given, such as ``build_image``.
    """
    named = code if hasattr(code, "__qualname__") else type(code)
    module, name = named.__module__, getattr(named, "__qualname__", "")
    return SightlineError(
        f"{module}.{name}: {what}: found {short(found)} ({type(found).__name__}), expected "
        f"{expected}; fix the package {module.partition('.')[0]!r} (docs/extending.md), or "
        "uninstall it"
    )


def expect(value: Any, kind: type[T], code: object, what: str) -> T:
    """``value``, if it is a ``kind``.

    Raises:
        SightlineError: it is not; see `wrong`.
    """
    if not isinstance(value, kind):
        raise wrong(code, what, value, f"a {kind.__module__}.{kind.__name__}")
    return value


def expect_class(found: object, base: type, code: object, what: str) -> None:
    """Check that an attribute is a subclass of ``base``.

    Raises:
        SightlineError: it is not; see `wrong`.
    """
    if not (isinstance(found, type) and issubclass(found, base)):
        raise wrong(code, what, found, f"a subclass of {base.__module__}.{base.__name__}")


def expect_all(values: Any, kind: type[T], code: object, what: str) -> Sequence[T]:
    """``values``, if they are a list or tuple of ``kind``.

    Raises:
        SightlineError: they are not; see `wrong`.
    """
    if not isinstance(values, list | tuple):
        raise wrong(code, what, values, f"a list of {kind.__name__}")
    for value in values:
        expect(value, kind, code, f"{what}, one of its list")
    return values


def expect_fields(value: object, code: object, kinds: Mapping[str, Any]) -> None:
    """Check attributes of an object: name → its class, or ``callable``.

    Raises:
        SightlineError: one is missing or something else; see `wrong`.
    """
    for name, kind in kinds.items():
        found = getattr(value, name, None)
        if not (callable(found) if kind is callable else isinstance(found, kind)):
            raise wrong(code, f"`{name}` of what it makes", found, f"a {kind.__name__}")


def to_blame(error: BaseException) -> tuple[str, bool]:
    """The package in whose code an error arose; else those in use, and False.

    Returns:
        Its name, or names joined by commas (empty without any), and whether the error is its own.
    """
    points = chain.from_iterable(package.entry_points for package in distributions())
    modules = {point.module for point in points if point.group.startswith("sightline.")}
    in_use = {module.partition(".")[0] for module in modules if module in sys.modules} - _OURS
    trace, deepest = error.__traceback__, ""
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if package in in_use | _OURS:
            deepest = package
        trace = trace.tb_next
    return (deepest, True) if deepest in in_use else (", ".join(sorted(in_use)), False)
