"""A kind of features: how much of an image has each level of brightness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from pipeline.encoders.config import EncoderConfig
from pipeline.extract.encode_missing import Encoding, ToEncode
from pipeline.extract.inputs import Entries, FeatureInputs
from pipeline.extract.runner import Advance, BatchResult
from sightline.cache import EncoderRecord
from sightline.cache.feature_kind import FeatureKind
from sightline.cache.plan import Batch
from sightline.cache.prepared import PreparedDataset

BRIGHTNESS = FeatureKind(
    name="brightness",  # as in its entry point
    unit="histograms",
    row_of="image",  # whose key a row has; or caption, or object
    read="lamplight.brightness:read",
    encode="lamplight.brightness:encode",
    builder="build_brightness",
    encoders="image",  # the section of params.yaml with its encoders
)


@dataclass(frozen=True)
class Levels:
    """What every builder's object has, and what `encode` needs besides."""

    identity: EncoderRecord
    dim: int
    casts_weights: bool = False
    options: tuple[str, ...] = ()


class LevelsConfig(EncoderConfig):
    """A histogram; its model is the number of levels."""

    def build_brightness(self, device: torch.device, precision: str) -> Levels:
        name = f"levels/{self.model}"
        return Levels(
            EncoderRecord(name=name, source="none", weights_sha256="0" * 64), int(self.model)
        )


def read(kind: str, data: PreparedDataset) -> FeatureInputs:
    files = [Path(data.require_images(), path) for path in data.images["path"].to_pylist()]
    return FeatureInputs(kind, Entries.of(data.image_keys, files), paths=(data.folder,))


def encode(task: ToEncode) -> Encoding:
    dim = task.encoder.dim

    def compute(batches: Iterator[Batch], advance: Advance) -> Iterator[BatchResult]:
        for batch in batches:
            rows, failed = [], {}
            for key, file in zip(batch.keys, task.entries_of(batch), strict=True):
                try:
                    grey = np.asarray(Image.open(file).convert("L"))
                except OSError as error:
                    why = {"code": "unreadable", "path": str(file), "reason": str(error)}
                    failed[key.tobytes()] = why
                    continue
                rows.append(np.histogram(grey, dim, (0, 256))[0] / grey.size)
            yield BatchResult(batch, np.array(rows, np.float32).reshape(-1, dim), failed)
            advance(len(batch.keys))

    return Encoding({"levels": dim}, compute)
