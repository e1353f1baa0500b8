"""What a file is, by its content: every reader of files from outside asks here.

Binary files are recognised by their first bytes, a zip by its members, XML and HTML by their first
tag; other text shows nothing but its suffix. A pickle runs code when it is opened, so nothing here
or elsewhere opens one.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import shlex
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Literal

from sightline.errors import SightlineError

FileKind = Literal[
    "gzip", "bzip2", "xz", "zstd", "7z", "rar", "zip", "npz", "excel", "pytorch", "torchscript",
    "torch_export", "pickle", "tar", "parquet", "arrow", "feather1", "hdf5", "npy", "npy_objects",
    "safetensors", "sqlite", "pdf", "image", "html", "xml", "opendocument", "tfrecord", "mds",
    "lmdb", "lfs",
]  # fmt: skip
"""Kinds of files that are no text, or no text that anybody meant to give."""

_HEAD = 1024
"""Bytes at the beginning of a file that show its kind."""

_BEGINNINGS: dict[bytes, FileKind] = {
    b"\x1f\x8b": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",  # without members
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "excel",  # before .xlsx
    b"PAR1": "parquet",
    b"PARE": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",  # a stream
    b"FEA1": "feather1",
    b"\x89HDF\r\n\x1a\n": "hdf5",
    b"\x93NUMPY": "npy",
    b"SQLite format 3\0": "sqlite",
    b"%PDF-": "pdf",
    b"\xff\xd8\xff": "image",
    b"\x89PNG\r\n": "image",
    b"GIF8": "image",
    b"II*\0": "image",
    b"MM\0*": "image",
    b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19": "pytorch",  # before its files were zips
    b"(lp0\n": "pickle",  # a list or a dict, as Python 2 wrote them
    b"(lp1\n": "pickle",
    b"(dp0\n": "pickle",
    b"(dp1\n": "pickle",
    b"version https://git-lfs.github.com/": "lfs",
}
_BINARY = re.compile(rb"[\0-\x08\x0e-\x1f]")
"""What no text holds: one may begin with PARENTS or GIF89."""
_PICKLES = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))
_LMDB = b"\xde\xc0\xef\xbe"
_TAG = re.compile(rb"<([A-Za-z][\w.:-]*)(?:\s[^<>]*)?>\s*<")
_PICKLE_REMEDY = (
    "opening it runs its code, so it is not read; load it where you trust it and write {table}: "
    "pyarrow.parquet.write_table(pyarrow.table({cells}), FILE)"
)

_STATE_DICT = (
    "save its state dict: `python -c \"import sys, torch; torch.save({}, 'weights.pt')\" {{}}`"
)

_REMEDIES: dict[FileKind, tuple[str, str]] = {
    "gzip": ("compressed by gzip", "unpack it: `gunzip -k {}`"),
    "bzip2": ("compressed by bzip2", "unpack it: `bunzip2 -k {}`"),
    "xz": ("compressed by xz", "unpack it: `unxz -k {}`"),
    "zstd": ("compressed by Zstandard", "unpack it: `unzstd {}`"),
    "7z": ("a 7-Zip archive", "unpack it with its program"),
    "rar": ("a RAR archive", "unpack it with its program"),
    "zip": ("a zip archive", "unpack it: `unzip {} -d FOLDER`"),
    "npz": ("a NumPy archive (.npz)", ""),
    "excel": ("an Excel workbook", "save it as CSV UTF-8"),
    "pytorch": ("a PyTorch pickle", _PICKLE_REMEDY),
    "torchscript": (
        "a TorchScript archive",
        _STATE_DICT.format("torch.jit.load(sys.argv[1], 'cpu').state_dict()"),
    ),
    "torch_export": (
        "a program of torch.export",
        _STATE_DICT.format("dict(torch.export.load(sys.argv[1]).state_dict)"),
    ),
    "pickle": ("a pickle", _PICKLE_REMEDY),
    "npy_objects": ("a NumPy file of Python objects, which is a pickle", _PICKLE_REMEDY),
    "tar": ("a tar archive", "use the kind `webdataset`, or unpack it: `tar xf {}`"),
    "tfrecord": ("TensorFlow's TFRecord", "read it by tf.data.TFRecordDataset, and write {table}"),
    "mds": ("MosaicML's MDS", "read it by streaming.StreamingDataset, and write {table}"),
    "lmdb": ("an LMDB data base", "read it by the package lmdb, and write {table}"),
    "opendocument": ("an OpenDocument file", "save it as CSV UTF-8"),
    "xml": ("an XML file", "write {table} from it"),
    "parquet": ("a Parquet file", ""),
    "arrow": ("an Arrow or Feather file", ""),
    "feather1": ("a Feather file of version 1", "write version 2, which is Arrow, or Parquet"),
    "hdf5": ("an HDF5 file", ""),
    "npy": ("a NumPy array (.npy)", ""),
    "safetensors": ("a safetensors file", ""),
    "sqlite": ("an SQLite data base", "export its table as CSV"),
    "pdf": ("a PDF", ""),
    "image": ("an image", "give another file"),
    "html": ("a web page", "it is not the file itself; download that again"),
    "lfs": ("a Git LFS pointer, not the file itself", "fetch it: `git lfs pull`"),
}


def file_kind(path: Path) -> FileKind | None:
    """What a file is by its content; None: text, or nothing that is known here.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return kind_of(file)


def data_kind(data: bytes) -> FileKind | None:
    """The same of a file's bytes."""
    return kind_of(io.BytesIO(data))


