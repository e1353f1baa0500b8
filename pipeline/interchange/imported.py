"""Shared by all imports: the record of externally computed rows, and their manifests.

MCSE's and KDMCSE's files do not say which images they describe, so there an image's key is the
SHA-256 of its row (little-endian float32): equal rows count as one image, as equal bytes do
elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import ValidationError

from pipeline.datasets.manifests import Rows, cleaned, write_captioned
from pipeline.datasets.source import PrepareReport
from sightline.cache import (
    EncoderRecord,
    FeatureSetRecord,
    FeatureSpec,
    SetWriter,
    as_keys,
    key_of_bytes,
    key_of_file,
    key_of_text,
)
from sightline.cache.keys import Keys
from sightline.cache.record import FOREIGN, DTypeName, Kind, Provenance
from sightline.errors import SightlineError

_BATCH = 1024


def keys_of_rows(rows: NDArray[np.float32]) -> list[bytes]:
    """The key of each row [n, dim], which represents the image it was computed from."""
    return [key_of_bytes(row.astype("<f4").tobytes()) for row in rows]


def keys_of_captions(texts: Sequence[str]) -> list[bytes]:
    """The key of each text as manifests hold it (`pipeline.datasets.manifests.cleaned`)."""
    return [key_of_text(text) for text in cleaned(pa.array(texts, pa.string())).to_pylist()]


def spec_of_file(path: Path, form: str, kind: Kind, dim: int, source: str) -> FeatureSpec:
    """As `foreign_spec`, for the rows of one file in float32."""
    return foreign_spec(key_of_file(path).hex(), form, kind, dim, "float32", source, {})


def foreign_spec(
    sha256: str,
    form: str,
    kind: Kind,
    dim: int,
    dtype: DTypeName,
    source: str,
    known: dict[str, Any],
) -> FeatureSpec:
    """A record that claims only what is known about rows that another tool made.

    Args:
        sha256: of the files that they come from (hex).
        known: added to the preprocessing, such as ``{"normalised": True}``.

    Raises:
        SightlineError: ``source`` is too long or contains control characters.
    """
    try:
        encoder = EncoderRecord(name=f"{FOREIGN}{form}", source=source, weights_sha256=sha256)
    except ValidationError as error:
        raise SightlineError(f"--source {source[:80]!a}: {error.errors()[0]['msg']}") from error
    return FeatureSpec(
        kind=kind,
        encoder=encoder,
        preprocessing={"imported_from": form, "file_sha256": sha256, **known},
        precision="unknown",
        dim=dim,
        dtype=dtype,
    )


def write_rows(
    out: Path,
    spec: FeatureSpec,
    keys: Keys | Sequence[bytes],
    blocks: Iterable[tuple[Keys | list[bytes], NDArray]],
    inputs: Iterable[Path],
) -> FeatureSetRecord:
    """Publish the rows of ``blocks`` (keys and [n, dim] each) as the feature set ``out``.

    Args:
        keys: of all rows.
    """
    how: dict[str, str | int] = {"imported_from": spec.encoder.name}
    with SetWriter(out, spec, inputs) as writer:
        if writer.plan(as_keys(keys), batch_size=_BATCH):
            for some, rows in blocks:
                writer.add(as_keys(some), rows, computed=how)
        record = writer.publish(Provenance(imported=True))
    assert isinstance(record, FeatureSetRecord)
    return record


def write_manifests(
    folder: Path,
    image_ids: Sequence[str],
    keys: Keys,
    captions: Sequence[tuple[str, str]],
    report: PrepareReport,
    where: str,
) -> None:
    """Manifests of images represented only by their rows, and of (image_id, text) captions.

    Args:
        folder, report: from `pipeline.datasets.folder.building`.
        where: the source, for messages.
    """
    rows = Rows()
    for image_id, key in zip(image_ids, keys, strict=True):
        rows.add_known(image_id, "", key.tobytes(), (0, 0), "train")
    numbers: Counter[str] = Counter()
    for image_id, text in captions:
        rows.add_caption(image_id, numbers[image_id], text, "train")
        numbers[image_id] += 1
    write_captioned(folder, *rows.tables(), report, where=where)
