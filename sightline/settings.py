"""Parameters from files: errors that suggest names, classes chosen by name, and plug-ins."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, ClassVar, Self, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import InitErrorDetails, PydanticCustomError

from sightline.errors import SightlineError
from sightline.outside import short

_CONTAINERS = (dict, list, tuple)


def explain(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """One line for each error that ``model`` found; for an unknown key, with the nearest one."""
    lines: list[str] = []
    for each in error.errors():
        location, message = located(dict(each), model)
        lines.append(": ".join(filter(None, (".".join(map(str, location)), message))))
    return lines


def unknown(name: str, known: Iterable[object], what: str) -> str:
    """``unknown key 'batchsize'; did you mean 'batch_size'? (available: …)``."""
    there = sorted(str(each) for each in known)
    near = difflib.get_close_matches(name, there, n=1, cutoff=0.5)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r}{guess} (available: {', '.join(there) or 'none'})"


def located(error: dict[str, Any], model: type[BaseModel]) -> tuple[tuple[Any, ...], str]:
    """Location and message of one error that ``model`` found, as pydantic lists it."""
    location: list[Any] = list(error["loc"])
    message: str = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        key = str(location.pop())
        message = unknown(key, _keys(location, model), "key")
    elif error["type"] == "missing":
        message = "is missing; it has no default"
    elif error["type"] != "value_error":  # our own messages say what they found
        message = f"{message[0].lower()}{message[1:]}; found {short(error['input'])}"
    return tuple(location), message


def _keys(location: Iterable[Any], model: type[BaseModel]) -> list[str]:
    """The keys that are allowed at a place below ``model``."""
    here: Any = model
    for part in location:
        container = get_origin(here)
        if container in _CONTAINERS:
            here = get_args(here)[container is dict]
            continue
        found = _model(here)
        field = found.model_fields.get(str(part)) if found else None
        here = field.annotation if field else None
    found = _model(here)
    return list(found.model_fields) if found else []


def _model(annotation: Any) -> type[BaseModel] | None:
    """The model that an annotation is, or that it allows beside None."""
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None


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

    def load(self, name: str, attribute: str = "", default: Any = None) -> Any:
        """What is registered as ``name``.

        Args:
            attribute: load this attribute of its module instead.
            default: taken where the module has no such attribute; None makes that an error.

        Raises:
            SightlineError: there is none, or another package's cannot be imported.
        """
        module, _, own = self.place(name).partition(":")
        try:
            found = getattr(importlib.import_module(module), attribute or own, default)
        except Exception as error:
            if name in self._own:
                raise
            raise SightlineError(
                f"{self._whose(name)}: {module} cannot be imported: {type(error).__name__}: "
                f"{error}. Fix that package, or uninstall it"
            ) from error
        if found is None:
            raise SightlineError(
                f"{self._whose(name)}: its module {module} has no {attribute or own!r}; add it, or "
                "correct the entry"
            )
        return found

    def _whose(self, name: str) -> str:
        return f"{self.what} {name!r} ({self.places[name]}, entry point of {self.group})"


class FamilySettings(BaseModel):
    """Base class of settings that come in families; other packages may add their own.

    A direct subclass is an extension point: its registry, `families`, has its subclasses by name.
    Validating something against it validates it against the class of its family:
    ``EncoderConfig.model_validate({"family": "open_clip", …})`` is an `OpenClipConfig`.

    Attributes:
        family: name in the registry.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    families: ClassVar[Registry]

    family: str

    @model_validator(mode="wrap")
    @classmethod
    def _class_of_the_family(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if "families" not in vars(cls) or isinstance(given, cls):
            return handler(given)
        if not isinstance(given, dict):
            raise ValueError(f"found {type(given).__name__}, expected a mapping with a `family`")
        chosen = cls.of_family(given.get("family"))
        try:
            return chosen.model_validate(given)
        except ValidationError as error:
            # reported here: outside, the keys of the family are unknown
            raise _mistakes([located(dict(each), chosen) for each in error.errors()]) from error

    def require_files(self) -> None:
        """Check that the files it names are there, before what would read them is imported.

        Raises:
            SightlineError: one is missing.
        """

    @classmethod
    def of_family(cls, family: object) -> type[Self]:
        """The class of one family.

        Raises:
            ValidationError: there is no such family; the message names the nearest.
            SightlineError: it belongs to another package and cannot be imported, or it is not
                such a class.
        """
        families = cls.families
        if family is None:
            raise _mistakes([(("family",), f"is missing; there are {', '.join(families)}")])
        if family not in families:
            name = family if isinstance(family, str) else short(family)
            raise _mistakes([(("family",), unknown(name, families, families.what))])
        return families.subclass(str(family), cls)


def _mistakes(mistakes: list[tuple[tuple[Any, ...], str]]) -> ValidationError:
    """A pydantic error with these messages, each at its location."""
    return ValidationError.from_exception_data(
        "settings",
        [
            InitErrorDetails(
                type=PydanticCustomError("value_error", "{message}", {"message": message}),
                loc=place,
                input=None,
            )
            for place, message in mistakes
        ],
    )
