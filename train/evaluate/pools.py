"""The captions and images of a data set among which models look, and the images' features."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from sightline.cache import CAPTIONS, IMAGES, CacheError, FeatureSet
from sightline.cache.manifest import read_split
from sightline.cache.record import FILE_NAME, Kind, read_record
from sightline.errors import SightlineError
from sightline.tables.outside_tables import read_sentence_lines
from train.records import FeatureUse


@dataclass(frozen=True)
class CaptionPool:
    """Distinct texts in the order of their first caption.

    Attributes:
        texts: n distinct captions.
        ids: of each text, the ids of the captions that read so.
        images: of each text, the ids of the images that it describes.
    """

    texts: tuple[str, ...]
    ids: tuple[tuple[str, ...], ...]
    images: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Text → its row."""
        return {text: row for row, text in enumerate(self.texts)}

    def images_of(self, text: str) -> tuple[str, ...]:
        """Images that a caption of this text describes; empty if there is no such caption."""
        row = self.row_of.get(text)
        return () if row is None else self.images[row]

    def captions_of_images(self) -> dict[str, str]:
        """Image id → one of its captions, the first in the order here."""
        texts = zip(reversed(self.texts), reversed(self.images), strict=True)
        return {image: text for text, images in texts for image in images}

    def sample(self, count: int, seed: int) -> list[str]:
        """At most ``count`` texts of different images, drawn at random, in their order here."""
        used, rows = set[str](), list[int]()
        for row in np.random.default_rng(seed).permutation(len(self)).tolist():
            if len(rows) < count and used.isdisjoint(self.images[row]):
                used.update(self.images[row])
                rows.append(row)
        return [self.texts[row] for row in sorted(rows)]


def read_pool(manifest: Path, split: str | None = None) -> CaptionPool:
    """The captions of a manifest.

    Args:
        split: those of one split only; None for all.
    """
    table = read_split(manifest, CAPTIONS, split)
    columns = (table[name].to_pylist() for name in ("caption_id", "image_id", "text"))
    places_of: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for caption_id, image_id, text in zip(*columns, strict=True):
        ids, images = places_of.setdefault(text, ({}, {}))
        ids[caption_id] = images[image_id] = None
    return CaptionPool(
        tuple(places_of),
        tuple(tuple(ids) for ids, _ in places_of.values()),
        tuple(tuple(images) for _, images in places_of.values()),
    )


def read_queries(sentences: Sequence[str], file: Path | None) -> list[str]:
    """Distinct queries: those given, then the lines of a UTF-8 file; empty lines are skipped."""
    queries = [sentence.strip() for sentence in sentences]
    if not all(queries):
        raise SightlineError("a query is empty; give a sentence")
    if file is not None:
        lines = read_sentence_lines(file, "one sentence per line")
        if not any(lines):
            raise SightlineError(f"{file}: contains no sentence; expected one per line")
        queries += filter(None, lines)
    return list(dict.fromkeys(queries))


@dataclass(frozen=True)
class ImagePool:
    """Images in the order of their manifest.

    Attributes:
        ids: of n images.
        keys: SHA-256 of the bytes of each.
    """

    ids: tuple[str, ...]
    keys: tuple[bytes, ...]

    @classmethod
    def of(cls, table: pa.Table) -> ImagePool:
        """The images of a manifest's rows."""
        return cls(tuple(table["image_id"].to_pylist()), tuple(table["key"].to_pylist()))

    def described(self, ids: Collection[str], manifest: Path) -> ImagePool:
        """Those with one of the ``ids``, the images of captions.

        Args:
            manifest: where these images are from, for the error.
        """
        if absent := sorted(set(ids) - set(self.ids)):
            raise SightlineError(
                f"{manifest}: {len(absent):,} images of the captions are not in it, such as "
                f"{absent[0]!r}; the two manifests must come from one `sightline prepare`"
            )
        chosen = set(ids)
        rows = [row for row, image in enumerate(self.ids) if image in chosen]
        return ImagePool(
            tuple(self.ids[row] for row in rows), tuple(self.keys[row] for row in rows)
        )

    def twins(self, folder: Path, split: str) -> tuple[str, ...]:
        """A warning if some of these, a split of a data set, have the same bytes."""
        twins = len(self.keys) - len(set(self.keys))
        told = (
            f"{folder}, split {split!r}: {twins:,} images have the same bytes as another image; "
            "they cannot be told apart, and in retrieval their captions miss at rank 1"
        )
        return (told,) if twins else ()


def read_images(manifest: Path, split: str | None = None) -> ImagePool:
    """The images of a manifest.

    Args:
        split: those of one split only; None for all.
    """
    return ImagePool.of(read_split(manifest, IMAGES, split))


def image_features_below(folder: Path) -> list[str]:
    """The content digests of what a model may read there, as `open_features` looks."""
    digests = set[str]()
    for pattern in (FILE_NAME, f"*/{FILE_NAME}", f"image/*/{FILE_NAME}"):
        for file in sorted(folder.glob(pattern)):
            with suppress(CacheError):  # it is refused where it is read
                record = read_record(file.parent)
                if record.spec.kind == "image":
                    digests.add(record.content_digest)
    return sorted(digests)


def open_features(
    folder: Path,
    kind: Kind,
    encoder: str,
    of_whom: str,
    dataset: str,
    use: FeatureUse | None = None,
) -> FeatureSet:
    """The features of an encoder: ``KIND/ENCODER`` or ``ENCODER`` below ``folder``, or itself.

    Args:
        of_whom: the model that needs it, for the error.
        use: what it learned from, which may have another name below ``folder``, and must have the
            same fingerprint; None: any.
    """
    names = (f"{kind}/{encoder}", encoder, *([use.name] if use else []), "")
    places = [folder / name for name in names if (folder / name / FILE_NAME).is_file()]
    fingerprint = None if use is None else use.fingerprint
    try:
        features = FeatureSet.open(places[0] if places else folder / names[0], fingerprint)
    except CacheError as error:
        raise SightlineError(
            f"{error}\n  {of_whom} needs it: `sightline stage {kind}-features {dataset} {encoder}` "
            f"(or `sightline extract {kind}`) makes it."
        ) from error
    if (its_kind := features.record.spec.kind) != kind:
        raise SightlineError(
            f"{features.path}: holds {its_kind} features, but {of_whom} needs those of {encoder} "
            f"for the {kind}s of {dataset}; name their folder with `features`"
        )
    return features


def note_of_failed(effect: str, pool: ImagePool, data: Path, features: FeatureSet) -> list[str]:
    """What a task leaves out because some images of ``data`` have no features."""
    failed, images = sum(key in features.failed for key in pool.keys), len(pool.ids)
    note = f"{effect} {failed:,} of {images:,} images of {data}: {features.path} has only an error"
    return [f"{note} for them"] if failed else []
