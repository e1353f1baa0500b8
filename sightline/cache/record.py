"""set.json: what determines a set's content, its files, its provenance; read, checked, replaced."""

from __future__ import annotations

import json
import re
import stat
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, get_args, overload

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import TypeVar

from sightline.digest import digest
from sightline.errors import CacheError, SightlineError
from sightline.files.output import Output
from sightline.files.storage import require_of_file
from sightline.settings import flatten
from sightline.wording import message_of, place_of

SCHEMA = "sightline.set/4"
FILE_NAME = "set.json"
FOREIGN = "imported/"
"""How the encoder's name begins if another tool made the rows."""
FILE_NAMES = r"(?:part-[0-9a-f]{16}-\d{5,}|[a-z_]+)-[0-9a-f]{32}\.(?:h5|parquet)"
"""Names of the files of a set, and of finished parts: what they hold, and a digest of it."""
DAMAGED = "damaged"
"""Status of a row that `repair` took out; the next run computes it again."""

_ROW_FORMAT = "sightline.feature_set/1"  # part of fingerprints since the first version
_TABLE_FORMAT = "sightline.set/2"  # likewise
_MARK = b'"sightline.set/'
_HEAD_BYTES = 4096
_NAMES = re.compile(FILE_NAMES.encode())
REMEDY = "do not use it; pull the set again, or rerun its stage"
_AGAIN = "pull it again, or rerun its stage"

_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, lt=1 << 48)]
DTypeName = Literal["float16", "float32"]
Kind = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,40}$")]
"""Of features: one of `sightline.cache.feature_kind.KINDS`, or of a package that is absent here."""
TableKind = Literal["grounding", "cutouts", "tokens", "phrase-tokens"]
TABLE_KINDS: tuple[TableKind, ...] = get_args(TableKind)

_WORDS = {
    "": "a set",
    "grounding": "a grounding",
    "cutouts": "a set of cut-outs",
    "tokens": "a token set",
    "phrase-tokens": "a set of phrase tokens",
}


def set_of_kind(kind: str) -> str:
    """What a set of some kind is called in a message; empty: of any."""
    return _WORDS.get(kind, "a feature set")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class EncoderRecord(_Strict):
    """The frozen model that computed the rows.

    Attributes:
        name: architecture, such as ``torchvision/resnet50``.
        source: where the weights came from, such as ``pretrained:IMAGENET1K_V1`` or ``random:0``.
        revision: revision of that source, or empty.
        weights_sha256: digest of the state dict that was actually loaded.
        untrained: the weights are random; every report says so.
    """

    name: str
    source: str
    revision: str = ""
    weights_sha256: _Digest
    untrained: bool = False


class _Spec(_Strict):
    """What determines the rows of a set.

    Attributes:
        code: digest of the code of other packages that computed them; empty: of none. It is in the
            record and not in the fingerprint, as a release may move no row.
    """

    code: Literal[""] | _Digest = ""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """SHA-256 (hex) of all but the code."""

    @property
    def origin(self) -> str:
        """The fingerprint, together with the code: rows of one origin may be mixed."""
        return digest([self.fingerprint, self.code]) if self.code else self.fingerprint

    def differences(self, other: _Spec) -> list[str]:
        """Differences between two specs, one ``name: other → self`` line each."""
        after, before = flatten(self.model_dump()), flatten(other.model_dump())
        return [
            f"{name}: {before.get(name, 'absent')} → {after.get(name, 'absent')}"
            for name in sorted(after.keys() | before.keys())
            if after.get(name) != before.get(name)
        ]


class FeatureSpec(_Spec):
    """What determines the value of a row. Its digest is the fingerprint."""

    kind: Kind
    encoder: EncoderRecord
    preprocessing: dict[str, Any]
    precision: str
    dim: Annotated[int, Field(ge=1, le=1 << 20)]
    dtype: DTypeName

    @property
    def is_foreign(self) -> bool:
        """Whether another tool made the rows, whose encoder the record does not describe."""
        return self.encoder.name.startswith(FOREIGN)

    @property
    def normalised(self) -> bool | None:
        """Whether every row has length 1; None if that is not recorded."""
        recorded = self.preprocessing.get("normalised")
        if isinstance(recorded, bool):
            return recorded
        return None if self.is_foreign else False

    @property
    def fingerprint(self) -> str:
        """SHA-256 over encoder, weights, preprocessing, precision, dtype and row format (hex)."""
        return digest(
            {
                "schema": _ROW_FORMAT,
                "kind": self.kind,
                "encoder": self.encoder.name,
                "weights_sha256": self.encoder.weights_sha256,
                "preprocessing": self.preprocessing,
                "precision": self.precision,
                "dim": self.dim,
                "dtype": self.dtype,
            }
        )


