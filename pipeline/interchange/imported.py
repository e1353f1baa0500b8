"""Shared by all imports: the record of externally computed rows, and their manifests.

The images are not available, so an image's key is the SHA-256 of its row (little-endian float32):
equal rows count as one image, as equal bytes do elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.cache import (
    CAPTIONS,
    IMAGES,
    EncoderRecord,
    FeatureSetRecord,
    FeatureSetWriter,
    FeatureSpec,
    as_keys,
    key_array,
    key_of_bytes,
    key_of_file,
    whole_files,
)
from pipeline.cache.keys import Keys
from pipeline.cache.record import Kind, Provenance
from pipeline.datasets.captioned import write_captioned
from pipeline.datasets.source import PrepareReport

_BATCH = 1024


def keys_of_rows(rows: NDArray[np.float32]) -> list[bytes]:
    """The key of each row [n, dim], which represents the image it was computed from."""
    return [key_of_bytes(row.astype("<f4").tobytes()) for row in rows]


def spec_of_file(path: Path, form: str, kind: Kind, dim: int, source: str) -> FeatureSpec:
    """A record that claims only what is known: the file that the rows come from."""
    sha256 = key_of_file(path).hex()
    return FeatureSpec(
        kind=kind,
        encoder=EncoderRecord(name=f"imported/{form}", source=source, weights_sha256=sha256),
        preprocessing={"imported_from": form, "file_sha256": sha256},
        precision="unknown",
        dim=dim,
        dtype="float32",
    )


def write_rows(
    out: Path,
    spec: FeatureSpec,
    keys: Sequence[bytes],
    blocks: Iterable[tuple[list[bytes], NDArray[np.float32]]],
    inputs: Iterable[Path],
) -> FeatureSetRecord:
    """Publish the rows of ``blocks`` (keys and [n, dim] each) as the feature set ``out``."""
    with FeatureSetWriter(out, spec, inputs) as writer:
        if writer.plan(as_keys(keys), batch_size=_BATCH):
            for some, rows in blocks:
                computed = {"imported_from": spec.encoder.name}
                writer.add(as_keys(some), rows, computed=computed)
        return writer.publish(Provenance(imported=True))


def write_manifests(
    folder: Path,
    image_ids: Sequence[str],
    keys: Keys,
    captions: Sequence[tuple[str, str]],
    report: PrepareReport,
) -> None:
    """Manifests of images represented only by their rows, and of (image_id, text) captions.

    Args:
        folder, report: from `pipeline.datasets.folder.building`.
    """
    count = len(image_ids)
    none = np.zeros(count, dtype=np.int32)
    images = {
        "image_id": list(image_ids),
        "path": [""] * count,
        **whole_files(count),
        "key": key_array(keys),
        "width": none,
        "height": none,
        "split": ["train"] * count,
    }
    numbers: dict[str, int] = {}
    caption_ids = []
    for image_id, _ in captions:
        numbers[image_id] = numbers.get(image_id, -1) + 1
        caption_ids.append(f"{image_id}#{numbers[image_id]}")
    table = {
        "caption_id": caption_ids,
        "image_id": [image_id for image_id, _ in captions],
        "text": [text for _, text in captions],
        "split": ["train"] * len(captions),
    }
    report.counts |= {"images": count, "captions": len(captions)}
    write_captioned(folder, pa.table(images, schema=IMAGES), pa.table(table, schema=CAPTIONS))
