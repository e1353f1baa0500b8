"""Files in object storage and on web servers: is it there, what lies below, these bytes of it.

A place (`sightline.files.places`) is a path here or a URL: ``s3://``, ``gs://``,
``hf://datasets/OWNER/NAME@REVISION/…``, or ``https://``, which is never listed, as a web page does
not say what lies below it. fsspec is imported for URLs alone. Nothing is stored here: bytes are
read by ranges, several ahead, each with a time limit, and again after a fault that may pass.

A recorded URL gets its query back from the environment variable
SIGHTLINE_SIGNED_URLS, signed URLs of files or folders with spaces between them.
"""

from __future__ import annotations

import errno
import os
import random
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from io import RawIOBase
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, cast

from sightline.errors import SightlineError, first_lines
from sightline.files.places import is_url, location, shown
from sightline.optional_imports import require

T = TypeVar("T")

SIGNED_URLS = "SIGHTLINE_SIGNED_URLS"
_ANY_URL = re.compile(r"(https?|s3|gs)://[^\s'\"()<>,]+")
_PAUSES = (0.5, 2.0, 8.0)  # seconds before a read is tried again
_SETTLED = 2_000_000_000  # ns: two changes within them may leave the same times
_SECONDS = 60.0  # without a byte, after which an answer is not waited for; in all, ten times that
_BLOCK = 4 << 20  # bytes of one read
_AHEAD = 3  # blocks
_AT_ONCE = 16  # reads of several files
_ACCESS = {
    "s3": "give credentials as to AWS's own tools (AWS_PROFILE, or AWS_ACCESS_KEY_ID and its "
    "secret), or FSSPEC_S3_ANON=true for a public bucket",
    "gs": "give credentials as to Google's own tools (GOOGLE_APPLICATION_CREDENTIALS), or "
    "FSSPEC_GS_TOKEN=anon for a public bucket",
    "hf": "log in with `hf auth login`, or give HF_TOKEN",
    "https": f"give the signed URL in the environment variable {SIGNED_URLS}, or the password in "
    "~/.netrc",
}
"""What opens a place, by its protocol."""
_NOWHERE = {
    "s3": "no such bucket; correct its name, or make it first",
    "gs": "no such bucket; correct its name, or make it first",
    "hf": "no such repository or revision, or a private one; correct its name, make it first, or "
    f"{_ACCESS['hf']}",
}
"""That what a file would lie in is not there, by its protocol."""
_MAY_PASS = (408, 425, 429)  # of the answers below 500


class StorageError(SightlineError):
    """A file elsewhere cannot be read.

    Attributes:
        reason: without the place.
        lasting: whether it will not pass by itself.
    """

    def __init__(self, place: str, reason: str, *, lasting: bool = True) -> None:
        super().__init__(f"{shown(place)}: {reason}")
        self.place, self.reason, self.lasting = place, reason, lasting

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self.place, self.reason, self.lasting)


def _again(kind: type[StorageError], place: str, reason: str, lasting: bool) -> StorageError:
    """An error that was pickled."""
    return kind(place, reason, lasting=lasting)


class MissingFile(StorageError):
    """There is no such file."""


