"""A set as one tar file, for those without DVC: export, and an import that trusts nothing.

The tar is plain POSIX (ustar): `set.json` first, then the index and the shards, and last
`SHA256SUMS` for `sha256sum --check`. The same set gives the same bytes.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

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
from pipeline.cache.record import FeatureSetRecord, FileRecord, SetRecord, TableSetRecord
from pipeline.cache.shard import check_file
from pipeline.cache.tables import read_table
from sightline.files import fsync_file
from sightline.output_file import replacing_file

SUMS = "SHA256SUMS"
_FIRST_NAME = FILE_NAME.encode() + b"\0"  # what every such tar begins with
_BLOCK = tarfile.BLOCKSIZE
_COPY_BYTES = 8 << 20
_MOST_PER_FILE = 8 << 30  # what eleven octal digits can say
Progress = Callable[[int], None]


def export_set(folder: Path, archive: Path, progress: Progress = lambda _: None) -> int:
    """Write the set in ``folder`` to the tar ``archive``; returns its size in bytes.

    Every file is hashed on the way, so that no damaged set is passed on.

    Raises:
        CacheError: no set there, or a file that is not as its record says.
        SightlineError: ``archive`` is a folder, or a file that no export has written.
    """
    record = _opened(folder)
    if folder.resolve() in archive.resolve().parents:
        raise CacheError(f"{archive}: lies in the set itself; write it somewhere else")
    with replacing_file(archive, _FIRST_NAME) as part, part.open("xb") as out:
        head = to_bytes(record)
        out.write(_member(FILE_NAME, head))
        sums = [_sum(FILE_NAME, hashlib.sha256(head).hexdigest())]
        for file in record.files:
            if file.bytes >= _MOST_PER_FILE:
                raise CacheError(f"{folder / file.name}: too large for a tar; run `cache compact`")
            out.write(_header(file.name, file.bytes))
            with check_file(folder, file).open("rb") as source:
                sums.append(_copy(source, out, file, f"{folder / file.name}", progress))
            out.write(bytes(-file.bytes % _BLOCK))
        out.write(_member(SUMS, b"".join(sums)))
        out.write(bytes(2 * _BLOCK))
    return archive.stat().st_size


def import_set(archive: Path, folder: Path, progress: Progress = lambda _: None) -> SetRecord:
    """Unpack the tar ``archive`` of `export_set` into the new set ``folder``.

    Nothing is written but the plain files that the archive's own `set.json` names, each
    with the size and BLAKE3 that it says; that file comes last, when all others are there.

    Raises:
        BusyError: a run is writing there.
        CacheError: something is in the way, or the archive holds anything else.
    """
    if not archive.is_file():
        found = "is a folder" if archive.is_dir() else "no such file"
        raise CacheError(f"{archive}: {found}; expected a tar that `sightline cache export` made")
    if (folder / FILE_NAME).exists():
        raise CacheError(f"{folder}: there is a set already; import elsewhere, or move it away")
    with set_output(folder, [archive]) as output, archive.open("rb") as source:
        with output.scratch() as part:
            first = _next(archive, source)
            if first is None or first[0] != FILE_NAME or first[1] > MAX_BYTES:
                raise CacheError(f"{archive}: does not begin with {FILE_NAME}; not an export")
            head = _exactly(archive, source, first[1])
            (part / FILE_NAME).write_bytes(head)
            fsync_file(part / FILE_NAME)
            record = read_record(part)
            sums = [_sum(FILE_NAME, hashlib.sha256(head).hexdigest())]
            expected = {file.name: file for file in record.files}
            ended = False
            while not ended and (member := _next(archive, source)) is not None:
                name, size = member
                if name == SUMS and not expected and size == sum(map(len, sums)):
                    if _exactly(archive, source, size) != b"".join(sums):
                        raise CacheError(f"{archive}: damaged: {SUMS} and the files disagree")
                    ended = True
                    continue
                file = expected.pop(name, None)
                if file is None or size != file.bytes:
                    raise CacheError(
                        f"{archive}: holds {name[:80]!r} of {size} bytes, which its {FILE_NAME} "
                        "does not name; nothing was imported"
                    )
                with (part / name).open("xb") as out:
                    sums.append(_copy(source, out, file, f"{archive}: {name}", progress))
                fsync_file(part / name)
                _skip(archive, source, -size % _BLOCK)
            if not ended:
                raise CacheError(
                    f"{archive}: cut short: {len(expected) + 1} files are missing, such as "
                    f"{min(expected, default=SUMS)}; nothing was imported"
                )
            _opened(part)
            (part / FILE_NAME).unlink()
            folder.mkdir(parents=True, exist_ok=True)
            output.move_in(part)
            write_record(output, record)
        return record


def _opened(folder: Path) -> SetRecord:
    """The record of a set whose files a reader accepts."""
    record = read_record(folder)
    if isinstance(record, FeatureSetRecord):
        return FeatureSet.open(folder).record
    assert isinstance(record, TableSetRecord)
    for shard in record.shards:
        for name, file in shard.tables.items():
            read_table(folder, name, file)
    return record


def _sum(name: str, sha256: str) -> bytes:
    return f"{sha256}  {name}\n".encode()


def _member(name: str, data: bytes) -> bytes:
    return _header(name, len(data)) + data + bytes(-len(data) % _BLOCK)


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)  # no owner, no clock
    info.size = size
    return info.tobuf(format=tarfile.USTAR_FORMAT)


def _next(archive: Path, source: BinaryIO) -> tuple[str, int] | None:
    """Name and size of the next plain file, or None at the end.

    Headers are read one block at a time and nothing but plain files is let through, so that no
    link, no device and no extended header (whose length the archive itself declares) is met.
    """
    block = source.read(_BLOCK)
    if block == bytes(_BLOCK) or not block:
        return None
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, ValueError) as error:
        raise CacheError(f"{archive}: not a tar file, or cut short ({error})") from error
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.size < 0:
        raise CacheError(
            f"{archive}: {info.name[:80]!r} is not a plain file (type {info.type!r}); make the "
            "archive with `sightline cache export`"
        )
    return info.name, info.size


def _exactly(archive: Path, source: BinaryIO, size: int) -> bytes:
    data = source.read(size)
    if len(data) != size:
        raise CacheError(f"{archive}: cut short; nothing was imported")
    _skip(archive, source, -size % _BLOCK)
    return data


def _skip(archive: Path, source: BinaryIO, count: int) -> None:
    if len(source.read(count)) != count:
        raise CacheError(f"{archive}: cut short; nothing was imported")


def _copy(
    source: BinaryIO, out: BinaryIO, file: FileRecord, where: str, progress: Progress
) -> bytes:
    """Copy ``file.bytes`` bytes and check their BLAKE3; their line in `SUMS`."""
    digest, sha256, left = blake3(), hashlib.sha256(), file.bytes
    while left:
        block = source.read(min(left, _COPY_BYTES))
        if not block:
            raise CacheError(f"{where}: cut short by {left} bytes")
        digest.update(block)
        sha256.update(block)
        out.write(block)
        left -= len(block)
        progress(len(block))
    if digest.hexdigest() != file.blake3:
        raise CacheError(
            f"{where}: BLAKE3 {digest.hexdigest()[:16]}, expected {file.blake3[:16]}: damaged"
        )
    return _sum(file.name, sha256.hexdigest())
