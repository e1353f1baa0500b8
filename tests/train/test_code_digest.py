"""The digest of what trains a system: which edits change it, and for which systems."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import World

import train.losses
from sightline.digest import digest
from sightline.errors import SightlineError
from train import code_digest
from train.code_digest import CORE, code_of, objectives_of
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


def tree_digest(source: str) -> str:
    return digest(code_digest._plain(ast.parse(source)))


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


EXEMPT = {
    "sightline.cache": "its rows are inputs, whose digests a run has; the choice is in CORE",
    "sightline.devices": "picks a device and copies to it",
    "sightline.encoder_folder": "opens the student, an input",
    "sightline.cache.prepared": "for the model card",
    "sightline.settings": "checks parameters, which are in the digest of the run",
    **dict.fromkeys(
        [
            *("sightline.digest", "sightline.errors", "sightline.files", "sightline.hardware"),
            *("sightline.lazy_names", "sightline.loading", "sightline.lock", "sightline.output"),
            *("sightline.outside", "sightline.progress", "sightline.wording"),
        ],
        "files, messages and imports",
    ),
    "train.card": "writes the model card",
    "train.code_digest": "computes these digests",
    "train.embed": "encodes the dev set: it selects, as the other evaluations do",
    "train.evaluate": "scores; a score says what it was measured with",
    "train.export": "writes the folder of sentence-transformers, whose embeddings are compared",
    "train.progress": "shows progress and handles signals",
    "train.records": "what a run records of itself",
    "train.report": "shows results",
    "train.run_folder": "the files of a run; that a resumed one is equal is tested bit for bit",
    "train.run_inputs": "opens inputs, which are checked by digest",
    "train.train_run": "calls the loop",
}
"""Modules that a training imports, and why their code is not part of its digest."""


def exempt(module: str) -> bool:
    parts = module.split(".")
    return any(".".join(parts[:n]) in EXEMPT for n in range(1, len(parts) + 1))


def test_a_module_that_a_training_imports_is_digested_or_exempt(world: World, tmp_path: Path):
    """A new module fails here: list it in `CORE`, or say in `EXEMPT` why it trains nothing."""
    spec = world.spec(tmp_path / "run", "mcse", train={"max_steps": 2})
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    program = (
        "import sys; from pathlib import Path; from train.run_spec import RunSpec;"
        "from train.train_run import train_run;"
        "train_run(RunSpec.model_validate_json(Path(sys.argv[1]).read_text()), say=lambda x: 0);"
        "print(*(name for name in sys.modules if name.startswith(('train.', 'sightline.'))))"
    )
    command = [sys.executable, "-c", program, tmp_path / "spec.json"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    code = set(code_of(["mcse"]))
    packages = {"train.objectives", "train.losses"}
    unknown = {name for name in ended.stdout.split() if name not in code | packages}
    assert {name for name in unknown if not exempt(name)} == set()
    assert set(CORE) <= set(ended.stdout.split())
    assert not [name for name in CORE if name in EXEMPT]


ALL = {"simcse", "mcse", "kdmcse", "dalr", "mcseo", "combined"}
LOSSES = {  # which systems name a loss, themselves or through another
    "info_nce": ALL,
    "adaptive_margin_nce": {"kdmcse"},
    "removed_share": {"kdmcse"},
    "product_matrix": {"kdmcse"},
    "consistency_loss": {"dalr"},
    "derangement": {"dalr"},
    "kl_alignment": {"dalr"},
    "cross_modal_alignment": {"dalr"},
    "list_mle": {"dalr"},
    "_descending": {"dalr"},
    "object_phrase_nce": {"mcseo"},
    "cosine_matrix": ALL,
    "diagonal_nll": ALL,
    "full_precision": ALL,
    "check_shapes": ALL,
    "_unit_rows": ALL,
}


def forget() -> None:
    """Read sources again, which have changed."""
    code_digest._tree.cache_clear()
    code_digest._digest.cache_clear()


@pytest.fixture
def edited_losses(monkeypatch: pytest.MonkeyPatch):
    """Edits one function of train/losses.py, as an editor would."""
    read = code_digest._tree.__wrapped__

    def edit(name: str) -> None:
        source = Path(train.losses.__file__).read_text(encoding="utf-8")
        tree = ast.parse(source)
        (function,) = (n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name)
        function.body.insert(0, ast.parse("edited = 1").body[0])
        monkeypatch.setattr(
            code_digest, "_tree", lambda module: tree if module == "train.losses" else read(module)
        )

    return edit


def test_an_edited_loss_changes_its_systems_and_no_others(edited_losses) -> None:
    before = {name: code_of([name]) for name in OBJECTIVES.places}
    public = [name for name in vars(train.losses) if inspect_function(name)]
    assert set(public) <= {*LOSSES, "check_number", "diagonal"}
    for loss, systems in LOSSES.items():
        edited_losses(loss)
        after = {name: code_of([name]) for name in OBJECTIVES.places}
        assert {name for name in after if after[name] != before[name]} == systems, loss
        for name in systems:
            changed = {k for k, v in after[name].items() if before[name].get(k) != v}
            assert changed == {f"train.losses.{loss}"}


def inspect_function(name: str) -> bool:
    function = getattr(train.losses, name)
    ours = getattr(function, "__module__", "") == "train.losses"
    return ours and inspect.isfunction(function) and not name.startswith("_")


def test_an_objective_has_its_own_file_and_a_combination_those_of_its_parts() -> None:
    for name in OBJECTIVES.places:
        others = {f"train.objectives.{other}" for other in OBJECTIVES.places if other != name}
        code = code_of([name])
        assert f"train.objectives.{name}" in code
        assert not others & code.keys()
        assert code.keys() >= set(CORE)
    parts = {"dalr": {"weight": 1}, "mine": {"objective": "mcseo"}}
    names = objectives_of("combined", {"parts": parts})
    assert names == {"combined", "dalr", "mcseo"}
    both = {f"train.losses.{name}" for name in ("list_mle", "object_phrase_nce")}
    assert both <= code_of(names).keys()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of somebody else with an objective, beside the real one."""
    folder = tmp_path / "other_losses"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "deep/__init__.py").write_text("")
    (folder / "deep/margins.py").write_text("from .. import base\ndef margin(): return base.A\n")
    (folder / "base.py").write_text("A = 1\n")
    (folder / "objective.py").write_text(
        "from other_losses.deep.margins import margin\n"
        "from train.losses import kl_alignment\n"
        "from train.objectives.mcse import MCSE\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    places = {**OBJECTIVES.places, "other": "other_losses.objective:Other"}
    monkeypatch.setattr(OBJECTIVES, "places", places)
    forget()
    yield folder
    forget()


def test_another_packages_objective_has_its_whole_package(package: Path) -> None:
    code = code_of(["other"])
    own = {name for name in code if name.startswith("other_losses")}
    assert own == {
        *("other_losses", "other_losses.base", "other_losses.objective"),
        *("other_losses.deep", "other_losses.deep.margins"),
    }
    assert {"train.objectives.mcse", "train.losses.kl_alignment", *CORE} <= code.keys()
    assert "train.losses.list_mle" not in code
    for whole in ("from train import losses\n", "import train.losses\n"):
        (package / "objective.py").write_text(whole)
        forget()
        assert "train.losses.list_mle" in code_of(["other"])


def test_an_invalid_source_is_one_error(package: Path) -> None:
    (package / "broken.py").write_text("def f(:\n")
    with pytest.raises(SightlineError, match=r"broken\.py: not valid Python"):
        code_of(["other"])
    OBJECTIVES.places["other"] = "nowhere_losses.objective:Other"
    with pytest.raises(SightlineError, match=r"nowhere_losses\.objective: source not found"):
        code_of(["other"])
    with pytest.raises(SightlineError, match="unknown objective 'mcsee'; did you mean 'mcse'"):
        code_of(["mcsee"])


def test_it_imports_nothing_that_it_reads() -> None:
    program = (
        "import sys; from train.code_digest import code_of; code_of(['dalr']);"
        "print(sorted({'torch', 'train.loop', 'pyarrow'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert ended.stdout == "[]\n"
