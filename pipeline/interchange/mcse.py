"""MCSE's format: an HDF5 file with one data set, `features` [n, dim], and a text of n captions.

Row i belongs to line i (https://github.com/uds-lsv/MCSE, src/data.py), which silently stops at the
shorter of the two; here a length mismatch is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.folder import building
from pipeline.datasets.source import PrepareReport
from pipeline.interchange.imported import keys_of_rows, spec_of_file, write_manifests, write_rows
from sightline.cache import (
    CAPTIONS,
    IMAGES,
    FeatureSet,
    FeatureSetRecord,
    as_keys,
    key_column,
    read_manifest,
)
from sightline.errors import SightlineError
from sightline.output import check_output_file, replacing_file
from sightline.outside import read_lines

FEATURES = "features"
_BLOCK = 4096


def import_mcse(
    features: Path, texts: Path, dataset: Path, out: Path, source: str
) -> tuple[FeatureSetRecord, PrepareReport]:
    """Turn MCSE's two files into manifests in ``dataset`` and the feature set ``out``.

    Raises:
        SightlineError: the numbers of lines and rows differ, a line is empty, or the file has no
            array of numbers.
    """
    captions = read_lines(texts)
    empty = [number for number, text in enumerate(captions, 1) if not text.strip()]
    if empty:
        raise SightlineError(f"{texts}: line {empty[0]} is empty; row {empty[0]} has no caption")
    with building("mcse", dataset, [features, texts]) as (folder, report):
        with _opened(features) as rows:
            if len(rows) != len(captions):
                raise SightlineError(
                    f"{texts}: {len(captions):,} lines, but {features} has {len(rows):,} rows; "
                    "row i belongs to line i, so one of them is the wrong file or truncated"
                )
            keys = [key for block in _blocks(features, rows) for key in keys_of_rows(block)]
            first = {key: number for number, key in reversed(list(enumerate(keys, 1)))}
            names = {key: f"line-{number:07d}" for key, number in first.items()}
            spec = spec_of_file(features, "mcse", "image", rows.shape[1], source)
            blocks = ((keys_of_rows(block), block) for block in _blocks(features, rows))
            record = write_rows(out, spec, list(names), blocks, [features, texts])
        pairs = [(names[key], text) for key, text in zip(keys, captions, strict=True)]
        images = sorted(names, key=lambda key: names[key])
        write_manifests(
            folder, [names[key] for key in images], as_keys(images), pairs, report, str(features)
        )
    return record, report


def export_mcse(dataset: Path, features: Path, out: Path, texts: Path, split: str) -> int:
    """Write every caption of a split and its image's row in MCSE's format; returns their number.

    Skips captions whose image has no row (it failed, or was not extracted).

    Raises:
        SightlineError: no caption of this split has a row.
    """
    inputs = [dataset, features]
    for path in (out, texts):
        check_output_file(path, None, inputs)
    feature_set = FeatureSet.open(features)
    images = read_manifest(dataset / "images.parquet", IMAGES)
    captions = read_manifest(dataset / "captions.parquet", CAPTIONS)
    rows = feature_set.find(key_column(images["key"]))
    row_of = dict(zip(images["image_id"].to_pylist(), rows.tolist(), strict=True))
    wanted = [
        (text, row_of.get(image_id, -1))
        for text, image_id, own in zip(
            captions["text"].to_pylist(),
            captions["image_id"].to_pylist(),
            captions["split"].to_pylist(),
            strict=True,
        )
        if own == split
    ]
    wanted = [(" ".join(text.split()), row) for text, row in wanted if row >= 0]
    if not wanted:
        raise SightlineError(
            f"{dataset}: no caption of split {split!r} has a row in {features}; "
            "choose another split, or the feature set of this data set's images"
        )
    numbers = np.array([row for _, row in wanted], dtype=np.int64)
    with replacing_file(out, None, inputs) as part, h5py.File(part, "w") as file:
        data = file.create_dataset(FEATURES, (len(numbers), feature_set.dim), dtype="<f4")
        for start in range(0, len(numbers), _BLOCK):
            data[start : start + _BLOCK] = feature_set.gather(numbers[start : start + _BLOCK])
    with replacing_file(texts, None, inputs) as part:
        part.write_bytes("".join(f"{text}\n" for text, _ in wanted).encode())
    return len(wanted)


@contextmanager
def _opened(path: Path) -> Iterator[h5py.Dataset]:
    """The rows of MCSE's HDF5 file."""
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise SightlineError(
            f"{path}: cannot be read; expected MCSE's HDF5 file ({error})"
        ) from error
    with file:
        data = file.get(FEATURES)
        if not isinstance(data, h5py.Dataset):
            raise SightlineError(f"{path}: /{FEATURES} is missing or not a data set")
        if data.ndim != 2 or data.dtype.kind != "f" or not all(data.shape):
            raise SightlineError(
                f"{path}: /{FEATURES} is {data.dtype} {data.shape}, expected floats [n, dim]"
            )
        yield data


def _blocks(path: Path, rows: h5py.Dataset) -> Iterator[NDArray[np.float32]]:
    for start in range(0, len(rows), _BLOCK):
        try:
            yield np.asarray(rows[start : start + _BLOCK], dtype=np.float32)
        except OSError as error:
            raise SightlineError(f"{path}: damaged or truncated ({error}); get it again") from error
