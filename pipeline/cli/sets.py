"""`sightline cache list` and `info`: the sets of a cache and where they come from."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.cli.options import JSON, print_json
from sightline.wording import in_bytes

if TYPE_CHECKING:
    from sightline.cache.record import FeatureSetRecord, SetRecord

_EXPECTED = "expected a set, or a folder of sets"
_LOST = re.compile(r"(shard|index)-[0-9a-f]{32}\.\w+")
PATH = Annotated[Path, typer.Argument(help="A set of the cache, or a folder of sets.")]
SET = Annotated[Path, typer.Argument(help="A set of the cache.", show_default=False)]


def list_sets(path: PATH = Path("data"), as_json: JSON = False) -> None:
    """List every set of the cache below a folder.

    Example: sightline cache list data
    """
    from sightline.cache import CacheError
    from sightline.cache.record import read_record

    found: list[tuple[Path, SetRecord]] = []
    damaged: list[str] = []
    for folder in sets_below(path, lost=True):
        try:
            found.append((folder, read_record(folder)))
        except CacheError as error:  # still show the others
            damaged.append(str(error))
    if as_json:
        print_json([_about(folder, record) for folder, record in found])
    else:
        _print_sets(found)
    if damaged:
        raise CacheError("\n".join(damaged))


def _print_sets(found: list[tuple[Path, SetRecord]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from sightline.cache.record import FeatureSetRecord

    table = Table("set", "kind", "rows", "failed", "dim", "size", "made by", "weights", box=None)
    for folder, record in found:
        about = _about(folder, record)
        cells = [folder.as_posix(), record.spec.kind, f"{record.rows:,}", f"{record.failed:,}"]
        if isinstance(record, FeatureSetRecord):
            encoder = record.spec.encoder
            untrained = " (untrained weights)" if encoder.untrained else ""
            cells += [str(record.spec.dim), about["size"]]
            imported = f" ({about['provenance']})" if record.provenance.imported else ""
            cells += [encoder.name, f"{encoder.source}{untrained}{imported}"]
        else:
            cells += ["", about["size"], "", ""]
        table.add_row(*map(Text, cells))  # untrusted names, which rich would parse as markup
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def info(
    path: SET,
    captions: Annotated[
        Path | None,
        typer.Option(help="Of a grounding: its captions manifest, to measure their coverage."),
    ] = None,
    as_json: JSON = False,
) -> None:
    """Describe where the rows of a set come from, as a paragraph for a paper's appendix.

    Of a grounding also its statistics: pairs per image, drops by reason.

    Example: sightline cache info data/features/scenes/image/clip
    """
    from pipeline.grounding.stats import statistics
    from pipeline.provenance import licence_note, paragraph
    from sightline.cache.record import read_record

    record = read_record(path)
    if captions is not None and record.spec.kind != "grounding":
        raise typer.BadParameter(
            f"--captions is for a grounding; {path} is of kind {record.spec.kind}"
        )
    licence = licence_note(path)
    if as_json:
        about = _about(path, record)
        if record.spec.kind == "grounding":
            about["statistics"] = statistics(path, captions)
        print_json({**about, "bytes": record.size, "licence": licence})
        return
    print(paragraph(path, record, licence, captions))


def sets_below(path: Path, *, lost: bool = False) -> list[Path]:
    """The sets at or below ``path``; an error if there are none.

    Args:
        lost: include folders with files of a set but no commit file.
    """
    from sightline.cache import CacheError
    from sightline.cache.record import FILE_NAME

    if not path.is_dir():
        raise CacheError(f"{path}: {'a file' if path.exists() else 'no such folder'}; {_EXPECTED}")
    found: list[Path] = []
    for parent, folders, files in os.walk(path, onerror=_raise):
        folders[:] = [name for name in folders if not name.endswith(".run")]
        if FILE_NAME in files or (lost and any(map(_LOST.fullmatch, files))):
            found.append(Path(parent))
    if not found:
        raise CacheError(
            f"{path}: no cache set here or below; create one with `sightline extract`, `ground` or "
            "`tokens`"
        )
    return sorted(found)


def _raise(error: OSError) -> None:
    raise error


def _about(path: Path, record: SetRecord) -> dict[str, Any]:
    from sightline.cache.record import FeatureSetRecord, TableSetRecord

    about: dict[str, Any] = {"path": path.as_posix(), "kind": record.spec.kind}
    if isinstance(record, FeatureSetRecord):
        about |= _about_features(record)
    else:
        assert isinstance(record, TableSetRecord)
        about |= {
            "description": record.spec.description,
            "computed": sorted({str(shard.computed) for shard in record.shards if shard.computed}),
        }
    return about | {
        "rows": record.rows,
        "failed": record.failed,
        "shards": len(record.shards),
        "size": in_bytes(record.size),
        "provenance": str(record.provenance),
        "fingerprint": record.fingerprint,
        "content_digest": record.content_digest,
    }


def _about_features(record: FeatureSetRecord) -> dict[str, Any]:
    spec, encoder = record.spec, record.spec.encoder
    return {
        "encoder": encoder.name,
        "weights": encoder.source,
        "untrained": encoder.untrained,
        "revision": encoder.revision,
        "weights_sha256": encoder.weights_sha256,
        "preprocessing": spec.preprocessing,
        "precision": spec.precision,
        "dtype": spec.dtype,
        "normalised": spec.normalised,
        "dim": spec.dim,
        "computed": sorted({str(shard.computed) for shard in record.shards}),
    }
