"""Parameters from files: errors that suggest names, classes chosen by name, and plug-ins."""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import InitErrorDetails, PydanticCustomError

from sightline.errors import SightlineError
from sightline.files.atomic_files import HOME_REMEDY, names_home
from sightline.files.places import why_no_path
from sightline.plugins import OURS, expect_seam, package_of
from sightline.user_files import short
from sightline.wording import message_of, place_of

T = TypeVar("T")


def explain(error: ValidationError, where: str = "") -> list[str]:
    """One line for each mistake in `Settings`: its place, what was found, what was expected.

    Args:
        where: the place of the settings themselves.
    """
    faults: list[dict[str, Any]] = [dict(fault) for fault in error.errors()]
    places = [".".join(filter(None, (where, *map(str, place_of(f["loc"]))))) for f in faults]
    messages = map(message_of, faults)
    return [": ".join(filter(None, parts)) for parts in zip(places, messages, strict=True)]


_SHOWN = 10
"""Names that an error lists; of more only the nearest."""


def nearest_choices(name: str, choices: Iterable[object], every: str = "") -> str:
    """``choices`` in words: all of a few, or the nearest to ``name`` and how many others there are.

    Args:
        every: what shows all, such as a command.
    """
    available = sorted(map(str, choices))
    if len(available) <= 2 * _SHOWN:
        return ", ".join(available) or "none"
    target = name.lower()

    def distance(choice: str) -> tuple[bool, float]:
        candidate = choice.lower()
        ratio = difflib.SequenceMatcher(None, candidate, target).ratio()
        return not (target and candidate.startswith(target)), -ratio

    near = sorted(available, key=distance)[:_SHOWN]
    shows = f"; {every} lists all" if every else ""
    return f"{', '.join(near)} and {len(available) - len(near)} more{shows}"


def unknown(name: str, choices: Iterable[object], kind: str) -> str:
    """``unknown key 'batchsize'; did you mean 'batch_size'? (available: …)``."""
    available = sorted(str(name_of) for name_of in choices)
    near = difflib.get_close_matches(name, available, n=1, cutoff=0.5)
    guess = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {name!r}{guess} (available: {nearest_choices(name, available)})"


class Settings(BaseModel):
    """Parameters as a user writes them; an unknown key is an error that names the nearest one."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @model_validator(mode="wrap")
    @classmethod
    def _in_our_words(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        for place, text in _texts(values):
            if fault := cls._fault_of_path(place, text):
                ours = PydanticCustomError("value_error", "{message}", {"message": fault})
                details = InitErrorDetails(type=ours, loc=place, input=text)
                raise ValidationError.from_exception_data(cls.__name__, [details])
        try:
            return handler(values)
        except ValidationError as error:
            mistakes = [cls._mistake(dict(fault)) for fault in error.errors()]
            raise ValidationError.from_exception_data(cls.__name__, mistakes) from error

    @classmethod
    def _fault_of_path(cls, place: tuple[Any, ...], text: str) -> str:
        """Why no path is read there; empty if one is, or none is asked for."""
        if names_home(text):
            return f"found {short(text)}; {HOME_REMEDY}"
        field = cls.model_fields.get(place[0]) if place else None
        if field is not None and _takes_paths(field.annotation):
            return why_no_path(text)
        return ""

    @classmethod
    def _mistake(cls, error: dict[str, Any]) -> InitErrorDetails:
        place, message = place_of(error["loc"]), message_of(error)
        if error["type"] == "extra_forbidden":
            *place, key = place
            message = unknown(str(key), cls.model_fields, "key")
        elif error["type"] == "missing":
            message = "is missing; it has no default"
        elif error["type"] != "value_error":  # our own messages say what they found
            message = f"{message[0].lower()}{message[1:]}; found {short(error['input'])}"
        ours = PydanticCustomError("value_error", "{message}", {"message": message})
        return InitErrorDetails(type=ours, loc=tuple(place), input=error["input"])


def _takes_paths(annotation: Any) -> bool:
    """Whether a field's text can only be a path on this machine."""
    types = get_args(annotation)
    if get_origin(annotation) is dict:
        return _takes_paths(types[1])
    return annotation is Path or (Path in types and str not in types)


def _texts(
    value: Any, place: tuple[int | str, ...] = (), visited: set[int] | None = None
) -> Iterator[tuple[Any, str]]:
    """The texts and paths in mappings and lists, each with its place.

    YAML may name a list many times, also within itself: it is looked at once.
    """
    visited = set() if visited is None else visited
    if isinstance(value, (str, Path)):
        yield place, str(value)
    elif isinstance(value, (Mapping, list)) and id(value) not in visited:
        visited.add(id(value))
        entries = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, entry in entries:
            yield from _texts(entry, (*place, key), visited)


def field_help(model: type[BaseModel]) -> dict[str, str]:
    """Field → what it means: its description, or its lines under "Attributes" in a docstring.

    The field that chooses a class of settings is left out. Names of code are in single backticks.
    """
    helps: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        _, _, section = (inspect.cleandoc(cls.__doc__ or "")).partition("\nAttributes:\n")
        names: list[str] = []
        for line in section.splitlines():
            entry = re.match(r"    (\w+(?:, \w+)*): (.*)", line)
            if entry:
                names, text = entry[1].split(", "), entry[2]
                helps |= dict.fromkeys(names, text)
            elif line.startswith("        "):
                helps |= {name: f"{helps[name]} {line.strip()}" for name in names}
            elif line.strip():
                break
    return {
        name: (field.description or helps.get(name, "")).replace("``", "`")
        for name, field in model.model_fields.items()
        if name != getattr(model, "chosen_by", None)
    }