class TableSpec(_Spec):
    """What determines the rows of any other set. Its digest is the fingerprint."""

    kind: TableKind
    description: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the kind and the description (hex)."""
        return digest({"schema": _TABLE_FORMAT, "kind": self.kind, "description": self.description})


Spec = FeatureSpec | TableSpec
"""What determines the rows of a set."""
S = TypeVar("S", bound=Spec, covariant=True, default=Spec)


class FileRecord(_Strict):
    """One file of the set: its name inside the folder, its BLAKE3 and its size in bytes."""

    name: Annotated[str, Field(pattern=f"^{FILE_NAMES}$")]
    blake3: _Digest
    bytes: _Count


class ShardRecord(FileRecord):
    """One shard. ``computed`` (device, library versions, batch size) is recorded, not hashed."""

    rows: Annotated[int, Field(ge=1, lt=1 << 31)]
    computed: dict[str, Any]


Doubt = Literal["", "imported, not checked", "imported, differs when recomputed"]


class Recheck(_Strict):
    """What re-encoding some rows of an imported set found.

    Attributes:
        rows: rows that were encoded again.
        differing: those that did not agree.
        smallest_cosine, largest_difference: over all of them; the difference of two numbers.
        encoder: the encoder that computed them, as in `EncoderRecord`: name and source.
        fingerprint: of what it computed.
    """

    rows: Annotated[int, Field(ge=1, lt=1 << 48)]
    differing: _Count
    smallest_cosine: _Finite
    largest_difference: _Finite
    encoder: str
    fingerprint: _Digest

    def __str__(self) -> str:
        outcome = f"{self.differing:,} of {self.rows:,} recomputed rows differ"
        if not self.differing:
            outcome = f"{self.rows:,} rows recomputed and equal"
        return (
            f"{outcome} (smallest cosine {self.smallest_cosine:.6f}, largest difference "
            f"{self.largest_difference:.3g}, encoder {self.encoder})"
        )


class Provenance(_Strict):
    """Who computed a set: Sightline, or another tool whose rows were imported.

    Attributes:
        imported: the rows came from a file in another format.
        check: what re-encoding rows of an imported set found.
    """

    imported: bool = False
    check: Recheck | None = None

    @property
    def doubt(self) -> Doubt:
        """Why the rows may not be what their encoder computes; empty if nothing says so."""
        if not self.imported:
            return ""
        if self.check is None:
            return "imported, not checked"
        return "imported, differs when recomputed" if self.check.differing else ""

    def checked(self, recheck: Recheck) -> Provenance:
        """This provenance after another check of an imported set.

        The last check counts, but no later sample of the same encoder hides a difference.
        """
        before = self.check
        same = before is not None and before.fingerprint == recheck.fingerprint
        if before is not None and same and before.differing and not recheck.differing:
            recheck = before
        return Provenance(imported=self.imported, check=recheck)

    def __str__(self) -> str:
        if not self.imported:
            return "computed here"
        return f"imported, {self.check or 'not checked'}"


class SetRecord(_Strict, Generic[S]):
    """The commit point of a set: everything a reader needs to trust its files.

    The kind tells its spec: ``SetRecord[FeatureSpec]`` is that of a feature set,
    ``SetRecord[TableSpec]`` that of any other one.

    Attributes:
        rows, failed: keys with a row, and keys without one.
        content_digest: equal for two sets of one fingerprint exactly if they hold the same rows.
        cut: texts with more tokens than are read of them; 0: none, or not known.
    """

    schema_: Annotated[str, Field(alias="schema")] = SCHEMA
    spec: S
    fingerprint: _Digest
    content_digest: _Digest
    provenance: Provenance = Provenance()
    rows: _Count
    failed: _Count
    cut: _Count = 0
    index: FileRecord
    shards: tuple[ShardRecord, ...]

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """Every file of the set except its commit file."""
        return (self.index, *self.shards)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)

    @property
    def cut_in_words(self) -> str:
        """What `cut` says, such as ``2 of 3 texts are longer than 77 tokens and cut``, or empty."""
        spec = self.spec
        settings = spec.preprocessing if isinstance(spec, FeatureSpec) else spec.description
        longest = settings.get("max_length", settings.get("context_length"))
        noun, verb = ("text", "is") if self.rows == 1 else ("texts", "are")
        words = f"{self.cut:,} of {self.rows:,} {noun} {verb} longer than {longest} tokens and cut"
        return words if self.cut else ""


_OF_SPEC: dict[type[Spec], type[SetRecord]] = {
    FeatureSpec: SetRecord[FeatureSpec],
    TableSpec: SetRecord[TableSpec],
}
"""Made here, where `pickle` finds them."""


def set_output(
    folder: Path, inputs: Iterable[Path] = (), worker: str = "", kind: str | None = None
) -> Output:
    """A set's folder as a command's output; ``inputs`` and ``worker`` as in `Output`.

    Args:
        kind: of the set that will be written; None: of the one that is there.

    Raises:
        CacheError: the folder holds a set of another kind.
    """
    if kind is not None:
        _refuse_another_kind(folder, kind)
    return Output(folder, FILE_NAME, _listed, inputs, worker)


def _refuse_another_kind(folder: Path, kind: str) -> None:
    try:
        held = read_record(folder).spec.kind
    except CacheError:
        return  # none, or a damaged one, which `Output` checks
    if held != kind:
        raise CacheError(
            f"{folder}: holds {set_of_kind(held)} of kind {held}, but this is "
            f"{set_of_kind(kind)} of kind {kind}; choose another folder, or remove that one first"
        )


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

    The files of the record before stay until the next one, or `cache gc`: readers may have them
    mapped. Older ones go.
    """
    before = output.recorded()
    output.commit(to_bytes(record))
    output.remove_unlisted(but=before)


