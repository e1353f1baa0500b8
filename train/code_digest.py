"""A digest of the code that trains a system: editing a loss changes it, editing a comment does not.

Source files are parsed and never imported, so this needs neither torch nor an installed extra.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from sightline.digest import digest
from sightline.errors import SightlineError

ROOTS = (
    "train.loop",
    "train.model",
    "train.data",
    "train.schedule",
    "train.optimizer",
    "sightline.pooling",
    "sightline.cache.caption_choice",
)
"""Modules that train every system. The last two are arithmetic outside `train`."""

CODE_SCHEMA = "sightline.code/1"
_FOLLOWED = "train"  # imports are followed within this package and the objective's own


def code_of(modules: Iterable[str]) -> dict[str, str]:
    """Module → digest of its syntax tree, for ``modules``, `ROOTS` and everything they import.

    Imports are followed within `train` and within the packages of ``modules``. A name imported from
    a package is followed to the module that defines it: an objective depends on the losses that it
    names, not on all of `train.losses`.

    Raises:
        SightlineError: a module has no source file, or one that is not valid Python.
    """
    wanted = [*modules, *ROOTS]
    packages = {_FOLLOWED, *(name.partition(".")[0] for name in modules)}
    found: dict[str, str] = {}
    while wanted:
        module = wanted.pop()
        if module in found:
            continue
        found[module] = _digest(module)
        wanted += [name for name in _imported(module) if name.partition(".")[0] in packages]
    return dict(sorted(found.items()))


def tree_digest(source: str) -> str:
    """SHA-256 (hex) of the syntax tree of ``source`` without docstrings, comments and positions.

    Empty fields of nodes are left out, so the digest is the same on Python 3.11 to 3.13, which
    have different fields.
    """
    return digest(_plain(ast.parse(source)))


def _plain(node: object) -> object:
    """A syntax tree as lists and numbers; a string that is a statement is a docstring."""
    if isinstance(node, ast.AST):
        fields = {name: _plain(value) for name, value in ast.iter_fields(node)}
        if isinstance(node, ast.JoinedStr):
            # Python 3.12 adds an empty text after the last field of a format specification
            parts = [each for each in node.values if getattr(each, "value", None) != ""]
            fields = {"values": [_plain(each) for each in parts]}
        filled = {name: value for name, value in fields.items() if value not in (None, [], "")}
        if isinstance(node, ast.Constant):
            filled = {"value": [type(node.value).__name__, repr(node.value)]}
        return [type(node).__name__, filled]
    if isinstance(node, list):
        return [_plain(each) for each in node if not _is_docstring(each)]
    return node


def _is_docstring(node: object) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@cache
def _file(module: str) -> Path | None:
    """The source of ``module``, found without importing its packages."""
    top, *below = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    if not below and spec.origin:
        return Path(spec.origin)
    for root in spec.submodule_search_locations or ():
        place = Path(root, *below)
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                return file
    return None


@cache
def _digest(module: str) -> str:
    return digest(_plain(_tree(module)))


@cache
def _tree(module: str) -> ast.Module:
    file = _file(module)
    if file is None or file.suffix != ".py":
        raise SightlineError(
            f"{module}: source not found, but a run records the code that trains it; "
            "install the package with its source"
        )
    try:
        return ast.parse(file.read_text(encoding="utf-8"), str(file))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise SightlineError(f"{file}: not valid Python: {error}") from error


@cache
def _imported(module: str) -> tuple[str, ...]:
    """Modules that ``module`` imports, except for type checking; names resolve to their module."""
    found: list[str] = []
    for node in _without_type_checking(_tree(module)):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names if _file(name.name)]
        elif isinstance(node, ast.ImportFrom):
            package = _absolute(module, node)
            found += [each for name in node.names for each in _definition(package, name.name)]
    return tuple(dict.fromkeys(found))


def _without_type_checking(tree: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        is_guard = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test)
        if not is_guard:
            yield child
            yield from _without_type_checking(child)


def _absolute(module: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    file = _file(module)
    parts = module.split(".")
    above = node.level - (file is not None and file.name == "__init__.py")
    base = parts[: len(parts) - above]
    return ".".join([*base, *([node.module] if node.module else [])])


def _definition(package: str, name: str) -> Iterator[str]:
    """The module that ``from package import name`` gets ``name`` from."""
    submodule = f"{package}.{name}"
    if _file(submodule):
        yield submodule
        return
    file = _file(package)
    if file is None:
        return
    if file.name == "__init__.py":
        for node in ast.walk(_tree(package)):
            if isinstance(node, ast.ImportFrom):
                for each in node.names:
                    if name in (each.asname, each.name):
                        yield from _definition(_absolute(package, node), each.name)
                        return
    yield package
