"""Recognises features that others made: clip-retrieval's folders, DataComp's archives, tables.

- clip-retrieval (https://github.com/rom1504/clip-retrieval, clip_inference/writer.py):
  ``img_emb/img_emb_N.npy`` and ``text_emb/text_emb_N.npy``, whose row i belongs to row i of
  ``metadata/metadata_N.parquet`` with ``image_path`` and ``caption``.
- DataComp (https://github.com/mlfoundations/datacomp): ``X.npz`` with ``b32_img``, ``b32_txt``,
  ``l14_img`` and ``l14_txt``, whose row i belongs to row i of ``X.parquet`` with ``uid`` and
  ``text``.
- Parquet and Arrow files with a column of lists, in one file or a folder of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.interchange.row_readers import (
    RowFile,
    arrow_column,
    column_names,
    npy_file,
    npz_file,
    parquet_column,
    texts_of_column,
)
from sightline.cache.record import Kind
from sightline.errors import SightlineError

IMAGE_NAMES = ("image_path", "path", "file_name", "filename", "image_id", "uid", "__key__")
TEXTS = ("caption", "text", "sentence")
"""Columns of metadata that name images or hold texts, in the order of preference."""
SUFFIXES = (".npz", ".parquet", ".arrow", ".npy")
"""Of files that may hold rows."""
_EXPECTED = (
    "expected a tar or a folder from `sightline cache export`, a folder of clip-retrieval "
    "(img_emb, metadata), one of DataComp (.npz beside .parquet), or Parquet or Arrow files with a "
    "column of features"
)


@dataclass(frozen=True)
class Part:
    """One file of rows, and what they describe.

    Attributes:
        names: names of the images, or the texts, one per row; None where the cell is empty.
        files: everything that the rows and names are read from.
    """

    rows: RowFile
    names: Callable[[], Sequence[str | None]]
    files: tuple[Path, ...]


@dataclass(frozen=True)
class FoundRows:
    """Features in a known layout.

    Attributes:
        form: name of the layout.
        known: what the record can say about them, such as the array's name.
    """

    form: str
    kind: Kind
    parts: list[Part]
    known: dict[str, str]


def find_rows(
    source: Path, kind: Kind | None, features: str | None, names: str | None
) -> FoundRows:
    """The features in a file or folder.

    Args:
        kind: what the rows describe; None if the layout says so.
        features: array or column that holds them; None if there is only one.
        names: column that names the images or holds the texts; None: the usual ones.

    Raises:
        SightlineError: no known layout, nothing that says what the rows describe, or a choice
            that only the user can make; says which option makes it.
    """
    if not source.exists():
        raise SightlineError(f"{source}: no such file or folder; {_EXPECTED}")
    if source.is_dir() and any((source / f"{each}_emb").is_dir() for each in ("img", "text")):
        return _clip_retrieval(source, kind, features, names)
    for suffix, find in ((".npz", _datacomp), (".parquet", _tables), (".arrow", _tables)):
        files = [source] if source.is_file() else _files(source, suffix)
        files = [path for path in files if path.suffix == suffix]
        if files:
            return find(files, kind, features, names)
    if source.suffix == ".npy" or (source.is_dir() and _files(source, ".npy")):
        raise SightlineError(
            f"{source}: rows without metadata: nothing says which image or text each of them "
            "describes, so they have no keys. Put them into clip-retrieval's layout, with "
            "metadata/metadata_N.parquet"
        )
    raise SightlineError(f"{source}: no features found; {_EXPECTED}")


def _clip_retrieval(
    source: Path, kind: Kind | None, features: str | None, names: str | None
) -> FoundRows:
    there = [what for what in ("img", "text") if (source / f"{what}_emb").is_dir()]
    if features is not None:
        raise SightlineError("--features is for .npz, Parquet and Arrow; here, choose with --kind")
    if kind is None and len(there) > 1:
        raise SightlineError(
            f"{source}: has img_emb and text_emb; choose with --kind image or text"
        )
    kind = kind or ("image" if there == ["img"] else "text")
    what = "img" if kind == "image" else "text"
    numbered = _numbered(source / f"{what}_emb", rf"{what}_emb_(\d+)\.npy")
    metadata = _numbered(source / "metadata", r"metadata_(\d+)\.parquet")
    if not numbered:
        raise SightlineError(f"{source}: has no {what}_emb/{what}_emb_N.npy")
    lost = sorted(numbered.keys() - metadata.keys())
    if lost:
        raise SightlineError(
            f"{source}: metadata/metadata_{lost[0]}.parquet is missing ({len(lost)} of "
            f"{len(numbered)} are), so nothing says which {kind} each row of "
            f"{numbered[lost[0]].name} describes; without it there are no keys"
        )
    pairs = [(numbered[number], metadata[number]) for number in sorted(numbered, key=int)]
    parts = [_beside(npy_file(path), table, kind, names) for path, table in pairs]
    return FoundRows("clip-retrieval", kind, parts, {})


def _datacomp(
    files: list[Path], kind: Kind | None, features: str | None, names: str | None
) -> FoundRows:
    rows = [npz_file(path, features) for path in files]
    if kind is None:
        kinds: dict[str, Kind] = {"_img": "image", "_txt": "text"}
        kind = kinds.get((features or "")[-4:])
    if kind is None:
        raise _what_kind(files[0])
    parts: list[Part] = []
    for path, each in zip(files, rows, strict=True):
        table = path.with_suffix(".parquet")
        if not table.is_file():
            raise SightlineError(
                f"{path}: {table.name} is missing beside it, so nothing says which {kind} each row "
                "describes; without it there are no keys"
            )
        parts.append(_beside(each, table, kind, names))
    return FoundRows("npz", kind, parts, {} if features is None else {"array": features})


def _tables(
    files: list[Path], kind: Kind | None, features: str | None, names: str | None
) -> FoundRows:
    form = files[0].suffix[1:]
    read = parquet_column if form == "parquet" else arrow_column
    rows = [read(path, features) for path in files]
    if kind is None:
        raise _what_kind(files[0])
    parts = [_beside(each, each.path, kind, names) for each in rows]
    return FoundRows(form, kind, parts, {} if features is None else {"column": features})


def _beside(rows: RowFile, table: Path, kind: Kind, names: str | None) -> Part:
    """Rows with the metadata in ``table``."""
    found = column_names(table)
    usual = IMAGE_NAMES if kind == "image" else TEXTS
    column = names or next((name for name in usual if name in found), None)
    if column is None or column not in found:
        what = "names the images" if kind == "image" else "holds the texts"
        raise SightlineError(
            f"{table}: has columns {', '.join(found)[:300]}; without one that {what} there are no "
            "keys: give it with --names"
        )
    files = (rows.path,) if rows.path == table else (rows.path, table)

    def texts() -> Sequence[str | None]:
        values = texts_of_column(table, column)
        if len(values) != rows.rows:
            raise SightlineError(
                f"{table}: {len(values):,} rows, but {rows.path.name} has {rows.rows:,}; row i "
                "belongs to row i, so one of them is the wrong file or truncated"
            )
        return values

    return Part(rows, texts, files)


def _what_kind(path: Path) -> SightlineError:
    return SightlineError(
        f"{path}: do its rows describe images or texts? Give --kind image or text"
    )


def _files(folder: Path, suffix: str) -> list[Path]:
    """Files with a suffix at or below a folder, by path; hidden ones are left out."""
    return sorted(
        path
        for path in folder.rglob(f"*{suffix}")
        if path.is_file() and not any(p.startswith(".") for p in path.relative_to(folder).parts)
    )


def _numbered(folder: Path, pattern: str) -> dict[str, Path]:
    """Number, as it is written, → file of a folder."""
    if not folder.is_dir():
        return {}
    matches = ((re.fullmatch(pattern, path.name), path) for path in folder.iterdir())
    return {match[1]: path for match, path in matches if match}
