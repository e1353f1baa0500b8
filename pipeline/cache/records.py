"""Records of a grounding: which words of which caption name which pixels, in Parquet shards.

A grounding is a folder with one commit point, `grounding.json`, and immutable shards, named by
their content. Each covers a block of images and has three tables: ``images`` (what was grounded,
failures included), ``phrases`` (the records) and ``drops`` (what did not become a record, and why).
Cut-outs are a folder of their own, `cutouts.json` and one table for each table of phrases.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.cache.errors import CacheError
from pipeline.cache.keys import key_of_file
from pipeline.cache.manifest import PHRASES, read_manifest, write_manifest
from sightline.errors import SightlineError
from sightline.files import fsync_folder, token
from sightline.output import Output

GROUNDING = "grounding.json"
CUTOUT_SET = "cutouts.json"

GROUNDED_IMAGES = pa.schema(
    [
        ("unit_key", pa.binary(32)),  # SHA-256 of the image's key and its captions' keys
        ("image_key", pa.binary(32)),
        ("captions", pa.int32()),  # that were grounded
        ("pairs", pa.int32()),  # records that came of them
        ("error", pa.string()),  # code of what kept the image from being grounded, or empty
    ],
    metadata={"sightline": "grounded-images/1"},
)
"""One row an image that was grounded, with or without success."""

DROPS = pa.schema(
    [
        ("image_key", pa.binary(32)),
        ("caption_key", pa.binary(32)),
        ("phrase", pa.string()),  # as the caption, or the grounder, writes it; may be empty
        ("reason", pa.string()),  # one of `pipeline.grounding.base.Reason`
        ("detail", pa.string()),
    ],
    metadata={"sightline": "drops/1"},
)
"""One row a phrase, or a box of one, that did not become a record."""

CUTOUTS = pa.schema(
    [
        ("key", pa.binary(32)),  # `cutout_key` of the records
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("png", pa.binary()),  # RGBA, cropped to the mask; alpha 0 (and black) or 255
    ],
    metadata={"sightline": "cutouts/1"},
)
"""One row a distinct cut-out, in the order of the records."""

TABLES = {"images": GROUNDED_IMAGES, "phrases": PHRASES, "drops": DROPS, "cutouts": CUTOUTS}

_SCHEMAS = {GROUNDING: "sightline.grounding/1", CUTOUT_SET: "sightline.cutouts/1"}
_HEAD_BYTES = 4096
_NAME = re.compile(r"(images|phrases|drops|cutouts)-[0-9a-f]{16}\.parquet")
_NAME_IN_TEXT = re.compile(r"(?:images|phrases|drops|cutouts)-[0-9a-f]{16}\.parquet")


@dataclass(frozen=True)
class TableFile:
    """One table of a shard: file name, SHA-256 (hex) and size of the file, rows."""

    name: str
    sha256: str
    bytes: int
    rows: int


Shard = dict[str, TableFile]
"""The tables of one block of images, by kind."""


@dataclass(frozen=True)
class ShardSet:
    """What a commit point says.

    Attributes:
        description: what decides the content; JSON values.
        shards: in order.
        counts: of rows by name, for people.
        computed: of each shard, the device and library it was computed with, and the batch sizes
            that were left where memory did not suffice; not part of the fingerprint. Empty for
            cut-outs, which no model makes.
    """

    description: dict[str, Any]
    shards: tuple[Shard, ...]
    counts: dict[str, Any]
    computed: tuple[dict[str, Any], ...] = ()

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the description."""
        return fingerprint_of(self.description)


