"""Digests of the code that trains or scores: they change with a loss or metric, not a comment.

Those of a system are of the files that train every system, of the objective's file, and of the
losses that it names; those of an evaluation task are of its file and all that it scores with.
Source files are parsed and never imported, so this needs neither torch nor an installed extra.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from sightline.digest import digest
from sightline.errors import SightlineError
from sightline.plugins import OURS
from train.objectives import OBJECTIVES

CORE = (
    "train.batch",
    "train.data",
    "train.distributed",
    "train.gradient_cache",
    "train.loop",
    "train.model",
    "train.objectives.module",
    "train.objectives.objective",
    "train.optimizer",
    "train.pairs",
    "train.rows",
    "train.run_spec",
    "train.schedule",
    "train.student",
    "sightline.pooling",
    "sightline.cache.caption_choice",
)
"""The modules that train every system (tests/train/test_code_digest.py says why not the others)."""

SCORING = (
    "train.embed",
    "train.evaluate.models",
    "sightline.pooling",
    "sightline.sentence_transformers_folder",
)
"""The modules that every score goes through: from an encoder's folder to its embeddings."""
_CARRIES_SCORES = ("train.evaluate.evaluation", "train.evaluate.results")

_LOSSES = "train.losses"


def objectives_of(name: str, parameters: Mapping[str, Any]) -> set[str]:
    """``name`` and, of a combination, the objectives of its parts."""
    names = {name}
    parts = parameters.get("parts")
    for part, settings in parts.items() if isinstance(parts, Mapping) else ():
        objective = settings.get("objective") if isinstance(settings, Mapping) else None
        names |= objectives_of(objective or part, {})
    return names


def code_of(objectives: Iterable[str]) -> dict[str, str]:
    """Module or loss → digest of its syntax tree, of all that trains these objectives.

    Of another package's objective that is its whole package, what of Sightline this imports, and
    every package that it imports, unless that is installed.
    """
    places = (OBJECTIVES.place(name).partition(":")[0] for name in objectives)
    modules = {*CORE, *(module for place in places for module in _with_its_package(place))}
    left, losses = [*modules], set[str]()
    while left:
        importer = left.pop()
        for package, name in _imported(importer):
            found = set[str]()
            if package == _LOSSES:
                losses.add(name)
            elif package.startswith("train.objectives."):
                found = {package}
            elif _is_somebodys(package):
                found = {*_with_its_package(package)}
            elif _is_ours(package) and not _is_ours(importer):
                modules.add(package)  # without what that imports in turn
            left += found - modules
            modules |= found
    digests = {module: _digest(module) for module in modules}
    return dict(sorted({**digests, **_digests_of_losses(losses)}.items()))


@cache
def code_of_task(name: str) -> str:
    """Digest of the code that computes the scores of an evaluation task.

    It covers `SCORING`, the task's module (of another package, all of it), and the modules of
    `train.evaluate` that these import.
    """
    from train.evaluate.task import TASKS  # it needs pyarrow

    modules = {*SCORING, *_with_its_package(TASKS.place(name).partition(":")[0])}
    left = [*modules]
    while left:
        for package, _ in _imported(left.pop()):
            scores = package.startswith("train.evaluate.") and package not in _CARRIES_SCORES
            if scores and package not in modules:
                modules.add(package)
                left.append(package)
    return digest({module: _digest(module) for module in modules})


def code_of_package(package: str) -> dict[str, str]:
    """Module → digest of its syntax tree, of all modules of a package of ours."""
    return {module: _digest(module) for module in _modules_of(package)}


