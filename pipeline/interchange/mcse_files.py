"""The released files of MCSE and KDMCSE, read by their trainers, as data sets and feature sets.

- MCSE (https://github.com/uds-lsv/MCSE, src/data.py): an HDF5 file with one data set, `features`
  [n, dim], and a text of n captions. Row i belongs to line i; its reader silently stops at the
  shorter of the two, here a length mismatch is an error.
- KDMCSE (https://github.com/duyngtr16061999/KDMCSE, src/data.py): one JSON object, image name →
  image_feat, captions, lang_feat (row per caption). The file is gigabytes of digits; `ijson` reads
  it one image at a time.

Neither says which images it describes, so an image's key is the SHA-256 of its row (little-endian
float32): equal rows count as one image, as equal bytes do elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.datasets.manifests import ManifestRows, cleaned, write_captioned
from pipeline.datasets.prepared_output import building
from pipeline.datasets.source import PrepareReport
from pipeline.interchange.columns import arrays_in
from pipeline.interchange.import_rows import foreign_spec, write_rows
from sightline.cache import FeatureSetRecord, key_of_bytes, keys_of_texts
from sightline.cache.keys import Keys
from sightline.errors import SightlineError, first_lines
from sightline.user_files import read_lines

_FEATURES = "features"
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
        pairs = ((images[key], text) for key, text in zip(keys, captions, strict=True))
        _write_manifests(folder, images.items(), pairs, report, features)
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


def import_kdmcse(
    path: Path, dataset: Path, images: Path, texts: Path, source: str
) -> tuple[FeatureSetRecord, FeatureSetRecord, PrepareReport]:
    """Turn KDMCSE's JSON into manifests in ``dataset`` and two feature sets, read in three passes.

    Args:
        images: feature set of the images.
        texts: feature set of the captions.

    Returns:
        The records of both sets, and the report of the manifests.

    Raises:
        SightlineError: not JSON of this form, different numbers of captions and rows, or rows of
            different lengths; names the image.
    """
    with building("kdmcse", dataset, [path]) as (folder, report):
        keys: dict[str, bytes] = {}  # id → key
        captions: list[tuple[str, str]] = []
        image_dim = text_dim = 0
        for name, image, sentences, rows in read_entries(path):
            if name in keys:
                raise SightlineError(f"{path}: lists the image {name[:80]!r} twice")
            keys[name] = _keys_of_rows(image)[0]
            captions += [(name, text) for text in sentences]
            image_dim, text_dim = image_dim or image.shape[1], text_dim or rows.shape[1]
            if (image.shape[1], rows.shape[1]) != (image_dim, text_dim):
                raise SightlineError(
                    f"{path}: image {name!r}: row lengths differ from earlier images"
                )
        if not keys:
            raise SightlineError(f"{path}: contains no images")
        spec = foreign_spec("kdmcse", [path], "image", image_dim, source)
        blocks = ((_keys_of_rows(entry.image), entry.image) for entry in read_entries(path))
        image_record = write_rows(images, spec, list(keys.values()), blocks, [path])
        spec = foreign_spec("kdmcse", [path], "text", text_dim, source)
        blocks = ((_keys_of_captions(entry.captions), entry.texts) for entry in read_entries(path))
        text_keys = _keys_of_captions([text for _, text in captions])
        text_record = write_rows(texts, spec, text_keys, blocks, [path])
        pairs = ((key, name) for name, key in keys.items())
        _write_manifests(folder, pairs, captions, report, path)
        return image_record, text_record, report


class Entry(NamedTuple):
    """One image: name, its row float32 [1, dim], and a row for each caption float32 [k, dim]."""

    name: str
    image: NDArray[np.float32]
    captions: list[str]
    texts: NDArray[np.float32]


def read_entries(path: Path) -> Iterator[Entry]:
    """The images of KDMCSE's file, with one of them in memory at a time."""
    import ijson

    try:
        with path.open("rb") as file:
            for name, value in ijson.kvitems(file, "", use_float=True):
                yield _entry(f"{path}: image {name[:80]!r}", name, value)
    except OSError as error:
        raise SightlineError(
            f"{path}: cannot be read ({error.strerror}); expected KDMCSE's JSON"
        ) from error
    except (ijson.JSONError, ValueError) as error:
        raise SightlineError(
            f"{path}: damaged, or not JSON ({first_lines(error, 1)}); expected KDMCSE's file"
        ) from error


def _entry(where: str, name: str, value: Any) -> Entry:
    fields = ("captions", "image_feat", "lang_feat")
    entry = value if isinstance(value, dict) else {}
    if missing := [field for field in fields if field not in entry]:
        raise SightlineError(f"{where}: lacks {', '.join(missing)}")
    captions = entry["captions"]
    if not (isinstance(captions, list) and all(isinstance(text, str) for text in captions)):
        raise SightlineError(f"{where}: captions are not a list of strings")
    try:
        with np.errstate(over="ignore"):  # what is too large is refused below
            image = np.asarray([entry["image_feat"]], dtype=np.float32)
            texts = np.asarray(entry["lang_feat"], dtype=np.float32)
    except (ValueError, TypeError, OverflowError) as error:
        raise SightlineError(f"{where}: features are not rows of numbers ({error})") from error
    if image.ndim != 2 or not image.size:
        raise SightlineError(f"{where}: image_feat has shape {image.shape[1:]}, expected one row")
    if texts.ndim != 2 or len(texts) != len(captions) or not texts.size:
        raise SightlineError(
            f"{where}: {len(captions)} captions, but lang_feat has shape {texts.shape}; "
            "expected one row per caption"
        )
    if not (np.isfinite(image).all() and np.isfinite(texts).all()):
        raise SightlineError(f"{where}: a feature is not a finite number; fix the features")
    return Entry(name, image, captions, texts)


def _keys_of_rows(rows: NDArray[np.float32]) -> list[bytes]:
    """The key of each row [n, dim], which represents the image it was computed from."""
    return [key_of_bytes(row.astype("<f4").tobytes()) for row in rows]


def _keys_of_captions(texts: Sequence[str]) -> Keys:
    """The key of each text as manifests hold it: uint8 [n, 32]."""
    return keys_of_texts(cleaned(pa.array(texts, pa.string())).to_pylist())


def _write_manifests(
    folder: Path,
    images: Iterable[tuple[bytes, str]],
    captions: Iterable[tuple[str, str]],
    report: PrepareReport,
    where: Path,
) -> None:
    """Manifests of images represented only by their rows.

    Args:
        images: (key, id) of each.
        captions: (id of its image, text) of each.
    """
    rows = ManifestRows()
    for key, image_id in images:
        rows.add_known(image_id, "", key, (0, 0), "train")
    numbers: Counter[str] = Counter()
    for image_id, text in captions:
        rows.add_caption(image_id, numbers[image_id], text, "train")
        numbers[image_id] += 1
    write_captioned(folder, *rows.tables(), report, where=str(where))
