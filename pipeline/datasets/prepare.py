"""`prepare`: a data source becomes manifests in a folder, with a record of what Sightline wrote.

A README.md beside them lets `datasets` open the manifests, and hubs show them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.datasets.source import MANIFESTS, DatasetError, PrepareReport, Progress, Source
from sightline.cache.file_memory import FileMemory
from sightline.cache.manifest import (
    CAPTIONS,
    IMAGES,
    SENTENCES,
    count_rows,
    in_file,
    read_manifest,
    read_schema,
)
from sightline.cache.prepared import IMAGE_ROOT, LICENCE, RECORD, SCHEMA, PreparedDataset
from sightline.errors import CacheError
from sightline.files.output import REMEMBERED, Output, json_record
from sightline.files.places import here, is_url, shown
from sightline.plugins import wrong
from sightline.settings import explain

_SCHEMAS = dict(zip(MANIFESTS, (IMAGES, CAPTIONS, SENTENCES), strict=True))
_IDENTITY = {"images.parquet": (IMAGES, "key"), "sentences.parquet": (SENTENCES, "text")}

_CARD = "README.md"
_OURS = "# Written by `sightline prepare`, which replaces this file while it has this line."
_TABLES = ("captions", "sentences", "images", "phrases")
"""The first that has rows is the default."""
_TEXT = """\
---
{ours}
configs:
{configs}---

# A data set of kind {kind}

One configuration for each manifest, with all its rows in the split `train`: {counts}.

```python
from datasets import load_dataset

{first} = load_dataset("path/to/this/folder", "{first}", split="train")
```

{images}Licence of the data: {licence}.
"""
_IMAGES = """\
The column `split` has the splits of the data. A `key` is the SHA-256 of an image's bytes, as 32
bytes. """
_CONFIG = """\
- config_name: {name}
{default}  data_files:
  - split: train
    path: {name}.parquet
