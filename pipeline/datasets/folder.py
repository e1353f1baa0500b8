"""The output folder of `prepare`: manifests, and the record that says which files are ours."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline.cache.errors import CacheError
from pipeline.cache.manifest import IMAGES, SENTENCES, read_manifest
from pipeline.datasets.source import RECORD, SCHEMA, DatasetError, PrepareReport
from sightline.output import Output, json_record

MANIFESTS = ("images.parquet", "captions.parquet", "sentences.parquet")
"""What every data set consists of; a data set of sentences has no rows in the first two."""
_IDENTITY = {"images.parquet": (IMAGES, "key"), "sentences.parquet": (SENTENCES, "text")}


@contextmanager
def building(
    kind: str, out: Path, inputs: Sequence[Path], writes: Sequence[str] = MANIFESTS
) -> Iterator[tuple[Path, PrepareReport]]:
    """A new folder to fill, whose files replace those of an earlier `prepare` in ``out``.

    Files that `prepare` did not write stay as they are (`sightline.output`).

    Args:
        kind: of the data set; one of another kind is not replaced, and neither is one that has no
            image (or sentence) in common with the new one.
        inputs: what the data set is made from; without any it is drawn from parameters alone.
        writes: names that are known beforehand, so that a clash is found before the work is done.

    Raises:
        DatasetError: another data set is there.
        SightlineError: as `sightline.output.Output`.
    """
    report = PrepareReport(kind)
    with Output(out, RECORD, json_record(SCHEMA), inputs) as output:
        found = _kind_of(output)
        if found not in (None, kind):
            raise DatasetError(
                f"{out}: holds a data set of kind {found}, and this is one of kind {kind}; name "
                "another folder, or delete that data set first"
            )
        output.check(writes)
        with output.scratch() as folder:
            yield folder, report
            if inputs:
                _refuse_another(output, folder, out)
            output.publish(folder, report.body())


def _kind_of(output: Output) -> str | None:
    path = output.folder / RECORD
    return json.loads(path.read_bytes()).get("kind") if path.is_file() else None


def _refuse_another(output: Output, made: Path, out: Path) -> None:
    """Data sets of one kind are the same when they share an image, or a sentence."""
    for name, (schema, column) in _IDENTITY.items():
        if not (made / name).is_file():
            continue
        if name not in output.owned or not (output.folder / name).is_file():
            return
        try:
            old = set(read_manifest(output.folder / name, schema)[column].to_pylist())
        except CacheError:
            return  # damaged, or of an earlier version: it is to be replaced
        new = set(read_manifest(made / name, schema)[column].to_pylist())
        if not old:
            continue
        if old.isdisjoint(new):
            what = name.removesuffix(".parquet")
            raise DatasetError(
                f"{out}: holds another data set: none of its {len(old):,} {what} is among the "
                f"{len(new):,} new ones; name another folder, or delete that data set first"
            )
        return
