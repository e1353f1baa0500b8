"""Numbers, and the errors of pydantic, in sentences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rich.filesize import decimal


def counted(count: int, noun: str) -> str:
    """``1 file``, ``1,240 files``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def in_bytes(count: float) -> str:
    """A number of bytes, such as ``1.2 GB``."""
    return decimal(round(count))


_OF_TYPES = re.compile(
    r".*\[.*|constrained-.+|(int|float|str|bool|none|bytes|path|any|dict|list|enum|callable|date)"
)
"""What pydantic calls the arms of a union, in the place of an error."""
_MAPPING = "a mapping, NAME: VALUE"
_EXPECTED = {
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "dataclass_type": _MAPPING,
    "dataclass_exact_type": _MAPPING,
    "dict_type": _MAPPING,
    "named_tuple_type": _MAPPING,
    "mapping_type": _MAPPING,
    "none_required": "null",
    "string_sub_type": "a valid string",  # pydantic up to 2.12 has it
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "iterable_type": "a list",
    "is_instance_of": "of another type",
    "is_subclass_of": "of another type",
    "callable_type": "of another type",
    "path_type": "a path",
}
"""Type of an error of pydantic → what is expected, where its words are of Python's classes."""


def place_of(loc: Sequence[int | str]) -> tuple[int | str, ...]:
    """Where an error of pydantic is: keys and indices, without the types that it tried there."""
    return tuple(
        part for n, part in enumerate(loc) if not (n and isinstance(part, str) and _is_type(part))
    )


def message_of(fault: Mapping[str, Any]) -> str:
    """What an error of pydantic says is wrong, such as ``Input should be a number``."""
    kind, about = fault["type"], fault.get("ctx", {})
    expected = _EXPECTED.get(kind)
    if expected and not fault["msg"].endswith((" object", " array")):  # as JSON has them
        return f"Input should be {expected}"
    if kind == "union_tag_not_found":
        return f"Input should say its {about['discriminator']}"
    if kind == "union_tag_invalid":
        return f"{about['discriminator']} should be {about['expected_tags']}"
    if kind == "extra_forbidden":
        return "Input should not be there"
    return fault["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")


def _is_type(part: str) -> bool:
    return _OF_TYPES.fullmatch(part) is not None
