"""Feature sets for the tiny world: on disk for `train`, and by caption key for an oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from conftest import World
from torch import Tensor

from sightline.cache import EncoderRecord, FeatureSpec, SetWriter, key_of_text
from train.batch import Batch


class Features:
    """The sets by name: folder ``root/name``, and `rows[name]` by the caption's key."""

    def __init__(self, world: World, root: Path) -> None:
        self.world, self.root = world, root
        self.rows: dict[str, dict[bytes, np.ndarray]] = {}
        images = pq.read_table(world.root / "images.parquet").to_pylist()
        captions = pq.read_table(world.root / "captions.parquet").to_pylist()
        key_of_image = {image["image_id"]: image["key"] for image in images}
        self._image_of = {
            key_of_text(each["text"]): key_of_image[each["image_id"]] for each in captions
        }

    def add(self, name: str, kind: Any, dim: int, offset: float = 0.0) -> None:
        """Random rows; those of one image share most of what they are, in every set of a width."""
        rng = np.random.default_rng([dim, *name.encode()])
        common = np.random.default_rng(dim)
        of_image = {key: common.normal(size=dim) + offset for key in self.world.image_keys}
        rows: dict[bytes, np.ndarray] = {}
        for caption, image in self._image_of.items():
            key = image if kind == "image" else caption
            if key not in rows:
                noisy = of_image[image] + rng.normal(size=dim) * 0.7
                rows[key] = noisy.astype(np.float16).astype(np.float64)
        self.write(name, kind, rows)

    def write(self, name: str, kind: Any, rows: dict[bytes, np.ndarray]) -> None:
        dim = len(next(iter(rows.values())))
        record = EncoderRecord(name=f"test/{name}", source="random:0", weights_sha256="2" * 64)
        spec = FeatureSpec(
            kind=kind, encoder=record, preprocessing={}, precision="fp32", dim=dim, dtype="float16"
        )
        with SetWriter(self.root / name, spec) as writer:
            for batch in writer.plan(list(rows), batch_size=64):
                found = [rows[key.tobytes()] for key in batch.keys]
                writer.add(batch.keys, np.array(found, dtype=np.float32))
            writer.publish()
        self.rows[name] = rows
        if kind == "image":
            self.rows[name] = {caption: rows[image] for caption, image in self._image_of.items()}

    def of(self, name: str, batch: Batch) -> list[Tensor]:
        return [torch.from_numpy(self.rows[name][key.tobytes()]) for key in batch.keys]
