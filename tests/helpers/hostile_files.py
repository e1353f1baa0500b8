"""Hostile files for the sweeps over commands, and what every command must do with them."""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import sightline
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from sightline.cache.manifest import as_in_file

CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\x90\x98\x9b\x9d-\x9f]")
"""What no manifest may contain, and no message may print."""


MANY = settings(
    max_examples=20,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # running commands to shrink takes hours
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


class Outcome:
    """What a command did: its exit code, and what it printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def refused(self, *named: object) -> None:
        """It ended in one error that names these."""
        assert self.code == 1, self.out + self.err
        for name in named:
            assert str(name) in self.err, self.err


def run(capsys: pytest.CaptureFixture[str], *words: object) -> Outcome:
    """Run `sightline WORDS`, which may succeed or refuse, but only in an orderly way."""
    capsys.readouterr()
    code = sightline(*words)
    found = capsys.readouterr()
    said = found.out + found.err
    shown = ascii(said)  # a lone surrogate would break the tests' own report
    assert code in (0, 1, 2), shown
    assert "Traceback" not in said, shown
    assert "bug in Sightline" not in said, shown
    assert "Warning" not in found.err, shown
    assert not CONTROL.search(said), shown
    if code == 1:
        assert len(re.findall("^error: ", found.err, re.M)) == 1, (
            shown
        )  # after what it did, if it did
        assert len(found.err) < 12_000, shown
    return Outcome(code, found.out, found.err)


Change = tuple[str, Any]


def hostile_tables(schema: pa.Schema, rows: list[dict[str, Any]]) -> st.SearchStrategy[Change]:
    """Changes of a valid table: (a word for it, what `write_hostile` makes of it)."""
    return st.one_of(
        st.tuples(
            st.just("null"),
            st.tuples(st.integers(0, len(rows) - 1), st.sampled_from(_places(rows[0]))),
        ),
        st.tuples(
            st.just("value"),
            st.sampled_from(_places(rows[0])).flatmap(
                lambda place: st.tuples(
                    st.integers(0, len(rows) - 1), st.just(place), _odd(_at(rows[0], place))
                )
            ),
        ),
        st.tuples(st.just("column lost"), st.sampled_from(schema.names)),
        st.tuples(st.just("column renamed"), st.sampled_from(schema.names)),
        st.tuples(st.just("column of texts"), st.sampled_from(schema.names)),
        st.tuples(st.just("column twice"), st.sampled_from(schema.names)),
        st.tuples(st.just("no rows"), st.none()),
        st.tuples(st.just("cut"), st.floats(0, 0.999)),
        st.tuples(st.just("bytes"), st.binary(max_size=60)),
        st.tuples(
            st.just("flipped"),
            st.lists(st.tuples(st.floats(0, 0.999), st.integers(1, 255)), min_size=1),
        ),
    )


def write_hostile(
    path: Path, schema: pa.Schema, rows: list[dict[str, Any]], change: Change
) -> str | None:
    """Write ``rows`` with one change; returns the field that the error must name, if it must."""
    what, how = change
    rows = copy.deepcopy(rows)
    fault: str | None = None
    if what in ("null", "value"):
        row, place, value = how if what == "value" else (*how, None)
        _set(rows[row], place, value)
        if value is None and place[0] not in ("offset", "length"):
            fault = f"row {row}: {place[0]}"
    elif what == "no rows":
        rows = []
    table = pa.Table.from_pylist(rows, schema)
    if what.startswith("column"):
        at = schema.get_field_index(how)
        if what == "column lost":
            table = table.drop_columns([how])
        elif what == "column renamed":
            table = table.rename_columns([n + " " if n == how else n for n in schema.names])
        elif what == "column twice":
            table = table.append_column(how, table[how])
        elif schema.field(how).type != pa.string():
            table = table.set_column(at, how, pa.array(["text"] * len(table)))
    pq.write_table(as_in_file(table), path)
    data = path.read_bytes()
    if what == "cut":
        path.write_bytes(data[: int(len(data) * how)])
    elif what == "bytes":
        path.write_bytes(how)
    elif what == "flipped":
        changed = bytearray(data)
        for share, bits in how:
            changed[int(len(data) * share)] ^= bits
        path.write_bytes(changed)
    return fault


def _places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every value inside a row, and every part of one."""
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return ([here] if here else []) + [p for key, v in inside for p in _places(v, (*here, key))]


def _at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def _set(row: Any, place: tuple[Any, ...], value: Any) -> None:
    *way, last = place
    for key in way:
        row = row[key]
    row[last] = value


def _odd(value: Any) -> st.SearchStrategy[Any]:
    """Values of the same Arrow type that no command expects."""
    if isinstance(value, bytes):
        return st.binary(min_size=32, max_size=32)
    if isinstance(value, str):
        odd = st.sampled_from(
            ["", " ", "\0", "\u200b", "../../etc/passwd", "/dev/zero", "x" * 5000]
        )
        return st.one_of(odd, st.text(max_size=20))
    if isinstance(value, int):
        return st.sampled_from([-(2**31), -1, 0, 2, 65_536, 2**31 - 1])
    if isinstance(value, float):
        return st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0, 1e30])
    return st.just(value)
