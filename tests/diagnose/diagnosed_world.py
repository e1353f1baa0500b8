"""Images with captions and features of both, small enough to check every number by brute force."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from blake3 import blake3

from sightline.cache import (
    CAPTIONS,
    IMAGES,
    EncoderRecord,
    FeatureSet,
    FeatureSpec,
    SetWriter,
    key_of_bytes,
    key_of_text,
    write_manifest,
)
from sightline.cache.index import read_index
from sightline.cache.manifest import whole_files
from sightline.cache.prepared import RECORD, SCHEMA
from sightline.cache.record import FILE_NAME, to_bytes

DIM = 12
IMAGES_COUNT, CAPTIONS_EACH = 30, 3


def write_set(folder: Path, kind: Any, rows: dict[bytes, np.ndarray], **about: Any) -> Path:
    dim = len(next(iter(rows.values())))
    record = EncoderRecord(
        name="test/clip",
        source=about.pop("source", "file:clip.safetensors"),
        weights_sha256="3" * 64,
        untrained=about.pop("untrained", False),
    )
    spec = FeatureSpec(
        kind=kind, encoder=record, preprocessing={}, precision="fp32", dim=dim, dtype="float32"
    )
    with SetWriter(folder, spec) as writer:
        for batch in writer.plan(list(rows), batch_size=64):
            found = [rows[key.tobytes()] for key in batch.keys]
            writer.add(batch.keys, np.array(found, dtype=np.float32))
        writer.publish()
    return folder


@dataclass
class DiagnosedWorld:
    """Paths of two sets and two manifests, and their content.

    Attributes:
        captions: (image number, text).
        image_rows, text_rows: key → row.
    """

    root: Path
    captions: list[tuple[int, str]] = field(default_factory=list)
    image_rows: dict[bytes, np.ndarray] = field(default_factory=dict)
    text_rows: dict[bytes, np.ndarray] = field(default_factory=dict)
    images: int = IMAGES_COUNT

    @classmethod
    def make(cls, root: Path, noise: float = 0.6) -> DiagnosedWorld:
        """Rows of an image and of its captions share a direction."""
        world, rng = cls(root), np.random.default_rng(5)
        for number in range(world.images):
            shared = rng.normal(size=DIM)
            world.image_rows[world.image_key(number)] = shared + noise * rng.normal(size=DIM)
            for k in range(CAPTIONS_EACH):
                text = f"caption {k} of image {number}"
                world.captions.append((number, text))
                world.text_rows[key_of_text(text)] = shared + noise * rng.normal(size=DIM)
        return world

    def image_key(self, number: int) -> bytes:
        return key_of_bytes(b"image %d" % number)

    def write(self) -> DiagnosedWorld:
        self.root.mkdir(parents=True, exist_ok=True)
        names = [f"{number:03}" for number in range(self.images)]
        images = pa.table(
            {
                "image_id": names,
                "path": [f"{name}.jpg" for name in names],
                **whole_files(len(names)),
                "key": [self.image_key(number) for number in range(self.images)],
                "width": [8] * len(names),
                "height": [8] * len(names),
                "split": ["train"] * len(names),
            },
            schema=IMAGES,
        )
        captions = pa.table(
            {
                "caption_id": [f"{i}" for i in range(len(self.captions))],
                "image_id": [names[number] for number, _ in self.captions],
                "text": [text for _, text in self.captions],
                "split": ["train"] * len(self.captions),
            },
            schema=CAPTIONS,
        )
        write_manifest(self.images_manifest, images, IMAGES)
        write_manifest(self.captions_manifest, captions, CAPTIONS)
        (self.root / RECORD).write_text(json.dumps({"schema": SCHEMA}))
        write_set(self.image_set, "image", self.image_rows)
        write_set(self.text_set, "text", self.text_rows)
        return self

    @property
    def images_manifest(self) -> Path:
        return self.root / "images.parquet"

    @property
    def captions_manifest(self) -> Path:
        return self.root / "captions.parquet"

    @property
    def image_set(self) -> Path:
        return self.root / "image"

    @property
    def text_set(self) -> Path:
        return self.root / "text"

    def units(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Unit rows of images and of captions in float64, and the image of each caption."""
        images = np.array([self.image_rows[self.image_key(n)] for n in range(self.images)])
        texts = np.array([self.text_rows[key_of_text(text)] for _, text in self.captions])
        return unit(images), unit(texts), np.array([number for number, _ in self.captions])


def poison(path: Path, key: bytes, value: float) -> None:
    """Write ``value`` into a row of a published set, which its writer would have refused."""
    features = FeatureSet.open(path)
    (row,) = features.rows([key])
    record = features.record
    index, _ = read_index(path, record)
    shards = list(record.shards)
    number = index.shards[row]
    with h5py.File(path / shards[number].name, "r+") as file:
        file["features"][index.numbers[row], 3] = value
    digest = blake3((path / shards[number].name).read_bytes()).hexdigest()
    shards[number] = shards[number].model_copy(update={"blake3": digest})
    (path / FILE_NAME).write_bytes(to_bytes(record.model_copy(update={"shards": tuple(shards)})))


def unit(rows: np.ndarray) -> np.ndarray:
    stored = rows.astype(np.float32).astype(np.float64)
    return stored / np.linalg.norm(stored, axis=1, keepdims=True)


def stored_units(path: Path) -> np.ndarray:
    features = FeatureSet.open(path)
    return unit(features.gather(np.arange(len(features))))
