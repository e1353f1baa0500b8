"""KDMCSE's format: one JSON object, image name → image_feat, captions, lang_feat (row per caption).

As read by its released trainer (https://github.com/duyngtr16061999/KDMCSE, src/data.py). The file
is gigabytes of digits; this module reads it one image at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.folder import building
from pipeline.interchange.imported import keys_of_rows, spec_of_file, write_manifests, write_rows
from sightline.cache import FeatureSetRecord, as_keys, key_of_text
from sightline.errors import SightlineError

MAX_ENTRY = 64 << 20
"""Maximum characters per image; real ones take about 100,000."""
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Entry:
    """One image: its name, its row float32 [dim], and a row for each caption float32 [k, dim]."""

    name: str
    image: NDArray[np.float32]
    captions: list[str]
    texts: NDArray[np.float32]


def import_kdmcse(
    path: Path, dataset: Path, images: Path, texts: Path, source: str
) -> tuple[FeatureSetRecord, FeatureSetRecord]:
    """Turn KDMCSE's JSON into manifests in ``dataset`` and two feature sets, read in two passes.

    Args:
        images: feature set of the images.
        texts: feature set of the captions.

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
            [key_of_text(text) for _, text in captions],
            (([key_of_text(text) for text in e.captions], e.texts) for e in read_entries(path)),
            [path],
        )
        write_manifests(folder, names, as_keys(image_keys), captions, report, str(path))
        return image_record, text_record


def read_entries(path: Path) -> Iterator[Entry]:
    """The images of the file, with one image in memory at a time.

    Raises:
        SightlineError: as `import_kdmcse`.
    """
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "no such file"
        raise SightlineError(f"{path}: {found}; expected KDMCSE's JSON")
    for name, value in _members(path):
        yield _entry(path, name, value)


def _members(path: Path) -> Iterator[tuple[str, Any]]:
    """Names and values of the JSON object in ``path``, one at a time."""
    decode = json.JSONDecoder(parse_constant=_refuse).raw_decode
    buffer, at, ended = "", 0, False
    with path.open(encoding="utf-8") as file:

        def more() -> None:
            nonlocal buffer, at, ended
            if ended:
                raise SightlineError(f"{path}: truncated, or not JSON")
            if len(buffer) - at > MAX_ENTRY:
                raise SightlineError(f"{path}: one image takes more than {MAX_ENTRY:,} characters")
            try:
                chunk = file.read(_CHUNK)
            except UnicodeDecodeError as error:
                raise SightlineError(f"{path}: not UTF-8 ({error})") from error
            buffer, at, ended = buffer[at:] + chunk, 0, not chunk

        def sign(expected: str) -> str:
            nonlocal at
            while True:
                while at < len(buffer) and buffer[at] in " \t\r\n":
                    at += 1
                if at < len(buffer):
                    break
                more()
            if buffer[at] not in expected:
                raise SightlineError(
                    f"{path}: found {buffer[at]!r} where JSON has "
                    f"{' or '.join(expected)}; expected KDMCSE's file"
                )
            at += 1
            return buffer[at - 1]

        def value() -> Any:
            nonlocal at
            while True:
                try:
                    found, at = decode(buffer, at)
                    return found
                except RecursionError:
                    raise SightlineError(f"{path}: nested too deeply") from None
                except ValueError:
                    more()  # the value may continue past the data read so far

        sign("{")
        if sign('"}') == "}":
            return
        while True:
            at -= 1
            name = value()
            sign(":")
            sign("{")
            at -= 1
            yield name, value()
            if sign(",}") == "}":
                return
            sign('"')


def _entry(path: Path, name: str, value: dict[str, Any]) -> Entry:
    where = f"{path}: image {name[:80]!r}"
    missing = {"image_feat", "captions", "lang_feat"} - value.keys()
    if missing:
        raise SightlineError(f"{where}: lacks {', '.join(sorted(missing))}")
    captions, rows = value["captions"], value["lang_feat"]
    if not (isinstance(captions, list) and all(isinstance(text, str) for text in captions)):
        raise SightlineError(f"{where}: captions are not a list of strings")
    try:
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
    return Entry(name, image, captions, texts)


def _refuse(name: str) -> None:
    raise SightlineError(f"the JSON contains {name}, which is not a number; fix the features")
