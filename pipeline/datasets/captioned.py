"""The manifests of a data set of captioned images."""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.cache.manifest import CAPTIONS, IMAGES, SENTENCES, TRAINED_SPLITS, write_manifest


def write_captioned(folder: Path, images: pa.Table, captions: pa.Table) -> None:
    """Write ``images.parquet``, ``captions.parquet`` and ``sentences.parquet`` into ``folder``.

    The sentences are the distinct training captions, in order, so captions can serve as plain
    sentences (`graph.text`), without their images.

    Args:
        images, captions: tables of the schemas IMAGES and CAPTIONS.
    """
    trained = pc.is_in(captions["split"], pa.array(TRAINED_SPLITS))
    texts = pc.unique(captions.filter(trained)["text"])
    write_manifest(folder / "images.parquet", images, IMAGES)
    write_manifest(folder / "captions.parquet", captions, CAPTIONS)
    write_manifest(folder / "sentences.parquet", pa.table({"text": texts}, SENTENCES), SENTENCES)
