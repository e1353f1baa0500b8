"""The manifests of a data set of captioned images."""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sightline.cache.manifest import CAPTIONS, IMAGES, SENTENCES, TRAINED_SPLITS, write_manifest

# White space, format and control characters, and what Unicode lists as default-ignorable besides,
# with the blank Braille pattern.
_INVISIBLE = (
    r"\p{Z}\p{Cc}\p{Cf}\x{34F}\x{115F}\x{1160}\x{17B4}\x{17B5}\x{180B}-\x{180F}\x{2065}\x{2800}"
    r"\x{3164}\x{FE00}-\x{FE0F}\x{FFA0}\x{FFF0}-\x{FFF8}\x{E0000}-\x{E0FFF}"
)


def visible(texts: pa.Array) -> pa.BooleanArray:
    """Whether each text has a character that can be seen."""
    return pc.match_substring_regex(texts, f"[^{_INVISIBLE}]")


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
