"""KDMCSE's format: one JSON object, image name → image_feat, captions, lang_feat (row per caption).

As read by its released trainer (https://github.com/duyngtr16061999/KDMCSE, src/data.py). The file
is gigabytes of digits; `ijson` reads it one image at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.folder import building
from pipeline.datasets.source import PrepareReport
from pipeline.interchange.imported import (
    keys_of_captions,
    keys_of_rows,
    spec_of_file,
    write_manifests,
    write_rows,
)
from sightline.cache import FeatureSetRecord, as_keys
from sightline.errors import SightlineError, first_lines


@dataclass(frozen=True)
class Entry:
    """One image: its name, its row float32 [dim], and a row for each caption float32 [k, dim]."""

    name: str
    image: NDArray[np.float32]
    captions: list[str]
    texts: NDArray[np.float32]


def import_kdmcse(
    path: Path, dataset: Path, images: Path, texts: Path, source: str
) -> tuple[FeatureSetRecord, FeatureSetRecord, PrepareReport]:
    """Turn KDMCSE's JSON into manifests in ``dataset`` and two feature sets, read in two passes.

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
        image_keys: list[bytes] = []
        names: list[str] = []
        captions: list[tuple[str, str]] = []
        dims: set[tuple[int, int]] = set()
        for entry in read_entries(path):
            names.append(entry.name)
            image_keys += keys_of_rows(entry.image[None])
            captions += [(entry.name, text) for text in entry.captions]
            dims.add((len(entry.image), entry.texts.shape[1]))
            if len(dims) > 1:
                raise SightlineError(
                    f"{path}: image {entry.name!r}: row lengths differ from earlier images"
                )
        if not names:
            raise SightlineError(f"{path}: contains no images")
        if len(set(names)) != len(names):
            raise SightlineError(f"{path}: lists an image twice")
        (image_dim, text_dim) = dims.pop()
        image_record = write_rows(
            images,
            spec_of_file(path, "kdmcse", "image", image_dim, source),
            image_keys,
            ((keys_of_rows(each.image[None]), each.image[None]) for each in read_entries(path)),
            [path],
        )
        text_record = write_rows(
            texts,
            spec_of_file(path, "kdmcse", "text", text_dim, source),
            keys_of_captions([text for _, text in captions]),
            ((keys_of_captions(each.captions), each.texts) for each in read_entries(path)),
            [path],
        )
        write_manifests(folder, names, as_keys(image_keys), captions, report, str(path))
        return image_record, text_record, report


def read_entries(path: Path) -> Iterator[Entry]:
    """The images of the file, with one image in memory at a time.

    Raises:
        SightlineError: as `import_kdmcse`.
    """
    import ijson

    try:
        with path.open("rb") as file:
            for name, value in ijson.kvitems(file, "", use_float=True):
                yield _entry(path, name, value)
    except OSError as error:
        raise SightlineError(
            f"{path}: cannot be read ({error.strerror}); expected KDMCSE's JSON"
        ) from error
    except (ijson.JSONError, ValueError) as error:
        raise SightlineError(
            f"{path}: damaged, or not JSON ({first_lines(error, 1)}); expected KDMCSE's file"
        ) from error


def _entry(path: Path, name: str, value: Any) -> Entry:
    where = f"{path}: image {name[:80]!r}"
    missing = {"image_feat", "captions", "lang_feat"} - (
        value.keys() if isinstance(value, dict) else set()
    )
    if missing:
        raise SightlineError(f"{where}: lacks {', '.join(sorted(missing))}")
    captions, rows = value["captions"], value["lang_feat"]
    if not (isinstance(captions, list) and all(isinstance(text, str) for text in captions)):
        raise SightlineError(f"{where}: captions are not a list of strings")
    try:
        with np.errstate(over="ignore"):  # what is too large is refused below
            image = np.asarray(value["image_feat"], dtype=np.float32)
            texts = np.asarray(rows, dtype=np.float32)
    except (ValueError, TypeError, OverflowError) as error:
        raise SightlineError(f"{where}: features are not rows of numbers ({error})") from error
    if image.ndim != 1 or not len(image):
        raise SightlineError(f"{where}: image_feat has shape {image.shape}, expected one row")
    if texts.ndim != 2 or len(texts) != len(captions) or not texts.size:
        raise SightlineError(
            f"{where}: {len(captions)} captions, but lang_feat has shape {texts.shape}; "
            "expected one row per caption"
        )
    if not (np.isfinite(image).all() and np.isfinite(texts).all()):
        raise SightlineError(f"{where}: a feature is not a finite number; fix the features")
    return Entry(name, image, captions, texts)
