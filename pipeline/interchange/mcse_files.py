"""The released files of MCSE, read by its trainer, as a data set and a feature set.

https://github.com/uds-lsv/MCSE, src/data.py: an HDF5 file with one data set, `features` [n, dim],
and a text of n captions. Row i belongs to line i; its reader silently stops at the shorter of the
two, here a length mismatch is an error.

The files do not say which images they describe, so an image's key is the SHA-256 of its row
(little-endian float32): equal rows count as one image, as equal bytes do elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.manifests import ManifestRows, write_captioned
from pipeline.datasets.prepare import building
from pipeline.datasets.samples import Placed, Sample
from pipeline.datasets.source import PrepareReport
from pipeline.interchange.import_rows import foreign_spec, write_rows
from pipeline.interchange.row_arrays import arrays_in
from sightline.cache import FeatureSpec, SetRecord, key_of_bytes
from sightline.errors import SightlineError
from sightline.user_files import read_lines

_FEATURES = "features"
_BLOCK = 4096


def import_mcse(
    features: Path, texts: Path, dataset: Path, out: Path, source: str
) -> tuple[SetRecord[FeatureSpec], PrepareReport]:
    """Turn MCSE's two files into manifests in ``dataset`` and the feature set ``out``.

    Raises:
        SightlineError: the numbers of lines and rows differ, a line is empty, or the file has no
            array of numbers.
    """
    captions = read_lines(texts)
    empty = [number for number, text in enumerate(captions, 1) if not text.strip()]
    if empty:
        raise SightlineError(f"{texts}: line {empty[0]} is empty; row {empty[0]} has no caption")
    inputs = [features, texts]
    with building("mcse", dataset, inputs) as (folder, report), _hdf5(features) as rows:
        if len(rows) != len(captions):
            raise SightlineError(
                f"{texts}: {len(captions):,} lines, but {features} has {len(rows):,} rows; "
                "row i belongs to line i, so one of them is the wrong file or truncated"
            )
        keys = [key for block in _blocks(features, rows) for key in _keys_of_rows(block)]
        images: dict[bytes, str] = {}  # key → id: the first line of the row
        for number, key in enumerate(keys, 1):
            images.setdefault(key, f"line-{number:07d}")
        spec = foreign_spec("mcse", [features], "image", rows.shape[1], source)
        blocks = ((_keys_of_rows(block), block) for block in _blocks(features, rows))
        record = write_rows(out, spec, list(images), blocks, inputs)
        manifests, numbers = ManifestRows(), Counter[str]()
        for key, image_id in images.items():
            manifests.add_image(image_id, Placed("", key, (0, 0)), "train")
        for line, (key, text) in enumerate(zip(keys, captions, strict=True), start=1):
            image, sample = images[key], Sample(line, images[key], (text,))
            numbers[image] = manifests.add_captions(image, sample, "train", numbers[image])
        write_captioned(folder, *manifests.tables(), report, where=str(features))
    return record, report


@contextmanager
def _hdf5(path: Path) -> Iterator[h5py.Dataset]:
    """The rows of MCSE's HDF5 file."""
    with arrays_in(path, "MCSE's HDF5 file", ("hdf5",)) as arrays:
        data = arrays.get(_FEATURES)
        if data is None:
            raise SightlineError(f"{path}: /{_FEATURES} is missing or not a data set")
        if len(data.shape) != 2 or "float" not in data.dtype or not all(data.shape):
            raise SightlineError(
                f"{path}: /{_FEATURES} is {data.dtype} {data.shape}, expected floats [n, dim]"
            )
        yield data.load()


def _blocks(path: Path, rows: h5py.Dataset) -> Iterator[NDArray[np.float32]]:
    for start in range(0, len(rows), _BLOCK):
        try:
            yield np.asarray(rows[start : start + _BLOCK], dtype=np.float32)
        except OSError as error:
            raise SightlineError(f"{path}: damaged or truncated ({error}); get it again") from error


def _keys_of_rows(rows: NDArray[np.float32]) -> list[bytes]:
    """The key of each row [n, dim], which represents the image it was computed from."""
    return [key_of_bytes(row.astype("<f4").tobytes()) for row in rows]
