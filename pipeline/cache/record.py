"""feature_set.json: what a feature set is, which files it has, and its fingerprint."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from pipeline.cache.errors import CacheError
from sightline.errors import SightlineError
from sightline.output import Output

FILE_NAME = "feature_set.json"
SCHEMA = "sightline.feature_set/1"
MAX_BYTES = 8 << 20
"""A commit file above this size is refused unread. It has room for 20,000 shards, more than a
terabyte of features; JSON of this size can be made to take thirty times its bytes in memory."""

_MARK = b"sightline.feature_set/"
_HEAD_BYTES = 4096
_INDEX_NAME, _SHARD_NAME = r"index-[0-9a-f]{32}\.parquet", r"shard-[0-9a-f]{32}\.h5"
_NAMES = re.compile(f"{_INDEX_NAME}|{_SHARD_NAME}".encode())
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def _printable(text: str) -> str:
    """Whoever prints this finds no line end, escape sequence or change of direction in it."""
    if any(unicodedata.category(char) in _UNPRINTABLE for char in text):
        raise ValueError(f"found {text[:80]!a}, expected printable characters alone")
    return text


_Line = Annotated[str, Field(max_length=1000), AfterValidator(_printable)]
_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Count = Annotated[int, Field(ge=0, lt=1 << 48)]
DTypeName = Literal["float16", "float32"]
Kind = Literal["image", "text", "teacher", "object"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class EncoderRecord(_Strict):
    """The frozen model that computed the rows.

    Attributes:
        name: architecture, such as ``torchvision/resnet50``.
        source: where the weights came from, such as ``pretrained:IMAGENET1K_V1`` or ``random:0``.
        revision: revision of that source, or empty.
        weights_sha256: digest of the state dict that was really loaded.
        untrained: the weights are random; every report says so.
    """

    name: _Line
    source: _Line
    revision: _Line = ""
    weights_sha256: _Digest
    untrained: bool = False


class FeatureSpec(_Strict):
    """What decides the value of a row. Its digest is the fingerprint."""

    kind: Kind
    encoder: EncoderRecord
    preprocessing: dict[str, Any]
    precision: _Line
    dim: Annotated[int, Field(ge=1, le=1 << 20)]
    dtype: DTypeName

    @property
    def fingerprint(self) -> str:
        """SHA-256 over encoder, weights, preprocessing, precision, dtype and schema (hex)."""
        return digest(
            {
                "schema": SCHEMA,
                "kind": self.kind,
                "encoder": self.encoder.name,
                "weights_sha256": self.encoder.weights_sha256,
                "preprocessing": self.preprocessing,
                "precision": self.precision,
                "dim": self.dim,
                "dtype": self.dtype,
            }
        )

    def differences(self, other: FeatureSpec) -> list[str]:
        """What differs between two specs, one ``name: other → self`` line each."""
        mine, theirs = _flat(self.model_dump()), _flat(other.model_dump())
        return [
            f"{name}: {theirs.get(name, 'absent')} → {mine.get(name, 'absent')}"
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name) != theirs.get(name)
        ]


class FileRecord(_Strict):
    """One file of the set: its name inside the folder, its BLAKE3 and its size in bytes."""

    name: str
    blake3: _Digest
    bytes: _Count


class ShardRecord(FileRecord):
    """One shard. ``computed`` (device, library versions, batch size) is told, never hashed."""

    rows: Annotated[int, Field(ge=1, lt=1 << 31)]
    computed: dict[_Line, _Line | int]


class FeatureSetRecord(_Strict):
    """The commit point of a feature set: everything a reader needs to trust its files."""

    schema_: Annotated[str, Field(alias="schema")] = SCHEMA
    spec: FeatureSpec
    fingerprint: _Digest
    content_digest: _Digest
    rows: _Count
    failed: _Count
    index: FileRecord
    shards: tuple[ShardRecord, ...]

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """The index and every shard."""
        return (self.index, *self.shards)

    @property
    def size(self) -> int:
        """Bytes of the index and every shard."""
        return self.index.bytes + sum(shard.bytes for shard in self.shards)


def digest(value: object) -> str:
    """SHA-256 (hex) of a value's canonical JSON: sorted keys, no spaces, UTF-8."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def feature_output(folder: Path, inputs: Iterable[Path] = ()) -> Output:
    """The folder of a feature set, for one that writes there; ``inputs`` as of `Output`."""
    return Output(folder, FILE_NAME, _listed, inputs)


