"""The code of docs/cache.md that reads a set with h5py and pyarrow alone, run apart from ours."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parents[2] / "docs/cache.md"
APART = """
import sys

for name in ("sightline", "pipeline", "train"):
    sys.modules[name] = None  # importing it fails
"""
_PRINT = """
def plain(value):
    return value.hex() if isinstance(value, bytes) else value.tolist()

sets = []
for folder in sys.argv[1:]:
    keys, rows, failed = read_set(folder)
    named = {key.hex(): status for key, status in failed.items()}
    sets.append([[key.hex() for key in keys], rows, named])
print(json.dumps(sets, default=plain))
"""


class Shown(NamedTuple):
    """A set as the page's code reads it.

    Attributes:
        keys: in order.
        rows: the row of each, with bytes as hex digits and numbers as lists.
        failed: key → status.
    """

    keys: list[bytes]
    rows: list[Any]
    failed: dict[bytes, str]


def shown_code() -> str:
    """The block of the page that defines `read_set`."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    (code,) = [block for block in blocks if "def read_set(" in block]
    return code


def read_as_shown(folders: Sequence[Path]) -> list[Shown]:
    """The sets in ``folders``, read by the page's code in a process without Sightline."""
    code = APART + shown_code() + _PRINT
    command = [sys.executable, "-c", code, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [
        Shown(
            [*map(bytes.fromhex, keys)], rows, {bytes.fromhex(key): failed[key] for key in failed}
        )
        for keys, rows, failed in json.loads(done.stdout)
    ]


def plain(value: Any) -> Any:
    """A row as `Shown` has it."""
    return json.loads(json.dumps(value, default=lambda x: x.hex() if isinstance(x, bytes) else x))
