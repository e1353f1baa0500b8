"""The available kinds of data set; a new one is a new module and a line here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pipeline.datasets.folder import MANIFESTS, building
from pipeline.datasets.source import DatasetError, PrepareReport, Progress, Source
from sightline.cache.prepared import IMAGE_ROOT, LICENCE, PreparedDataset
from sightline.settings import Registry, explain

KINDS = Registry(
    "kind of data set",
    "sightline.datasets",
    {
        "scenes": "pipeline.datasets.scenes:ScenesSource",
        "pairs": "pipeline.datasets.pairs:PairsSource",
        "flickr30k": "pipeline.datasets.pairs:Flickr30kSource",
        "coco": "pipeline.datasets.pairs:CocoSource",
        "webdataset": "pipeline.datasets.webdataset:WebDatasetSource",
        "huggingface": "pipeline.datasets.huggingface:HuggingFaceSource",
        "sentences": "pipeline.datasets.sentences:SentencesSource",
        "joined": "pipeline.datasets.joined:JoinedSource",
    },
)
"""Kind → its parameters, a `Source`; its module has a `prepare` function and may have `WRITES`."""


def source_type(kind: str) -> type[Source]:
    """The pydantic model of a kind's parameters.

    Raises:
        SightlineError: there is no such kind (lists the available ones), or a kind from another
            package cannot be used.
    """
    return KINDS.subclass(kind, Source)


def prepare(
    kind: str, source: Source, out: Path, progress: Progress | None = None
) -> PrepareReport:
    """Turn ``source`` into manifests in the folder ``out``; see `pipeline.datasets.folder`.

    Raises:
        DatasetError: the source cannot be used, or ``out`` holds a different data set.
        SightlineError: there is no such kind, ``out`` holds foreign files with the names of
            manifests, or contains an input.
    """
    fill = KINDS.load(kind, "prepare")
    writes = KINDS.load(kind, "WRITES", MANIFESTS)
    with building(kind, Path(out), source.inputs(), writes) as (folder, report):
        report.facts[LICENCE] = source.licence
        fill(source, folder, report, progress)
        if source.has_pairs and not (folder / "images").is_dir():
            report.facts[IMAGE_ROOT] = os.path.relpath(source.image_root(folder), out)
    return report


def prepare_dataset(
    kind: str, out: Path | str, *, progress: Progress | None = None, **parameters: Any
) -> PreparedDataset:
    """Turn a data set into manifests in the folder ``out``.

    Args:
        kind: `pairs`, `flickr30k`, `coco`, `webdataset`, `huggingface`, `sentences`, `joined`,
            `scenes`, or a kind of another package.
        parameters: as under `datasets` in params.yaml, such as ``images`` and ``captions``.

    Raises:
        DatasetError: an unknown or invalid parameter, or data that cannot be used.
        SightlineError: there is no such kind, or ``out`` may not be written to.
    """
    known = source_type(kind)
    try:
        source = known.model_validate(parameters)
    except ValidationError as error:
        raise DatasetError(f"{kind}: {'; '.join(explain(error))}") from error
    prepare(kind, source, Path(out), progress)
    return PreparedDataset.open(out)
