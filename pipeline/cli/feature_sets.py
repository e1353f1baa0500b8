"""`sightline cache list` and `info`: which feature sets there are, and what made them."""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.options import JSON, print_json

if TYPE_CHECKING:
    from pipeline.cache import FeatureSetRecord

_EXPECTED = "expected a feature set, or a folder above several"
PATH = Annotated[Path, typer.Argument(help="A feature set, or a folder above several.")]
SET = Annotated[Path, typer.Argument(help="A feature set.", show_default=False)]


def list_sets(path: PATH = Path("data/features"), as_json: JSON = False) -> None:
    """List every feature set below a folder.

    Example: sightline cache list data/features
    """
    from pipeline.cache import CacheError
    from pipeline.cache.record import read_record

    found: list[tuple[Path, FeatureSetRecord]] = []
    damaged: list[str] = []
    for folder in feature_sets(path, lost=True):
        try:
            found.append((folder, read_record(folder)))
        except CacheError as error:  # which hides none of the others
            damaged.append(str(error))
    if as_json:
        print_json([_about(folder, record) for folder, record in found])
    else:
        _print_sets(found)
    if damaged:
        raise CacheError("\n".join(damaged))


def _print_sets(found: list[tuple[Path, FeatureSetRecord]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("feature set", "rows", "failed", "dim", "size", "encoder", "weights", box=None)
    for folder, record in found:
        weights = record.spec.encoder.source
        cells = [
            folder.as_posix(),
            f"{record.rows:,}",
            f"{record.failed:,}",
            str(record.spec.dim),
            readable_size(record.size),
            record.spec.encoder.name,
            f"{weights} (untrained weights)" if record.spec.encoder.untrained else weights,
        ]
        table.add_row(*map(Text, cells))  # names from strangers, which rich would read as markup
    Console().print(table)


def info(path: SET, as_json: JSON = False) -> None:
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


def feature_sets(path: Path, *, lost: bool = False) -> list[Path]:
    """The feature sets at or below ``path``; an error when there is none.

    Args:
        lost: with those that have shards or an index but no commit file.
    """
    from pipeline.cache import CacheError
    from pipeline.cache.record import FILE_NAME

    if not path.is_dir():
        raise CacheError(f"{path}: {'a file' if path.exists() else 'no such folder'}; {_EXPECTED}")
    patterns = [FILE_NAME, *(("shard-*.h5", "index-*.parquet") if lost else ())]
    found = sorted(
        Path(parent)
        for parent, _, files in os.walk(path, onerror=_raise)
        if any(fnmatch.filter(files, pattern) for pattern in patterns)
    )
    if not found:
        raise CacheError(f"{path}: no feature set here or below; `sightline extract` makes one")
    return found


def _raise(error: OSError) -> None:
    raise error


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
        "size": readable_size(record.size),
        "computed": sorted({str(shard.computed) for shard in record.shards}),
        "fingerprint": record.fingerprint,
        "content_digest": record.content_digest,
    }


def readable_size(count: int) -> str:
    """Bytes in the unit that suits them."""
    if count < 1e6:
        return f"{count / 1e3:,.1f} kB"
    return f"{count / 1e6:,.1f} MB" if count < 1e9 else f"{count / 1e9:,.2f} GB"