def fingerprint_of(description: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of a description in canonical JSON."""
    text = json.dumps(description, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write_table(folder: Path, kind: str, table: pa.Table) -> TableFile:
    """Write one table under a name of its content; the same rows give the same file."""
    part = folder / f".{kind}.{token()}.tmp"
    write_manifest(part, table, TABLES[kind])
    digest = key_of_file(part).hex()
    path = folder / f"{kind}-{digest[:16]}.parquet"
    part.replace(path)
    fsync_folder(folder)
    return TableFile(path.name, digest, path.stat().st_size, table.num_rows)


def read_tables(folder: Path, kind: str, commit: str = GROUNDING) -> pa.Table:
    """All rows of one kind, in the order of the shards.

    Raises:
        CacheError: there is no such set, or one of its files is missing or of another size.
    """
    found = read_shard_set(folder, commit)
    tables = [read_table(folder, kind, shard[kind]) for shard in found.shards]
    return pa.concat_tables([TABLES[kind].empty_table(), *tables]).combine_chunks()


def read_table(folder: Path, kind: str, file: TableFile) -> pa.Table:
    """One table of a shard.

    Raises:
        CacheError: the file is missing, of another size, or holds something else.
    """
    path = folder / file.name
    if not path.is_file() or path.stat().st_size != file.bytes:
        found = f"{path.stat().st_size:,} bytes" if path.is_file() else "no file"
        raise CacheError(
            f"{path}: found {found}, expected {file.bytes:,} bytes; pull it again, or remove "
            f"{folder} and ground anew"
        )
    return read_manifest(path, TABLES[kind]).replace_schema_metadata(TABLES[kind].metadata)


def is_whole(folder: Path, shard: Shard) -> bool:
    """Whether every table of ``shard`` is there and of its size."""
    paths = {folder / file.name: file.bytes for file in shard.values()}
    return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())


def read_phrases(path: Path | str) -> pa.Table:
    """The records of a grounding's folder, or of one phrases manifest: `PHRASES`.

    Raises:
        CacheError: neither is there, or it is damaged.
    """
    path = Path(path)
    return read_tables(path, "phrases") if path.is_dir() else read_manifest(path, PHRASES)


def shard_set_output(folder: Path, commit: str, inputs: Iterable[Path] = ()) -> Output:
    """The folder of a grounding or of cut-outs, for one that writes there."""
    schema = _SCHEMAS[commit]

    def listed(data: bytes) -> set[str]:
        if f'"{schema}"'.encode() not in data[:_HEAD_BYTES]:
            raise SightlineError(
                f"not a record of Sightline's (no schema {schema} in it), so this folder is "
                "somebody else's; name another output, or move it away"
            )
        return set(_NAME_IN_TEXT.findall(data.decode(errors="replace")))

    return Output(folder, commit, listed, inputs)


def write_shard_set(output: Output, commit: str, content: ShardSet) -> None:
    """Replace the commit point, and remove what it no longer names.

    A reader that opened the set before must open it again.
    """
    names = [file.name for shard in content.shards for file in shard.values()]
    body = {
        "schema": _SCHEMAS[commit],
        "description": content.description,
        "fingerprint": content.fingerprint,
        "counts": content.counts,
        "shards": [{k: asdict(file) for k, file in shard.items()} for shard in content.shards],
    }
    if content.computed:
        body["computed"] = list(content.computed)
    body["digest"] = _digest(body)
    output.claim(names)
    text = json.dumps(body, indent=1, ensure_ascii=False)
    output.replace_record((text + "\n").encode(), names)


def read_shard_set(folder: Path, commit: str) -> ShardSet:
    """What the commit point of ``folder`` says.

    Raises:
        CacheError: there is none, or it is damaged.
    """
    path = folder / commit
    try:
        body = json.loads(path.read_bytes())
        digest = body.pop("digest")
        shards = tuple(shard_from_json(shard) for shard in body["shards"])
        computed = tuple(body.get("computed", ()))
        found = ShardSet(body["description"], shards, body["counts"], computed)
    except FileNotFoundError as error:
        raise CacheError(f"{path}: not there; `sightline ground run` makes it") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CacheError(f"{path}: damaged ({error}); ground anew") from error
    if digest != _digest(body):
        raise CacheError(f"{path}: its digest does not fit its content; ground anew")
    return found


def shard_from_json(shard: dict[str, dict[str, Any]]) -> Shard:
    """Table files by kind; ValueError for a name that could leave the folder."""
    files = {kind: TableFile(**file) for kind, file in shard.items()}
    for file in files.values():
        if not _NAME.fullmatch(file.name):
            raise ValueError(f"{file.name!r} is no name of a table")
    return files


def _digest(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
