"""`sightline cache`: list, verify, repair and clean up the sets of the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Annotated

import typer

from pipeline.cli import share
from pipeline.cli.options import JSON, print_json
from pipeline.cli.sets import PATH, info, list_sets, sets_below
from sightline.wording import counted, in_bytes

app = typer.Typer(
    help="List, verify, repair and share the sets of the cache.", no_args_is_help=True
)
app.command("list")(list_sets)
app.command()(info)


@app.command()
def verify(
    path: PATH,
    rows: Annotated[
        bool, typer.Option("--rows", help="Check every row against the index too.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Read every byte of the sets below a folder and report damage.

    Exits with 1 if anything is damaged. `sightline extract --check` encodes rows again.

    Example: sightline cache verify data
    """
    from sightline.cache.verify import rows_to_compute
    from sightline.cache.verify import verify as verify_set

    results: dict[str, list[str]] = {}
    for folder in sets_below(path, lost=True):
        with _progress("verify", folder, rows=rows) as advance:
            results[folder.as_posix()] = verify_set(folder, advance, rows=rows)
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


@app.command()
def repair(path: PATH, as_json: JSON = False) -> None:
    """Remove damaged shards from the sets below a folder; the next run recomputes them.

    Example: sightline cache repair data/features/scenes/image/clip
    """
    from sightline.cache import CacheError
    from sightline.cache.verify import repair as repair_set
    from sightline.errors import SightlineError

    results: dict[str, list[str]] = {}
    beyond: list[str] = []
    for folder in sets_below(path):
        try:
            with _progress("read", folder) as advance:
                report = repair_set(folder, advance)
        except SightlineError as error:  # still repair the others
            beyond.append(str(error))
            continue
        lines = results[folder.as_posix()] = report.lines()
        if as_json:
            continue
        print(f"{folder}: " + (f"{len(lines)} damaged files" if lines else "nothing to repair"))
        for line in lines:
            print(f"  {line}")
        if report.dropped:
            print("  rerun its stage, or the command that made it, to compute the missing rows")
    if as_json:
        print_json(results)
    if beyond:
        raise CacheError("\n".join(beyond))


@app.command()
def gc(
    path: PATH,
    compact: Annotated[
        bool,
        typer.Option(
            "--compact", help="Rewrite shards too: exactly the files of a clean run, in key order."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be removed.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Remove what sets no longer reference: superseded files, and rows dropped by the manifest.

    Example: sightline cache gc data --dry-run
    """
    from sightline.cache.compact import collect, garbage
    from sightline.cache.compact import compact as compact_set

    if compact and dry_run:
        raise typer.BadParameter("not with --dry-run", param_hint="--compact")
    found = {}
    for folder in sets_below(path):
        if compact:
            compact_set(folder)
        found[folder.as_posix()] = (garbage if dry_run else collect)(folder)
    if as_json:
        print_json({folder: asdict(each) for folder, each in found.items()})
        return
    for folder, each in found.items():
        sizes = counted(len(each.files), "file"), counted(each.rows, "row"), in_bytes(each.bytes)
        print(f"{folder}: {', '.join(sizes)}")
    total = sum(each.bytes for each in found.values())
    print(f"{in_bytes(total)} {'would be freed' if dry_run else 'freed'}")


app.command()(share.diff)
app.command("export")(share.export_set)
app.command("import")(share.import_set)


@contextmanager
def _progress(what: str, folder: Path, *, rows: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar in megabytes that takes bytes, from any thread."""
    from sightline.cache import CacheError
    from sightline.cache.record import read_record
    from sightline.cache.verify import bytes_to_verify
    from sightline.progress import progress

    try:
        total = bytes_to_verify(read_record(folder), rows=rows)
    except CacheError:
        total = 0  # the next reader reports what is wrong
    lock, done = Lock(), 0
    with progress(f"{what} {folder.as_posix()}", total >> 20, "MB") as advance:

        def tell(count: int) -> None:
            nonlocal done
            with lock:
                before, done = done >> 20, done + count
                advance((done >> 20) - before)

        yield tell