def to_bytes(record: SetRecord) -> bytes:
    """The commit file of a record: its fields and their digest, in a canonical form."""
    body = record.model_dump(mode="json", by_alias=True, exclude=set() if record.cut else {"cut"})
    if not record.spec.code:
        del body["spec"]["code"]
    text = json.dumps({**body, "digest": digest(body)}, indent=1, ensure_ascii=False)
    return (text + "\n").encode()


@overload
def read_record(folder: Path) -> SetRecord: ...
@overload
def read_record(folder: Path, kind: Literal["features"]) -> SetRecord[FeatureSpec]: ...
@overload
def read_record(folder: Path, kind: TableKind) -> SetRecord[TableSpec]: ...
def read_record(folder: Path, kind: str = "") -> SetRecord:
    """Read and check ``folder/set.json``.

    Args:
        kind: of the sets that will do, ``features`` for all kinds of them; empty: any.

    Raises:
        CacheError: no such file; not JSON, another schema version, an unknown, missing or invalid
            field, a wrong digest; a set of another kind.
    """
    expected = set_of_kind(kind)
    record = _checked_record(folder, expected)
    held = "features" if isinstance(record.spec, FeatureSpec) else record.spec.kind
    if kind and held != kind:
        raise CacheError(f"{folder}: holds {set_of_kind(record.spec.kind)}, expected {expected}")
    return record


def _checked_record(folder: Path, expected: str) -> SetRecord:
    """The record in ``folder``; ``expected`` names the set if there is none."""
    path = folder / FILE_NAME
    if not path.is_file():
        raise CacheError(f"{folder}: not {expected} (no {FILE_NAME}); {_AGAIN}")
    try:
        body = json.loads(path.read_bytes())
    except OSError as error:
        require_of_file(error, path)
        raise CacheError(f"{path}: cannot be read ({error.strerror}); {_AGAIN}") from error
    except (ValueError, RecursionError) as error:
        raise CacheError(f"{path}: truncated or not JSON ({error}); {_AGAIN}") from error
    if not isinstance(body, dict) or body.get("schema") != SCHEMA:
        schema = body.get("schema", "none") if isinstance(body, dict) else type(body).__name__
        raise CacheError(
            f"{path}: schema version {str(schema)[:80]!r}, expected {SCHEMA}; "
            "use the Sightline version that wrote it, or rerun its stage"
        )
    if body.pop("digest", None) != digest(body):
        raise CacheError(f"{path}: its digest does not match its content; {_AGAIN}")
    spec = body.get("spec")
    tables = isinstance(spec, dict) and spec.get("kind") in TABLE_KINDS
    try:
        record = _OF_SPEC[TableSpec if tables else FeatureSpec].model_validate_json(
            json.dumps(body)
        )
    except ValidationError as error:
        first: dict[str, Any] = dict(error.errors()[0])
        where = ".".join(map(str, place_of(first["loc"])))
        raise CacheError(f"{path}: {where}: {message_of(first)}; {_AGAIN}") from error
    if record.fingerprint != record.spec.fingerprint:
        raise CacheError(f"{path}: its fingerprint does not match its description; {_AGAIN}")
    names = Counter(shard.name for shard in record.shards)
    if twice := [name for name, count in names.items() if count > 1]:
        raise CacheError(f"{path}: lists {twice[0]} {names[twice[0]]} times; {_AGAIN}")
    return record


def check_file(folder: Path, record: FileRecord) -> Path:
    """Path of a file of the set, checked to be a file, or a link to one, of the recorded size.

    Raises:
        CacheError: it is missing, or of the wrong size.
    """
    path = folder / record.name
    try:
        status = path.stat()
    except OSError as error:
        require_of_file(error, path)
        raise CacheError(f"{path}: missing; {REMEDY}") from error
    if not stat.S_ISREG(status.st_mode):
        raise CacheError(f"{path}: not a plain file; {REMEDY}")
    if status.st_size != record.bytes:
        raise CacheError(
            f"{path}: {status.st_size} bytes, expected {record.bytes}: truncated or changed; "
            f"{REMEDY}"
        )
    return path