_OF_THE_MACHINE = {
    getattr(errno, name)
    for name in ("EAGAIN", "EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "ESTALE", "ETIMEDOUT")
}
"""Numbers of errors that say that this machine could not read just now."""


def require_of_file(error: BaseException, place: Path | str) -> None:
    """Pass if an error may be the file's fault: no other one shows that it is damaged or missing.

    Raises:
        StorageError: this machine could not read just now; too many files are open, say, or a
            file server has restarted.
    """
    number: int = getattr(error, "errno", None) or 0
    if number in _OF_THE_MACHINE:
        reason = f"cannot be read just now ({os.strerror(number)})"
        raise StorageError(str(place), reason, lasting=False) from error


class FileState(NamedTuple):
    """A file that is there.

    Attributes:
        size: in bytes.
        state: what differs once it has changed; empty if that cannot be told: a server says
            nothing of it, or a file here was changed within the last two seconds, so that it may
            change again without a new time. A file that was only linked or renamed differs too.
    """

    size: int
    state: str


def look(place: Path | str) -> FileState | None:
    """The file at a place, to be asked before it is read; None: none is, or no plain file.

    Raises:
        StorageError: it cannot be told, or there is no such bucket or repository.
    """
    if not is_url(place):
        return _look_here(place)
    url = str(place)
    try:
        about = _ask(url, lambda files, path: files.info(path))
    except MissingFile:
        return None
    if about["type"] == "directory":
        return None
    if about.get("size") is None:
        raise StorageError(url, "the server does not say how large it is, so it cannot be read")
    return _found(about)


def _look_here(path: Path | str) -> FileState | None:
    time_now = time.time_ns()
    try:
        status = os.stat(path)  # noqa: PTH116  (a third of the time, for many files)
    except (OSError, ValueError) as error:  # ValueError: a null byte
        require_of_file(error, path)
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    size, modified, changed = status.st_size, status.st_mtime_ns, status.st_ctime_ns
    # the time of writing can be set back, as `cp -p` and tar do; that of the change cannot
    state = f"{size} {modified} {changed} {status.st_ino}"
    return FileState(size, "" if max(modified, changed) > time_now - _SETTLED else state)


def look_at_all(places: Sequence[str]) -> list[FileState | None]:
    """`look` at several files at once."""
    with reading(_AT_ONCE) as pool:
        return list(pool.map(look, places))


@contextmanager
def reading(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that read; an error or a signal does not wait for what they have begun."""
    pool = ThreadPoolExecutor(threads)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def files_below(folder: str, pattern: str | None = None) -> dict[str, FileState]:
    """Every file below a folder of object storage, by its name from there.

    Args:
        pattern: as of `Path.glob`; only these.
    """
    if folder.startswith("https://"):
        raise StorageError(
            folder,
            "a web server does not tell what lies below a folder; name its files, as "
            "{00000..00041}.tar",
        )

    def listed(files: Any, path: str) -> dict[str, Any]:
        if pattern is None:
            return files.find(path, detail=True)
        escaped = re.sub(r"([*?[])", r"[\1]", path)
        return files.glob(f"{escaped}/{pattern}", detail=True)

    start = len(_path_of(folder)) + 1
    try:
        files = _ask(folder, listed)
        if not files:  # a pattern matches nothing in a bucket that is not there, too
            _ask(folder, lambda files, path: files.info(path))
    except MissingFile:
        return {}
    return {path[start:]: _found(it) for path, it in files.items() if it["type"] == "file"}


def read(url: str, start: int = 0, stop: int | None = None) -> bytes:
    """Bytes ``start`` to ``stop - 1`` of a file, or all of it.

    Raises:
        StorageError: it cannot be read, or ends before.
    """
    begun = _begun.get((url, start, stop))
    return _read(url, start, stop) if begun is None else begun.result()


def _read(url: str, start: int, stop: int | None) -> bytes:
    def bytes_of(files: Any, path: str) -> bytes:
        if stop is None and url.startswith("hf://"):
            return files.cat_file(path)
        if stop is None:
            return files.cat_file(path, timeout=10 * _SECONDS)
        if stop <= start:
            return b""
        if not url.startswith(("https://", "hf://")):
            data = files.cat_file(path, start=start, end=stop, timeout=10 * _SECONDS)
        else:  # a server may answer with all of a file: this stops reading
            with files.open(path, size=stop, cache_type="none") as file:
                file.seek(start)
                data = file.read(stop - start)
        if len(data) != stop - start:
            raise EOFError(f"{len(data):,} of {stop - start:,} bytes arrived")
        return data

    return _ask(url, bytes_of)


def upload(path: Path, url: str) -> None:
    """Write a file to a URL, whole or not at all.

    Raises:
        StorageError: it cannot be written there.
    """
    if url.startswith("https://"):
        raise StorageError(url, "a web server takes no files; give s3://, gs:// or hf://")
    try:
        _ask(url, lambda files, place: files.put_file(str(path), place))
    except MissingFile:
        raise StorageError(url, _NOWHERE[url.partition("://")[0]]) from None


_begun: dict[tuple[str, int, int | None], Future[bytes]] = {}


@contextmanager
def reading_ahead(ranges: Sequence[tuple[str, int, int | None]]) -> Iterator[None]:
    """While it lasts, `read` of these finds them begun, several at once."""
    if not ranges:
        yield
        return
    with reading(_AT_ONCE) as pool:
        _begun.update({key: pool.submit(_read, *key) for key in dict.fromkeys(ranges)})
        try:
            yield
        finally:
            for key in ranges:
                _begun.pop(key, None)


def opened(place: str, file: FileState | None = None) -> IO[bytes]:
    """A file to read and seek in: one here, or one elsewhere in blocks, some of them ahead."""
    if not is_url(place):
        return open(place, "rb")  # noqa: PTH123
    file = file or look(place)
    if file is None:
        raise MissingFile(place, "no such file")
    return cast("IO[bytes]", _Blocks(place, file.size))


class _Blocks(RawIOBase):
    """A file elsewhere, of which the blocks ahead are read while it is read in order."""

    def __init__(self, url: str, size: int) -> None:
        self.name = shown(url)
        self._url, self._size, self._at = url, size, 0
        self._pool = ThreadPoolExecutor(_AHEAD)
        self._blocks: dict[int, Future[bytes]] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = start + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        stop = self._size if size is None or size < 0 else min(self._size, self._at + size)
        parts = []
        while self._at < stop:
            number, start = divmod(self._at, _BLOCK)
            part = self._block(number)[start : start + stop - self._at]
            parts.append(part)
            self._at += len(part)
        return b"".join(parts)

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        super().close()

    def _block(self, number: int) -> bytes:
        in_order = number == 0 or number - 1 in self._blocks
        for ahead in range(number, number + (_AHEAD + 1 if in_order else 1)):
            start = ahead * _BLOCK
            if start < self._size and ahead not in self._blocks:
                stop = min(self._size, start + _BLOCK)
                self._blocks[ahead] = self._pool.submit(_read, self._url, start, stop)
        for old in [old for old in self._blocks if not number - 1 <= old <= number + _AHEAD]:
            self._blocks.pop(old).cancel()
        return self._blocks[number].result()


def _ask(url: str, question: Callable[[Any, str], T]) -> T:
    """What a driver answers; asked again after a fault that may pass."""
    files, path, pauses = _files(url), _path_of(url), [*_PAUSES]
    while True:
        try:
            return question(files, path)
        except Exception as error:  # drivers have no class of errors in common
            fault = _fault(url, error)
        if isinstance(fault, MissingFile) and url.startswith("gs://"):
            try:  # of its bytes, a missing bucket gives the same answer
                files.info(path)
            except Exception as error:
                fault = _fault(url, error)
        if fault.lasting or not pauses:
            raise fault
        time.sleep(pauses.pop(0) * random.uniform(0.5, 1.5))


def _files(url: str) -> Any:
    """The driver of a URL's protocol; of this process, as fsspec sees to."""
    protocol = url.partition("://")[0]
    # a record may be anybody's; a key of object storage may be anything
    location(url if protocol == "https" else re.sub(r"[?#]|::", "_", url))
    fsspec = require("fsspec", f"{protocol}://")
    if protocol == "hf":
        return fsspec.filesystem("hf", use_listings_cache=False)
    return fsspec.filesystem(protocol, use_listings_cache=False, **_options(protocol))


@cache
def _options(protocol: str) -> dict[str, Any]:
    if protocol == "s3":
        require("s3fs", "s3://")
        times = {"connect_timeout": _SECONDS, "read_timeout": _SECONDS}
        return {"config_kwargs": {**times, "retries": {"total_max_attempts": 1}}}
    timeout = require("aiohttp", f"{protocol}://").ClientTimeout
    limits = timeout(total=10 * _SECONDS, sock_connect=_SECONDS, sock_read=_SECONDS)
    if protocol == "gs":
        require("gcsfs", "gs://")
        return {"requests_timeout": limits}
    import ssl

    # certificates as SSL_CERT_FILE says, passwords and proxies as ~/.netrc and the environment say
    session = {"timeout": limits, "trust_env": True}
    return {"client_kwargs": session, "ssl": ssl.create_default_context()}


def _path_of(url: str) -> str:
    """What the driver is given: of object storage bucket and key, of a web server the whole URL."""
    if not url.startswith("https://"):
        return url.partition("://")[2].rstrip("/")
    if "?" not in url:
        for signed in os.environ.get(SIGNED_URLS, "").split():
            base, _, query = signed.partition("?")
            if query and (url == base or url.startswith(f"{base.rstrip('/')}/")):
                return f"{url}?{query}"
    return url


def _found(about: dict[str, Any]) -> FileState:
    names = ("ETag", "etag", "generation", "blob_id", "Last-Modified", "LastModified")
    mark = next((about[name] for name in names if about.get(name)), None)
    size = int(about["size"])
    return FileState(size, "" if mark is None else f"{size} {mark}")


def _fault(url: str, error: BaseException) -> StorageError:
    """What went wrong, in words of ours: those of a driver may hold the URL with its signature."""
    if isinstance(error, StorageError):
        return error
    protocol = url.partition("://")[0]
    if protocol == "https" and isinstance(error, FileNotFoundError) and error.__cause__:
        error = error.__cause__  # whatever it was
    response = getattr(error, "response", None)  # of the hub
    status = getattr(error, "status", None) or getattr(response, "status_code", None)
    if _is_nowhere(url, error):
        return StorageError(url, _NOWHERE[protocol])
    if status in (404, 410) or isinstance(error, FileNotFoundError):
        return MissingFile(url, "no such file")
    denied = isinstance(error, PermissionError) or _is(error, "NoCredentials")
    denied |= protocol == "gs" and str(error).startswith("Forbidden")  # an OSError like others
    if status in (401, 403) or denied:
        return StorageError(url, f"access denied; {_ACCESS[protocol]}")
    if status is not None:
        lasting = status < 500 and status not in _MAY_PASS
        return StorageError(url, f"the server answers HTTP {status}", lasting=lasting)
    if isinstance(error, TimeoutError) or _is(error, "Timeout"):
        return StorageError(url, f"no answer for {_SECONDS:g} seconds", lasting=False)
    if protocol == "https" and isinstance(error, ValueError):
        return StorageError(url, "the server does not answer with ranges of bytes")
    error = getattr(error, "os_error", error)  # of a connection, its reason
    words = _ANY_URL.sub(lambda match: shown(match[0]), first_lines(error, 1))
    return StorageError(url, f"{type(error).__name__}: {words}", lasting=False)


def _is_nowhere(url: str, error: BaseException) -> bool:
    """Whether there is no such bucket or repository, or the hub has no such revision."""
    if not isinstance(error, FileNotFoundError) or url.startswith("https://"):
        return False
    if "/" not in _path_of(url):  # asked for the bucket itself
        return True
    if url.startswith("gs://"):  # the address of what lists a bucket, or takes a file
        return re.search(r"\bb/[^/]+/o$", str(error)) is not None
    cause = error.__cause__ or error
    return any(
        _is(cause, name) for name in ("NoSuchBucket", "RepositoryNotFound", "RevisionNotFound")
    )


def _is(error: BaseException, name: str) -> bool:
    return any(name in kind.__name__ for kind in type(error).__mro__)
