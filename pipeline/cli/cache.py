"""`sightline cache`: list, describe, verify, repair and clean up the sets of the cache."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, TypeVar, cast

import typer

from pipeline.cli import cache_exchange
from pipeline.cli.commands import Command, Group
from pipeline.cli.options import JSON, of_dataset, print_json
from sightline.wording import counted, in_bytes

app = typer.Typer(
    cls=Group,
    add_completion=False,
    help="List, verify, repair and share the sets of the cache.",
    no_args_is_help=True,
)
T = TypeVar("T")
_LOST = re.compile(r"(shard|index)-[0-9a-f]{32}\.\w+")
PATH = Annotated[
    Path, typer.Argument(metavar="PATH", help="A set of the cache, or a folder of sets.")
]


@app.command("list", cls=Command)
def list_sets(path: PATH = Path("data"), as_json: JSON = False) -> None:
    """List every set of the cache below a folder.

    Example: sightline cache list data
    """
    from pipeline.provenance import about
    from sightline.cache.record import read_record

    def facts(folder: Path) -> dict[str, Any]:
        return about(folder, read_record(folder))

    with _of_each(sets_below(path, lost=True), facts) as facts_of_sets:
        sets = [*facts_of_sets.values()]
        print_json(sets) if as_json else _print_sets(sets)


def _print_sets(sets: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("set", "kind", "rows", "failed", "dim", "size", "made by", "weights", box=None)
    for facts in sets:
        cells = [facts["path"], facts["kind"], f"{facts['rows']:,}", f"{facts['failed']:,}"]
        cells += [str(facts.get("dim", "")), facts["size"], facts.get("encoder", "")]
        weights = facts.get("weights", "")
        if facts.get("untrained"):
            weights += " (untrained weights)"
        if facts["imported"]:
            weights += f" ({facts['provenance']})"
        table.add_row(*map(Text, [*cells, weights]))  # untrusted names, not markup
    Console(width=None if sys.stdout.isatty() else 200).print(table)


@app.command(cls=Command)
def info(
    path: cache_exchange.SET,
    data: Annotated[
        Path | None,
        of_dataset(
            "Of a grounding: its prepared data set, or its URL, to measure how much of its "
            "captions phrases cover."
        ),
    ] = None,
    as_json: JSON = False,
) -> None:
    """Describe where the rows of a set come from, as a paragraph for a paper's appendix.

    Of a grounding also its statistics: pairs per image, drops by reason.

    Example: sightline cache info data/features/scenes/image/clip
    """
    from pipeline import provenance
    from pipeline.grounding import stats
    from sightline.cache.prepared import PreparedDataset
    from sightline.cache.record import SetRecord
    from sightline.cache.verify import snapshot

    def facts_of(record: SetRecord) -> dict[str, Any]:
        facts = provenance.about(path, record)
        if record.spec.kind == "grounding":
            captions = None if data is None else PreparedDataset.open(data).captions_manifest
            facts["statistics"] = stats.statistics(path, captions)
        elif data is not None:
            raise typer.BadParameter(
                f"{path} is of kind {record.spec.kind}, not a grounding", param_hint="--data"
            )
        return facts

    facts = snapshot(path, facts_of)
    lines = {"Set": f"{facts['path']} ({facts['kind']})", **provenance.described(facts)}
    lines |= stats.described(facts["statistics"]) if "statistics" in facts else {}
    if as_json:
        print_json(facts)
        return
    for name, value in lines.items():
        print(f"{name + ':':21}{value}")


@app.command(cls=Command)
def verify(path: PATH, as_json: JSON = False) -> None:
    """Read every byte of the sets below a folder and report damage.

    Exits with 1 if anything is damaged. `sightline extract --check` encodes rows again.

    Example: sightline cache verify data
    """
    from sightline.cache.verify import rows_to_compute
    from sightline.cache.verify import verify as verify_set

    results: dict[str, list[str]] = {}
    for folder in sets_below(path, lost=True):
        with _progress("verify", folder) as advance:
            results[folder.as_posix()] = verify_set(folder, advance)
    if as_json:
        print_json(results)
    else:
        for folder, faults in results.items():
            left = 0 if faults else rows_to_compute(Path(folder))
            sound = f"sound, {counted(left, 'row')} to compute" if left else "sound"
            print(f"{folder}: " + (counted(len(faults), "fault") if faults else sound))
            for fault in faults:
                print(f"  {fault}")
    if any(results.values()):
        raise typer.Exit(1)


@app.command(cls=Command)
def repair(path: PATH, as_json: JSON = False) -> None:
    """Remove damaged shards from the sets below a folder; the next run recomputes them.

    Example: sightline cache repair data/features/scenes/image/clip
    """
    from sightline.cache.repair import repair as repair_set

    def repaired(folder: Path) -> list[str]:
        with _progress("read", folder) as advance:
            report = repair_set(folder, advance)
        lines = report.lines()
        if as_json:
            return lines
        print(f"{folder}: " + (f"{len(lines)} damaged files" if lines else "nothing to repair"))
        for line in lines:
            print(f"  {line}")
        if report.dropped:
            print("  rerun its stage, or the command that made it, to compute the missing rows")
        return lines

    with _of_each(sets_below(path), repaired) as results:
        if as_json:
            print_json(results)


@app.command(cls=Command)
def gc(
    path: PATH,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be removed.")
    ] = False,
    lost_runs: Annotated[
        bool,
        typer.Option(
            "--lost-runs",
            help="Remove folders NAME.run whose set NAME is gone too, with the unfinished work "
            "in them.",
        ),
    ] = False,
    as_json: JSON = False,
) -> None:
    """Remove what sets no longer reference: superseded files, and rows dropped by the manifest.

    A set with dropped rows is rewritten into exactly the files of a clean run.

    Example: sightline cache gc data --dry-run
    """
    from sightline.cache import compact as cache

    lost = cache.lost_runs(path) if path.is_dir() else {}
    if lost and not lost_runs:
        size = in_bytes(sum(waste.bytes for waste in lost.values()))
        print(
            f"warning: of {counted(len(lost), 'run folder')} the set is gone ({size}): "
            f"{', '.join(map(str, lost))}; --lost-runs removes them, with unfinished work in them",
            file=sys.stderr,
        )

    def garbage_of(folder: Path) -> cache.Garbage:
        if folder in lost:
            if not dry_run:
                cache.remove_run(folder)
            return lost[folder]
        return cache.garbage(folder) if dry_run else cache.collect(folder)

    folders = [*sets_below(path, required=not lost), *(lost if lost_runs else ())]
    with _of_each(folders, garbage_of) as garbage_of_sets:
        if as_json:
            print_json({folder: asdict(waste) for folder, waste in garbage_of_sets.items()})
            return
        for folder, waste in garbage_of_sets.items():
            files, rows = counted(len(waste.files), "file"), counted(waste.rows, "row")
            print(f"{folder}: {files}, {rows}, {in_bytes(waste.bytes)}")
        total = sum(waste.bytes for waste in garbage_of_sets.values())
        print(f"{in_bytes(total)} {'would be freed' if dry_run else 'freed'}")


app.command(cls=Command)(cache_exchange.diff)
app.command("export", cls=Command)(cache_exchange.export_set)
app.command("import", cls=Command)(cache_exchange.import_set)


@contextmanager
def _of_each(folders: Iterable[Path], do: Callable[[Path], T]) -> Iterator[dict[str, T]]:
    """What ``do`` gives for each set; an error of one stops no other, and comes after the block.
    Of a set whose work is `Unfinished`, both.

    That includes an error of its disk, which is full, or cannot be written or read.
    """
    from sightline.errors import SightlineError, Unfinished

    results, faults = dict[str, T](), list[str]()
    for folder in folders:
        try:
            results[folder.as_posix()] = do(folder)
        except SightlineError as error:
            faults.append(str(error))
            if isinstance(error, Unfinished):
                results[folder.as_posix()] = cast(T, error.done)
        except OSError as error:
            faults.append(f"{folder}: {error.strerror or error}")
    yield results
    if faults:
        raise SightlineError("\n".join(faults))


def sets_below(path: Path, *, lost: bool = False, required: bool = True) -> list[Path]:
    """The sets at or below ``path``, behind links too; an error if there are none.

    Names links that lead nowhere, such as to a disk that is not mounted, on standard error.

    Args:
        lost: include folders with files of a set but no commit file.
        required: raise if there are none.
    """
    from sightline.cache import CacheError
    from sightline.cache.record import FILE_NAME
    from sightline.files.atomic_files import folders_below
    from sightline.files.output import is_run_folder

    if not path.is_dir():
        raise CacheError(
            f"{path}: {'a file' if path.exists() else 'no such folder'}; "
            "expected a set, or a folder of sets"
        )
    folders_of_sets: list[Path] = []
    for parent, files in folders_below(path, is_run_folder, _raise):
        if FILE_NAME in files or (lost and any(map(_LOST.fullmatch, files))):
            folders_of_sets.append(parent)
        else:
            _name_broken_links(parent, files)
    if required and not folders_of_sets:
        raise CacheError(
            f"{path}: no cache set here or below; create one with `sightline extract`, `ground` or "
            "`tokens`"
        )
    return sorted(folders_of_sets)


def _name_broken_links(folder: Path, names: list[str]) -> None:
    links = [folder / name for name in names if (folder / name).is_symlink()]
    if broken := [link for link in links if not link.exists()]:
        extra = f" (and {len(broken) - 1} more links here)" if len(broken) > 1 else ""
        print(f"warning: {broken[0]}{extra} leads nowhere: {broken[0].readlink()}", file=sys.stderr)


def _raise(error: OSError) -> None:
    raise error


@contextmanager
def _progress(action: str, folder: Path) -> Iterator[Callable[[int], None]]:
    """A progress bar in megabytes that takes bytes, from any thread."""
    from sightline.cache import CacheError
    from sightline.cache.record import read_record
    from sightline.machine.progress import progress

    try:
        total = read_record(folder).size
    except CacheError:
        total = 0  # the next reader reports what is wrong
    lock, done = Lock(), 0
    with progress(f"{action} {folder.as_posix()}", total >> 20, "MB") as advance:

        def tell(count: int) -> None:
            nonlocal done
            with lock:
                before, done = done >> 20, done + count
                advance((done >> 20) - before)

        yield tell
