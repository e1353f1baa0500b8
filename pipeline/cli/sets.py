"""`sightline cache list` and `info`: the sets of a cache and where they come from."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.cli.options import JSON, print_json

_EXPECTED = "expected a set, or a folder of sets"
_LOST = re.compile(r"(shard|index)-[0-9a-f]{32}\.\w+")
PATH = Annotated[Path, typer.Argument(help="A set of the cache, or a folder of sets.")]
SET = Annotated[Path, typer.Argument(help="A set of the cache.", show_default=False)]


def list_sets(path: PATH = Path("data"), as_json: JSON = False) -> None:
    """List every set of the cache below a folder.

    Example: sightline cache list data
    """
    from pipeline.provenance import about
    from sightline.cache import CacheError
    from sightline.cache.record import read_record

    sets: list[dict[str, Any]] = []
    damaged: list[str] = []
    for folder in sets_below(path, lost=True):
        try:
            sets.append(about(folder, read_record(folder)))
        except CacheError as error:  # still show the others
            damaged.append(str(error))
    if as_json:
        print_json(sets)
    else:
        _print_sets(sets)
    if damaged:
        raise CacheError("\n".join(damaged))


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


def info(
    path: SET,
    data: Annotated[
        Path | None,
        typer.Option(
            help="Of a grounding: its prepared data set, to measure how much of its captions "
            "phrases cover."
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
    from sightline.cache.record import read_record

    record = read_record(path)
    grounding = record.spec.kind == "grounding"
    if data is not None and not grounding:
        raise typer.BadParameter(
            f"{path} is of kind {record.spec.kind}, not a grounding", param_hint="--data"
        )
    facts = provenance.about(path, record)
    lines = {"Set": f"{facts['path']} ({facts['kind']})", **provenance.described(facts)}
    if grounding:
        captions = None if data is None else PreparedDataset.open(data).captions_manifest
        facts["statistics"] = stats.statistics(path, captions)
        lines |= stats.described(facts["statistics"])
    if as_json:
        print_json(facts)
        return
    for name, value in lines.items():
        print(f"{name + ':':21}{value}")


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
