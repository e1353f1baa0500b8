"""Code of other packages: whose it is, and what Sightline expects of it where it enters.

What is not as a function here expects raises the error of `wrong`.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Mapping, Sized
from functools import lru_cache
from importlib.metadata import distributions
from inspect import isfunction, signature
from itertools import chain
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from sightline.errors import SightlineError
from sightline.user_files import short

T = TypeVar("T")

OURS = {"pipeline", "sightline", "train"}
"""Our own packages."""
_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True, revalidate_instances="always")


def wrong(code: object, subject: str, value: object, expected: str) -> SightlineError:
    """The error of a package whose ``code`` gives something that no seam accepts.

    Args:
        code: an object, a class or a function of that package.
        subject: was given, such as ``build_image``.
    """
    return _fault(code, f"{subject}: found {short(value)} ({type(value).__name__})", expected)


def _fault(code: object, subject: str, expected: str) -> SightlineError:
    owner = code if hasattr(code, "__qualname__") else type(code)
    return SightlineError(
        f"{owner.__module__}.{getattr(owner, '__qualname__', '')}: {subject}, expected {expected}; "
        f"fix the package {package_of(code)!r} (docs/extending.md), or uninstall it"
    )


def package_of(code: object) -> str:
    """The package of an object, a class or a function."""
    owner = code if hasattr(code, "__module__") else type(code)
    return owner.__module__.partition(".")[0]


def expect(value: Any, kind: type[T], code: object, subject: str) -> T:
    """``value``, if it is a ``kind``."""
    if not isinstance(value, kind):
        raise wrong(code, subject, value, f"a {kind.__module__}.{kind.__name__}")
    return value


def expect_class(value: object, base: type, code: object, subject: str) -> None:
    """Check that an attribute is a subclass of ``base``."""
    if not (isinstance(value, type) and issubclass(value, base)):
        raise wrong(code, subject, value, f"a subclass of {base.__module__}.{base.__name__}")


def expect_seam(
    part: Any, base: type, *identity: str, of: object = None
) -> list[Mapping[str, Any]]:
    """Check what another package gives where it enters Sightline.

    Each public method of ``base`` is there and takes the arguments that ``base`` names, by
    position; and what ``part`` is known by is a mapping of JSON values.

    Args:
        part: a class, or an object.
        base: its base class, or the protocol.
        identity: attributes or methods of an object that enter the identity of rows, runs or
            scores, such as ``describe``.
        of: the code that has made it; default: its own class.

    Returns:
        What each of ``identity`` says.
    """
    code = part if of is None else of
    of_product = "" if of is None else " of what it makes"
    for name, method in vars(base).items():
        public = not name.startswith("_") or name in getattr(base, "__abstractmethods__", ())
        if not (public and isfunction(method)):
            continue
        function = getattr(part, name, None)
        if not callable(function):
            raise wrong(code, f"{name}{of_product}", function, "a method")
        arguments = [*signature(method).parameters]
        try:
            parameters = signature(function)
        except (TypeError, ValueError):  # of a builtin it is not known
            continue
        if not (isinstance(part, type) and isfunction(function)):
            arguments = arguments[1:]  # it is bound
        try:
            parameters.bind(*arguments)
        except TypeError:
            subject = f"{name}{of_product}: takes ({', '.join(parameters.parameters)})"
            raise _fault(code, subject, f"({', '.join(arguments)})") from None
    identities: list[Mapping[str, Any]] = []
    for name in identity:
        value = getattr(part, name, None)
        value = value() if callable(value) else value
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise wrong(code, f"{name}{of_product}", value, f"JSON values ({error})") from error
        identities.append(expect(value, Mapping, code, f"{name}{of_product}"))
    return identities


def expect_count(values: Any, count: int, code: object, subject: str, of: str) -> None:
    """Check that a list, an array or a tensor has one entry for each of ``count`` others."""
    expected = f"one for each of {count} {of}"
    if not isinstance(values, Sized):
        raise wrong(code, subject, values, expected)
    if len(values) != count:
        raise wrong(code, subject, len(values), expected)


def expect_valid(value: Any, kind: Any, code: object, subject: str) -> None:
    """Check a value and all that it holds, such as the fields of a dataclass, against a type.

    Args:
        kind: any annotation, such as ``dict[str, float]``.
    """
    try:
        _adapter(kind).validate_python([value])
    except ValidationError as error:
        fault = error.errors()[0]
        place = "".join(f".{name}" for name in fault["loc"][1:])
        raise wrong(code, subject + place, fault["input"], fault["msg"]) from error


def summary_of(error: Exception) -> str:
    """An error of any library, on one line."""
    if not isinstance(error, ValidationError):
        return "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    fault = error.errors()[0]
    place = ".".join(map(str, (error.title, *fault["loc"])))
    return f"{place}: {fault['msg']}; found {short(fault['input'])}"


@lru_cache(maxsize=64)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    listed: Any = list[kind]  # a dataclass alone takes no configuration
    return TypeAdapter(listed, config=_STRICT)


def expect_array(
    value: Any, dtype: str, shape: tuple[int, ...], code: object, subject: str
) -> None:
    """Check the dtype and shape of an array or tensor."""
    found = str(getattr(value, "dtype", "")).removeprefix("torch."), getattr(value, "shape", ())
    if found[0] == dtype and tuple(found[1]) == shape:
        return
    expected = f"{dtype} {list(shape)}"
    if not found[0]:
        raise wrong(code, subject, value, expected)
    raise _fault(code, f"{subject}: found {found[0]} {list(found[1])}", expected)


def to_blame(error: BaseException) -> tuple[str, bool]:
    """The package whose code an error went through; else those in use, and False.

    Tracebacks that another process sent as text count.

    Returns:
        Its name, or names joined by commas (empty without any), and whether its code was running.
    """
    points = chain.from_iterable(package.entry_points for package in distributions())
    modules = {point.module for point in points if point.group.startswith("sightline.")}
    in_use = {module.partition(".")[0] for module in modules if module in sys.modules} - OURS
    package_of = {
        file: package
        for name, module in [*sys.modules.items()]
        if (package := name.partition(".")[0]) in in_use and (file := vars(module).get("__file__"))
    }
    text = "".join(traceback.format_exception(error))
    for file in reversed(re.findall(r'File "(.+?)", line ', text)):
        if file in package_of:
            return package_of[file], True
    return ", ".join(sorted(in_use)), False
