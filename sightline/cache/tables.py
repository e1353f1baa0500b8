"""Sets of tables: groundings, cut-outs, tokens and phrase tokens, in Parquet files.

Every set has one commit point, `set.json`, and immutable shards of tables named by their
content. A shard of a grounding covers a block of images and has three tables: ``images`` (what was
grounded, failures included), ``phrases`` (which words of which caption name which pixels) and
``drops`` (what did not become a phrase, and why). Cut-outs have one table for each of ``phrases``;
tokens and phrase tokens are one table each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from blake3 import blake3
from pydantic import TypeAdapter, ValidationError

from sightline.cache.commit import read_tables_record, refuse_other_kinds, set_output, write_record
from sightline.cache.errors import CacheError
from sightline.cache.keys import sort_order
from sightline.cache.manifest import (
    PHRASE_TOKENS,
    PHRASES,
    TOKENS,
    key_column,
    read_manifest,
    write_manifest,
)
from sightline.cache.record import (
    TABLES_OF,
    Provenance,
    TableKind,
    TableRecord,
    TableSetRecord,
    TableShard,
    TableSpec,
)
from sightline.cache.shard import check_file
from sightline.cache.shard_check import file_fault
from sightline.files import fsync_folder, token
from sightline.output import Output

GROUNDED_IMAGES = pa.schema(
    [
        ("unit_key", pa.binary(32)),  # SHA-256 of the image's key and its captions' keys
        ("image_key", pa.binary(32)),
        ("captions", pa.int32()),  # number grounded
        ("pairs", pa.int32()),  # resulting records
        ("error", pa.string()),  # error code if grounding failed, or empty
    ],
    metadata={"sightline": "grounded-images/1"},
)
"""One row per image processed, successfully or not."""

DROPS = pa.schema(
    [
        ("image_key", pa.binary(32)),
        ("caption_key", pa.binary(32)),
        ("phrase", pa.string()),  # as written in the caption or by the grounder; may be empty
        ("reason", pa.string()),  # one of `pipeline.grounding.protocols.Reason`
        ("detail", pa.string()),
    ],
    metadata={"sightline": "drops/1"},
)
"""One row per phrase, or box of a phrase, that did not become a record."""

CUTOUTS = pa.schema(
    [
        ("key", pa.binary(32)),  # `cutout_key` of the records
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("png", pa.binary()),  # RGBA, cropped to the mask; alpha 0 (and black) or 255
    ],
    metadata={"sightline": "cutouts/1"},
)
"""One row per distinct cut-out, in the order of the records."""

TABLES = {
    **{"images": GROUNDED_IMAGES, "phrases": PHRASES, "drops": DROPS, "cutouts": CUTOUTS},
    **{"tokens": TOKENS, "phrase_tokens": PHRASE_TOKENS},
}
"""Schema of each table."""

_ORDERED_BY = {
    **{"images": "unit_key", "phrases": "image_key", "drops": "image_key"},
    **{"cutouts": "key", "tokens": "key", "phrase_tokens": "pair_key"},
}
_MADE_BY = {
    **{"grounding": "sightline ground run", "cutouts": "sightline ground run"},
    **{"tokens": "sightline tokens", "phrase-tokens": "sightline phrase-tokens"},
}


H = TypeVar("H")


def write_table(folder: Path, name: str, table: pa.Table) -> TableRecord:
    """Write one table under a content-derived name; equal rows give equal files."""
    part = folder / f".{name}.{token()}.tmp"
    table = table.cast(TABLES[name])  # tables read back may use different names for nested fields
    write_manifest(part, table, TABLES[name])
    digest = blake3().update_mmap(part).hexdigest()
    path = folder / f"{name}-{digest[:32]}.parquet"
    part.replace(path)
    fsync_folder(folder)
    return TableRecord(
        name=path.name, blake3=digest, bytes=path.stat().st_size, rows=table.num_rows
    )


def read_tables(folder: Path, name: str) -> pa.Table:
    """All rows of the table ``name`` of a set, in the order of the shards.

    Raises:
        CacheError: there is no set with this table, or one of its files is missing or damaged.
    """
    (kind,) = (kind for kind, names in TABLES_OF.items() if name in names)
    record = read_tables_record(folder, kind)
    tables = [read_table(folder, name, shard.tables[name]) for shard in record.shards]
    return pa.concat_tables([TABLES[name].empty_table(), *tables]).combine_chunks()


def read_table(folder: Path, name: str, file: TableRecord, *, hashed: bool = False) -> pa.Table:
    """One table of a shard.

    Args:
        hashed: the file's BLAKE3 has just been checked, so do not read every byte again.

    Raises:
        CacheError: the file is missing, does not match its record, or contains anything but full
            rows of this table.
    """
    path = check_file(folder, file)
    if not hashed and (fault := file_fault(folder, file)):
        raise CacheError(f"{fault}; run `sightline cache repair {folder}`")
    table = read_manifest(path, TABLES[name]).replace_schema_metadata(TABLES[name].metadata)
    if table.num_rows != file.rows:
        raise CacheError(f"{path}: found {table.num_rows:,} rows, expected {file.rows:,}")
    return table


def is_whole(folder: Path, shard: TableShard) -> bool:
    """Whether every table of ``shard`` exists and has the recorded size."""
    paths = {folder / file.name: file.bytes for file in shard.tables.values()}
    return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())


def read_phrases(path: Path | str) -> pa.Table:
    """The phrases of a grounding folder or a phrases manifest: `PHRASES`.

    Raises:
        CacheError: missing or damaged.
    """
    path = Path(path)
    if path.is_dir():
        return read_tables(path, "phrases")
    return read_manifest(path, PHRASES)


def publish_tables(
    output: Output,
    spec: TableSpec,
    shards: Sequence[TableShard],
    counts: Mapping[str, Any],
    provenance: Provenance = Provenance(),  # noqa: B008  (frozen)
) -> TableSetRecord:
    """Replace the commit point; the files of ``shards`` are already in the folder.

    The record lists the shards by file name, regardless of history.
    """
    shards = sorted(shards, key=lambda shard: [file.name for file in shard.tables.values()])
    record = TableSetRecord(
        spec=spec,
        fingerprint=spec.fingerprint,
        content_digest=table_content(output.folder, spec, shards),
        provenance=provenance,
        counts=dict(counts),
        shards=tuple(shards),
    )
    write_record(output, record)
    return record


def write_single(
    folder: Path, kind: TableKind, header: Any, table: pa.Table, counts: Mapping[str, Any]
) -> TableSetRecord:
    """Publish a single-table set, described by the fields of the dataclass ``header``.

    Raises:
        CacheError: ``folder`` holds a set of a different kind.
        SightlineError: as in `sightline.output.Output`.
    """
    (name,) = TABLES_OF[kind]
    refuse_other_kinds(folder, kind)
    spec = TableSpec(kind=kind, description=asdict(header))
    with set_output(folder) as output:
        folder.mkdir(parents=True, exist_ok=True)
        with output.scratch() as made:
            file = write_table(made, name, table)
            output.move_in(made)
        return publish_tables(output, spec, [TableShard(tables={name: file})], counts)


def read_single(folder: Path, kind: TableKind, header: type[H]) -> tuple[Path, pa.Table, H]:
    """The file of a single-table set, its rows and its header.

    Raises:
        CacheError: missing, damaged, or of a different kind or version.
    """
    (name,) = TABLES_OF[kind]
    again = f"rerun `{_MADE_BY[kind]}`"
    record = read_tables_record(folder, kind)
    if not record.shards:
        raise CacheError(f"{folder}: no longer holds a table; {again}")
    file = record.shards[0].tables[name]
    table = read_table(folder, name, file).combine_chunks()
    try:
        header(**record.spec.description)  # rejects extra fields
        text = json.dumps(record.spec.description)
        found = TypeAdapter(header).validate_json(text, strict=True)
    except (TypeError, ValidationError) as error:
        raise CacheError(f"{folder}: described by a different version; {again}") from error
    return folder / file.name, table, found


def table_content(
    folder: Path,
    spec: TableSpec,
    shards: Sequence[TableShard],
    progress: Callable[[int], None] = lambda _: None,
    *,
    hashed: bool = False,
) -> str:
    """BLAKE3 (hex) of the fingerprint and every row, by key, independent of the sharding.

    Args:
        hashed: as in `read_table`.

    Raises:
        CacheError: a file is missing or does not match its record.
    """
    total = blake3(spec.fingerprint.encode())
    for name in TABLES_OF[spec.kind]:
        parts = []
        for shard in shards:
            parts.append(_light(read_table(folder, name, shard.tables[name], hashed=hashed)))
            progress(shard.tables[name].bytes)
        if not parts:
            continue
        table = pa.concat_tables(parts).combine_chunks()
        table = table.take(sort_order(key_column(table[_ORDERED_BY[name]])))
        total.update(name.encode())
        for column in table.columns:
            for piece in _canonical(column.combine_chunks()):
                total.update(piece)
    return total.hexdigest()


def rows_by_key(
    folder: Path, spec: TableSpec, shards: Sequence[TableShard]
) -> dict[bytes, list[bytes]]:
    """Key of the set's first table → digests of all rows that belong to it, in order."""
    found: dict[bytes, list[bytes]] = {}
    for name in TABLES_OF[spec.kind]:
        key = "image_key" if spec.kind == "grounding" else _ORDERED_BY[name]
        for shard in shards:
            for row in _light(read_table(folder, name, shard.tables[name])).to_pylist():
                row_digest = blake3(f"{name} {sorted(row.items())!r}".encode()).digest()
                found.setdefault(row[key], []).append(row_digest)
    return found


