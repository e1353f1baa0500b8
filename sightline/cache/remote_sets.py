"""Sets at a URL: fetched once into a folder of this machine, verified, and resumed after a stop."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from sightline.cache.file_checks import file_fault, remembered_faults
from sightline.cache.record import FILE_NAME, FileRecord, read_record
from sightline.digest import digest
from sightline.errors import CacheError
from sightline.lock import WriterLock
from sightline.output import run_folder_of
from sightline.places import is_url, joined, required_location
from sightline.places import shown as without_secrets
from sightline.storage import Found, MissingFile, opened, read
from sightline.wording import counted, in_bytes

FETCHED = "SIGHTLINE_CACHE"
"""The environment variable with the folder that sets are fetched into."""
_PATIENCE = 3600.0  # seconds to wait for another process that fetches the same set
_CHUNK = 1 << 22  # bytes


def local_set(place: Path | str) -> Path:
    """The folder of a set: its own, or what was fetched of the one at a URL.

    Its record is read there each time; then only files that are missing here, or that differ from
    the record, are fetched, each from the byte where an earlier call was stopped. It says how much
    on the standard error output.
    """
    place = required_location(place)
    if not is_url(place):
        return Path(place)
    url = str(place)
    where = without_secrets(url)
    folder = _cache_folder() / f"{where.rpartition('/')[2]}-{digest(where)[:12]}"
    incoming = run_folder_of(folder) / "incoming"
    with WriterLock(run_folder_of(folder), patience=_PATIENCE):
        folder.mkdir(exist_ok=True)
        incoming.mkdir(exist_ok=True)
        try:
            (incoming / FILE_NAME).write_bytes(read(joined(url, FILE_NAME)))
        except MissingFile:
            raise CacheError(f"{where}: no set here (no {FILE_NAME}); check the address") from None
        record = read_record(incoming)
        faults = remembered_faults(folder, record.files)
        _fetch(url, [file for file in record.files if file.name in faults], folder, incoming)
        names = {FILE_NAME, *(file.name for file in record.files)}
        for old in {path.name for path in folder.iterdir()} - names:
            (folder / old).unlink()
        (incoming / FILE_NAME).replace(folder / FILE_NAME)
        return folder


def _cache_folder() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "sightline")
    return Path(os.environ.get(FETCHED) or default)


def _fetch(url: str, files: Sequence[FileRecord], folder: Path, incoming: Path) -> None:
    """Bring files of a set into ``folder``; parts of them wait in ``incoming``."""
    if files:
        (folder / FILE_NAME).unlink(missing_ok=True)  # no set until all of them are there
        here = sum(path.stat().st_size for file in files if (path := incoming / file.name).exists())
        size = in_bytes(sum(file.bytes for file in files))
        resumed = f" ({in_bytes(here)} are here)" if here else ""
        print(
            f"{without_secrets(url)}: fetching {counted(len(files), 'file')}, {size}{resumed}, "
            f"into {folder}",
            file=sys.stderr,
        )
    for file in files:
        place, part = joined(url, file.name), incoming / file.name
        resumes = part.exists()
        _copy(place, part, file.bytes)
        if resumes and file_fault(incoming, file):  # what was here is of another file
            part.unlink()
            _copy(place, part, file.bytes)
        if fault := file_fault(incoming, file):
            part.unlink()
            raise CacheError(
                f"{without_secrets(place)}: arrived as {fault.partition(': ')[2]}; "
                "if it is being written, try again; else verify the set where it was written"
            )
        part.replace(folder / file.name)


def _copy(url: str, part: Path, size: int) -> None:
    with part.open("ab") as target, opened(url, Found(size, "")) as source:
        source.seek(target.tell())
        while data := source.read(_CHUNK):
            target.write(data)
