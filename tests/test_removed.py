"""Whatever went before 0.1.0 says what stands in its place, wherever a user may still write it."""

from __future__ import annotations

import pytest
from command_line import unboxed

import sightline
from sightline.removed import REMOVED, removed
from sightline.settings import unknown

COMMANDS = [what for what in REMOVED if what.startswith("sightline ")]
NAMES = [what for what in REMOVED if what.startswith("sl.")]
VALUES = [what for what in REMOVED if what not in COMMANDS + NAMES]


@pytest.mark.parametrize("what", COMMANDS)
def test_a_command_an_option_or_its_value(said, what):
    words = what.split()[1:]
    more = [] if words[-1].startswith("--") or len(words) < 3 else ["a"]
    value = ["x"] if words[-1].startswith("--") else []
    code, out, err = said(*words[:2], *more, *words[2:], *value)
    assert (code, out) == (2, "")
    assert removed(what) in unboxed(err)


@pytest.mark.parametrize("what", VALUES)
def test_a_name_in_a_file(what):
    kind, _, name = what.rpartition(" ")
    assert unknown(name, ["another"], kind) == removed(what)


@pytest.mark.parametrize("what", NAMES)
def test_a_name_of_the_python_api(what):
    with pytest.raises(AttributeError, match=r"was removed: "):
        getattr(sightline, what.partition(".")[2])


def test_what_never_was_is_unknown_as_before(said):
    assert removed("sightline look nothing") == ""
    code, _, err = said("look", "nothing")
    assert code == 2
    assert "No such command 'nothing'" in unboxed(err)
