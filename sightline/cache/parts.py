"""What a run has finished but not published, and the list of failed rows.

A finished block is a *part*: a shard, as in the set, and a JSON file of the same name beside it,
which is written last and makes it count. The name says the plan and the block.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field

from sightline.cache.file_checks import file_fault
from sightline.cache.keys import Keys, as_keys
from sightline.cache.record import ShardRecord, Spec
from sightline.cache.rows import Shard
from sightline.cache.shards import Computed, format_of, keys_in
from sightline.digest import digest
from sightline.errors import CacheError
from sightline.files.atomic_files import write_bytes
from sightline.files.output import FAILURES, PARTS
from sightline.files.storage import require_of_file

_FILE = re.compile(r"part-([0-9a-f]{16})-(\d{5,})-[0-9a-f]{32}\.(json|h5|parquet)")
_OF_A_FAILURE = ("code", "path", "reason")
Failure = dict[str, str]
"""``code``, ``path`` and ``reason`` of a row that could not be computed."""


class PartName(NamedTuple):
    """What the name of a part says.

    Attributes:
        file: the name of its JSON file.
        plan: first 16 hex digits of the plan's digest.
        block: number of its block in that plan.
    """

    file: str
    plan: str
    block: int


class _Record(BaseModel):
    """The JSON file of a part, which ends with its own digest."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    schema_: Literal["sightline.part/1"] = Field(default="sightline.part/1", alias="schema")
    fingerprint: str
    shard: ShardRecord | None
    failed: dict[str, Failure]
    computed: dict[str, Any]


@dataclass(frozen=True)
class Part:
    """A finished block.

    Attributes:
        name: what its name says.
        shard: the rows that were computed; None: all failed.
        failed: key → code, path and reason of failed rows.
        computed: device, library versions and batch size, also of a block that failed whole.
    """

    name: PartName
    shard: Shard | None
    failed: Mapping[bytes, Failure]
    computed: Computed

    def keys(self, spec: Spec) -> Keys:
        """The keys of the computed rows, read from the shard: uint8 [n, 32]."""
        return as_keys([]) if self.shard is None else keys_in(*self.shard, spec)


def part_names(run_folder: Path) -> list[PartName]:
    """The finished parts in a run folder, of every plan, by name; reads no file."""
    matches = (name for name in _files(run_folder) if name[3] == "json")
    return sorted(PartName(name[0], name[1], int(name[2])) for name in matches)


def files_of(run_folder: Path, name: PartName) -> list[Path]:
    """The files of a part that are there, the JSON file first."""
    path = run_folder / PARTS / name.file
    every = [path, *(path.with_suffix(suffix) for suffix in (".h5", ".parquet"))]
    return [file for file in every if file.is_file()]


def remove_part(run_folder: Path, name: PartName) -> None:
    """Remove the files of a part, the JSON file first."""
    for file in files_of(run_folder, name):
        file.unlink(missing_ok=True)


def loose_shards(run_folder: Path) -> list[Path]:
    """Shards without a JSON file, of processes that were killed between the two."""
    stems = {Path(name.file).stem for name in part_names(run_folder)}
    shards = [run_folder / PARTS / name[0] for name in _files(run_folder) if name[3] != "json"]
    return sorted(shard for shard in shards if shard.stem not in stems)


def _files(run_folder: Path) -> list[re.Match[str]]:
    with suppress(OSError):
        names = map(_FILE.fullmatch, (path.name for path in (run_folder / PARTS).iterdir()))
        return [name for name in names if name]
    return []  # there is no such folder


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
        failed, computed: as `SetWriter.add` takes them.
        unfinished: folder to make the files in (`Output.unfinished`).
    """
    kind, (plan, number), folder = format_of(spec), block, run_folder / PARTS
    data = kind.encode(keys, rows) if len(keys) else b""
    hashed = blake3(data).hexdigest()
    stem = f"part-{plan}-{number:05}-{hashed[:32]}"
    shard = None
    if len(keys):
        name, size = f"{stem}.{kind.suffix}", len(data)
        shard = ShardRecord(
            name=name, blake3=hashed, bytes=size, rows=len(keys), computed=dict(computed)
        )
        write_bytes(folder / name, data, via=unfinished)
    record = _Record(
        fingerprint=spec.origin,
        shard=shard,
        failed={key.hex(): failed[key] for key in sorted(failed)},
        computed=dict(computed),
    )
    body = record.model_dump(mode="json", by_alias=True)
    text = json.dumps({**body, "digest": digest(body)}, indent=1) + "\n"
    write_bytes(folder / f"{stem}.json", text.encode(), via=unfinished)
    shard_file = Shard(folder, shard) if shard else None
    return Part(PartName(f"{stem}.json", plan, number), shard_file, dict(failed), dict(computed))


def _read_record(run_folder: Path, name: PartName) -> _Record:
    path = run_folder / PARTS / name.file
    try:
        body = json.loads(path.read_bytes())
        if body.pop("digest") != digest(body):
            raise ValueError("its digest does not match its content")
        return _Record.model_validate_json(json.dumps(body))
    except FileNotFoundError:
        raise
    except Exception as error:  # of a damaged file anything may be missing
        require_of_file(error, path)
        raise CacheError(f"{path}: damaged") from error


def fingerprint_of(run_folder: Path, name: PartName) -> str:
    """That of a part's rows; raises as `read_part`."""
    return _read_record(run_folder, name).fingerprint


def read_part(run_folder: Path, spec: Spec, name: PartName, *, check: bool) -> Part | None:
    """The part of this name; None if its rows have another fingerprint.

    Args:
        check: read all of its shard, too.

    Raises:
        CacheError: it is damaged; FileNotFoundError: it is gone.
    """
    record, folder = _read_record(run_folder, name), run_folder / PARTS
    if record.fingerprint != spec.origin:
        return None
    failed = {bytes.fromhex(key): why for key, why in record.failed.items()}
    if record.shard is None:
        return Part(name, None, failed, record.computed)
    if check and (fault := file_fault(folder, record.shard)):
        raise CacheError(fault)
    keys_in(folder, record.shard, spec)  # of a missing or damaged file an error
    return Part(name, Shard(folder, record.shard), failed, record.computed)


def read_parts(
    run_folder: Path, spec: Spec, names: Iterable[PartName], *, check: bool = True
) -> Iterator[tuple[PartName, Part | None]]:
    """Each part of this fingerprint that is there; with its name alone if it is damaged.

    Args:
        check: as in `read_part`.
    """
    foreign: dict[str, bool] = {}  # plan → whether it is of another fingerprint
    for name in names:
        if foreign.get(name.plan):
            continue
        try:
            part = read_part(run_folder, spec, name, check=check)
        except FileNotFoundError:  # the run beside has published
            continue
        except CacheError:
            if not (run_folder / PARTS / name.file).exists():  # so between the two files
                continue
            yield name, None
            continue
        foreign[name.plan] = part is None
        if part is not None:
            yield name, part


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
