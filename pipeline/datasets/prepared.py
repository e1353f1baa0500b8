"""A prepared data set: its manifests, and where its images are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from pipeline.datasets.kinds import prepare, source_type
from pipeline.datasets.source import RECORD, DatasetError, Progress
from sightline.cache import CAPTIONS, IMAGES, SENTENCES, key_column, read_manifest
from sightline.cache.keys import Keys
from sightline.settings import explain


@dataclass(frozen=True)
class PreparedDataset:
    """Manifests that `prepare` wrote.

    Attributes:
        folder: the folder of the manifests.
        image_root: base folder of the image paths; None: not known.
    """

    folder: Path
    image_root: Path | None = None

    @classmethod
    def open(cls, folder: Path | str, images: Path | str | None = None) -> PreparedDataset:
        """The data set in ``folder``.

        Args:
            images: base folder of its images; by default the folder ``images`` beside the
                manifests, if there is one. Needed only to read pixels.

        Raises:
            DatasetError: no data set was prepared there, or there is no such image folder.
        """
        folder = Path(folder)
        if not (folder / RECORD).is_file():
            raise DatasetError(
                f"{folder}: no prepared data set here (no {RECORD}); `prepare_dataset` makes one"
            )
        if images is not None and not Path(images).is_dir():
            raise DatasetError(f"{images}: no such image folder; check the path")
        beside = folder / "images"
        root = Path(images) if images is not None else beside if beside.is_dir() else None
        return cls(folder, root)

    @property
    def images_manifest(self) -> Path:
        """`images.parquet`."""
        return self.folder / "images.parquet"

    @property
    def captions_manifest(self) -> Path:
        """`captions.parquet`."""
        return self.folder / "captions.parquet"

    @property
    def sentences_manifest(self) -> Path:
        """`sentences.parquet`."""
        return self.folder / "sentences.parquet"

    @property
    def images(self) -> pa.Table:
        """One row per image: ``image_id``, ``path``, ``key``, ``width``, ``height``, ``split``."""
        return read_manifest(self.images_manifest, IMAGES)

    @property
    def captions(self) -> pa.Table:
        """One row per caption: ``caption_id``, ``image_id``, ``text``, ``split``."""
        return read_manifest(self.captions_manifest, CAPTIONS)

    @property
    def sentences(self) -> pa.Table:
        """One row per sentence of the text stream: ``text``."""
        return read_manifest(self.sentences_manifest, SENTENCES)

    @property
    def texts(self) -> list[str]:
        """Every caption and sentence, each once."""
        columns = (self.captions["text"], self.sentences["text"])
        return list(dict.fromkeys(text for column in columns for text in column.to_pylist()))

    @property
    def image_keys(self) -> Keys:
        """SHA-256 of each image's bytes, in the order of `images`: uint8 [n, 32]."""
        return key_column(self.images["key"])

    def require_images(self) -> Path:
        """The image folder.

        Raises:
            DatasetError: it is not known.
        """
        if self.image_root is None:
            raise DatasetError(
                f"{self.folder}: the folder of its images is not known; give it: "
                "PreparedDataset.open(folder, images=…)"
            )
        return self.image_root


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
    out, known = Path(out), source_type(kind)
    try:
        source = known.model_validate(parameters)
    except ValidationError as error:
        raise DatasetError(f"{kind}: {'; '.join(explain(error))}") from error
    prepare(kind, source, out, progress)
    return PreparedDataset(out, source.image_root(out))
