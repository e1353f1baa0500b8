"""`sightline cache`: list, verify, diagnose, repair and clean up the sets of the cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Annotated

import typer

from pipeline.cli import diagnose, share
from pipeline.cli.options import DEVICE, JSON, MOST_SEED, PARAMS, print_json
from pipeline.cli.sets import PATH, info, list_sets, sets_below
from sightline.wording import counted, in_bytes

app = typer.Typer(
    help="List, verify, diagnose, repair and share the sets of the cache.", no_args_is_help=True
)
app.command("list")(list_sets)
app.command()(info)

_INPUTS = Annotated[
    Path | None,
    typer.Option(help="For --recompute: images, texts or a manifest; default: from params.yaml."),
]
_ROOT = Annotated[Path | None, typer.Option(help="Base folder of the paths in an images manifest.")]
_PHRASES = Annotated[
    Path | None, typer.Option(help="For objects: the phrases manifest, with --inputs and --root.")
]
_ENCODER = Annotated[
    str | None, typer.Option(help="For --recompute with --inputs; default: from the record.")
]
_WEIGHTS = Annotated[
    str | None, typer.Option(help="For --recompute with --inputs; default: from the record.")
]


@app.command()
def verify(
    path: PATH,
    recompute: Annotated[
        int, typer.Option(min=0, help="Re-encode this many random rows and compare.")
    ] = 0,
    inputs: _INPUTS = None,
    root: _ROOT = None,
    phrases: _PHRASES = None,
    encoder: _ENCODER = None,
    weights: _WEIGHTS = None,
    seed: Annotated[
        int, typer.Option(min=0, max=MOST_SEED, help="Seed for the rows that --recompute samples.")
    ] = 0,
    rows: Annotated[
        bool, typer.Option("--rows", help="Check every row against the index too.")
    ] = False,
    device: DEVICE = "auto",
    params: PARAMS = Path("params.yaml"),
    as_json: JSON = False,
) -> None:
    """Read every byte of the sets below a folder and report damage.

    Checks sets of every kind; --recompute applies to features only. Exits with 1 if anything is
    damaged.

    Example: sightline cache verify data
    """
    from sightline.cache.record import FeatureSetRecord, read_record
    from sightline.cache.verify import rows_to_compute
    from sightline.cache.verify import verify as verify_set

    named = {"inputs": inputs, "root": root, "phrases": phrases}
    named |= {"encoder": encoder, "weights": weights}
    if not recompute and any(named.values()):
        options = ", ".join(f"--{name}" for name, value in named.items() if value)
        raise typer.BadParameter(f"{options}: inputs and encoders are only used with --recompute N")
    results: dict[str, list[str]] = {}
    for folder in sets_below(path, lost=True):
        with _progress("verify", folder, rows=rows) as advance:
            faults = results[folder.as_posix()] = verify_set(folder, advance, rows=rows)
        if recompute and not faults and isinstance(read_record(folder), FeatureSetRecord):
            from pipeline.recompute import NamedInputs, note_in_record
            from pipeline.recompute import recompute as encode_again

            imported = read_record(folder).provenance.imported
            made_of = NamedInputs(inputs, root, phrases, encoder, weights, params)
            found = encode_again(folder, recompute, seed, made_of, device)
            faults += found.faults
            where = sys.stderr if as_json else sys.stdout
            print(f"{folder}: {found}", file=where)
            if imported:
                print(f"{folder}: set.json now says: {note_in_record(folder, found)}", file=where)
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
def compact(path: PATH, as_json: JSON = False) -> None:
    """Rewrite sets into exactly the files of a clean run: full shards in key order.

    Example: sightline cache compact data/features/scenes/image/clip
    """
    from sightline.cache.compact import compact as compact_set
    from sightline.cache.record import read_record

    results: dict[str, dict[str, int]] = {}
    for folder in sets_below(path):
        before, after = len(read_record(folder).shards), len(compact_set(folder).shards)
        results[folder.as_posix()] = {"shards_before": before, "shards": after}
        if not as_json:
            shards = f"{counted(before, 'shard')} → {after}"
            print(f"{folder}: {shards}; `sightline cache gc` removes the old ones")
    if as_json:
        print_json(results)


@app.command()
def gc(
    path: PATH,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print what would be removed.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Remove what sets no longer reference: superseded files, and rows dropped by the manifest.

    Example: sightline cache gc data --dry-run
    """
    from sightline.cache.compact import collect, garbage

    found = {
        folder.as_posix(): (garbage if dry_run else collect)(folder) for folder in sets_below(path)
    }
    if as_json:
        print_json({folder: asdict(each) for folder, each in found.items()})
        return
    for folder, each in found.items():
        sizes = counted(len(each.files), "file"), counted(each.rows, "row"), in_bytes(each.bytes)
        print(f"{folder}: {', '.join(sizes)}")
    total = sum(each.bytes for each in found.values())
    print(f"{in_bytes(total)} {'would be freed' if dry_run else 'freed'}")


app.command()(diagnose.diagnose)
app.command()(share.diff)
app.command("export")(share.export_set)
app.command("import")(share.import_set)
app.command("import-mcse")(share.import_mcse)
app.command("import-kdmcse")(share.import_kdmcse)
app.command("export-mcse")(share.export_mcse)


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
