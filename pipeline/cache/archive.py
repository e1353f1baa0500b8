"""A set as one tar file, for use without DVC: export, and an import that trusts nothing.

The tar is plain POSIX (ustar): first `set.json`, then the index and the shards, and finally
`SHA256SUMS` for `sha256sum --check`. Equal sets give equal bytes.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from pathlib import Path
from typing import IO, Self

from pipeline.cache.commit import (
    FILE_NAME,
    MAX_BYTES,
    read_record,
    set_output,
    to_bytes,
    write_record,
)
from pipeline.cache.errors import CacheError
from pipeline.cache.feature_set import FeatureSet
from pipeline.cache.keys import key_of_file
from pipeline.cache.record import FeatureSetRecord, SetRecord, TableSetRecord
from pipeline.cache.shard_check import file_fault
from pipeline.cache.tables import read_table
from sightline.files import fsync_file
from sightline.output_file import replacing_file

SUMS = "SHA256SUMS"
_FIRST_NAME = FILE_NAME.encode() + b"\0"  # every such tar starts with this
_COPY_BYTES = 8 << 20
_MOST_PER_FILE = 8 << 30  # the limit of eleven octal digits


def export_set(folder: Path, archive: Path) -> int:
    """Write the set in ``folder`` to the tar ``archive``; returns its size in bytes.

    Hashes every file first, so that no damaged set is exported.

    Raises:
        CacheError: no set there, or a file that does not match its record.
        SightlineError: ``archive`` is a folder, or a file not written by an export.
    """
    record = _opened(folder)
    if folder.resolve() in archive.resolve().parents:
        raise CacheError(f"{archive}: is inside the set; write it somewhere else")
    with (
        replacing_file(archive, _FIRST_NAME) as part,
        tarfile.open(part, "x", format=tarfile.USTAR_FORMAT) as tar,
    ):
        _add(tar, FILE_NAME, to_bytes(record))
        for file in record.files:
            if file.bytes >= _MOST_PER_FILE:
                raise CacheError(f"{folder / file.name}: too large for a tar; run `cache compact`")
            if fault := file_fault(folder, file):
                raise CacheError(fault)
            with (folder / file.name).open("rb") as source:
                tar.addfile(_header(file.name, file.bytes), source)
        _add(tar, SUMS, _sums(folder, record))
    return archive.stat().st_size


def import_set(archive: Path, folder: Path) -> SetRecord:
    """Unpack the tar ``archive`` of `export_set` into the new set ``folder``.

    Writes only the plain files that the archive's `set.json` lists, each with the listed size
    and BLAKE3; `set.json` is written last, once all others are complete.

    Raises:
        BusyError: a run is writing there.
        CacheError: ``folder`` is occupied, or the archive contains anything else.
    """
    if not archive.is_file():
        found = "is a folder" if archive.is_dir() else "no such file"
        raise CacheError(f"{archive}: {found}; expected a tar from `sightline cache export`")
    if archive.stat().st_size % tarfile.RECORDSIZE:
        raise CacheError(f"{archive}: truncated, or not a tar; nothing was imported")
    if (folder / FILE_NAME).exists():
        raise CacheError(f"{folder}: already holds a set; import elsewhere, or move it away")
    with set_output(folder, [archive]) as output, output.scratch() as part:
        try:
            with tarfile.open(
                archive, "r:", tarinfo=_PlainFile, encoding="utf-8", errors="strict"
            ) as tar:
                record = _unpack(archive, tar, part)
        except (tarfile.TarError, UnicodeError) as error:
            raise CacheError(
                f"{archive}: truncated, or not made by `sightline cache export` ({error}); "
                "nothing was imported"
            ) from error
        _opened(part)
        (part / FILE_NAME).unlink()
        folder.mkdir(parents=True, exist_ok=True)
        output.move_in(part)
        write_record(output, record)
        return record


def _unpack(archive: Path, tar: tarfile.TarFile, part: Path) -> SetRecord:
    """Write the files of ``archive`` to the folder ``part``; returns the record listing them."""
    first = tar.next()
    if first is None or first.name != FILE_NAME or first.size > MAX_BYTES:
        raise CacheError(f"{archive}: does not start with {FILE_NAME}; not an export")
    _save(tar, first, part)
    record = read_record(part)
    expected = {file.name: file for file in record.files}
    while expected and (member := tar.next()) is not None:
        file = expected.pop(member.name, None)
        if file is None or member.size != file.bytes:
            raise CacheError(
                f"{archive}: contains {member.name[:80]!r} of {member.size} bytes, which its "
                f"{FILE_NAME} does not list; nothing was imported"
            )
        _save(tar, member, part)
        if file_fault(part, file):
            raise CacheError(f"{archive}: {file.name} is damaged; nothing was imported")
    last = None if expected else tar.next()
    if last is None or last.name != SUMS:
        raise CacheError(
            f"{archive}: truncated: {len(expected) + 1} files are missing, such as "
            f"{min(expected, default=SUMS)}; nothing was imported"
        )
    sums = _sums(part, record)
    if last.size != len(sums) or _content(tar, last).read() != sums:
        raise CacheError(f"{archive}: damaged: {SUMS} does not match the files")
    return record


def _opened(folder: Path) -> SetRecord:
    """The record of a set, after checking that a reader accepts its files."""
    record = read_record(folder)
    if isinstance(record, FeatureSetRecord):
        return FeatureSet.open(folder).record
    assert isinstance(record, TableSetRecord)
    for shard in record.shards:
        for name, file in shard.tables.items():
            read_table(folder, name, file)
    return record


class _PlainFile(tarfile.TarInfo):
    """A member that is a plain file; others are rejected by the type in their header.

    This excludes links, devices and extended headers (whose length the archive itself declares).
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.size < 0:
            raise tarfile.ReadError(f"{member.name[:80]!r} is not a plain file")
        return member


def _sums(folder: Path, record: SetRecord) -> bytes:
    """The output of `sha256sum` for the files of a set."""
    sums = {FILE_NAME: hashlib.sha256(to_bytes(record)).hexdigest()}
    sums |= {file.name: key_of_file(folder / file.name).hex() for file in record.files}
    return "".join(f"{sha256}  {name}\n" for name, sha256 in sums.items()).encode()


def _header(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)  # no owner, no clock
    member.size = size
    return member


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    tar.addfile(_header(name, len(data)), io.BytesIO(data))


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(member)
    assert content is not None  # it is a plain file
    return content


def _save(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    path = folder / member.name
    with path.open("xb") as out:
        shutil.copyfileobj(_content(tar, member), out, _COPY_BYTES)
    fsync_file(path)
