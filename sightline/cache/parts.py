"""What a run has finished but not published: a part for each block, and the list of failed rows.

A part is a shard, as in the set, with a note about the run. Its name says what it is: the plan, the
block, and the BLAKE3 of the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from blake3 import blake3

from sightline.atomic_files import write_bytes
from sightline.cache.keys import Keys, as_keys
from sightline.cache.record import ShardRecord, Spec
from sightline.cache.rows import Shard
from sightline.cache.shards import Computed, format_of, keys_in, note_in
from sightline.errors import CacheError

FOLDER, FAILURES = "parts", "failures.jsonl"
_NAME = re.compile(r"part-([0-9a-f]{16})-(\d{5,})-([0-9a-f]{32})\.(?:h5|parquet)")
_OF_A_FAILURE = ("code", "path", "reason")
Failure = dict[str, str]
"""``code``, ``path`` and ``reason`` of a row that could not be computed."""


class PartName(NamedTuple):
    """What the name of a part says.

    Attributes:
        file: the name.
        plan: first 16 hex digits of the plan's digest.
        block: number of its block in that plan.
        digest: first 32 hex digits of the file's BLAKE3.
    """

    file: str
    plan: str
    block: int
    digest: str


def part_names(run_folder: Path) -> list[PartName]:
    """The finished parts in a run folder, of every plan, by name; reads no file."""
    with suppress(OSError):
        found = map(_NAME.fullmatch, (path.name for path in (run_folder / FOLDER).iterdir()))
        names = (PartName(name[0], name[1], int(name[2]), name[3]) for name in found if name)
        return sorted(names)
    return []  # there is no such folder


@dataclass(frozen=True)
class Part:
    """A finished block.

    Attributes:
        name: of its file.
        shard: the file as a shard of the rows that were computed; None: all failed.
        failed: key → code, path and reason of failed rows.
    """

    name: PartName
    shard: Shard | None
    failed: Mapping[bytes, Failure]

    def keys(self, spec: Spec) -> Keys:
        """The keys of those rows, read from the file: uint8 [n, 32]."""
        return as_keys([]) if self.shard is None else keys_in(*self.shard, spec)


def write_part(
    run_folder: Path,
    spec: Spec,
    block: tuple[str, int],
    keys: Keys,
    rows: Any,
    failed: Mapping[bytes, Failure],
    computed: Computed,
    unfinished: Path | None,
) -> Part:
    """Write one block durably; it is complete once this returns.

    Args:
        block: the plan's name and the number of the block in it.
        keys: uint8 [n, 32] of the computed rows, in any order.
        rows: n rows, as the set's format has them.
        failed, computed: as `Blocks.add` takes them.
        unfinished: folder to make the file in (`Output.unfinished`).
    """
    about = {
        "fingerprint": spec.origin,
        "rows": len(keys),
        "failed": {key.hex(): failed[key] for key in sorted(failed)},
        "computed": dict(computed),
    }
    kind, (plan, number) = format_of(spec), block
    data = kind.encode(keys, rows, json.dumps(about).encode())
    digest = blake3(data).hexdigest()
    name = f"part-{plan}-{number:05}-{digest[:32]}.{kind.suffix}"
    write_bytes(run_folder / FOLDER / name, data, via=unfinished)
    shard = _shard(run_folder, name, digest, len(data), about)
    return Part(PartName(name, plan, number, digest[:32]), shard, dict(failed))


def note_of(run_folder: Path, name: PartName) -> dict[str, Any]:
    """A part's note: fingerprint, number of rows, failed rows, and how they were computed.

    Raises:
        CacheError: the file is damaged, as far as that shows; FileNotFoundError: it is gone.
    """
    path = run_folder / FOLDER / name.file
    try:
        about = json.loads(note_in(path))
        assert isinstance(about["computed"], dict)
        return {
            **about,
            "failed": {bytes.fromhex(key): why for key, why in about["failed"].items()},
        }
    except FileNotFoundError:
        raise
    except Exception as error:  # on damaged files the libraries may raise anything
        raise CacheError(f"{path}: damaged") from error


def read_part(run_folder: Path, spec: Spec, name: PartName, *, check: bool) -> Part | None:
    """The part of this name; None if its rows have another fingerprint.

    Args:
        check: read all of it, and compare its digest with its name.

    Raises:
        CacheError: it is damaged; FileNotFoundError: it is gone.
    """
    path = run_folder / FOLDER / name.file
    size, digest = path.stat().st_size, name.digest
    if check:
        try:
            digest = blake3(path.read_bytes()).hexdigest()
        except OSError as error:
            raise CacheError(f"{path}: damaged ({error.strerror})") from error
        if digest[:32] != name.digest:
            raise CacheError(f"{path}: damaged")
    about = note_of(run_folder, name)
    if about["fingerprint"] != spec.origin:
        return None
    shard = _shard(run_folder, name.file, digest, size, about)
    if shard is not None:
        keys_in(*shard, spec)  # of a damaged file an error
    return Part(name, shard, about["failed"])


def sound_parts(
    run_folder: Path, spec: Spec, names: Iterable[PartName], *, check: bool = True
) -> Iterator[tuple[PartName, Part | None]]:
    """Each part of this fingerprint that is there; with its name alone if it is damaged.

    Args:
        check: as in `read_part`.
    """
    others: dict[str, bool] = {}  # plan → whether it is of another fingerprint
    for name in names:
        if others.get(name.plan):
            continue
        try:
            part = read_part(run_folder, spec, name, check=check)
        except FileNotFoundError:  # the run beside has published
            continue
        except CacheError:
            yield name, None
            continue
        others[name.plan] = part is None
        if part is not None:
            yield name, part


def _shard(
    run_folder: Path, name: str, digest: str, size: int, about: Mapping[str, Any]
) -> Shard | None:
    """A part's file as a shard; None if it has no rows."""
    if not about["rows"]:
        return None
    digest = digest.ljust(64, "0")  # of a part that was not hashed, only the beginning is known
    record = ShardRecord(
        name=name, blake3=digest, bytes=size, rows=about["rows"], computed=about["computed"]
    )
    return Shard(run_folder / FOLDER, record)


def read_failures(run_folder: Path) -> dict[bytes, Failure]:
    """Code, path and reason of failed rows, by key, as `write_failures` left them."""
    path = run_folder / FAILURES
    if not path.is_file():
        return {}
    failures: dict[bytes, Failure] = {}
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    for line in filter(None, text.split("\n")):
        try:
            about = json.loads(line)
            (key,) = as_keys([bytes.fromhex(about.pop("key"))])
            failures[key.tobytes()] = {name: about[name] for name in _OF_A_FAILURE}
            if not all(isinstance(about[name], str) for name in _OF_A_FAILURE):
                raise TypeError(f"{', '.join(_OF_A_FAILURE)} are not all texts")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CacheError(
                f"{path}: not a list of failures ({error}); delete it: only "
                "the paths and reasons of failed rows are lost"
            ) from error
    return failures


def write_failures(
    run_folder: Path, failures: Mapping[bytes, Failure], unfinished: Path | None = None
) -> None:
    """Replace the list of failed rows: they are of this machine, so it is beside the set.

    Args:
        unfinished: folder to make the file in.
    """
    path = run_folder / FAILURES
    entries = ({"key": key.hex(), **failures[key]} for key in sorted(failures))
    text = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
    if text or path.exists():
        write_bytes(path, text.encode("utf-8", "surrogateescape"), via=unfinished)
