"""A set as one tar file, for use without DVC.

The tar is plain POSIX (ustar): first `set.json`, then the index and the shards, and finally
`SHA256SUMS` for `sha256sum --check`. Equal sets give equal bytes.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from sightline.cache.index import read_index
from sightline.cache.keys import Keys, find_keys, key_of_file
from sightline.cache.record import (
    FILE_NAME,
    SetRecord,
    Spec,
    read_record,
    set_output,
    to_bytes,
    write_record,
)
from sightline.cache.verify import require_whole, snapshot, verify
from sightline.errors import CacheError, SightlineError
from sightline.files.output import replacing_file
from sightline.files.places import here, shown
from sightline.files.storage import look, opened, upload

SUMS = "SHA256SUMS"
ANOTHER_PLACE = "name another output, or delete that export first"
_FIRST_NAME = FILE_NAME.encode() + b"\0"  # every such tar starts with this


def export_set(folder: Path, archive: Path | str) -> int:
    """Write the set in ``folder`` to the tar ``archive``, a file or its URL; returns its bytes.

    Verifies it first, so that no damaged set is exported.
    """
    return snapshot(folder, lambda record: _export(folder, record, archive))


def _export(folder: Path, record: SetRecord, archive: Path | str) -> int:
    require_whole(folder, record)
    if isinstance(archive, str):
        with TemporaryDirectory() as scratch:
            _require_same(archive, folder, record)
            _write(folder, record, part := Path(scratch, "set.tar"))
            upload(part, archive)
            return part.stat().st_size
    with replacing_file(archive, _FIRST_NAME, [folder]) as part:
        _require_same(archive, folder, record)
        _write(folder, record, part)
    return archive.stat().st_size


def _write(folder: Path, record: SetRecord, archive: Path) -> None:
    with tarfile.open(archive, "x", format=tarfile.USTAR_FORMAT) as tar:
        _add(tar, FILE_NAME, to_bytes(record))
        for file in record.files:
            with (folder / file.name).open("rb") as source:
                tar.addfile(_header(file.name, file.bytes), source)
        _add(tar, SUMS, _sums(folder, record))


def _require_same(archive: Path | str, folder: Path, record: SetRecord) -> None:
    file = look(archive)
    if file is not None and file.size:
        spec, keys = _held(archive)
        require_same_rows(archive, spec, keys, record.spec, read_index(folder, record)[0].keys)


def require_same_rows(out: Path | str, old: Spec, old_keys: Keys, spec: Spec, keys: Keys) -> None:
    """Refuse to replace the export of another set: of other rows, or with most of its keys gone.

    Args:
        out: where the export of ``old`` is, for the message.
    """
    kept = int((find_keys(keys, old_keys) >= 0).sum())
    fault = f"this one has {kept:,} of its {len(old_keys):,} rows"
    if old.fingerprint != spec.fingerprint:
        fault = "; ".join(spec.differences(old)[:3])
    elif 2 * kept >= len(old_keys):
        return
    if len(old_keys):
        where = shown(out)
        raise SightlineError(f"{where}: holds the export of another set ({fault}); {ANOTHER_PLACE}")


def _held(archive: Path | str) -> tuple[Spec, Keys]:
    """What the rows in a tar of `export_set` are, and their keys."""
    try:
        with (
            TemporaryDirectory() as part,
            opened(str(archive)) as file,
            tarfile.open(fileobj=file, mode="r:") as tar,
        ):
            _extract(tar, FILE_NAME, part)
            record = read_record(Path(part))
            _extract(tar, record.index.name, part)
            return record.spec, read_index(Path(part), record)[0].keys
    except (tarfile.TarError, KeyError, CacheError) as error:
        raise SightlineError(
            f"{shown(archive)}: holds an export that cannot be read ({error}); {ANOTHER_PLACE}"
        ) from error


def _extract(tar: tarfile.TarFile, name: str, to: Path | str) -> None:
    """Unpack a file of a set; `tar` itself writes names of a folder's files after ``./``."""
    member = tar.getmember(name if name in tar.getnames() else f"./{name}")
    content = tar.extractfile(member) if member.isreg() else None
    if content is None:
        raise tarfile.ExtractError(f"{member.name} is not a plain file")
    with content, Path(to, name).open("xb") as file:
        shutil.copyfileobj(content, file)


def import_set(archive: Path | str, folder: Path) -> SetRecord:
    """Unpack the tar ``archive``, a file or its URL, into the new set ``folder``.

    It is one of `export_set`, or of a set's folder (``tar -C SET -cf SET.tar .``).

    Takes only the plain files that the archive's `set.json` lists, and verifies them as a set;
    `set.json` is written last, once all others are in place.
    """
    where = shown(archive)
    if look(archive) is None:
        state = "is a folder" if Path(archive).is_dir() else "no such file"
        raise CacheError(f"{where}: {state}; expected a tar from `sightline cache export`")
    if (folder / FILE_NAME).exists():
        raise CacheError(f"{folder}: already holds a set; import elsewhere, or move it away")
    with set_output(folder, here(archive)) as output, output.scratch() as part:
        try:
            with opened(str(archive)) as file, tarfile.open(fileobj=file, mode="r:") as tar:
                _extract(tar, FILE_NAME, part)
                record = read_record(part)
                for file in record.files:
                    _extract(tar, file.name, part)
        except (tarfile.TarError, KeyError, CacheError) as error:
            raise CacheError(
                f"{where}: truncated, or not made by `sightline cache export` ({error}); "
                "nothing was imported"
            ) from error
        if faults := verify(part):
            raise CacheError(f"{where}: damaged: {faults[0]}; nothing was imported")
        (part / FILE_NAME).unlink()
        output.move_in(part)
        write_record(output, record)
        return record


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
