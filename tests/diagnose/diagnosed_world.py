"""Images with captions and features of both, small enough to check every number by brute force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from blake3 import blake3
from prepared_data import as_prepared

from sightline import cache
from sightline.cache.index import read_index
from sightline.cache.record import FILE_NAME, to_bytes
from train.diagnose.diagnosis import Numbers, diagnose
from train.diagnose.settings import DiagnosisSettings

DIM = 12
IMAGES_COUNT, CAPTIONS_EACH = 30, 3


def write_set(folder: Path, kind: Any, rows: dict[bytes, np.ndarray], **encoder: Any) -> Path:
    given = {"name": "test/clip", "source": "file:clip.safetensors", "weights_sha256": "3" * 64}
    made_by = cache.EncoderRecord.model_validate({**given, **encoder})
    fixed: Any = {"preprocessing": {}, "precision": "fp32", "dtype": "float32"}
    dim = len(next(iter(rows.values())))
    spec = cache.FeatureSpec(kind=kind, encoder=made_by, dim=dim, **fixed)
    with cache.SetWriter(folder, spec) as writer:
        for batch in writer.plan(list(rows), batch_size=len(rows)):
            found = [rows[key.tobytes()] for key in batch.keys]
            writer.add(batch, np.array(found, dtype=np.float32))
        writer.publish()
    return folder


class DiagnosedWorld:
    """Two sets and two manifests below ``root``; tests change what they hold before `write`.

    Rows of an image and of its captions share a direction.

    Attributes:
        captions: (image number, text).
        image_keys: of every image, by number.
        image_rows, text_rows: key → row.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.images_manifest = root / "images.parquet"
        self.captions_manifest = root / "captions.parquet"
        self.image_set, self.text_set = root / "image", root / "text"
        self.image_keys = [cache.key_of_bytes(b"image %d" % n) for n in range(IMAGES_COUNT)]
        self.captions: list[tuple[int, str]] = []
        self.image_rows: dict[bytes, np.ndarray] = {}
        self.text_rows: dict[bytes, np.ndarray] = {}
        rng = np.random.default_rng(5)
        for number, key in enumerate(self.image_keys):
            shared = rng.normal(size=DIM)
            self.image_rows[key] = shared + 1.2 * rng.normal(size=DIM)
            for k in range(CAPTIONS_EACH):
                text = f"caption {k} of image {number}"
                self.captions.append((number, text))
                self.text_rows[cache.key_of_text(text)] = shared + 1.2 * rng.normal(size=DIM)

    @property
    def text_keys(self) -> list[bytes]:
        return [cache.key_of_text(text) for _, text in self.captions]

    def write(self) -> DiagnosedWorld:
        self.root.mkdir(parents=True)
        images = [
            {"image_id": f"{n:03}", "path": f"{n:03}.jpg", "key": key, "width": 8, "height": 8}
            for n, key in enumerate(self.image_keys)
        ]
        captions = [
            {"caption_id": f"{i}", "image_id": f"{number:03}", "text": text}
            for i, (number, text) in enumerate(self.captions)
        ]
        for path, rows, schema in (
            (self.images_manifest, images, cache.IMAGES),
            (self.captions_manifest, captions, cache.CAPTIONS),
        ):
            table = pa.Table.from_pylist([{**row, "split": "train"} for row in rows], schema)
            cache.write_manifest(path, table, schema)
        as_prepared(self.root)
        write_set(self.image_set, "image", self.image_rows)
        write_set(self.text_set, "text", self.text_rows)
        return self

    def units(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Unit rows of images and of captions in float64, and the image of each caption."""
        images = unit(np.array([self.image_rows[key] for key in self.image_keys]))
        texts = unit(np.array([self.text_rows[key] for key in self.text_keys]))
        return images, texts, np.array([number for number, _ in self.captions])


def look(world: DiagnosedWorld, **settings: object) -> Numbers:
    """Both sets, in few batches unless `settings` say otherwise."""
    chosen = DiagnosisSettings.model_validate({"batches": 2, **settings})
    sets = [world.text_set, world.image_set]  # the order does not matter
    return diagnose(sets, world.captions_manifest, world.images_manifest, chosen)


def poison(path: Path, key: bytes, value: float) -> None:
    """Write ``value`` into a row of a published set, which its writer would have refused."""
    features = cache.FeatureSet.open(path)
    (row,) = features.rows([key])
    index, _ = read_index(path, features.record)
    (shard,) = features.record.shards
    with h5py.File(path / shard.name, "r+") as file:
        file["features"][index.numbers[row], 3] = value
    digest = blake3((path / shard.name).read_bytes()).hexdigest()
    shards = (shard.model_copy(update={"blake3": digest}),)
    (path / FILE_NAME).write_bytes(to_bytes(features.record.model_copy(update={"shards": shards})))


def unit(rows: np.ndarray) -> np.ndarray:
    stored = rows.astype(np.float32).astype(np.float64)
    return stored / np.linalg.norm(stored, axis=1, keepdims=True)


def stored_units(path: Path) -> np.ndarray:
    features = cache.FeatureSet.open(path)
    return unit(features.gather(np.arange(len(features))))
