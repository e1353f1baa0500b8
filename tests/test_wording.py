"""What pydantic says, in words that mean something to a user."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core._pydantic_core import (
    list_all_errors,  # pyright: ignore[reportAttributeAccessIssue]
)

from sightline.errors import SightlineError
from sightline.settings import Settings, explain
from sightline.user_files import read_json
from sightline.wording import message_of, place_of

INTERNAL = re.compile(
    r"instance|lax|strict|pydantic|[Dd]ictionary|\btag\b|discriminator|subclass|iterable|callable|"
    r"\[|tuple|\bset\b|frozenset|None\b|dataclass|Extra inputs|attribute"
)
OF_CODE = re.compile(
    "argument|frozen_(field|instance)|attribute_error|no_such_attribute|recursion_loop|default_fact|"
    "missing_sentinel|url_syntax|needs_python|set_item_not_hashable|iteration_error|mapping_type|"
    "invalid_key|assertion|value_error|multiple_"
)
"""What only calls of functions, objects with attributes, code of models and URL types raise."""
RAISED = [error for error in list_all_errors() if not OF_CODE.search(error["type"])]


@pytest.mark.parametrize("error", RAISED, ids=[error["type"] for error in RAISED])
def test_no_error_of_pydantic_names_what_is_its_own(error):
    fault = {"type": error["type"], "msg": error["example_message_python"]}
    says = message_of(fault | {"ctx": error["example_context"] or {}})
    assert says
    assert not INTERNAL.search(says), says


class Rules(Settings):
    least: float = 0


class One(BaseModel):
    kind: Literal["one"]


class Other(BaseModel):
    kind: Literal["other"]


class World(Settings):
    """Fields of the kinds that parameters have."""

    rules: Rules = Rules()
    place: Path | str = ""
    lists: dict[str, Path | list[str]] = {}
    number: int | float | None = None
    part: Annotated[One | Other, Field(discriminator="kind")] | None = None
    pair: tuple[int, int] = (0, 0)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a model": ({"rules": 3}, "rules: input should be a mapping, NAME: VALUE; found 3"),
    "a field of it": ({"rules": {"least": "x"}}, "rules.least: input should be a valid number"),
    "a place": ({"place": [1]}, "place: input should be a path; found [1]"),
    "a list": ({"lists": {"train": 3}}, "lists.train: input should be a path; found 3"),
    "a number": ({"number": []}, "number: input should be a valid integer; found []"),
    "a part": ({"part": {"kind": "two"}}, "part: 'kind' should be 'one', 'other'; found"),
    "no part": ({"part": {}}, "part: input should say its 'kind'; found"),
    "a pair": ({"pair": 3}, "pair: input should be a list; found 3"),
}


@pytest.mark.parametrize(("values", "says"), WRONG.values(), ids=WRONG)
def test_settings_say_where_and_what_in_plain_words(tmp_path, values, says):
    with pytest.raises(ValidationError) as error:
        World.model_validate(values)
    lines = "; ".join(explain(error.value))
    assert lines.startswith(says), lines
    assert not INTERNAL.search(re.sub("found .*", "", lines))


def test_files_say_where_and_what_in_plain_words(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"rows": [{"a": 1}, "b"]}')
    schema = TypeAdapter(dict[str, list[dict[str, int] | int]])
    with pytest.raises(SightlineError) as error:
        read_json(path, schema, "rows")
    assert "a.json: rows[1]: found 'b', expected an object" in str(error.value)


def test_keys_stay_in_a_place():
    assert place_of(("grounder", "box-threshold", 2)) == ("grounder", "box-threshold", 2)
    assert place_of(("int", "lax-or-strict[lax=union[...]]", "list[str]", 0)) == ("int", 0)
