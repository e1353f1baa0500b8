"""A data set, features and a model with heads, all planted, for the tasks that read images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from sightline import cache
from train.evaluate.evaluation import Evaluation
from train.evaluate.ranking import NotDefinedError
from train.objectives import FeatureNeed

DIM = 6
SCHEMAS = {"images": cache.IMAGES, "captions": cache.CAPTIONS}


class Folder:
    """A data set in ``root/data`` and its features in ``root/features``.

    Attributes:
        images: image → its captions; those that end with "!" are of the split train.
    """

    def __init__(
        self, root: Path, images: dict[str, list[str]], same_bytes: dict[str, str] | None = None
    ) -> None:
        self.root, self.images = root, images
        (root / "data").mkdir(parents=True, exist_ok=True)
        rows, captions = [], []
        for name, texts in images.items():
            image = {"image_id": name, "split": "train" if name.endswith("!") else "test"}
            key = self.key((same_bytes or {}).get(name, name))
            rows.append({**image, "path": name, "key": key, "width": 1, "height": 1})
            for n, text in enumerate(texts):
                captions.append({**image, "caption_id": f"{name}#{n}", "text": text})
        for file, content in (("images", rows), ("captions", captions)):
            table = pa.Table.from_pylist(content, SCHEMAS[file])
            cache.write_manifest(root / f"data/{file}.parquet", table, SCHEMAS[file])

    @staticmethod
    def key(name: str) -> bytes:
        return cache.key_of_bytes(name.encode())

    @property
    def tested(self) -> list[str]:
        return [name for name in self.images if not name.endswith("!")]

    @property
    def captions(self) -> list[str]:
        return [text for name in self.tested for text in self.images[name]]

    def write(
        self, kind: Any, encoder: str, rows: Any, failed: tuple[str, ...] = (), weights: str = "1"
    ) -> str:
        """Write a feature set, key → row; returns its fingerprint.

        Args:
            failed: images with an error in place of a row, as a row of NaN is recorded.
        """
        made_by = cache.EncoderRecord(name=encoder, source="random:0", weights_sha256=weights * 64)
        fixed: Any = {"preprocessing": {}, "precision": "fp32", "dtype": "float32"}
        dim = len(next(iter(rows.values())))
        spec = cache.FeatureSpec(kind=kind, encoder=made_by, dim=dim, **fixed)
        every = {**rows, **{self.key(name): np.full(dim, np.nan) for name in failed}}
        where = self.root / "features" / kind / encoder
        with cache.SetWriter(where, spec) as writer:
            for batch in writer.plan(list(rows), batch_size=64):
                found = [every[key.tobytes()] for key in batch.keys]
                writer.add(batch, np.array(found, dtype=np.float32))
            writer.publish()
        return cache.FeatureSet.open(where).fingerprint

    def task(self, name: str = "retrieval", **settings: Any) -> Evaluation:
        given = {"data": self.root / "data", "features": self.root / "features", **settings}
        return Evaluation.load({name: given})


class Model:
    """A model whose embeddings and heads are planted; its objective is of another package."""

    name, folder, pooling, pinned, recipe = "planted", None, None, None, ""
    embedder = SimpleNamespace(count_cut=lambda sentences: 0, precision="fp32")

    def __init__(self, embeddings: dict[str, np.ndarray], fingerprint: str = "") -> None:
        self.embeddings = embeddings
        self.fingerprint, self.no_heads = fingerprint, ""
        self.sentence_head = self.image_head = nn.Identity()
        self.needs = [
            FeatureNeed("text", "cnn", head="of-words"),
            FeatureNeed("image", "cnn", head="of-pixels"),
        ]

    def encode_once(self, sentences: Any) -> None:
        assert set(sentences) <= set(self.embeddings)

    def encode(self, sentences: Any) -> np.ndarray:
        return np.array([self.embeddings[each] for each in sentences], dtype=np.float32)

    pooled = encode

    @property
    def summary(self) -> Any:
        use = SimpleNamespace(name="its-own-name", fingerprint=self.fingerprint)
        return SimpleNamespace(
            objective="foreign", features={need.name: use for need in self.needs}
        )

    def objective(self) -> Any:
        if self.no_heads:
            raise NotDefinedError(self.no_heads)
        heads = [
            (need, self.sentence_head, self.image_head)
            for need in self.needs
            if need.kind == "image" and need.head
        ]
        return SimpleNamespace(image_heads=lambda: heads[0] if heads else None)


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    one, other = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (one, other))
    return one @ other.T


@dataclass
class World:
    folder: Folder
    model: Model
    pixels: dict[str, np.ndarray]

    def scores(self, task: str = "retrieval", **settings: Any) -> Any:
        """The model's result on a task."""
        return self.folder.task(task, **settings).score(self.model)[task]

    def projected(self, images: list[str], sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Both in the space of the heads."""
        rows = np.array([self.pixels[name] for name in images])
        with torch.no_grad():
            of_images = self.model.image_head(torch.tensor(rows))
            of_sentences = self.model.sentence_head(torch.tensor(self.model.encode(sentences)))
        return of_images.numpy(), of_sentences.numpy()


def make_world(root: Path, failed: tuple[str, ...] = ()) -> World:
    """23 images with two to six captions, embeddings that are random but lean to their image."""
    rng = np.random.default_rng(4)
    images = {f"{i:02d}": [f"{i} says {n}" for n in range(2 + i % 5)] for i in range(23)}
    folder = Folder(root, {**images, "seen!": ["a training caption"]})
    pixels = {name: rng.normal(size=DIM).astype(np.float32) for name in images}
    torch.manual_seed(3)
    heads = nn.Linear(4, 5), nn.Linear(DIM, 5)
    for head in heads:
        nn.init.normal_(head.weight)
    leaning = torch.linalg.pinv(heads[0].weight.detach()).numpy() @ heads[1].weight.detach().numpy()
    embeddings = {
        text: (leaning @ pixels[name] + 2 * rng.normal(size=4)).astype(np.float32)
        for name, texts in images.items()
        for text in texts
    }
    print_of = folder.write("image", "cnn", {Folder.key(n): r for n, r in pixels.items()}, failed)
    model = Model(embeddings, print_of)
    model.sentence_head, model.image_head = heads
    return World(folder, model, pixels)
