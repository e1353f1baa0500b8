"""Configurations: files with parameter differences, and the params.yaml made from them.

DVC reads every section of params.yaml that dvc.yaml references, so that file is always complete.
Sightline ships configurations, and a project may have its own in configs/; one of a shipped name
takes its place. A part, in configs/parts/, changes the configuration named before it. Each states
what it `extends`, the keys to `remove` from that, and what differs.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipeline.params import (
    GRAPH_FILE,
    Params,
    ParamsError,
    read_yaml,
    trained_systems,
    validate_params,
)
from pipeline.shipped import CONFIGURATIONS, GRAPH
from sightline.digest import digest
from sightline.errors import SightlineError
from sightline.settings import field_help, unknown

CONFIGS = Path("configs")
"""A project's own configurations, beside those that come with Sightline."""

_EXTENDS, _REMOVE = "extends", "remove"
_PARTS = "parts"  # folder of what changes a configuration and is none alone
_MACHINE = "machine"


def configurations(folder: Path = CONFIGS) -> dict[str, Path]:
    """Name → file, for every whole configuration: shipped ones, and those of ``folder``."""
    return _files((CONFIGURATIONS, folder), "*.yaml")


def parts(folder: Path = CONFIGS) -> dict[str, Path]:
    """Name → file, for every part, such as `roberta` and `studies/margin`."""
    return _files((CONFIGURATIONS / _PARTS, folder / _PARTS), "**/*.yaml")


def configuration(
    *names: str, folder: Path = CONFIGS, graph_file: Path | None = None
) -> dict[str, Any]:
    """The complete, validated parameters of configurations, as in params.yaml.

    Args:
        names: a whole configuration and what changes it, merged in this order. The title of
            several is their names.
        folder: of the project's own configurations.
        graph_file: dvc.yaml; all its systems get an entry, and there are no others. Default: that
            of the current folder, else the shipped one.

    Raises:
        ParamsError: no such configuration (suggests the nearest), a part comes first, a file is
            not YAML, files extend each other in a cycle, a key to remove is in none of them, or
            the parameters are invalid.
    """
    graph_file = graph_file or (GRAPH_FILE if GRAPH_FILE.is_file() else GRAPH)
    whole = configurations(folder)
    files = {**parts(folder), **whole}
    layers = _layers(names, files)
    if names[0] not in whole:
        base = next((name for name in names if name in whole), "NAME")
        changes = " ".join(name for name in names if name != base)
        raise ParamsError(
            f"{names[0]}: a part, which changes the configuration named before it: `sightline "
            f"configure {base} {changes}` (`sightline configure` lists both)"
        )
    merged: dict[str, Any] = {"joined": {}}
    for name, layer in layers.items():
        for key in layer.pop(_REMOVE, []):
            _remove(merged, key, name, files)
        merged = _merged(merged, layer)
    if len(names) > 1:
        merged = _merged(merged, {"report": {"title": " + ".join(names)}})
    _complete_systems(merged, graph_file)
    validate_params(merged, " + ".join(str(files[name]) for name in names), graph_file)
    return merged


def to_yaml(params: Mapping[str, Any], names: Sequence[str], machine: object = None) -> str:
    """params.yaml of the configurations ``names``.

    Its first line holds the digests by which `edits` knows what the user changes.

    Args:
        machine: the user's own section `machine`, in place of the configurations' one.
    """
    command, digests = f"sightline configure {' '.join(names)}", " ".join(_digests(params))
    if machine:
        params = {**params, _MACHINE: machine}
    blocks = [
        f"# Everything that `dvc repro` reads, as `{command}` wrote it ({digests}).\n"
        "# Edit it, or choose another configuration; configs/ holds what differs between them.\n"
    ]
    for section, about in field_help(Params).items():
        if section not in params:
            continue
        value = params[section]
        lines = [f"# {about}", f"{section}:" if value else f"{section}: {_inline(value)}"]
        for key, content in (value or {}).items():
            nested = isinstance(content, (dict, list)) and content
            text = _dump({key: content}, None, 98) if nested else f"{key}: {_inline(content)}"
            lines += [f"  {line}" for line in text.splitlines()]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def edits(file: Path) -> tuple[bool, Any]:
    """Whether ``file`` is no longer as `to_yaml` wrote it, and its section `machine` if that is so.

    The latter describes this machine and not the experiment: another configuration keeps it. A
    file without the digests of `to_yaml` counts as edited.
    """
    values = read_yaml(file)
    machine = values.get(_MACHINE)
    match = re.search(r"\((\w+) (\w+)\)\.$", first_line(file))
    try:
        rest_now, machine_now = _digests(values)
    except TypeError:  # a date, for one, which is no value of ours
        return True, machine
    if match is None:
        return True, machine
    return rest_now != match[1], None if machine_now == match[2] else machine


