"""set.json, the single commit point of every set: read, check, replace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from pipeline.cache.errors import CacheError
from pipeline.cache.record import (
    NAMES,
    SCHEMA,
    SINGLE_KINDS,
    TABLE_KINDS,
    TABLES_OF,
    FeatureSetRecord,
    FileRecord,
    SetRecord,
    TableRecord,
    TableSetRecord,
)
from sightline.digest import digest
from sightline.errors import SightlineError
from sightline.output import Output

FILE_NAME = "set.json"
MAX_BYTES = 8 << 20
"""Commit files above this size are rejected unread. The limit allows 20,000 shards, more than a
terabyte of features; crafted JSON of this size can take thirty times its bytes in memory."""

_MARK = b'"sightline.set/'
_HEAD_BYTES = 4096
_INDEX_NAME, _SHARD_NAME = r"index-[0-9a-f]{32}\.parquet", r"shard-[0-9a-f]{32}\.h5"
_TABLE_NAME = r"(?:images|phrases|drops|cutouts|tokens|phrase_tokens)-[0-9a-f]{32}\.parquet"
_NAMES = re.compile(f"{_INDEX_NAME}|{_SHARD_NAME}|{_TABLE_NAME}".encode())
_EARLIER = {
    "feature_set.json": "sightline extract",
    "grounding.json": "sightline ground run",
    "cutouts.json": "sightline ground run",
    "student.json": "sightline tokens",
    "tokens.parquet": "sightline tokens",
    "phrase_tokens.parquet": "sightline phrase-tokens",
}
"""Files that identify a set of an earlier schema, and the command that makes it."""
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


def refuse_earlier(folder: Path) -> None:
    """Reject a folder that holds a set of an earlier schema.

    Raises:
        CacheError: it does; names the commands to recreate it.
    """
    there = [name for name in _EARLIER if (folder / name).is_file()]
    if there and not (folder / FILE_NAME).is_file():
        raise CacheError(
            f"{folder}: a set of an earlier schema ({there[0]}), which this version cannot read; "
            f"move it away and recreate it with its stage or `{_EARLIER[there[0]]}`"
        )


def refuse_other_kinds(folder: Path, kind: str) -> None:
    """Refuse to replace a set of a different kind; one of the same kind may be replaced.

    Raises:
        CacheError: the folder holds one, or a set of an earlier schema.
    """
    refuse_earlier(folder)
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
        CacheError: no such file, not JSON, a different schema version, an unknown or missing
            field, a wrong digest, file names outside the folder, or row counts too large for the
            files.
    """
    path = folder / FILE_NAME
    if path.is_symlink():
        raise CacheError(f"{path}: is a link; a set contains no links")
    if not path.is_file():
        refuse_earlier(folder)
        raise CacheError(f"{folder}: no {expected} here (no {FILE_NAME}); {_AGAIN}")
    if path.stat().st_size > MAX_BYTES:
        raise CacheError(f"{path}: {path.stat().st_size} bytes, more than the {MAX_BYTES} allowed")
    try:
        return _parse(path, path.read_bytes())
    except RecursionError as error:
        raise CacheError(f"{path}: not usable JSON (nested too deeply); {_AGAIN}") from error
    except UnicodeEncodeError as error:
        raise CacheError(f"{path}: contains invalid Unicode; {_AGAIN}") from error


def _parse(path: Path, data: bytes) -> SetRecord:
    try:
        body = json.loads(data, parse_constant=_no_number)
    except ValueError as error:
        raise CacheError(f"{path}: truncated or not JSON ({error}); {_AGAIN}") from error
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        found = body.get("schema", "none") if isinstance(body, dict) else type(body).__name__
        raise CacheError(
            f"{path}: schema version {str(found)[:80]!r}, expected {SCHEMA}; "
            "use the Sightline version that wrote it, or rerun its stage"
        )
    claimed = body.pop("digest", None)
    if claimed != digest(body):
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
    _check_names(path, record)
    if isinstance(record, FeatureSetRecord):
        _check_sizes(path, record)
    return record


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def _check_names(path: Path, record: SetRecord) -> None:
    found: dict[str, FileRecord] = {}
    for file, pattern in _patterns(path, record):
        if not re.fullmatch(pattern, file.name):
            raise CacheError(f"{path}: file name {file.name[:80]!r} is not allowed in a set")
        empty = isinstance(file, TableRecord) and not file.rows  # shared by blocks
        if file.name in found and not (empty and file == found[file.name]):
            raise CacheError(f"{path}: lists a file twice")
        found[file.name] = file


def _patterns(path: Path, record: SetRecord) -> list[tuple[FileRecord, str]]:
    """Every file that the record lists, and the required form of its name."""
    if isinstance(record, FeatureSetRecord):
        shards = [(shard, _SHARD_NAME) for shard in record.shards]
        return [(record.index, _INDEX_NAME), *shards]
    assert isinstance(record, TableSetRecord)
    kind = record.spec.kind
    if kind in SINGLE_KINDS and len(record.shards) > 1:
        raise CacheError(f"{path}: {len(record.shards)} shards, expected one; {_AGAIN}")
    for shard in record.shards:
        if set(shard.tables) != set(TABLES_OF[kind]):
            names = ", ".join(shard.tables)
            raise CacheError(
                f"{path}: a shard of tables {names[:80]!r}, expected {', '.join(TABLES_OF[kind])}"
            )
    return [
        (file, rf"{name}-[0-9a-f]{{32}}\.parquet")
        for shard in record.shards
        for name, file in shard.tables.items()
    ]


def _check_sizes(path: Path, record: FeatureSetRecord) -> None:
    """Check that the files can hold the rows, so that a false count reserves no memory."""
    row_bytes = record.spec.dim * (2 if record.spec.dtype == "float16" else 4) + 32
    needs: list[tuple[Any, int, int]] = [
        (record.index, record.rows + record.failed, 32),  # keys do not compress
        *((shard, shard.rows, row_bytes) for shard in record.shards),
    ]
    for file, rows, each in needs:
        if file.bytes < rows * each:
            raise CacheError(
                f"{path}: {file.name} of {file.bytes} bytes cannot hold {rows} rows of {each} bytes"
            )
    if record.rows > sum(shard.rows for shard in record.shards):
        raise CacheError(f"{path}: {record.rows} rows, more than its shards have")
