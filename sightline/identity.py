"""What names the things that are made with some settings: every field that is not declared out.

A field is declared where it stands, `Annotated[int, Outside("how it runs")]`; whatever is not
declared, also a field that comes later or is of another package, is in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from sightline.cache.keys import key_of_file
from sightline.digest import digest
from sightline.errors import SightlineError
from sightline.files.atomic_files import folders_below
from sightline.plugins import wrong

_VERSION, _SETTINGS = "@version", "@settings"  # no field has such a name


@dataclass(frozen=True)
class Outside:
    """Marks a field in `Annotated`: what is made is the same whatever it is.

    Attributes:
        why: such as ``a label``.
    """

    why: str


@dataclass(frozen=True)
class Elsewhere:
    """Marks a field in `Annotated`: what it comes to is another part of what names the thing.

    Attributes:
        where: that part, such as ``the digest of the weights``.
    """

    where: str


@dataclass(frozen=True)
class MayBePath:
    """Marks a text that may name a file or folder, which then counts by its content.

    Attributes:
        prefix: that of the texts that do; empty: each does that has a slash, and is there.
    """

    prefix: str = ""

    def __call__(self, text: str) -> str:
        """``text`` as it counts."""
        path = Path(text.removeprefix(self.prefix))
        is_path = text.startswith(self.prefix) if self.prefix else "/" in text and path.exists()
        return content_of(path) if is_path else text


def declared(model: type[BaseModel]) -> dict[str, Outside | Elsewhere]:
    """Fields of ``model`` that `identity` leaves out → why."""
    return {
        name: mark
        for name, field in model.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Outside | Elsewhere)
    }


def identity(settings: BaseModel) -> dict[str, Any]:
    """Every field that counts, with those of settings in it, as JSON values.

    Paths stand as the SHA-256 of what lies there. The name of the family, by which a class is
    chosen, is left out: what the class makes says what it is. A class of a package may have a
    ``version``, a text that it changes with what it computes.

    Raises:
        SightlineError: there is nothing at a path.
    """
    fields = {name: _field(settings, name) for name in _counting(type(settings))}
    return {**fields, **version_of(type(settings))}


def agrees(settings: BaseModel, recorded: Mapping[str, Any]) -> bool:
    """Whether an `identity` is that of these settings, as far as what they name is here."""
    for name in _counting(type(settings)):
        try:
            if _field(settings, name) != recorded.get(name):
                return False
        except SightlineError:  # there is nothing at its path
            continue
    return version_of(type(settings)).get(_VERSION) == recorded.get(_VERSION)


def _counting(kind: type[BaseModel]) -> list[str]:
    """The fields that are in an identity."""
    out = {*declared(kind), getattr(kind, "chosen_by", None)}
    return [name for name in kind.model_fields if name not in out]


def _field(settings: BaseModel, name: str) -> Any:
    try:
        value = getattr(settings, name)
        for mark in type(settings).model_fields[name].metadata:
            if isinstance(mark, MayBePath) and isinstance(value, str):
                value = mark(value)
        return _known(value)
    except SightlineError as error:
        raise SightlineError(f"{name}: {error}") from error


def also(settings_of: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """What a description has of settings besides what it says itself: part → its `identity`."""
    parts = {part: dict(fields) for part, fields in settings_of.items() if fields}
    return {_SETTINGS: parts} if parts else {}


def named_in(description: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    """What `also` has put into a description for a part; empty without it."""
    return description.get(_SETTINGS, {}).get(part, {})


def version_of(kind: type) -> dict[str, str]:
    """The version that a class declares, under a key that no field can have; else nothing."""
    version = getattr(kind, "version", None)
    if version is None:
        return {}
    if not isinstance(version, str):
        raise wrong(kind, "version", version, "a text")
    return {_VERSION: version}


def content_of(path: Path) -> str:
    """SHA-256 (hex) of a file; of a folder that of the names and files in it.

    Raises:
        SightlineError: there is neither.
    """
    if path.is_dir():
        below = folders_below(path, skipped=lambda name: False)
        files = [folder / name for folder, names in below for name in names]
        return digest({file.relative_to(path).as_posix(): content_of(file) for file in files})
    if not path.is_file():
        raise SightlineError(f"{path}: no such file or folder; check the path")
    return key_of_file(path).hex()


def paths_in(value: Any) -> list[Path]:
    """Every path in settings, or in a list or mapping of them."""
    if isinstance(value, Path):
        return [value]
    if isinstance(value, BaseModel):
        value = dict(value)
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple | set | frozenset):
        return []
    return [path for entry in value for path in paths_in(entry)]


def _known(value: Any) -> Any:
    """A value as it counts: JSON values, with what lies at its paths."""
    if isinstance(value, BaseModel):
        return identity(value)
    if isinstance(value, Path):
        return content_of(value)
    if isinstance(value, Mapping):
        return {str(to_jsonable_python(key)): _known(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [*map(_known, value)]
    if isinstance(value, set | frozenset):
        return sorted(map(_known, value), key=json.dumps)
    return to_jsonable_python(value)
