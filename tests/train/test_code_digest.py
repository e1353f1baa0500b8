"""The digest of what trains a system: which edits change it, and for which systems."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sightline.errors import SightlineError
from train.code_digest import ROOTS, code_of, tree_digest
from train.objectives import OBJECTIVES

ROOT = Path(__file__).parents[2]

SOURCE = '''
"""A docstring."""
from __future__ import annotations
import math  # a comment
from dataclasses import dataclass, field

T = 0.05

@dataclass(frozen=True)
class Loss(object, metaclass=type):
    """Another."""

    temperature: float = T
    """What follows a field."""
    names: list[str] = field(default_factory=list)

    def value(self, /, x: float, *rest: float, scale: complex = 2j, **more: bytes) -> float:
        """And another."""
        match x:
            case 0 | -1:
                return math.inf
            case float(y) if y > 1e-3:
                x = y
        try:
            with open("f") as a, open(f"{x!r:>{len(rest)}}g{{}}") as b:
                total = [i**2 for i in rest if (n := i) and not n] or {**more}
        except* (ValueError, TypeError) as error:
            raise RuntimeError(b"\\x00") from error
        return (lambda z, *, k=None: z @ k if k else ~z)(x) + sum(total)[..., 1:-1:2]

async def _run(items):
    global T
    async for item in items:
        yield await item
    del items
    assert T is not None, "no"
'''


def test_the_stored_digest_of_a_source_is_the_same_on_every_python() -> None:
    assert tree_digest(SOURCE) == "b99eb38670451c9599f3f96f412f48552a8e9c6f083133dc73665f3bef439ab8"


def test_comments_docstrings_and_layout_leave_it_alone() -> None:
    plain = "def f(x):\n    return x + 1\n"
    same = '"""A module."""\n\n\ndef f(\n    x,\n):  # one\n    """Two."""\n    return (x + 1)\n'
    assert tree_digest(plain) == tree_digest(same)
    for other in (plain.replace("1", "2"), plain.replace("+", "-"), plain.replace("1", "1.0")):
        assert tree_digest(other) != tree_digest(plain)
    assert tree_digest("x = True") != tree_digest("x = 1")
    assert tree_digest("x = ''") != tree_digest("x = b''")


def module_of(objective: str) -> str:
    return OBJECTIVES.place(objective).partition(":")[0]


def test_an_objective_depends_on_the_losses_that_it_names() -> None:
    codes = {name: code_of([module_of(name)]) for name in OBJECTIVES.places}
    users = {
        "train.losses.contrastive": {"simcse", "mcse", "kdmcse", "dalr", "mcseo"},
        "train.losses.adaptive_margin": {"kdmcse"},
        "train.losses.ranking": {"dalr"},
        "train.losses.consistency": {"dalr"},
        "train.losses.distribution": {"dalr"},
        "train.losses.object_phrase": {"mcseo"},
        "train.objectives.mcse": {"mcse"},
        "train.loop": set(codes),
        "train.optimizer": set(codes),
        "train.pairs": set(codes),
        "sightline.pooling": set(codes),
    }
    for module, expected in users.items():
        assert {name for name, code in codes.items() if module in code} == expected, module
    for code in codes.values():
        assert not [name for name in code if name.startswith(("train.evaluate", "train.report"))]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of somebody else with an objective, beside the real one."""
    folder = tmp_path / "other_losses"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text("from .deep import margin as margin\n")
    (folder / "deep/__init__.py").write_text("from .margins import margin, unused\n")
    (folder / "deep/margins.py").write_text("from .. import base\ndef margin(): return base.A\n")
    (folder / "base.py").write_text("A = 1\n")
    (folder / "apart.py").write_text("B = 1\n")
    (folder / "objective.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from other_losses import margin\n"
        "from train.losses import info_nce\n"
        "if TYPE_CHECKING:\n    from other_losses import apart\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_names_are_followed_through_packages_to_where_they_are_made(package: Path) -> None:
    code = code_of(["other_losses.objective"])
    own = {name for name in code if name.startswith("other_losses")}
    assert own == {"other_losses.objective", "other_losses.deep.margins", "other_losses.base"}
    assert "train.losses.contrastive" in code
    assert code.keys() >= set(ROOTS)


def test_an_invalid_source_is_one_error(package: Path) -> None:
    with pytest.raises(SightlineError, match=r"other_losses\.nowhere: source not found"):
        code_of(["other_losses.nowhere"])
    (package / "broken.py").write_text("def f(:\n")
    with pytest.raises(SightlineError, match=r"broken\.py: not valid Python"):
        code_of(["other_losses.broken"])


def test_it_imports_nothing_that_it_reads() -> None:
    program = (
        "import sys; from train.code_digest import code_of; code_of(['train.objectives.dalr']);"
        "print(sorted({'torch', 'train.loop', 'pyarrow'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert ended.stdout == "[]\n"
