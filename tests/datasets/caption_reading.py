"""Captions as a set of pairs reads them from one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pipeline.datasets.caption_files import of_captions
from pipeline.datasets.caption_images import NamedCaptions
from pipeline.datasets.caption_tables import chosen_splits
from pipeline.datasets.samples import of_coco, of_karpathy
from pipeline.datasets.source import PrepareReport
from sightline.tables.outside_columns import Wanted, wanted_of_captions


def read_captions(
    path: Path,
    wanted: Mapping[str, Wanted] | None = None,
    splits: Mapping[str, Sequence[str]] | None = None,
) -> SimpleNamespace:
    """The captions in columns, with the report's problems, and as `remarks` its guesses."""
    report = PrepareReport("pairs")
    samples = of_captions(path, wanted or wanted_of_captions(), report, chosen_splits(splits))
    return _in_columns(samples, path, report)


def read_karpathy(path: Path) -> SimpleNamespace:
    report = PrepareReport("pairs")
    return _in_columns(of_karpathy(path, report), path, report)


def read_coco(path: Path) -> SimpleNamespace:
    report = PrepareReport("coco")
    return _in_columns(of_coco({"train": path}, report)[0], path, report)


def _in_columns(samples: Any, path: Path, report: PrepareReport) -> SimpleNamespace:
    named = NamedCaptions.of(samples, str(path), report)
    about = {"remarks": report.guesses, "problems": report.problems, "counts": report.counts}
    return SimpleNamespace(**vars(named), **about)
