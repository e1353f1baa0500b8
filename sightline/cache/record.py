"""The content of a commit file: what determines a set's content, its files, its provenance."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
)

from sightline.digest import digest

SCHEMA = "sightline.set/2"
_ROW_FORMAT = "sightline.feature_set/1"  # part of fingerprints since the first version
FOREIGN = "imported/"
"""How the encoder's name begins if another tool made the rows."""
FILE_NAMES = r"[a-z_]+-[0-9a-f]{32}\.(?:h5|parquet)"
"""Names of the files of a set: what they hold, and a digest of it."""


_Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=0, lt=1 << 48)]
DTypeName = Literal["float16", "float32"]
Kind = Literal["image", "text", "teacher", "object"]
TableKind = Literal["grounding", "cutouts", "tokens", "phrase-tokens"]
FEATURE_KINDS: tuple[Kind, ...] = get_args(Kind)
TABLE_KINDS: tuple[TableKind, ...] = get_args(TableKind)
TABLES_OF: dict[TableKind, tuple[str, ...]] = {
    "grounding": ("images", "phrases", "drops"),
    "cutouts": ("cutouts",),
    "tokens": ("tokens",),
    "phrase-tokens": ("phrase_tokens",),
}
"""Names of the tables in each shard of a set."""

SINGLE_KINDS: tuple[TableKind, ...] = ("tokens", "phrase-tokens")
"""Kinds of sets with one shard, or none after repair removed it."""

NAMES = {
    **dict.fromkeys(FEATURE_KINDS, "a feature set"),
    **{"grounding": "a grounding", "cutouts": "cut-outs"},
    **{"tokens": "a token set", "phrase-tokens": "phrase tokens"},
}
"""Display name of each kind of set."""


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
    def differences(self, other: _Spec) -> list[str]:
        """Differences between two specs, one ``name: other → self`` line each."""
        return differences(self, other)


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
        found = self.preprocessing.get("normalised")
        if isinstance(found, bool):
            return found
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
    """What determines the content of a set of tables. Its digest is the fingerprint."""

    kind: TableKind
    description: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """SHA-256 over the kind and the description (hex)."""
        return digest({"schema": SCHEMA, "kind": self.kind, "description": self.description})


class FileRecord(_Strict):
    """One file of the set: its name inside the folder, its BLAKE3 and its size in bytes."""

    name: Annotated[str, Field(pattern=f"^{FILE_NAMES}$")]
    blake3: _Digest
    bytes: _Count


class ShardRecord(FileRecord):
    """One shard. ``computed`` (device, library versions, batch size) is recorded, not hashed."""

    rows: Annotated[int, Field(ge=1, lt=1 << 31)]
    computed: dict[str, str | int]


class TableRecord(FileRecord):
    """One table of a shard."""

    rows: Annotated[int, Field(ge=0, lt=1 << 48)]


class TableShard(_Strict):
    """The tables of one block, by name. ``computed`` is recorded, not hashed."""

    tables: dict[str, TableRecord]
    computed: dict[str, Any] = {}


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
        found = f"{self.differing:,} of {self.rows:,} recomputed rows differ"
        if not self.differing:
            found = f"{self.rows:,} rows recomputed and equal"
        return (
            f"{found} (smallest cosine {self.smallest_cosine:.6f}, largest difference "
            f"{self.largest_difference:.3g}, encoder {self.encoder})"
        )


class Provenance(_Strict):
    """Who computed a set: Sightline, or another tool whose rows were imported.

    Attributes:
        imported: the rows came from a file in another format.
        recomputed: rows of an imported set that were re-encoded, if all of them agreed.
        check: what re-encoding rows of an imported set found.
    """

    imported: bool = False
    recomputed: _Count = 0
    check: Recheck | None = None

    @property
    def doubt(self) -> Doubt:
        """Why the rows may not be what their encoder computes; empty if nothing says so."""
        if not self.imported or self.recomputed:
            return ""
        return (
            "imported, not checked" if self.check is None else "imported, differs when recomputed"
        )

    def checked(self, found: Recheck) -> Provenance:
        """This provenance after another check of an imported set.

        The last check counts, but no later sample of the same encoder hides a difference.
        """
        before = self.check
        same = before is not None and before.fingerprint == found.fingerprint
        if before is not None and same and before.differing and not found.differing:
            found = before
        return Provenance(
            imported=self.imported,
            recomputed=0 if found.differing else found.rows,
            check=found,
        )

    def __str__(self) -> str:
        if not self.imported:
            return "computed here"
        return f"imported, {self.check or 'not checked'}"


class SetRecord(_Strict):
    """The commit point of a set: everything a reader needs to trust its files."""

    schema_: Annotated[str, Field(alias="schema")] = SCHEMA
    spec: FeatureSpec | TableSpec
    fingerprint: _Digest
    content_digest: _Digest
    provenance: Provenance = Provenance()

    @property
    @abstractmethod
    def files(self) -> tuple[FileRecord, ...]:
        """Every file of the set except its commit file."""

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.bytes for file in self.files)


class FeatureSetRecord(SetRecord):
    """The commit point of a feature set."""

    spec: FeatureSpec
    rows: _Count
    failed: _Count
    index: FileRecord
    shards: tuple[ShardRecord, ...]

    @property
    def files(self) -> tuple[FileRecord, ...]:
        return (self.index, *self.shards)


class TableSetRecord(SetRecord):
    """The commit point of a set of tables; ``counts`` is informational."""

    spec: TableSpec
    counts: dict[str, Any] = {}
    shards: tuple[TableShard, ...]

    @property
    def files(self) -> tuple[FileRecord, ...]:
        every = [file for shard in self.shards for file in shard.tables.values()]
        return tuple({file.name: file for file in every}.values())  # empty tables share one file


def differences(mine: BaseModel, theirs: BaseModel) -> list[str]:
    """Differences between two specs, one ``name: theirs → mine`` line each."""
    one, two = _flat(mine.model_dump()), _flat(theirs.model_dump())
    return [
        f"{name}: {two.get(name, 'absent')} → {one.get(name, 'absent')}"
        for name in sorted(one.keys() | two.keys())
        if one.get(name) != two.get(name)
    ]


def _flat(value: object, prefix: str = "") -> dict[str, object]:
    if isinstance(value, dict):
        return {
            name: leaf
            for key, part in value.items()
            for name, leaf in _flat(part, f"{prefix}{key}.").items()
        }
    return {prefix.rstrip("."): value}
