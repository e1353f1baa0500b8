"""Whether the files of a set hold the bytes that its record lists; each is read once."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from blake3 import blake3

from sightline.cache.file_memory import FileMemory
from sightline.cache.record import FileRecord, SetRecord, check_file
from sightline.errors import CacheError
from sightline.files.output import REMEMBERED, run_folder_of
from sightline.files.storage import look, require_of_file

_CORES = os.cpu_count() or 1
_READ_BYTES = 1 << 20

Progress = Callable[[int], None]
"""Receives the number of bytes checked, from any thread."""


def file_fault(folder: Path, file: FileRecord, progress: Progress = lambda _: None) -> str | None:
    """Check a file's size and BLAKE3, by reading it: a failing disk is an error, not a signal.

    Raises:
        StorageError: as `require_of_file`.
    """
    try:
        path = check_file(folder, file)
    except CacheError as error:
        progress(file.bytes)
        return str(error)
    digest = blake3()
    try:
        with path.open("rb", buffering=0) as handle:
            while data := handle.read(_READ_BYTES):
                digest.update(data)
                progress(len(data))
    except OSError as error:
        require_of_file(error, path)
        return f"{path}: cannot be read ({error.strerror})"
    if digest.hexdigest() != file.blake3:
        hashed = digest.hexdigest()[:16]
        return f"{path}: BLAKE3 {hashed}, expected {file.blake3[:16]}: damaged"
    return None


def file_faults(
    folder: Path, files: Sequence[FileRecord], progress: Progress = lambda _: None
) -> dict[str, str]:
    """Name → what is wrong, of the damaged ones among the files; reads several in parallel."""
    with ThreadPoolExecutor(max_workers=min(4, _CORES)) as pool:
        faults = pool.map(lambda file: file_fault(folder, file, progress), files)
        return {f.name: fault for f, fault in zip(files, faults, strict=True) if fault}


def remembered_faults(
    folder: Path, files: Sequence[FileRecord], *, remember: bool = True
) -> dict[str, str]:
    """As `file_faults`, but a file that was sound is read again only if it has changed.

    What is known of it (`sightline.cache.file_memory`) is kept in the run folder, where that can be
    written.

    Args:
        remember: keep what is found now, too.
    """
    path = run_folder_of(folder) / REMEMBERED
    memory = FileMemory(path)
    looks = {file.name: look(folder / file.name) for file in files}
    states = {name: file.state if file else "" for name, file in looks.items()}
    digests = memory.recall([*states], [*states.values()]).to_pylist()
    pairs = zip(files, digests, strict=True)
    unknown = [file for file, digest in pairs if digest != file.blake3.encode()]
    faults = file_faults(folder, unknown) if unknown else {}
    read = [file for file in unknown if file.name not in faults and states[file.name]]
    sound = {file.name: file.blake3.encode() for file in read}
    if not sound or not remember:
        return faults
    memory.keep([*sound], [states[name] for name in sound], [*sound.values()])
    with suppress(OSError):  # a set that cannot be written to is read by every process
        path.parent.mkdir(exist_ok=True)
        if len(memory) or (path.parent / "lock").exists() or not any(path.parent.iterdir()):
            memory.save()
    return faults


def require_sound(folder: Path, record: SetRecord) -> None:
    """Refuse a set with a damaged file; what was sound is read once (`remembered_faults`)."""
    faults = list(remembered_faults(folder, record.files).values())
    if faults:
        count = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
        raise CacheError(
            f"{faults[0]}{count}; run `sightline cache repair {folder}` and rerun its stage, or "
            "pull it again"
        )
