"""A folder of `sightline cache export` becomes the set that it was written from, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.interchange.export import RECORD, ExportRecord, schema_of
from pipeline.interchange.import_rows import Imported
from pipeline.interchange.imported import write_rows
from pipeline.interchange.row_files import FEATURES, KEY, METADATA
from pipeline.interchange.row_readers import (
    RowFile,
    npy_file,
    parquet_column,
    safetensors_file,
    texts_of_column,
)
from sightline.cache.index import Content
from sightline.cache.keys import Keys, as_keys, increasing
from sightline.digest import blake3_of_file
from sightline.errors import SightlineError
from sightline.progress import progress

_METADATA = r"metadata/metadata_\d{4}\.parquet"
_NAMES = {
    "parquet": r"data/rows-\d{4}\.parquet",
    "npy": rf"(?:img|text)_emb/(?:img|text)_emb_\d{{4}}\.npy|{_METADATA}",
    "safetensors": rf"data/rows-\d{{4}}\.safetensors|{_METADATA}",
}
_KEY = re.compile(r"[0-9a-f]{64}")
_READ: dict[str, Callable[[Path], RowFile]] = {
    "parquet": lambda path: parquet_column(path, FEATURES),
    "npy": npy_file,
    "safetensors": lambda path: safetensors_file(path, FEATURES),
}


def is_export(folder: Path) -> bool:
    """Whether a folder has the record of an export."""
    return (folder / RECORD).is_file()


def import_export(folder: Path, out: Path) -> Imported:
    """Restore the set in ``folder`` as the feature set ``out``.

    Every file is hashed first, and the content digest of the rows is computed before any is
    written. The set has the fingerprint and the content digest of the original; its provenance is
    that it was imported.

    Raises:
        SightlineError: a file is missing or damaged, or the record does not describe the files.
    """
    path = folder / RECORD
    record = schema_of(path.read_bytes(), path)
    _check_files(folder, record)
    content = Content(record.spec)
    keys = as_keys([])
    found: list[Keys] = []
    for some, rows in _blocks(folder, record, "check"):
        if len(keys) and len(some) and not increasing(np.concatenate([keys[-1:], some[:1]])):
            raise SightlineError(f"{folder}: its keys are not in order; export the set again")
        if not increasing(some):
            raise SightlineError(f"{folder}: its keys are not in order; export the set again")
        content.add_rows(some, rows)
        found.append(some)
        keys = some if len(some) else keys
    failed = {bytes.fromhex(key): code for key, code in record.failed.items()}
    every = np.concatenate([as_keys(sorted(failed)), *found])
    if len(every) - len(failed) != record.rows or content.digest(failed) != record.content_digest:
        raise SightlineError(
            f"{folder}: its rows do not match {RECORD}; it was changed after the export, so get it "
            "again"
        )
    about = {
        key: {"code": code, "path": "", "reason": "failed before the export"}
        for key, code in failed.items()
    }
    blocks = _blocks(folder, record, "import")
    made = write_rows(out, record.spec, every, blocks, [folder], about, record.computed)
    return Imported(made, f"an export as {record.form}")


def _check_files(folder: Path, record: ExportRecord) -> None:
    """Check names and bytes of every file that holds rows."""
    for name, digest in record.digests.items():
        path = folder / name
        if not re.fullmatch(_NAMES[record.form], name):
            raise SightlineError(f"{folder / RECORD}: lists {name[:80]!r}, which no export writes")
        if not path.is_file():
            raise SightlineError(f"{path}: missing; get the folder again")
        if blake3_of_file(path) != digest:
            raise SightlineError(f"{path}: damaged: not the bytes that {RECORD} lists")


def _blocks(folder: Path, record: ExportRecord, what: str) -> Iterator[tuple[Keys, NDArray]]:
    """All rows with their keys, in order."""
    names = sorted(name for name in record.digests if not name.startswith("metadata/"))
    with progress(what, record.rows, "rows") as advance:
        for name in names:
            table = name
            if record.form != "parquet":
                table = METADATA.format(number=name.partition(".")[0][-4:])
            if table not in record.digests:
                raise SightlineError(
                    f"{folder / table}: not in {RECORD}, so the rows of {name} have no keys"
                )
            file = _READ[record.form](folder / name)
            dim = file.dim if file.rows else record.spec.dim  # an empty table has no lists
            if (dim, file.dtype.name) != (record.spec.dim, record.spec.dtype):
                raise SightlineError(
                    f"{folder / name}: rows of {dim} {file.dtype.name}, but {RECORD} describes "
                    f"{record.spec.dim} {record.spec.dtype}"
                )
            keys = _keys_of(folder / table, file)
            start = 0
            for rows in file.read():
                yield keys[start : start + len(rows)], rows
                start += len(rows)
                advance(len(rows))


def _keys_of(table: Path, file: RowFile) -> Keys:
    texts = texts_of_column(table, KEY)
    wrong = next((i for i, text in enumerate(texts) if not _KEY.fullmatch(text or "")), None)
    if wrong is not None or len(texts) != file.rows:
        raise SightlineError(
            f"{table}: {len(texts):,} keys for {file.rows:,} rows, the first invalid one in row "
            f"{wrong}; expected 64 hexadecimal digits for each row"
        )
    return as_keys([bytes.fromhex(text) for text in texts if text])