_NAMES: dict[FileKind, re.Pattern[str]] = {
    "mds": re.compile(r"\.mds(\.\w+)?$"),
    "tfrecord": re.compile(r"\.tfrecords?\b"),
    "lmdb": re.compile(r"(^|/)data\.mdb$"),
}


def kind_of_names(names: Iterable[str]) -> FileKind | None:
    """What a folder holds, by the names of its files, where a reader finds none of its own."""
    names = list(names)
    return next((kind for kind, name in _NAMES.items() if any(map(name.search, names))), None)


def unexpected(
    path: Path | str, kind: FileKind, expected: str, columns: Sequence[str] = ()
) -> SightlineError:
    """The error for a file that its reader does not take, with how to make one that it does.

    Args:
        expected: what the reader takes.
        columns: of a table that it takes; empty: it takes none.
    """
    description, remedy = _REMEDIES[kind]
    table = f"Parquet with the column{'s'[: len(columns) > 1]} {' and '.join(columns)}"
    cells = ", ".join(f"{column!r}: list({column})" for column in columns)
    remedy = remedy or ("write {table} from it" if columns else "")
    if not columns:
        remedy, table = remedy.partition(": pyarrow")[0], expected
    words = {"{table}": table, "{cells}": f"{{{cells}}}", "{}": shlex.quote(str(path))}
    for mark, word in words.items():
        remedy = remedy.replace(mark, word)
    return SightlineError(f"{path}: {description}; expected {expected}{remedy and '; '}{remedy}")


def ungzipped(path: Path, data: bytes) -> bytes:
    """The content of a gzip file.

    Raises:
        SightlineError: it is damaged.
    """
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise SightlineError(f"{path}: damaged gzip ({error}); get the file again") from None


def kind_of(file: IO[bytes]) -> FileKind | None:
    """The same of an open file."""
    file.seek(0)
    head = file.read(_HEAD)
    for beginning, kind in _BEGINNINGS.items():
        if head.startswith(beginning) and not (beginning.isalnum() and not _BINARY.search(head)):
            if kind == "zip":
                return _of_zip(file)
            header = head.partition(b"}")[0]
            return "npy_objects" if kind == "npy" and re.search(rb"'\|?O'", header) else kind
    if (head[:4] == b"RIFF" and head[8:12] == b"WEBP") or head[4:12] in _BOXED:
        return "image"
    if head.startswith(_PICKLES):
        file.seek(-1, io.SEEK_END)
        return "pickle" if file.read(1) == b"." else None
    if _is_safetensors(file, head):
        return "safetensors"
    if _is_tar(head):
        return "tar"
    if head[16:20] == _LMDB:
        return "lmdb"
    if _is_tfrecord(file, head):
        return "tfrecord"
    return "mds" if _is_mds(file, head) else _markup(file, head.lstrip(b"\xef\xbb\xbf \t\r\n"))


_BOXED = (b"ftypavif", b"ftypavis", b"ftypheic", b"ftypheix", b"ftypmif1")


def _of_zip(file: IO[bytes]) -> FileKind:
    try:
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if not name.endswith("/")]
    except zipfile.BadZipFile:
        return "zip"
    if "[Content_Types].xml" in names:
        return "excel"
    if {"mimetype", "content.xml"} <= {*names}:
        return "opendocument"
    files = {name.rpartition("/")[2] for name in names}
    if "data.pkl" in files:
        return "torchscript" if "constants.pkl" in files else "pytorch"
    if "archive_format" in files:
        return "torch_export"
    return "npz" if names and all(name.endswith(".npy") for name in names) else "zip"


def _is_safetensors(file: IO[bytes], head: bytes) -> bool:
    """Whether a length is followed by as many bytes of a JSON object."""
    length = int.from_bytes(head[:8], "little")
    if head[8:9] != b"{" or not 2 <= length <= 100_000_000:
        return False
    file.seek(8)
    try:
        return isinstance(json.loads(file.read(length)), dict)
    except ValueError:
        return False


def _is_tfrecord(file: IO[bytes], head: bytes) -> bool:
    """Whether the lengths of the first records, each with two checksums, lead to others or the end.

    In a text, no length is less than that of the file.
    """
    size, at = file.seek(0, io.SEEK_END), 0
    for _ in range(4):
        file.seek(at)
        length = int.from_bytes(file.read(8), "little")
        at += length + 16
        if at >= size:
            return bool(head) and length > 0 and at == size
        if not length:
            return False
    return True


def _is_mds(file: IO[bytes], head: bytes) -> bool:
    """Whether a number of samples and their offsets are followed by the JSON of their columns."""
    file.seek(8 + 4 * int.from_bytes(head[:4], "little"))
    return file.read(8) == b'{"column'


def _markup(file: IO[bytes], head: bytes) -> FileKind | None:
    """HTML; or XML, by its declaration or its first tag, which its last one closes."""
    if head[:15].lower().startswith((b"<!doctype html", b"<html")):
        return "html"
    if head.startswith(b"<?xml"):
        return "xml"
    if match := _TAG.match(head):
        file.seek(-min(file.seek(0, io.SEEK_END), _HEAD), io.SEEK_END)
        return "xml" if file.read().rstrip().endswith(b"</" + match[1] + b">") else None
    return None


def _is_tar(head: bytes) -> bool:
    """Whether its first header has the right checksum, as also tars without a magic have."""
    try:
        tarfile.TarInfo.frombuf(head[:512], "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return False
    return True
