"""`sightline cache`: look at feature sets, check, mend and tidy them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli import share
from pipeline.cli.options import DEVICE, JSON, PARAMS, print_json

if TYPE_CHECKING:
    from pipeline.cache import FeatureSetRecord

app = typer.Typer(help="Look at feature sets; check, mend, share them.", no_args_is_help=True)

_PATH = Annotated[Path, typer.Argument(help="A feature set, or a folder above several.")]
_SET = Annotated[Path, typer.Argument(help="A feature set.")]

_INPUTS = Annotated[
    Path | None,
    typer.Option(help="For --recompute: images, texts or a manifest; default: params.yaml's."),
]
_ROOT = Annotated[
    Path | None, typer.Option(help="Folder that an images manifest's paths are relative to.")
]
_PHRASES = Annotated[
    Path | None, typer.Option(help="Of objects: the phrases manifest, with --inputs and --root.")
]
_ENCODER = Annotated[
    str | None, typer.Option(help="For --recompute with --inputs; default: the record's.")
]
_WEIGHTS = Annotated[
    str | None, typer.Option(help="For --recompute with --inputs; default: the record's.")
]


@app.command("list")
def list_sets(path: _PATH = Path("data/features"), as_json: JSON = False) -> None:
    """List every feature set below a folder.

    Example: sightline cache list data/features
    """
    from pipeline.cache.record import read_record

    found = [(folder, read_record(folder)) for folder in _feature_sets(path)]
    if as_json:
        print_json([_about(folder, record) for folder, record in found])
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("feature set", "rows", "failed", "dim", "size", "encoder", "weights", box=None)
    for folder, record in found:
        weights = record.spec.encoder.source
        table.add_row(
            folder.as_posix(),
            f"{record.rows:,}",
            f"{record.failed:,}",
            str(record.spec.dim),
            _size(record.size),
            record.spec.encoder.name,
            f"{weights} (untrained weights)" if record.spec.encoder.untrained else weights,
        )
    Console().print(table)


@app.command()
def info(path: _SET, as_json: JSON = False) -> None:
    """Say where a feature set's rows come from, in a form that fits a paper's appendix.

    Example: sightline cache info data/features/scenes/image/clip
    """
    from pipeline.cache.record import read_record
    from pipeline.provenance import licence_note, paragraph

    record = read_record(path)
    licence = licence_note(path)
    if as_json:
        print_json({**_about(path, record), "bytes": record.size, "licence": licence})
        return
    print(paragraph(path, record, licence))


@app.command()
def verify(
    path: _PATH,
    recompute: Annotated[
        int, typer.Option(min=0, help="Encode this many random rows again and compare.")
    ] = 0,
    inputs: _INPUTS = None,
    root: _ROOT = None,
    phrases: _PHRASES = None,
    encoder: _ENCODER = None,
    weights: _WEIGHTS = None,
    seed: Annotated[int, typer.Option(min=0, help="Which rows --recompute draws.")] = 0,
    device: DEVICE = "auto",
    params: PARAMS = Path("params.yaml"),
    as_json: JSON = False,
) -> None:
    """Read every byte of the feature sets below a folder and name what is damaged.

    Exits with 1 when anything is.

    Example: sightline cache verify data/features
    """
    from pipeline.cache.verify import verify as verify_set

    results: dict[str, list[str]] = {}
    for folder in _feature_sets(path):
        with _progress("verify", folder) as advance:
            faults = results[folder.as_posix()] = verify_set(folder, advance)
        if recompute and not faults:
            from pipeline.origin import Origin
            from pipeline.recompute import recompute as encode_again

            origin = Origin(inputs, root, phrases, encoder, weights, params)
            found = encode_again(folder, recompute, seed, origin, device)
            faults += found.faults
            print(f"{folder}: {found}", file=sys.stderr if as_json else sys.stdout)
    if as_json:
        print_json(results)
    else:
        for folder, faults in results.items():
            print(f"{folder}: " + ("sound" if not faults else f"{len(faults)} faults"))
            for fault in faults:
                print(f"  {fault}")
    if any(results.values()):
        raise typer.Exit(1)


@app.command()
def repair(path: _PATH, as_json: JSON = False) -> None:
    """Take damaged shards out of the feature sets below a folder; the next run computes them again.

    Example: sightline cache repair data/features/scenes/image/clip
    """
    from pipeline.cache.repair import repair as repair_set

    results: dict[str, list[str]] = {}
    for folder in _feature_sets(path):
        with _progress("read", folder) as advance:
            report = repair_set(folder, advance)
        lines = results[folder.as_posix()] = report.lines()
        if as_json:
            continue
        print(f"{folder}: " + (f"{len(lines)} damaged files" if lines else "nothing to repair"))
        for line in lines:
            print(f"  {line}")
        if report.dropped:
            print("  run its stage or `sightline extract` again for the rows that are missing now")
    if as_json:
        print_json(results)


@app.command()
def compact(path: _PATH, as_json: JSON = False) -> None:
    """Bring feature sets into the very files of a clean run: full shards in the order of keys.

    Example: sightline cache compact data/features/scenes/image/clip
    """
    from pipeline.cache.compact import compact as compact_set
    from pipeline.cache.record import read_record

    results: dict[str, dict[str, int]] = {}
    for folder in _feature_sets(path):
        before, after = len(read_record(folder).shards), len(compact_set(folder).shards)
        results[folder.as_posix()] = {"shards_before": before, "shards": after}
        if not as_json:
            print(f"{folder}: {before} shards → {after}; `sightline cache gc` removes the old ones")
    if as_json:
        print_json(results)


@app.command()
def gc(
    path: _PATH,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    as_json: JSON = False,
) -> None:
    """Remove what feature sets no longer name: superseded files, and rows the manifest dropped.

    Example: sightline cache gc data/features --dry-run
    """
    from pipeline.cache.compact import collect, garbage

    found = {
        folder.as_posix(): (garbage if dry_run else collect)(folder)
        for folder in _feature_sets(path)
    }
    if as_json:
        print_json({folder: asdict(each) for folder, each in found.items()})
        return
    for folder, each in found.items():
        print(f"{folder}: {len(each.files)} files, {each.rows:,} rows, {_size(each.bytes)}")
    total = sum(each.bytes for each in found.values())
    print(f"{_size(total)} {'would be freed' if dry_run else 'freed'}")


app.command()(share.diff)
app.command("export")(share.export_set)
app.command("import")(share.import_set)
app.command("import-mcse")(share.import_mcse)
app.command("import-kdmcse")(share.import_kdmcse)
app.command("export-mcse")(share.export_mcse)


@contextmanager
def _progress(what: str, folder: Path) -> Iterator[Callable[[int], None]]:
    """A bar in megabytes, told in bytes, from any thread."""
    from pipeline.cache import CacheError
    from pipeline.cache.record import read_record
    from pipeline.cache.verify import bytes_to_verify
    from pipeline.progress import progress

    try:
        total = bytes_to_verify(read_record(folder))
    except CacheError:
        total = 0  # what is wrong with it is told by the one who reads it next
    lock, done = Lock(), 0
    with progress(f"{what} {folder.as_posix()}", total >> 20, "MB") as advance:

        def tell(count: int) -> None:
            nonlocal done
            with lock:
                before, done = done >> 20, done + count
                advance((done >> 20) - before)

        yield tell


def _feature_sets(path: Path) -> list[Path]:
    """The feature sets at or below ``path``; an error when there is none."""
    from pipeline.cache import CacheError
    from pipeline.cache.record import FILE_NAME

    found = sorted(file.parent for file in path.rglob(FILE_NAME))
    if not found:
        raise CacheError(f"{path}: no feature set here or below; `sightline extract` makes one")
    return found


def _about(path: Path, record: FeatureSetRecord) -> dict[str, Any]:
    spec, encoder = record.spec, record.spec.encoder
    return {
        "path": path.as_posix(),
        "kind": spec.kind,
        "encoder": encoder.name,
        "weights": encoder.source,
        "untrained": encoder.untrained,
        "revision": encoder.revision,
        "weights_sha256": encoder.weights_sha256,
        "preprocessing": spec.preprocessing,
        "precision": spec.precision,
        "dtype": spec.dtype,
        "dim": spec.dim,
        "rows": record.rows,
        "failed": record.failed,
        "shards": len(record.shards),
        "size": _size(record.size),
        "computed": sorted({str(shard.computed) for shard in record.shards}),
        "fingerprint": record.fingerprint,
        "content_digest": record.content_digest,
    }


def _size(count: int) -> str:
    if count < 1e6:
        return f"{count / 1e3:,.1f} kB"
    return f"{count / 1e6:,.1f} MB" if count < 1e9 else f"{count / 1e9:,.2f} GB"
