"""Places: paths here, and URLs of object storage, of the hub and of web servers, as text.

URLs come from settings alone. A URL's user, password and query (a signature) stay out of every
message and record: text is made by `shown`.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import normpath
from typing import Any, cast
from urllib.parse import quote

from sightline.errors import SightlineError

PROTOCOLS = ("s3", "gs", "https", "hf")
_URL = re.compile(r"(?P<protocol>[\w.+:-]*)://(?:[^/?#]*@)?(?P<place>[^?#]*)(?P<query>\?.*)?")
_PATH_OF_URL = re.compile(r"^([\w.+-]{2,}:)/")  # as `Path` writes s3://bucket
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_MOST_FILES = 1_000_000


def is_url(place: Path | str) -> bool:
    """Whether a place is a URL."""
    return isinstance(place, str) and _URL.match(place) is not None


def why_no_path(place: Path | str) -> str:
    """What is wrong with a URL where a path on this machine is read; empty: it is no URL."""
    text = _PATH_OF_URL.sub(r"\1//", place.as_posix()) if isinstance(place, Path) else place
    if not is_url(text):
        return ""
    return (
        f"found {shown(text)}, expected a path on this machine; copy sets to and from URLs with "
        "`sightline cache export` and `sightline cache import`, and others with the tools of "
        "their storage"
    )


def here(*places: Path | str | None) -> list[Path]:
    """Those of the places that are paths on this machine."""
    return [place for place in places if isinstance(place, Path)]


def location(value: Any) -> Any:
    """What a setting says: a URL, checked, or a path on this machine.

    Raises:
        ValueError: a URL that is not read: of another protocol, in a chain (``::``), or without a
            host or bucket.
    """
    if not is_url(value):
        return Path(value) if isinstance(value, str) else value
    match = cast("re.Match[str]", _URL.fullmatch(value) or _URL.match(value))
    protocol, place = match["protocol"], match["place"]
    if protocol not in PROTOCOLS or "::" in value:
        protocols = ", ".join(f"{name}://" for name in PROTOCOLS)
        raise ValueError(
            f"found a URL of {protocol!r}, expected {protocols}; fetch the files, and give "
            "their folder"
        )
    whole = match.end() == len(value) and place[:1] not in ("", "/")
    whole &= not match["query"] or protocol == "https"
    whole &= protocol != "hf" or re.match(r"datasets/[^/]+/[^/]", place) is not None
    if not whole or re.search(r"[\x00-\x1f\x7f]", value):
        name = "datasets/OWNER/NAME@REVISION" if protocol == "hf" else "NAME"
        address = shown(value).partition("?")[0]
        raise ValueError(f"found {address}, expected {protocol}://{name}/PATH")
    return value if match["query"] else value.rstrip("/")


def required_location(value: Path | str) -> Path | str:
    """`location`, with an error of ours."""
    try:
        return location(value)
    except ValueError as error:
        raise SightlineError(str(error)) from None


def shown(place: Path | str) -> str:
    """A place as text, without a user, a password and a query, which only web servers have."""
    match = _URL.match(place) if isinstance(place, str) else None
    if match is None:
        return str(place)
    path = match.string[match.end("place") :] if match["protocol"] in ("s3", "gs", "hf") else ""
    return f"{match['protocol']}://{match['place']}{path}"


def path_below(root: Path | str, name: str) -> str:
    """The place of the file ``name``, with ``/`` between its parts, below a folder."""
    if not is_url(root):
        return str(Path(root, name))
    if {"", ".", ".."}.intersection(name.split("/")):
        raise SightlineError(
            f"{shown(root)}: found the name {name!r}, expected one that stays below it"
        )
    folder, mark, query = str(root).partition("?")
    name = quote(name) if folder.startswith("https://") else name
    return f"{folder}/{name}{mark}{query}"


def beside(url: str, folder: str) -> str | None:
    """The URL of a folder that is recorded relative to a URL; None if it leads out of that."""
    if is_url(folder):
        return folder
    protocol, _, place = shown(url).partition("://")
    head = "/".join(place.split("/")[: 3 if protocol == "hf" else 1])
    name = quote(folder) if protocol == "https" else folder
    below = normpath(f"{place.removeprefix(head).lstrip('/')}/{name}".lstrip("/"))
    return None if below.split("/")[0] == ".." else f"{protocol}://{head}/{below}"


def base_of(place: Path | str) -> Path | str:
    """A folder, or that of the files which braces in a URL name, as ``{00..41}.jpg``."""
    folder, mark, query = str(place).partition("?")
    if not is_url(place) or "{" not in folder:
        return place
    return folder[: folder.index("{")].rpartition("/")[0] + mark + query


def expanded(pattern: str) -> list[str]:
    """``{00..02}.tar`` → 00.tar, 01.tar, 02.tar; WebDataset's notation."""
    match = _RANGE.search(pattern)
    if match is None:
        return [pattern]
    first, last = int(match[1]), int(match[2])
    if not first <= last < first + _MOST_FILES:
        raise SightlineError(f"found {match[0]}, expected a range that counts up")
    before, after, width = pattern[: match.start()], pattern[match.end() :], len(match[1])
    numbers = range(first, last + 1)
    return [name for n in numbers for name in expanded(f"{before}{n:0{width}}{after}")]
