"""The images and captions of one split, for retrieval."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.cache import (
    CAPTIONS,
    IMAGES,
    CacheError,
    FeatureSet,
    key_column,
    keys_of_texts,
    read_manifest,
)
from sightline.cache.record import Kind
from sightline.errors import SightlineError


@dataclass(frozen=True)
class RetrievalData:
    """Images in the order of their manifest, each with at least one caption.

    Attributes:
        image_keys: uint8 [n, 32].
        captions: [m], in the order of their manifest.
        image_of: int64 [m], the row of each caption's image.
        warnings: what was left out of the split, and what cannot be told apart.
    """

    image_keys: NDArray[np.uint8]
    captions: tuple[str, ...]
    image_of: NDArray[np.int64]
    warnings: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """SHA-256 (hex) of the keys of images and captions, and of who belongs to whom."""
        parts = (self.image_keys, keys_of_texts(self.captions), self.image_of.astype("<i8"))
        content = hashlib.sha256()
        for part in parts:
            content.update(hashlib.sha256(np.ascontiguousarray(part).tobytes()).digest())
        return content.hexdigest()

    def folds(self, count: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Rows of the images and of the captions of each fold of consecutive images."""
        for images in np.array_split(np.arange(len(self.image_keys)), count):
            inside = (self.image_of >= images[0]) & (self.image_of <= images[-1])
            yield images, np.flatnonzero(inside)


def load_retrieval(folder: Path, split: str, captions_per_image: int) -> RetrievalData:
    """Read the split of a data set that `sightline prepare` wrote.

    Args:
        folder: contains images.parquet and captions.parquet.
        split: as the captions have it; "" for a data set without splits.
        captions_per_image: the first so many of each image are read.

    Raises:
        SightlineError: a manifest is missing or damaged, the split has no captions, or the two
            manifests do not belong together.
    """
    captions_file, images_file = folder / "captions.parquet", folder / "images.parquet"
    captions = read_manifest(captions_file, CAPTIONS)
    images = read_manifest(images_file, IMAGES)
    splits = captions.column("split").to_pylist()
    rows = [row for row, each in enumerate(splits) if each == split]
    if not rows:
        found = ", ".join(f"{name!r} ({n:,})" for name, n in Counter(splits).items()) or "no rows"
        raise SightlineError(
            f"{captions_file}: no caption in the split {split!r}; found {found}: choose another "
            "`split`, or prepare the data set with one"
        )
    columns = (captions.column(name).to_pylist() for name in ("text", "image_id"))
    texts, owners = ([column[row] for row in rows] for column in columns)
    row_of = {name: row for row, name in enumerate(images.column("image_id").to_pylist())}
    require_images(images_file, [name for name in dict.fromkeys(owners) if name not in row_of])
    seen: Counter[str] = Counter()
    kept: list[int] = []
    for row, owner in enumerate(owners):
        seen[owner] += 1
        if seen[owner] <= captions_per_image:
            kept.append(row)
    of_manifest = np.array([row_of[owners[row]] for row in kept], dtype=np.int64)
    image_rows, image_of = np.unique(of_manifest, return_inverse=True)
    keys = key_column(images.column("key"))[image_rows]
    uncaptioned = images.column("split").to_pylist().count(split) - len(image_rows)
    return RetrievalData(
        keys,
        tuple(texts[row] for row in kept),
        image_of.ravel().astype(np.int64),
        tuple(_warnings(folder, split, uncaptioned, len(owners) - len(kept), keys)),
    )


def open_below(
    folder: Path,
    kind: Kind,
    encoder: str,
    of_whom: str,
    dataset: str,
    fingerprint: str | None = None,
) -> FeatureSet:
    """The features of an encoder in the ``folder`` of a data set's features.

    Args:
        of_whom: the model that needs it, for the error.

    Raises:
        SightlineError: no such set, or another fingerprint (says how to make it).
    """
    try:
        return FeatureSet.open(folder / kind / encoder, fingerprint)
    except CacheError as error:
        raise SightlineError(
            f"{error}\n  {of_whom} needs it: `sightline stage {kind}-features {dataset} {encoder}` "
            f"(or `sightline extract {kind}`) makes it."
        ) from error


def note_of_failed(failed: int, of: int, data: Path, features: FeatureSet) -> str:
    """Which images of the data set ``data`` are left out, and why."""
    return f"{failed:,} of {of:,} images of {data}: {features.path} has only an error for them"


def require_images(manifest: Path, absent: Sequence[str]) -> None:
    """Refuse captions of images that their images manifest lacks.

    Raises:
        SightlineError: there are some.
    """
    if absent:
        raise SightlineError(
            f"{manifest}: {len(absent):,} images of the captions are not in it, such as "
            f"{absent[0]!r}; the two manifests must come from one `sightline prepare`"
        )


def _warnings(
    folder: Path, split: str, uncaptioned: int, surplus: int, keys: NDArray[np.uint8]
) -> Iterator[str]:
    where = f"{folder}, split {split!r}"
    if uncaptioned > 0:
        yield f"{where}: {uncaptioned:,} images without captions are left out of retrieval"
    if surplus:
        yield (
            f"{where}: {surplus:,} captions beyond the first `captions` of their images are left "
            "out of retrieval"
        )
    if twins := len(keys) - len(np.unique(keys, axis=0)):
        yield (
            f"{where}: {twins:,} images have the same bytes as another image; they cannot be told "
            "apart, so their captions miss at rank 1"
        )