def _listed(data: bytes) -> set[str]:
    """What a commit file names, be it damaged, so that what was damaged can be replaced."""
    if _MARK not in data[:_HEAD_BYTES]:
        raise SightlineError(
            "not a record of Sightline's, so this folder is somebody else's; name another output, "
            "or move it away"
        )
    return {name.decode() for name in _NAMES.findall(data)}


def write_record(output: Output, record: FeatureSetRecord) -> None:
    """Publish: replace ``feature_set.json`` by ``record``, with a digest of itself last.

    What it supersedes stays among the claims, and on the disk, until `cache gc`.
    """
    names = {FILE_NAME, *(file.name for file in record.files)}
    output.remember(output.owned - names)
    output.write(FILE_NAME, to_bytes(record))
    output.settle(file.name for file in record.files)


def to_bytes(record: FeatureSetRecord) -> bytes:
    """The commit file of a record: its fields and a digest of them, always in the same bytes."""
    body = record.model_dump(mode="json", by_alias=True)
    text = json.dumps({**body, "digest": digest(body)}, indent=1, ensure_ascii=False)
    return (text + "\n").encode()


def read_record(folder: Path) -> FeatureSetRecord:
    """Read and check ``folder/feature_set.json``.

    Raises:
        CacheError: no such file, not JSON, another schema version, an unknown or missing field,
            a digest that does not fit, file names that leave the folder, or numbers of rows for
            which the files are too small.
    """
    path = folder / FILE_NAME
    again = "pull it again, or run its stage again"
    if path.is_symlink():
        raise CacheError(f"{path}: is a link; a feature set holds no links")
    if not path.is_file():
        raise CacheError(f"{folder}: no feature set here (no {FILE_NAME}); {again}")
    if path.stat().st_size > MAX_BYTES:
        raise CacheError(f"{path}: {path.stat().st_size} bytes, more than the {MAX_BYTES} allowed")
    try:
        return _parse(path, path.read_bytes(), again)
    except RecursionError as error:
        raise CacheError(f"{path}: not usable JSON (nested too deeply); {again}") from error
    except UnicodeEncodeError as error:
        raise CacheError(f"{path}: holds text that is not Unicode; {again}") from error


def _parse(path: Path, data: bytes, again: str) -> FeatureSetRecord:
    try:
        body = json.loads(data, parse_constant=_no_number)
    except ValueError as error:
        raise CacheError(f"{path}: cut short or not JSON ({error}); {again}") from error
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        found = body.get("schema", "none") if isinstance(body, dict) else type(body).__name__
        raise CacheError(
            f"{path}: schema version {str(found)[:80]!r}, expected {SCHEMA}; "
            "use the Sightline version that wrote it, or run its stage again"
        )
    claimed = body.pop("digest", None)
    if claimed != digest(body):
        raise CacheError(f"{path}: its digest does not fit its content; {again}")
    try:
        record = FeatureSetRecord.model_validate_json(json.dumps(body))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise CacheError(f"{path}: {where}: {first['msg']}; {again}") from error
    if record.fingerprint != record.spec.fingerprint:
        raise CacheError(f"{path}: its fingerprint does not fit its encoder; {again}")
    _check_names(path, record)
    _check_sizes(path, record)
    return record


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _check_names(path: Path, record: FeatureSetRecord) -> None:
    names = [record.index.name, *(shard.name for shard in record.shards)]
    patterns = [_INDEX_NAME, *[_SHARD_NAME] * len(record.shards)]
    for name, pattern in zip(names, patterns, strict=True):
        if not re.fullmatch(pattern, name):
            raise CacheError(f"{path}: file name {name[:80]!r} is not allowed in a feature set")
    if len(set(names)) != len(names):
        raise CacheError(f"{path}: names a file twice")


def _check_sizes(path: Path, record: FeatureSetRecord) -> None:
    """Rows must have room in the files, so that no claim makes a reader reserve memory for it."""
    row_bytes = record.spec.dim * (2 if record.spec.dtype == "float16" else 4) + 32
    for file, rows, each in [
        (record.index, record.rows + record.failed, 32),  # keys do not compress
        *((shard, shard.rows, row_bytes) for shard in record.shards),
    ]:
        if file.bytes < rows * each:
            raise CacheError(
                f"{path}: {file.name} of {file.bytes} bytes cannot hold {rows} rows of {each} bytes"
            )
    if record.rows > sum(shard.rows for shard in record.shards):
        raise CacheError(f"{path}: {record.rows} rows, more than its shards have")


def _flat(value: object, prefix: str = "") -> dict[str, object]:
    if isinstance(value, dict):
        return {
            name: leaf
            for key, part in value.items()
            for name, leaf in _flat(part, f"{prefix}{key}.").items()
        }
    return {prefix.rstrip("."): value}
