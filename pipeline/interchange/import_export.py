"""A folder of `sightline cache export` becomes the set that it was written from, bit for bit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from pipeline.cache.content import Content
from pipeline.cache.keys import Keys, as_keys, increasing
from pipeline.interchange.export import RECORD, ExportRecord, schema_of
from pipeline.interchange.import_rows import Imported
from pipeline.interchange.imported import write_rows
from pipeline.interchange.row_files import FEATURES, KEY, KEYS
from pipeline.interchange.row_readers import (
    RowFile,
    npy_file,
    parquet_column,
    texts_of_column,
)
from sightline.claims import MOST_BYTES
from sightline.errors import SightlineError
from sightline.progress import progress

_NAMES = {
    "parquet": r"data/rows-\d{5}\.parquet",
    "npy": r"(?:img|text)_emb/(?:img|text)_emb_\d{4}\.npy|metadata/metadata_\d{4}\.parquet",
    "safetensors": r"data/rows-\d{5}\.safetensors",
}
_KEY = re.compile(r"[0-9a-f]{64}")
_BLOCK = 4096


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
    if path.stat().st_size > MOST_BYTES:
        raise SightlineError(f"{path}: too large for a record")
    record = schema_of(path.read_bytes(), path)
    _check_files(folder, record)
    content = Content(record.fingerprint)
    keys = as_keys([])
    found: list[Keys] = []
    for some, rows in _blocks(folder, record, "check"):
        if len(keys) and len(some) and not increasing(np.concatenate([keys[-1:], some[:1]])):
            raise SightlineError(f"{folder}: its keys are not in order; export the set again")
        if not increasing(some):
            raise SightlineError(f"{folder}: its keys are not in order; export the set again")
        content.add(some, rows)
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
        if blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest() != digest:
            raise SightlineError(f"{path}: damaged: not the bytes that {RECORD} lists")


def _blocks(folder: Path, record: ExportRecord, what: str) -> Iterator[tuple[Keys, NDArray]]:
    """All rows with their keys, in order."""
    names = sorted(name for name in record.digests if not name.startswith("metadata/"))
    with progress(what, record.rows, "rows") as advance:
        for name in names:
            read = _from_safetensors if record.form == "safetensors" else _from_rows
            for keys, rows in read(folder / name, record):
                advance(len(rows))
                yield keys, rows


def _from_rows(path: Path, record: ExportRecord) -> Iterator[tuple[Keys, NDArray]]:
    table = path
    if record.form == "npy":
        number = path.stem.rpartition("_")[2]
        table = path.parents[1] / "metadata" / f"metadata_{number}.parquet"
        if f"metadata/{table.name}" not in record.digests:
            raise SightlineError(f"{table}: missing, so the rows of {path.name} have no keys")
    file = npy_file(path) if record.form == "npy" else parquet_column(path, FEATURES)
    _check_shape(path, record, (file.dim if file.rows else record.spec.dim), file.dtype)
    keys = _keys_of(table, file)
    start = 0
    for rows in file.read():
        yield keys[start : start + len(rows)], rows
        start += len(rows)


def _keys_of(table: Path, file: RowFile) -> Keys:
    texts = texts_of_column(table, KEY)
    wrong = next((i for i, text in enumerate(texts) if not _KEY.fullmatch(text or "")), None)
    if wrong is not None or len(texts) != file.rows:
        raise SightlineError(
            f"{table}: {len(texts):,} keys for {file.rows:,} rows, the first invalid one in row "
            f"{wrong}; expected 64 hexadecimal digits for each row"
        )
    return as_keys([bytes.fromhex(text) for text in texts if text])


def _from_safetensors(path: Path, record: ExportRecord) -> Iterator[tuple[Keys, NDArray]]:
    try:
        with safe_open(path, "np") as file:
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            shapes = {name: tuple(each.get_shape()) for name, each in found.items()}
            if set(shapes) != {FEATURES, KEYS} or len({shape[0] for shape in shapes.values()}) > 1:
                raise SightlineError(f"{path}: has {shapes}, expected features and keys")
            for start in range(0, shapes[KEYS][0], _BLOCK):
                here = slice(start, start + _BLOCK)
                keys, rows = found[KEYS][here], found[FEATURES][here]
                _check_shape(path, record, rows.shape[-1], rows.dtype)
                yield as_keys(keys), rows
    except (SafetensorError, ValueError) as error:
        raise SightlineError(f"{path}: not such a file of safetensors ({error})") from error


def _check_shape(path: Path, record: ExportRecord, dim: int, dtype: np.dtype) -> None:
    if (dim, dtype.name) != (record.spec.dim, record.spec.dtype):
        raise SightlineError(
            f"{path}: rows of {dim} {dtype.name}, but {RECORD} describes {record.spec.dim} "
            f"{record.spec.dtype}"
        )
