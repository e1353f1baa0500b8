"""What the stages read that DVC does not see: files that a setting names, and code.

The stage `inputs` writes it down, one small file for each source, encoder, grounding, student,
system and task, on which its stages depend. A file or folder that is not on this machine keeps the
identity that lies there, so that a team-mate without the weights runs nothing again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from pipeline import layout
from pipeline.params import Params
from sightline.cache.file_memory import FileMemory
from sightline.cache.record import FILE_NAME as SET
from sightline.digest import blake3_of_file, digest
from sightline.errors import SightlineError
from sightline.files.atomic_files import folders_below
from sightline.files.output import write_file
from sightline.files.places import is_url
from sightline.files.storage import look
from sightline.models.sentence_transformers_folder import is_of_tokenizer
from sightline.source_code import code_of_others, code_of_package
from sightline.wording import counted

SCHEMA = "sightline.inputs/1"
_MEMORY = Path(".dvc/tmp/sightline-inputs.parquet")
_Body = dict[str, Any]


class Inputs:
    """What all stages of these parameters read, as it is now.

    Attributes:
        bodies: name of a file below `layout.INPUTS`, without its suffix → its content.
        kept: what is not here and keeps the identity that it had, a line each.
    """

    def __init__(self, params: Params) -> None:
        self.bodies: dict[str, _Body] = {}
        self.kept: list[str] = []
        self._params, self._memory = params, FileMemory(_MEMORY)
        for name, body in self._bodies():
            self.bodies[name] = {"schema": SCHEMA, **body}

    def changed(self) -> set[Path]:
        """The files whose content would be another."""
        contents = {layout.inputs_file(name): _text(body) for name, body in self.bodies.items()}
        return {
            path
            for path, data in contents.items()
            if not path.is_file() or path.read_bytes() != data
        }.union(self._left_over())

    def write(self) -> None:
        """Write what has changed, and remove the files of what the parameters no longer name."""
        left_over = self._left_over()
        for path in self.changed() - left_over:
            path.parent.mkdir(parents=True, exist_ok=True)
            body = self.bodies[path.relative_to(layout.INPUTS).with_suffix("").as_posix()]
            write_file(path, _text(body), SCHEMA.encode())
        for path in left_over:
            path.unlink()
        self._memory.save()

    def __str__(self) -> str:
        return "\n".join([f"{layout.INPUTS}: {counted(len(self.bodies), 'file')}", *self.kept])

    def _left_over(self) -> set[Path]:
        """Files of ours that no parameter asks for."""
        expected = {layout.inputs_file(name) for name in self.bodies}
        files = (path for path in layout.INPUTS.rglob("*.json") if path not in expected)
        return {path for path in files if _read(path)}

    # ---- which stage reads what -----------------------------------------------------------------

    def _bodies(self) -> Iterator[tuple[str, _Body]]:
        from train.code_digest import code_of
        from train.evaluate.task_code import code_of_task
        from train.objectives import make_objective

        params = self._params
        for name, source in params.datasets.items():
            file = f"datasets/{name}"
            places = _places(source)
            outside = {k: p for k, p in places.items() if not _is_within(p, source.source)}
            code = {"code": code_of_package(source.drawn_by)} if source.drawn_by else _code(source)
            yield file, {"files": self._identities(file, outside), **code}
        for section in type(params.encoders).model_fields:
            for name, encoder in getattr(params.encoders, section).items():
                file = f"encoders/{section}/{name}"
                yield file, {"files": self._identities(file, _places(encoder)), **_code(encoder)}
        if params.grounding is not None:
            of_parts = _code(params.grounding.grounder, params.grounding.segmenter)
            files = self._identities("grounding", _places(params.grounding))
            yield "grounding", {"files": files, **of_parts}
        for name, is_read in (("tokenizer", is_of_tokenizer), ("weights", lambda file: True)):
            file = f"student/{name}"
            places = {"model": params.student.model}
            yield file, {"files": self._identities(file, places, is_read)}
        for system in params.systems:
            names, places = set[str](), dict[str, str]()
            for name, run in params.runs.items():
                if run.system == system:
                    objective = make_objective(run.objective, run.parameters)
                    names.add(run.objective)
                    places |= {f"{name}.{field}": p for field, p in _places(objective).items()}
            file = f"systems/{system}"
            yield file, {"files": self._identities(file, places), "code": code_of(names)}
        for name, entry in params.evaluation.tasks.items():
            file = f"tasks/{name}"
            places = _places({k: v for k, v in entry.settings.items() if k != "data"})
            code = code_of_task(entry.task or name)
            yield file, {"files": self._identities(file, places), "code": code}

    # ---- identities -----------------------------------------------------------------------------

    def _identities(
        self,
        file: str,
        places: Mapping[str, str],
        is_read: Callable[[str], bool] = lambda name: True,
    ) -> dict[str, _Body]:
        """Setting → the file or folder that it names, as it is written, and what identifies it.

        Args:
            is_read: whether a file of a folder counts, by its name.
        """
        before = _read(layout.inputs_file(file)).get("files", {})
        identities: dict[str, _Body] = {}
        for setting, place in places.items():
            origin, recorded = self._made(Path(place)), before.get(setting, {})
            if origin is not None:
                identities[setting] = {"place": place, "made_from": origin}
            elif _is_here(place):
                identities[setting] = {"place": place, "blake3": self._digest(Path(place), is_read)}
            elif "blake3" in recorded and recorded.get("place") == place:
                identities[setting] = recorded
                self.kept.append(f"{file}: {place} is not here, and keeps its identity")
        return identities

    def _made(self, path: Path) -> str | None:
        """What identifies a file that the graph makes: what it is made from; None: another file."""
        params = self._params
        for name, source in params.datasets.items():
            if source.drawn_by and _is_within(path.as_posix(), layout.dataset_folder(name)):
                settings = source.model_dump(mode="json", exclude={"source"})
                return digest([settings, self.bodies[f"datasets/{name}"]])
        if layout.below_features(path):
            frozen = {"encoders": params.encoders, "extract": params.extract}
            settings = {name: part.model_dump(mode="json") for name, part in frozen.items()}
            bodies = {name: it for name, it in self.bodies.items() if name.startswith("encoders/")}
            return digest([settings, bodies])
        return None

    def _digest(self, path: Path, is_read: Callable[[str], bool]) -> str:
        """BLAKE3 (hex) of a file; of a folder, a digest over those of its files."""
        if path.is_file():
            return self._digests([path])[0]
        files: list[Path] = []
        for folder, names in folders_below(path, lambda below: below.name.startswith(".")):
            names = [SET] if SET in names else names  # which lists the digests of the others
            read = (name for name in names if not name.startswith(".") and is_read(name))
            files += (folder / name for name in read if not name.endswith(".md"))
        names = [file.relative_to(path).as_posix() for file in files]
        return digest(dict(zip(names, self._digests(files), strict=True)))

    def _digests(self, paths: Sequence[Path]) -> list[str]:
        """BLAKE3 (hex) of each file, read again only where it has changed."""
        names = [os.path.abspath(path) for path in paths]  # noqa: PTH100  (links stay)
        states = [file.state if (file := look(path)) else "" for path in paths]
        digests = self._memory.recall(names, states).to_pylist()
        for index, path in enumerate(paths):
            if digests[index] is None:
                try:
                    digests[index] = blake3_of_file(path).encode()
                except OSError as error:
                    raise SightlineError(f"{path}: cannot be read: {error.strerror}") from error
                self._memory.keep([names[index]], [states[index]], [digests[index]])
        return [value.decode() for value in digests]


def _places(value: Any, prefix: str = "") -> dict[str, str]:
    """Setting, by its dotted name → what may be a file or folder on this machine.

    That is a path, and a text that begins with ``file:``, is the setting `model`, or looks like a
    path: more parts than one, or a suffix.
    """
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Mapping | list | tuple):
        entries = value.items() if isinstance(value, Mapping) else enumerate(value)
        within = [_places(entry, f"{prefix}{name}.") for name, entry in entries]
        return {setting: place for places in within for setting, place in places.items()}
    setting = prefix.removesuffix(".")
    if isinstance(value, Path):
        return {setting: value.as_posix()}
    if not isinstance(value, str) or is_url(value):
        return {}
    place = value.removeprefix("file:").removeprefix("local-dir:")
    explicit = place != value or setting.endswith("model")
    return {setting: place} if explicit or len(Path(place).parts) > 1 or Path(place).suffix else {}


def _is_here(place: str) -> bool:
    try:
        return Path(place).exists()
    except (OSError, ValueError):  # a text too long for a name, or with a null byte
        return False


def _is_within(place: str, folder: Path | str) -> bool:
    return not is_url(folder) and Path(place).resolve().is_relative_to(Path(folder).resolve())


def _code(*configured: object) -> _Body:
    """The code of other packages that these are of; empty for Sightline's own."""
    code = code_of_others(*configured)
    return {"code": code} if code else {}


def _text(body: _Body) -> bytes:
    return (json.dumps(body, indent=1) + "\n").encode()


def _read(path: Path) -> _Body:
    """What lies in a file of ours; empty without one, and for a file of somebody else."""
    try:
        body = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return body if isinstance(body, dict) and body.get("schema") == SCHEMA else {}
