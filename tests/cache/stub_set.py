"""A feature set filled by a stub: a row is a function of its key only."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sightline.cache import (
    EncoderRecord,
    FeatureSetRecord,
    FeatureSpec,
    SetWriter,
    keys_of_texts,
)

DIM = 8
SPEC = FeatureSpec(
    kind="image",
    encoder=EncoderRecord(name="stub", source="random:0", weights_sha256="0" * 64, untrained=True),
    preprocessing={"resize": 224, "eps": 1e-05},
    precision="fp32",
    dim=DIM,
    dtype="float16",
)
KEYS = keys_of_texts([str(i) for i in range(100)])
SHARD_ROWS = 30


def rows_of(keys: np.ndarray) -> np.ndarray:
    return keys[:, :DIM].astype(np.float32) / 7


def fill(
    folder: Path,
    keys: np.ndarray = KEYS,
    failing: frozenset[bytes] = frozenset(),
    *,
    spec: FeatureSpec = SPEC,
    stop_after: int | None = None,
    batch_size: int = 16,
    **options,
) -> tuple[FeatureSetRecord | None, int]:
    """Update the set to ``keys``; returns its record (None if stopped) and the computed rows."""
    computed = 0
    with SetWriter(folder, spec) as writer:
        batches = writer.plan(keys, batch_size=batch_size, shard_rows=SHARD_ROWS, **options)
        for number, batch in enumerate(batches):
            if number == stop_after:
                return None, computed
            good = np.array([key.tobytes() not in failing for key in batch.keys])
            failed = {
                key.tobytes(): {"code": "undecodable", "path": "a.jpg", "reason": "not an image"}
                for key in batch.keys[~good]
            }
            writer.add(batch.keys[good], rows_of(batch.keys[good]), failed, {"device": "cpu"})
            computed += len(batch.keys)
        return writer.publish(), computed


def files(folder: Path) -> dict[str, bytes]:
    """Name → bytes of every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def flip(path: Path, at: int, bit: int = 2) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)
