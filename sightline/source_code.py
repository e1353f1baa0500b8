"""Source code as digests of syntax trees: they change with what it does, not with a comment.

Files are parsed and never imported, so this needs no library that they use.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from sightline.digest import digest
from sightline.errors import SightlineError
from sightline.plugins import OURS


def code_of_package(package: str) -> dict[str, str]:
    """Module → digest of its syntax tree, of all modules of a package of ours."""
    return {module: _digest(module) for module in _modules_of(package)}


def code_of_others(*objects: object) -> dict[str, str]:
    """Module → digest, of the packages of others that these objects, or their classes, are of.

    It covers what these packages import of others, unless that is installed. Code without a file,
    as in a notebook, is left out.
    """
    kinds = (item if hasattr(item, "__qualname__") else type(item) for item in objects)
    places = {kind.__module__ for kind in kinds if not _is_ours(kind.__module__)}
    modules = {module for place in places for module in _with_its_package(place)}
    left = [*modules]
    while left:
        importer = left.pop()
        for module in filter(_is_somebodys, _imported(importer) if _file(importer) else ()):
            new = {*_with_its_package(module)} - modules
            left += new
            modules |= new
    return digests_of(module for module in modules if _file(module))


def digest_of_others(*objects: object) -> str:
    """One digest (SHA-256, hex) of `code_of_others`; empty if all is Sightline's own."""
    code = code_of_others(*objects)
    return digest(code) if code else ""


def with_imports(
    places: Iterable[str], always: Collection[str], apart: Collection[str]
) -> set[str]:
    """``always``, ``places``, and what these import, but not what is apart.

    What code of others imports of ours is in, whatever it is.
    """
    modules = {*always, *(module for place in places for module in _with_its_package(place))}
    left = [*modules]
    while left:
        importer = left.pop()
        for module in _imported(importer):
            if _is_ours(module):
                counts = not (_is_ours(importer) and _is_apart(module, apart))
                imported = {module} if counts else set[str]()
            else:
                imported = {*_with_its_package(module)} if _is_somebodys(module) else set[str]()
            left += imported - modules
            modules |= imported
    return modules


def _is_apart(module: str, apart: Collection[str]) -> bool:
    """Whether a module of ours is one of ``apart``, below one with ``.*``, or the pipeline's."""
    around = (module.rsplit(".", count)[0] for count in range(module.count(".") + 1))
    below = any(f"{name}.*" in apart for name in around)
    return below or module in apart or module.startswith("pipeline")


def digests_of(modules: Iterable[str]) -> dict[str, str]:
    """Module → digest of its syntax tree, sorted."""
    return {module: _digest(module) for module in sorted(modules)}


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
    top, *below = module.split(".")
    if top == "train":
        return [module]
    file = _file(module)
    if file is None:
        return sorted({module, *_modules_of(top)})
    # where its file is, and not where a folder of the package's name may lie as well
    depth = len(below) - (file.name != "__init__.py")
    return [module] if depth < 0 else sorted({module, *_modules_in(file.parents[depth], top)})


def _modules_of(package: str) -> list[str]:
    """``package`` and all modules in its folder, sorted."""
    top, *below = package.split(".")
    spec = _spec(top)
    folders = () if spec is None else spec.submodule_search_locations or ()
    roots = [Path(folder, *below) for folder in folders]
    return sorted({name for root in roots for name in _modules_in(root, package)})


def _modules_in(folder: Path, package: str) -> Iterator[str]:
    """The modules in the folder of a package, it included."""
    for file in folder.rglob("*.py"):
        parts = (package, *file.relative_to(folder).with_suffix("").parts)
        yield ".".join(parts[:-1] if file.name == "__init__.py" else parts)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in OURS


@cache
def _is_somebodys(module: str) -> bool:
    """Whether it is neither ours nor Python's nor an installed library's."""
    top = module.partition(".")[0]
    if not top or _is_ours(module) or top in sys.stdlib_module_names:
        return False
    spec = _spec(top)
    places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    installed = [Path(sysconfig.get_path(name)).resolve() for name in ("purelib", "platlib")]
    return any(
        not any(Path(place).resolve().is_relative_to(folder) for folder in installed)
        for place in places
        if place and place not in ("built-in", "frozen")
    )


def _spec(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # it is running, and was not imported: a script, a notebook
        return None


def _installed_elsewhere(module: str, folders: Collection[str]) -> Path | None:
    """The file of a module of a package that is not in these folders of the package's name.

    An installation for development may add a finder, which Python asks after the folders.
    """
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        with suppress(KeyError):  # the folder of a package that is not imported
            spec = None if find is None else find(module, list(folders) or None)
            if spec is not None and spec.origin is not None:
                return Path(spec.origin)
    return None


@cache
def _file(module: str) -> Path | None:
    """The source of ``module``, found without importing its packages; None if there is none."""
    if module == "__main__":
        script = getattr(sys.modules[module], "__file__", None)
        return None if script is None else Path(script)
    top, *below = module.split(".")
    spec = _spec(top)
    files = [Path(spec.origin)] if spec is not None and spec.origin and not below else []
    folders = spec.submodule_search_locations or () if spec is not None and below else ()
    for root in folders:
        place = Path(root, *below)
        files += [place.with_suffix(".py"), place / "__init__.py"]
    if spec is not None and spec.origin is None:  # a folder without a package's own module
        files += filter(None, [_installed_elsewhere(module, folders)])
    return next((file for file in files if file.suffix == ".py" and file.is_file()), None)


@cache
def _tree(module: str) -> ast.Module:
    """The syntax tree of ``module``."""
    file = _file(module)
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


@cache
def _imported(module: str) -> tuple[str, ...]:
    """Every module that ``module`` imports, anywhere in it; with a star all below."""
    return tuple(_imports_of(module))


def _imports_of(module: str) -> Iterator[str]:
    file = _file(module)
    is_package = file is not None and file.name == "__init__.py"
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = module.split(".")[: None if is_package else -1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, *([base] if base else [])])
            if not _is_ours(base) and not _is_somebodys(base):
                continue
            yield base
            for alias in node.names:
                if alias.name == "*":
                    yield from _modules_of(base)
                elif _file(f"{base}.{alias.name}") is not None:
                    yield f"{base}.{alias.name}"
