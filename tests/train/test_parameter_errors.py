"""Mistakes in parameters: the place, what was found, and the nearest valid key."""

from __future__ import annotations

import pytest
from pydantic import Field, ValidationError, field_validator

from sightline.settings import Settings, explain, unknown


class Circle(Settings):
    radius: float = 1.0


class Square(Settings):
    width: float = 1.0


class Drawing(Settings):
    shape: Circle | None = None
    several: tuple[Circle, ...] = ()
    named: dict[str, Square] = {}
    size: int = Field(default=1, ge=1)
    title: str

    @field_validator("title")
    @classmethod
    def _no_shouting(cls, title: str) -> str:
        if title.isupper():
            raise ValueError(f"{title!r} is shouting")
        return title


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"sise": 2}, "unknown key 'sise'; did you mean 'size'? (available: named, several, s"),
        ({"size": 0}, "size: input should be greater than or equal to 1; found 0"),
        ({"title": "LOUD"}, "title: 'LOUD' is shouting"),
        ({"title": None}, "title: input should be a valid string; found None"),
        ({"shape": {"radios": 1}}, "did you mean 'radius'? (available: radius)"),
        ({"several": [{"radios": 1}]}, "several.0: unknown key 'radios'; did"),
        ({"named": {"a": {"qqq": 1}}}, "named.a: unknown key 'qqq' (available: width)"),
    ],
)
def test_each_mistake_has_its_line(given, line):
    with pytest.raises(ValidationError) as caught:
        Drawing.model_validate({"title": "quiet", **given})
    (found,) = explain(caught.value)
    assert line in found


def test_all_mistakes_are_reported():
    with pytest.raises(ValidationError) as caught:
        Drawing.model_validate({"size": 0})
    assert explain(caught.value) == [
        "size: input should be greater than or equal to 1; found 0",
        "title: is missing; it has no default",
    ]


def test_nothing_to_choose_from():
    assert unknown("a", [], "run") == "unknown run 'a' (available: none)"
