"""What lies at a URL: fetched once into a folder here, verified, and resumed after a stop."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sightline.cache.file_checks import file_fault, remembered_faults
from sightline.cache.record import FILE_NAME, FileRecord, read_record
from sightline.digest import digest
from sightline.errors import CacheError, SightlineError
from sightline.files.lock import WriterLock
from sightline.files.output import run_folder_of
from sightline.files.places import is_url, path_below, required_location
from sightline.files.places import shown as without_secrets
from sightline.files.storage import FileState, MissingFile, opened, read
from sightline.wording import counted, in_bytes

FETCHED = "SIGHTLINE_CACHE"
"""The environment variable with the folder that sets and manifests are fetched into."""
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
    with fetched(url) as (folder, incoming):
        (incoming / FILE_NAME).write_bytes(read_first(url, FILE_NAME, "set"))
        record = read_record(incoming)
        faults = remembered_faults(folder, record.files)
        _fetch(url, [file for file in record.files if file.name in faults], folder, incoming)
        names = {FILE_NAME, *(file.name for file in record.files)}
        for old in {path.name for path in folder.iterdir()} - names:
            (folder / old).unlink()
        (incoming / FILE_NAME).replace(folder / FILE_NAME)
        return folder


@contextmanager
def fetched(url: str) -> Iterator[tuple[Path, Path]]:
    """The folder here of what lies at a URL, called as it is there, and one for what arrives.

    One process at a time has it.
    """
    where = without_secrets(url)
    name = where.rpartition("/")[2].lstrip(".") or "set"
    try:
        folder = _cache_folder() / digest(where)[:12] / name
        incoming = run_folder_of(folder) / "incoming"
        with WriterLock(run_folder_of(folder), patience=_PATIENCE):
            folder.mkdir(exist_ok=True)
            incoming.mkdir(exist_ok=True)
            try:
                yield folder, incoming
            except SightlineError as error:
                if str(incoming) not in str(error):
                    raise
                raise CacheError(str(error).replace(str(incoming), where)) from error
    except OSError as error:
        raise CacheError(
            f"{where}: cannot be fetched ({error}); give a folder that takes files, and has room "
            f"for them, in {FETCHED}"
        ) from error


def read_first(url: str, name: str, content: str) -> bytes:
    """The content of the file that says what lies at a URL; an error if there is none."""
    try:
        return read(path_below(url, name))
    except MissingFile:
        where = without_secrets(url)
        raise CacheError(f"{where}: no {content} here (no {name}); check the address") from None


def say_fetching(url: str, files: int, size: int, folder: Path, fetched: int = 0) -> None:
    """Say on the standard error output what is fetched; ``fetched`` bytes of it are here."""
    resumed = f" ({in_bytes(fetched)} are here)" if fetched else ""
    print(
        f"{without_secrets(url)}: fetching {counted(files, 'file')}, {in_bytes(size)}{resumed}, "
        f"into {folder}",
        file=sys.stderr,
    )


def copy(url: str, part: Path, size: int) -> None:
    """Bring a file of ``size`` bytes here, from where ``part`` ends."""
    with part.open("ab") as target, opened(url, FileState(size, "")) as source:
        source.seek(target.tell())
        while data := source.read(_CHUNK):
            target.write(data)


def _cache_folder() -> Path:
    if folder := os.environ.get(FETCHED):
        return Path(folder)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "sightline")
    except RuntimeError as error:  # an account without a home
        raise OSError(str(error)) from None


def _fetch(url: str, files: Sequence[FileRecord], folder: Path, incoming: Path) -> None:
    """Bring files of a set into ``folder``; parts of them wait in ``incoming``."""
    if files:
        (folder / FILE_NAME).unlink(missing_ok=True)  # no set until all of them are there
        fetched = sum(
            path.stat().st_size for file in files if (path := incoming / file.name).exists()
        )
        say_fetching(url, len(files), sum(file.bytes for file in files), folder, fetched)
    for file in files:
        place, part = path_below(url, file.name), incoming / file.name
        resumes = part.exists()
        copy(place, part, file.bytes)
        if resumes and file_fault(incoming, file):  # what was here is of another file
            part.unlink()
            copy(place, part, file.bytes)
        if fault := file_fault(incoming, file):
            part.unlink()
            raise CacheError(
                f"{without_secrets(place)}: arrived as {fault.partition(': ')[2]}; "
                "if it is being written, try again; else verify the set where it was written"
            )
        part.replace(folder / file.name)
