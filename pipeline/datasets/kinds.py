"""The kinds of source there are, one line each; a new one is a new module and a line here."""

from __future__ import annotations

import difflib
import importlib
from pathlib import Path

from pipeline.datasets.folder import MANIFESTS, building
from pipeline.datasets.source import DatasetError, PrepareReport, Progress, Source

KINDS: dict[str, tuple[str, str]] = {
    # kind: (module with a function `prepare`, its parameters); a module may name what it `WRITES`
    "scenes": ("pipeline.datasets.scenes", "ScenesSource"),
    "pairs": ("pipeline.datasets.pairs", "PairsSource"),
    "flickr30k": ("pipeline.datasets.flickr30k", "Flickr30kSource"),
    "coco": ("pipeline.datasets.coco", "CocoSource"),
    "sentences": ("pipeline.datasets.sentences", "SentencesSource"),
    "joined": ("pipeline.datasets.joined", "JoinedSource"),
}


def source_type(kind: str) -> type[Source]:
    """The pydantic model of a kind's parameters.

    Raises:
        DatasetError: there is no such kind; the message lists what there is.
    """
    module, name = _entry(kind)
    return getattr(importlib.import_module(module), name)


def prepare(
    kind: str, source: Source, out: Path, progress: Progress | None = None
) -> PrepareReport:
    """Turn ``source`` into manifests in the folder ``out``; see `pipeline.datasets.folder`.

    Raises:
        DatasetError: there is no such kind, the source cannot be used, or ``out`` holds another
            data set.
        SightlineError: ``out`` holds files of somebody else under the names of manifests, or
            holds an input.
    """
    module = importlib.import_module(_entry(kind)[0])
    writes = getattr(module, "WRITES", MANIFESTS)
    with building(kind, Path(out), source.inputs(), writes) as (folder, report):
        module.prepare(source, folder, report, progress)
    return report


def _entry(kind: str) -> tuple[str, str]:
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise DatasetError(f"unknown kind of data set {kind!r}{hint}; there are {', '.join(KINDS)}")
    return KINDS[kind]