def _digests_of_losses(names: set[str]) -> dict[str, str]:
    """Digests of these definitions of `train.losses` and of all that they name in turn."""
    body, imports = dict[str, ast.AST](), dict[str, ast.AST]()
    for node in _tree(_LOSSES).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            body[node.name] = node
        elif isinstance(node, ast.Assign):
            body |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports |= {name.asname or name.name.partition(".")[0]: node for name in node.names}
    left, digests = sorted(body if "*" in names else names & body.keys()), dict[str, str]()
    while left:
        name = left.pop()
        used = {node.id for node in ast.walk(body[name]) if isinstance(node, ast.Name)}
        nodes = [body[name], *(imports[use] for use in sorted(used & imports.keys()))]
        digests[f"{_LOSSES}.{name}"] = digest(_plain(nodes))
        left += [use for use in used & body.keys() if f"{_LOSSES}.{use}" not in digests]
    return digests


def _plain(node: object) -> object:
    """A syntax tree as lists and numbers, without docstrings, comments and positions.

    Empty fields of nodes are left out, so it is the same on Python 3.11 to 3.13, which have
    different fields.
    """
    if isinstance(node, ast.AST):
        fields = {name: _plain(value) for name, value in ast.iter_fields(node)}
        if isinstance(node, ast.JoinedStr):
            # Python 3.12 adds an empty text after the last field of a format specification
            parts = [part for part in node.values if getattr(part, "value", None) != ""]
            fields = {"values": [_plain(part) for part in parts]}
        filled = {name: value for name, value in fields.items() if value not in (None, [], "")}
        if isinstance(node, ast.Constant):
            filled = {"value": [type(node.value).__name__, repr(node.value)]}
        return [type(node).__name__, filled]
    if isinstance(node, list):
        return [_plain(item) for item in node if not _is_docstring(item)]
    return node


def _is_docstring(node: object) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _with_its_package(module: str) -> list[str]:
    """``module``; of another package, all modules of that package."""
    top = module.partition(".")[0]
    return sorted({module, *(() if top == "train" else _modules_of(top))})


def _modules_of(package: str) -> list[str]:
    """``package`` and all modules in its folder, sorted."""
    top, *below = package.split(".")
    spec, modules = importlib.util.find_spec(top), set[str]()
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        root = Path(folder, *below)
        for file in root.rglob("*.py"):
            parts = (package, *file.relative_to(root).with_suffix("").parts)
            modules.add(".".join(parts[:-1] if file.name == "__init__.py" else parts))
    return sorted(modules)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in OURS


@cache
def _is_somebodys(module: str) -> bool:
    """Whether it is neither ours nor Python's nor an installed library's."""
    top = module.partition(".")[0]
    if not top or _is_ours(module) or top in sys.stdlib_module_names:
        return False
    spec = importlib.util.find_spec(top)
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")]
    return any(
        not any(Path(place).resolve().is_relative_to(folder) for folder in installed)
        for place in places
        if place and place not in ("built-in", "frozen")
    )


@cache
def _tree(module: str) -> ast.Module:
    """The syntax tree of ``module``, found without importing its packages."""
    top, *below = module.split(".")
    spec = importlib.util.find_spec(top)
    files = [Path(spec.origin)] if spec is not None and spec.origin and not below else []
    for root in (spec.submodule_search_locations or ()) if spec is not None and below else ():
        place = Path(root, *below)
        files += [place.with_suffix(".py"), place / "__init__.py"]
    file = next((file for file in files if file.suffix == ".py" and file.is_file()), None)
    if file is None:
        raise SightlineError(
            f"{module}: source not found, but a run records the code that trains it; "
            "install the package with its source"
        )
    try:
        return ast.parse(file.read_text(encoding="utf-8"), str(file))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise SightlineError(f"{file}: not valid Python: {error}") from error


@cache
def _digest(module: str) -> str:
    return digest(_plain(_tree(module)))


def _imported(module: str) -> Iterator[tuple[str, str]]:
    """(package, name) of every `from package import name` in ``module``; * of a whole module."""
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "*") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                whole = node.module == "train" and alias.name == "losses"
                yield (_LOSSES, "*") if whole else (node.module or "", alias.name)