def _digests(params: Mapping[str, Any]) -> tuple[str, str]:
    """Of all sections but `machine`, and of that."""
    sections = {name: section for name, section in params.items() if name != _MACHINE}
    return digest(sections)[:16], digest(params.get(_MACHINE))[:16]


def first_line(path: Path) -> str:
    """What a file says of itself."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline().removeprefix("#").strip()


def _files(folders: Sequence[Path], pattern: str) -> dict[str, Path]:
    """Name → file, of all folders; those of later ones win."""
    files = {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for folder in folders
        for path in folder.glob(pattern)
        if path.is_file()
    }
    return dict(sorted(files.items(), key=lambda item: f"{item[0]}.yaml"))


def _layers(
    names: Sequence[str], files: Mapping[str, Path], above: tuple[str, ...] = ()
) -> dict[str, dict[str, Any]]:
    """Name → content of its file, in the order in which they are merged; each once."""
    layers: dict[str, dict[str, Any]] = {}
    for name in names:
        if name in above:
            raise ParamsError(f"{files[name]}: extends itself ({' → '.join([*above, name])})")
        if name not in files:
            where = f"{files[above[-1]]}: {_EXTENDS}" if above else "configure"
            raise ParamsError(f"{where}: {unknown(name, files, 'configuration')}")
        content = read_yaml(files[name])
        for key in (_EXTENDS, _REMOVE):
            bases = content.get(key, [])
            if not isinstance(bases, list) or not all(isinstance(entry, str) for entry in bases):
                raise ParamsError(
                    f"{files[name]}: {key}: found {bases!r}, expected a list of names"
                )
        for base, layer in _layers(content.pop(_EXTENDS, []), files, (*above, name)).items():
            layers.setdefault(base, layer)
        layers.setdefault(name, content)
    return layers


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` updated with ``over``, mappings key by key; null is a value like any other."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            value = _merged(below, value)
        result[key] = value
    return result


def _remove(
    params: dict[str, Any], dotted: str, configuration: str, files: Mapping[str, Path]
) -> None:
    """Remove a key such as ``systems.dalr.runs`` where it is there."""
    *above, last = dotted.split(".")
    place: Any = params
    for key in above:
        place = place.get(key) if isinstance(place, Mapping) else None
    if isinstance(place, dict) and last in place:
        del place[last]
    else:
        _require_defined(dotted, f"{files[configuration]}: {_REMOVE}", files.values())


def _require_defined(dotted: str, where: str, files: Iterable[Path]) -> None:
    """Check that a readable one of ``files`` defines a key."""
    places: list[Any] = []
    for file in files:
        with contextlib.suppress(SightlineError):
            places.append(read_yaml(file))
    for key in dotted.split("."):
        mappings = [place for place in places if isinstance(place, Mapping)]
        places = [mapping[key] for mapping in mappings if key in mapping]
        if not places:
            names = {name for mapping in mappings for name in mapping} - {_EXTENDS, _REMOVE}
            raise ParamsError(f"{where}: {dotted}: {unknown(key, names, 'key')}")


def _complete_systems(params: dict[str, Any], graph_file: Path) -> None:
    """Add the keys that each system's train stage references; enough for one without runs."""
    systems = params.setdefault("systems", {})
    if not isinstance(systems, dict):
        return  # which is an error of the parameters
    for system in trained_systems(graph_file):
        systems.setdefault(system, {})
    complete = {"objective": None, "parameters": {}, "train": {}, "runs": {}}
    for name, system in systems.items():
        if isinstance(system, dict):
            systems[name] = {**complete, **system} if system.get("runs", {}) != {} else {"runs": {}}


def _inline(value: Any) -> str:
    return _dump(value, True, 10_000).removesuffix("\n").removesuffix("\n...")


def _dump(value: Any, flow: bool | None, width: int) -> str:
    return yaml.safe_dump(
        value, sort_keys=False, default_flow_style=flow, allow_unicode=True, width=width
    )