def _light(table: pa.Table) -> pa.Table:
    """``table`` with PNGs replaced by their BLAKE3, so that all shards fit into memory."""
    for number, field in enumerate(table.schema):
        if field.type == pa.binary():
            digests = [blake3(value.as_buffer()).digest() for value in table.column(number)]
            table = table.set_column(number, field.name, pa.array(digests, pa.binary(32)))
    return table


def _canonical(array: pa.Array | pa.ChunkedArray) -> Iterator[bytes]:
    """The values of a non-null column as bytes, independent of their layout in Arrow."""
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_struct(array.type):
        for number in range(array.type.num_fields):
            yield from _canonical(array.field(number))
    elif pa.types.is_list(array.type):
        yield np.asarray(array.value_lengths(), dtype="<i8").tobytes()
        yield from _canonical(array.flatten())
    elif pa.types.is_fixed_size_list(array.type):
        yield from _canonical(array.flatten())
    elif pa.types.is_string(array.type) or pa.types.is_fixed_size_binary(array.type):
        if not len(array):
            return  # it may have no buffers
        texts = array.cast(pa.large_binary())
        _, ends, data = texts.buffers()
        offsets = np.frombuffer(ends, dtype="<i8")[texts.offset :][: len(texts) + 1]
        yield np.diff(offsets).tobytes()
        yield data.slice(offsets[0], offsets[-1] - offsets[0]) if data else b""
    else:
        yield np.asarray(array).tobytes()
