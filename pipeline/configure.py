"""configs/: files with parameter differences, and the complete params.yaml made from one.

DVC reads every section of params.yaml that dvc.yaml references, so that file is always complete.
A configuration states what it `extends` and its differences; null removes a key, except in the
`parameters` of an objective, where it is a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline.params import ParamsError, read_yaml, validate_params
from sightline.settings import unknown

CONFIGS = Path("configs")
GRAPH_FILE = Path("dvc.yaml")

_EXTENDS = "extends"
_PARAMETERS = "parameters"  # of an objective
_STUDIES = "studies"  # folder of the configurations that draw a curve (docs/studies.md)
_ENGINE = "engine"
_STAGE = "train-"  # prefix of the systems' stages

_SECTIONS = {
    "datasets": "name → kind, where it comes from, and the parameters of its kind",
    "joined": "pairs of data sets that are used as one",
    "graph": "the data sets and frozen models that are used, and the seeds",
    "encoders": "frozen models, by the names that folders and runs use",
    "extract": "how the frozen models run, and how their features are stored",
    "engine": "which devices or cluster the frozen models run on; no result depends on it",
    "grounding": "which words of a caption name which pixels (docs/grounding.md)",
    "student": "the encoder to train",
    "train": "settings for every run; `train` of a system or a run overrides them",
    "evaluation": "`dev` picks the best checkpoint; `sightline evaluate list` shows the tasks",
    "systems": "a system is an objective with its encoders: a stage of dvc.yaml; a run is a line",
    "report": "what the report compares",
}
"""Sections of params.yaml in order, with the comment above each."""


def configurations(folder: Path = CONFIGS) -> dict[str, str]:
    """Name → first line of the file, for every available configuration.

    Raises:
        ParamsError: there is no such folder.
    """
    if not folder.is_dir():
        raise ParamsError(f"{folder}: no such folder; run this in the root of a clone of Sightline")
    files = [*sorted(folder.glob("*.yaml")), *sorted((folder / _STUDIES).glob("*.yaml"))]
    first_lines = {
        path.relative_to(folder).with_suffix("").as_posix(): _first_line(path) for path in files
    }
    return {name: line.removeprefix("#").strip() for name, line in first_lines.items()}


def configuration(
    name: str, folder: Path = CONFIGS, graph_file: Path = GRAPH_FILE
) -> dict[str, Any]:
    """The complete, validated parameters of configuration ``name``, as in params.yaml.

    Args:
        folder: folder of the configurations.
        graph_file: dvc.yaml; all its systems get an entry.

    Raises:
        ParamsError: no such configuration (suggests the nearest), a file is not YAML, files
            extend each other in a cycle, or the parameters are invalid.
    """
    known = configurations(folder)
    if name not in known:
        raise ParamsError(f"{folder}: {unknown(name, known, 'configuration')}")
    merged: dict[str, Any] = {}
    for layer in _layers(name, folder).values():
        merged = _merged(merged, layer)
    merged.setdefault("joined", {})
    _complete_systems(merged, graph_file)
    validate_params(merged, f"{folder / name}.yaml")
    return _in_order(merged)


def keeping_engine(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """``new`` with the `engine` of ``old``, which describes the machine and not the experiment."""
    kept = {_ENGINE: old[_ENGINE]} if _ENGINE in old else {}
    return _in_order({**kept, **new})


def without_engine(params: Mapping[str, Any]) -> dict[str, Any]:
    """``params`` without what `keeping_engine` keeps."""
    return {section: value for section, value in params.items() if section != _ENGINE}


def to_yaml(params: Mapping[str, Any], name: str) -> str:
    """params.yaml of configuration ``name``."""
    parts = [
        f"# Everything that `dvc repro` reads, as `sightline configure {name}` wrote it. Edit it,\n"
        "# or choose another configuration; configs/ holds what differs between them.\n"
    ]
    for section, value in params.items():
        lines = [f"# {_SECTIONS[section]}", f"{section}:" if value else f"{section}: {{}}"]
        for key, each in value.items():
            nested = isinstance(each, (dict, list)) and each
            text = _dump({key: each}, None, 98) if nested else f"{key}: {_inline(each)}"
            lines += [f"  {line}" for line in text.splitlines()]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """One line for each key that ``new`` adds, removes or changes."""
    lines = []
    for key in dict.fromkeys([*old, *new]):
        where = f"{prefix}{key}"
        if key not in new:
            lines.append(f"- {where}: {_inline(old[key])}")
        elif key not in old:
            lines.append(f"+ {where}: {_inline(new[key])}")
        elif isinstance(old[key], Mapping) and isinstance(new[key], Mapping):
            lines += differences(old[key], new[key], f"{where}.")
        elif old[key] != new[key]:
            lines.append(f"~ {where}: {_inline(old[key])} → {_inline(new[key])}")
    return lines


def origin(params: Mapping[str, Any], folder: Path = CONFIGS) -> str | None:
    """The configuration that equals ``params``, unedited; None if there is none."""
    return next(
        (name for name in configurations(folder) if configuration(name, folder) == params), None
    )


def _in_order(params: Mapping[str, Any]) -> dict[str, Any]:
    return {section: params[section] for section in _SECTIONS if section in params}


def _first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0]


def _layers(name: str, folder: Path, above: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """File → its content, in the order in which they are merged; each once."""
    path = folder / f"{name}.yaml"
    if name in above:
        raise ParamsError(f"{path}: extends itself ({' → '.join([*above, name])})")
    if above and not path.is_file():
        raise ParamsError(f"{folder / above[-1]}.yaml: extends {name!r}, but {path} does not exist")
    own = read_yaml(path)
    bases = own.pop(_EXTENDS, [])
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ParamsError(f"{path}: extends: found {bases!r}, expected a list of names")
    layers: dict[str, dict[str, Any]] = {}
    for base in bases:
        for each, layer in _layers(base, folder, (*above, name)).items():
            layers.setdefault(each, layer)
    return {**layers, name: own}


def _merged(
    base: Mapping[str, Any], over: Mapping[str, Any], null_removes: bool = True
) -> dict[str, Any]:
    """``base`` updated with ``over``, mappings key by key.

    Null removes a key, but inside `parameters` it is a value, such as a threshold that is off.
    """
    result = dict(base)
    for key, value in over.items():
        if value is None and null_removes:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            below = result.get(key)
            inside = below if isinstance(below, Mapping) else {}
            result[key] = _merged(inside, value, null_removes and key != _PARAMETERS)
        else:
            result[key] = value
    return result


def _complete_systems(params: dict[str, Any], graph_file: Path) -> None:
    """Add the keys that each system's train stage references; enough for one without runs."""
    systems = params.setdefault("systems", {})
    if graph_file.is_file():
        for stage in read_yaml(graph_file).get("stages", {}):
            if stage.startswith(_STAGE):
                systems.setdefault(stage.removeprefix(_STAGE), {})
    for name, system in systems.items():
        runs = system.get("runs") or {}
        systems[name] = (
            {
                "objective": system.get("objective"),
                "parameters": system.get("parameters", {}),
                "train": system.get("train", {}),
                "runs": runs,
            }
            if runs
            else {"runs": {}}
        )


def _inline(value: Any) -> str:
    return _dump(value, True, 10_000).removesuffix("\n").removesuffix("\n...")


def _dump(value: Any, flow: bool | None, width: int) -> str:
    return yaml.safe_dump(
        value, sort_keys=False, default_flow_style=flow, allow_unicode=True, width=width
    )
