"""set.json, the single commit point of every set: read, check, replace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from sightline.cache.errors import CacheError
from sightline.cache.record import (
    FILE_NAMES,
    NAMES,
    SCHEMA,
    TABLE_KINDS,
    FeatureSetRecord,
    SetRecord,
    TableSetRecord,
)
from sightline.digest import digest
from sightline.errors import SightlineError
from sightline.output import Output

FILE_NAME = "set.json"
_MARK = b'"sightline.set/'
_HEAD_BYTES = 4096
_NAMES = re.compile(FILE_NAMES.encode())
_AGAIN = "pull it again, or rerun its stage"

R = TypeVar("R", bound=SetRecord)


def set_output(folder: Path, inputs: Iterable[Path] = (), worker: str = "") -> Output:
    """A set's folder as a command's output; ``inputs`` and ``worker`` as in `Output`."""
    return Output(folder, FILE_NAME, _listed, inputs, worker)


def _listed(data: bytes) -> set[str]:
    """The files a commit file lists, even if it is damaged, so that they can be replaced."""
    if _MARK not in data[:_HEAD_BYTES]:
        raise SightlineError(
            "not a Sightline record, so this folder is not Sightline's; choose another output, "
            "or move it away"
        )
    return {name.decode() for name in _NAMES.findall(data)}


def write_record(output: Output, record: SetRecord) -> None:
    """Publish: replace ``set.json`` with ``record``, which ends with its own digest.

    Superseded files stay in the claims and on disk until `cache gc`.
    """
    names = {FILE_NAME, *(file.name for file in record.files)}
    output.remember(output.owned - names)
    output.write(FILE_NAME, to_bytes(record))
    output.settle(names)


def to_bytes(record: SetRecord) -> bytes:
    """The commit file of a record: its fields and their digest, in a canonical form."""
    body = record.model_dump(mode="json", by_alias=True)
    text = json.dumps({**body, "digest": digest(body)}, indent=1, ensure_ascii=False)
    return (text + "\n").encode()


def read_features(folder: Path) -> FeatureSetRecord:
    """The record of the feature set in ``folder``; raises as `read_record`."""
    return _of_type(folder, FeatureSetRecord, "a feature set")


def read_tables_record(folder: Path, kind: str) -> TableSetRecord:
    """The record of a set of tables of this kind; raises as `read_record`."""
    record = _of_type(folder, TableSetRecord, NAMES[kind])
    if record.spec.kind != kind:
        raise CacheError(f"{folder}: holds {NAMES[record.spec.kind]}, expected {NAMES[kind]}")
    return record


def refuse_other_kinds(folder: Path, kind: str) -> None:
    """Refuse to replace a set of a different kind; one of the same kind may be replaced.

    Raises:
        CacheError: the folder holds one.
    """
    try:
        found = read_record(folder).spec.kind
    except CacheError:
        return  # none, or a damaged one, which `Output` checks
    if found != kind:
        raise CacheError(
            f"{folder}: holds {NAMES[found]} of kind {found}, but this is {NAMES[kind]} of kind "
            f"{kind}; choose another folder, or remove that one first"
        )


def _of_type(folder: Path, expected: type[R], name: str) -> R:
    record = read_record(folder, name.removeprefix("a "))
    if not isinstance(record, expected):
        raise CacheError(f"{folder}: holds {NAMES[record.spec.kind]}, expected {name}")
    return record


def read_record(folder: Path, expected: str = "set") -> SetRecord:
    """Read and check ``folder/set.json`` of any kind of set.

    Args:
        expected: what to call the set in the error if there is none.

    Raises:
        CacheError: no such file, or a link; not JSON, another schema version, an unknown, missing
            or invalid field, a wrong digest.
    """
    path = folder / FILE_NAME
    if path.is_symlink():
        raise CacheError(f"{path}: is a link; a set contains no links")
    if not path.is_file():
        raise CacheError(f"{folder}: no {expected} here (no {FILE_NAME}); {_AGAIN}")
    try:
        body = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CacheError(f"{path}: truncated or not JSON ({error}); {_AGAIN}") from error
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        found = body.get("schema", "none") if isinstance(body, dict) else type(body).__name__
        raise CacheError(
            f"{path}: schema version {str(found)[:80]!r}, expected {SCHEMA}; "
            "use the Sightline version that wrote it, or rerun its stage"
        )
    if body.pop("digest", None) != digest(body):
        raise CacheError(f"{path}: its digest does not match its content; {_AGAIN}")
    spec = body.get("spec")
    tables = isinstance(spec, dict) and spec.get("kind") in TABLE_KINDS
    kind = TableSetRecord if tables else FeatureSetRecord
    try:
        record = kind.model_validate_json(json.dumps(body))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CacheError(f"{path}: {where}: {first['msg']}; {_AGAIN}") from error
    if record.fingerprint != record.spec.fingerprint:
        raise CacheError(f"{path}: its fingerprint does not match its description; {_AGAIN}")
    return record