"""


def prepare(
    source: Source, out: Path, progress: Progress | None = None, *, verify: bool = False
) -> PrepareReport:
    """Turn ``source`` into manifests in the folder ``out``.

    Images and tars that an earlier call read, and that have not changed since by size, modification
    time and inode, are not read again.

    Args:
        verify: read all of them again.

    Raises:
        DatasetError: the source cannot be used, or ``out`` holds a different data set.
        SightlineError: ``out`` holds foreign files with the names of manifests, or contains an
            input.
    """
    inputs = source.inputs()
    with building(source.kind, out, inputs, source.writes, verify=verify) as (folder, report):
        report.facts[LICENCE] = source.licence
        source.prepare(folder, report, progress)
        if missing := [name for name in MANIFESTS if not (folder / name).is_file()]:
            raise wrong(source, "files that prepare did not write", missing, "every manifest")
        for name, schema in _SCHEMAS.items():
            columns = dict(zip(schema.names, in_file(schema).types, strict=True))
            file_schema = read_schema(folder / name)
            if dict(zip(file_schema.names, file_schema.types, strict=True)) != columns:
                raise wrong(source, f"columns of {name}", file_schema.names, f"{columns}")
        if source.has_pairs and not (folder / "images").is_dir():
            root = source.image_root(folder)
            report.facts[IMAGE_ROOT] = shown(root) if is_url(root) else _path_from(out, Path(root))
    return report


def _path_from(out: Path, root: Path) -> str:
    """The path to a folder of images, also if links lead to ``out``."""
    path = os.path.relpath(root, out)
    if (out / path).resolve() == root.resolve():
        return path
    return os.path.relpath(root.resolve(), out.resolve())


def prepare_dataset(
    kind: str,
    out: Path | str,
    *,
    progress: Progress | None = None,
    verify: bool = False,
    **parameters: Any,
) -> PreparedDataset:
    """Turn a data set into manifests in the folder ``out``.

    Args:
        kind: `pairs`, `flickr30k`, `coco`, `webdataset`, `huggingface`, `sentences`, `joined`,
            `scenes`, or a kind of another package.
        verify: read every file again, as in `prepare`.
        parameters: as under `datasets` in params.yaml, such as ``images`` and ``captions``.

    Raises:
        DatasetError: an unknown kind, an unknown or invalid parameter, or data that cannot be used.
        SightlineError: ``out`` may not be written to.
    """
    try:
        source = Source.model_validate({"kind": kind, **parameters})
    except ValidationError as error:
        raise DatasetError(f"{kind}: {'; '.join(explain(error))}") from error
    prepare(source, Path(out), progress, verify=verify)
    return PreparedDataset.open(out)


@contextmanager
def building(
    kind: str,
    out: Path,
    inputs: Sequence[Path | str],
    writes: Sequence[str] = MANIFESTS,
    *,
    verify: bool = False,
) -> Iterator[tuple[Path, PrepareReport]]:
    """A new folder to fill; its files replace those of an earlier `prepare` in ``out``.

    Files that `prepare` did not write are left alone (`sightline.files.output`).

    Args:
        kind: kind of the data set; a data set of a different kind is not replaced, nor is one
            that shares no image (or sentence) with the new one.
        inputs: inputs of the data set, or their URLs; empty if it is generated from parameters
            alone.
        writes: names known in advance, so that a clash is found before the work starts.
        verify: as in `prepare`; what is read is remembered in the run folder, also of a run that
            fails or is stopped.

    Raises:
        DatasetError: a different data set is there.
        SightlineError: as in `sightline.files.output.Output`.
    """
    report = PrepareReport(kind)
    with Output(out, RECORD, json_record(SCHEMA), here(*inputs)) as output:
        record = output.folder / RECORD
        stored = json.loads(record.read_bytes()).get("kind") if record.is_file() else None
        if stored not in (None, kind):
            raise DatasetError(
                f"{out}: holds a data set of kind {stored}, but this is one of kind {kind}; choose "
                "another folder, or delete that data set first"
            )
        output.check(writes)
        report.memory = FileMemory(output.run_folder / REMEMBERED, again=verify)
        with output.scratch() as folder:
            try:
                yield folder, report
            finally:
                report.memory.save()
            if inputs:
                _refuse_another(output, folder, out)
            _write_card(output, folder, report)
            output.publish(folder, report.body())


def _refuse_another(output: Output, folder: Path, out: Path) -> None:
    """Data sets of one kind count as the same if they share an image or a sentence."""
    for name, (schema, column) in _IDENTITY.items():
        if not (folder / name).is_file():
            continue
        if name not in output.owned or not (output.folder / name).is_file():
            return
        try:
            old = set(read_manifest(output.folder / name, schema)[column].to_pylist())
        except CacheError:
            return  # damaged, or of an earlier version: replace it
        new = set(read_manifest(folder / name, schema)[column].to_pylist())
        if not old:
            continue
        if old.isdisjoint(new):
            unit = name.removesuffix(".parquet")
            raise DatasetError(
                f"{out}: holds a different data set: none of its {len(old):,} {unit} is among the "
                f"{len(new):,} new ones; choose another folder, or delete that data set first"
            )
        return


def _write_card(output: Output, folder: Path, report: PrepareReport) -> None:
    """Write the card of the manifests in ``folder``, unless one of the user's is in ``output``."""
    path = output.folder / _CARD
    if (folder / _CARD).exists():
        return  # the source has written its own
    if os.path.lexists(path) and not (_CARD in output.owned and _is_ours(path)):
        output.owned.discard(_CARD)
        return
    counts = {
        name: count_rows(file) for name in _TABLES if (file := folder / f"{name}.parquet").is_file()
    }
    names = [name for name, rows in counts.items() if rows]
    if not names:
        return
    configs = (
        _CONFIG.format(name=name, default="" if i else "  default: true\n")
        for i, name in enumerate(names)
    )
    text = _TEXT.format(
        ours=_OURS,
        configs="".join(configs),
        kind=report.kind,
        counts=", ".join(f"{counts[name]:,} {name}" for name in names),
        first=names[0],
        images=_IMAGES if "images" in names else "",
        licence=report.facts.get(LICENCE, "not known"),
    )
    (folder / _CARD).write_text(text, "utf-8")


def _is_ours(path: Path) -> bool:
    return not path.is_file() or _OURS.encode() in path.read_bytes()
