"""Remedies for files that are not what a command reads: packed, of other tools, other JSON."""

from __future__ import annotations

import bz2
import io
import lzma
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from cures import PREPARE, Cure
from cures_of_data import JSON, NAMES, PARQUET, RECORDS, TFRECORD, a_table, as_json, picture, shell


def packed_captions(name: str, pack: Callable[[bytes], bytes]) -> Callable[[], object]:
    """The captions in a file of another kind alone."""

    def pack_them() -> None:
        Path(name).write_bytes(pack(Path("captions.csv").read_bytes()))
        Path("captions.csv").unlink()

    return pack_them


def in_archive(data: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("captions.csv", data)
    return content.getvalue()


def in_tar(data: bytes) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        member = tarfile.TarInfo("captions.csv")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return content.getvalue()


def of_spreadsheet(mark: str) -> Callable[[bytes], bytes]:
    """What is enough of a workbook to be known as one."""

    def write(data: bytes) -> bytes:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            for name in (mark, "content.xml"):
                archive.writestr(name, data)
        return content.getvalue()

    return write


PACKED = {
    "bz2": ("unpack it: `bunzip2 -k {}`", bz2.compress, "bunzip2 -k captions.csv.bz2"),
    "xz": ("unpack it: `unxz -k {}`", lzma.compress, "unxz -k captions.csv.xz"),
    "zst": (
        "unpack it: `unzstd {}`",
        lambda data: pa.compress(data, "zstd", asbytes=True),
        "unzstd captions.csv.zst",
    ),
    "tar": ("or unpack it: `tar xf {}`", in_tar, "tar xf captions.csv.tar"),
    "zip": ("unpack it: `unzip {} -d FOLDER`", in_archive, "unzip captions.csv.zip -d FOLDER"),
    "xlsx": ("save it as CSV UTF-8", of_spreadsheet("[Content_Types].xml"), ""),
    "ods": ("save it as CSV UTF-8", of_spreadsheet("mimetype"), ""),
}


OF_PACKED = [
    Cure(
        message,
        PREPARE.replace(".csv", f".csv.{suffix}"),
        (shell(command or "printf 'image,caption\\n0.png,a\\n' > captions.csv"),),
        PREPARE.replace("captions.csv", "FOLDER/captions.csv") if suffix == "zip" else PREPARE,
        packed_captions(f"captions.csv.{suffix}", pack),
    )
    for suffix, (message, pack, command) in PACKED.items()
]


AS_TABLE = {
    "opening it runs its code": pickle.dumps({"0.png": "a"}),
    "read it by tf.data.TFRecordDataset": TFRECORD,
    "read it by streaming.StreamingDataset": struct.pack("<3I", 1, 26, 26) + b'{"column": []}',
    "read it by the package lmdb": b"\0" * 16 + b"\xde\xc0\xef\xbe" + b"\0" * 80,
    " from it": b"<?xml version='1.0'?><captions/>",
    "export its table as CSV": b"SQLite format 3\0" + bytes(99),
    "give another file": picture(0),
    "write that with the tool that this file is of": bytes(range(32)),
}
"""What is not a table of captions is followed by one."""


OF_KINDS = [
    Cure(
        message,
        PREPARE,
        (a_table({"image": NAMES, "caption": NAMES}),),
        PARQUET,
        lambda data=data: Path("captions.csv").write_bytes(data),
    )
    for message, data in AS_TABLE.items()
]


NOT_RECORDS: dict[str, object] = {
    "write a list of objects that have these as keys": {"version": 2},
    "expected as many values in each row of 'data' as 'columns' has": {"columns": ["a"], "data": 1},
    "expected columns of one length": {"image": NAMES, "caption": []},
    "remove {} from them, or write a list of the objects": {"0.png": RECORDS[1]},
    "expected a list of objects; write it with `orient": [["0.png", "a"]],
    "remove it, or write an object in its place": [*RECORDS, 3],
}
OF_JSON = [
    Cure(message, JSON, (as_json(RECORDS),), begins=as_json(content))
    for message, content in NOT_RECORDS.items()
]


FILES = [*OF_PACKED, *OF_KINDS, *OF_JSON]
