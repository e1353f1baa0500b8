"""`sightline cache`: look at feature sets and check them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.options import JSON, print_json

if TYPE_CHECKING:
    from pipeline.cache import FeatureSetRecord

app = typer.Typer(help="Look at feature sets and check them.", no_args_is_help=True)

_PATH = Annotated[Path, typer.Argument(help="A feature set, or a folder above several.")]


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
def info(path: _PATH, as_json: JSON = False) -> None:
    """Say where a feature set's rows come from, in a form that fits a paper's appendix.

    Example: sightline cache info data/features/scenes/image/clip
    """
    from pipeline.cache.record import read_record

    record = read_record(path)
    about = _about(path, record)
    if as_json:
        print_json(about)
        return
    for name, value in about.items():
        print(f"{name:16} {value}")


@app.command()
def verify(path: _PATH, as_json: JSON = False) -> None:
    """Read every byte of the feature sets below a folder and name what is damaged.

    Exits with 1 when anything is.

    Example: sightline cache verify data/features
    """
    from pipeline.cache.record import read_record
    from pipeline.cache.verify import verify as verify_set
    from pipeline.progress import progress

    results: dict[str, list[str]] = {}
    for folder in _feature_sets(path):
        try:
            total = read_record(folder).size >> 20
        except Exception:
            total = 0
        with progress(f"verify {folder.as_posix()}", total, "MB") as advance:
            results[folder.as_posix()] = verify_set(folder, lambda n, tell=advance: tell(n >> 20))
    if as_json:
        print_json(results)
    else:
        for folder, faults in results.items():
            print(f"{folder}: " + ("sound" if not faults else f"{len(faults)} faults"))
            for fault in faults:
                print(f"  {fault}")
    if any(results.values()):
        raise typer.Exit(1)


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
    return f"{count / 1e6:,.1f} MB" if count < 1e9 else f"{count / 1e9:,.2f} GB"