@cache
def installed_entry_points() -> EntryPoints:
    """Those of every package here: reading them takes a tenth of a second."""
    return cast("EntryPoints", entry_points())  # its groups, before Python 3.12, which select too


class Registry:
    """Name → ``module:attribute``; nothing is imported until it is needed.

    Args:
        noun: what is registered, in the singular, for error messages.
        group: the entry points with which other packages add to it.
        built_in: Sightline's own entries.
    """

    def __init__(self, noun: str, group: str, built_in: Mapping[str, str]) -> None:
        self.noun, self.group = noun, group
        self.built_in = dict(built_in)

    @cached_property
    def places(self) -> dict[str, str]:
        """Name → ``module:attribute``, Sightline's own first."""
        places = dict(self.built_in)
        owners = dict.fromkeys(places, "Sightline")
        for point in installed_entry_points().select(group=self.group):
            package = point.dist.name if point.dist else point.module
            if point.name in places and places[point.name] != point.value:
                raise SightlineError(
                    f"{package}: its entry point {self.group}:{point.name} ({point.value}) has the "
                    f"same name as the {self.noun} of {owners[point.name]} "
                    f"({places[point.name]}); rename it, or uninstall one of the packages"
                )
            places[point.name] = point.value
            owners.setdefault(point.name, package)
        return places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self.places

    def place(self, name: str) -> str:
        """``module:attribute`` of ``name``."""
        if name not in self.places:
            raise SightlineError(unknown(name, self.places, self.noun))
        return self.places[name]

    def subclass(self, name: str, base: type[T]) -> type[T]:
        """The subclass of ``base`` registered as ``name``.

        Raises:
            SightlineError: there is none, another package's cannot be imported, it is not such a
                subclass, or it lacks a method.
        """
        registered = self._load(name)
        if not (isinstance(registered, type) and issubclass(registered, base)):
            raise SightlineError(
                f"{self._whose(name)}: found {registered!r}, expected a subclass of "
                f"{base.__module__}.{base.__name__}; see docs/extending.md"
            )
        if missing := getattr(registered, "__abstractmethods__", None):
            raise SightlineError(
                f"{self._whose(name)}: lacks {', '.join(sorted(missing))}; see docs/extending.md"
            )
        if name not in self.built_in and package_of(base) in OURS:
            expect_seam(registered, base)
        return registered

    def instance(self, name: str, kind: type[T]) -> T:
        """The object of class ``kind`` registered as ``name``."""
        registered = self._load(name)
        if not isinstance(registered, kind):
            raise SightlineError(
                f"{self._whose(name)}: found {registered!r}, expected a "
                f"{kind.__module__}.{kind.__name__}; see docs/extending.md"
            )
        return registered

    def _load(self, name: str) -> Any:
        module, _, attribute = self.place(name).partition(":")
        try:
            registered = getattr(importlib.import_module(module), attribute, None)
        except Exception as error:
            if name in self.built_in:
                raise
            raise SightlineError(
                f"{self._whose(name)}: {module} cannot be imported: {type(error).__name__}: "
                f"{error}. Fix that package, or uninstall it"
            ) from error
        if registered is None:
            raise SightlineError(
                f"{self._whose(name)}: its module {module} has no {attribute!r}; add it, or "
                "correct the entry"
            )
        return registered

    def _whose(self, name: str) -> str:
        return f"{self.noun} {name!r} ({self.places[name]}, entry point of {self.group})"


class FamilySettings(Settings):
    """Base class of settings that come in families; other packages may add their own.

    A direct subclass is an extension point: its registry, `families`, has its subclasses by name.
    Validating something against it validates it against the class of its family:
    ``EncoderConfig.model_validate({"family": "open_clip", …})`` is an `OpenClipConfig`.

    Attributes:
        families: the registry.
        chosen_by: the field with the name in the registry, which an extension point has.
    """

    families: ClassVar[Registry]
    chosen_by: ClassVar[str] = "family"

    @model_validator(mode="wrap")
    @classmethod
    def _class_of_the_family(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if "families" not in vars(cls) or isinstance(values, cls):
            return handler(values)
        if not isinstance(values, dict):
            raise ValueError(
                f"found {type(values).__name__}, expected a mapping with a `{cls.chosen_by}`"
            )
        family, families = values.get(cls.chosen_by), cls.families
        if family is None:
            raise ValueError(f"{cls.chosen_by} is missing; there are {', '.join(families)}")
        if family not in families:
            raise ValueError(unknown(str(family), families, families.noun))
        return families.subclass(family, cls).model_validate(values)

    def require_files(self) -> None:
        """Check that the files it names are there, before what would read them is imported.

        Raises:
            SightlineError: one is missing.
        """


def flatten(parameters: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested parameters as {"train.learning_rate": 3e-5, …}."""
    flat: dict[str, Any] = {}
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
