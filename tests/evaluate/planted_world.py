"""A data set, features and a model with heads, all planted, for the tasks that read images."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from sightline.cache import (
    CAPTIONS,
    IMAGES,
    EncoderRecord,
    FeatureSet,
    FeatureSpec,
    SetWriter,
    key_of_bytes,
    write_manifest,
)
from train.evaluate.evaluation import Evaluation
from train.evaluate.vectors import NotDefinedError
from train.objectives.objective import FeatureNeed

DIM = 6


@dataclass
class Folder:
    """A data set in ``root/data`` and its features in ``root/features``.

    Attributes:
        images: image → its captions; those that end with "!" are of the split train.
    """

    root: Path
    images: dict[str, list[str]]
    same_bytes: dict[str, str] = field(default_factory=dict)
    uncaptioned: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        data = self.root / "data"
        data.mkdir(parents=True, exist_ok=True)
        images, captions = [], []
        for name in (*self.images, *self.uncaptioned):
            key = self.key(self.same_bytes.get(name, name))
            split = "train" if name.endswith("!") else "test"
            size = {"width": 1, "height": 1}
            images.append({"image_id": name, "path": name, "key": key, "split": split, **size})
            captions += [
                {"caption_id": f"{name}#{n}", "image_id": name, "text": text, "split": split}
                for n, text in enumerate(self.images.get(name, []))
            ]
        for file, schema, rows in (("images", IMAGES, images), ("captions", CAPTIONS, captions)):
            table = pa.Table.from_pylist(rows, schema)
            write_manifest(data / f"{file}.parquet", table, schema)

    @staticmethod
    def key(name: str) -> bytes:
        return key_of_bytes(name.encode())

    @property
    def tested(self) -> list[str]:
        return [name for name in self.images if not name.endswith("!")]

    @property
    def captions(self) -> list[str]:
        return [text for name in self.tested for text in self.images[name]]

    def write(
        self,
        kind: Any,
        encoder: str,
        rows: dict[bytes, np.ndarray],
        failed: tuple[str, ...] = (),
        weights: str = "1",
    ) -> str:
        """Write a feature set; returns its fingerprint."""
        spec = FeatureSpec(
            kind=kind,
            encoder=EncoderRecord(name=encoder, source="random:0", weights_sha256=weights * 64),
            preprocessing={},
            precision="fp32",
            dim=len(next(iter(rows.values()))),
            dtype="float32",
        )
        bad = {self.key(name) for name in failed}
        where = self.root / "features" / kind / encoder
        with SetWriter(where, spec) as writer:
            for batch in writer.plan(list(rows), batch_size=64):
                keys = [key.tobytes() for key in batch.keys]
                found = np.array([rows[key] for key in keys], dtype=np.float32)
                found[[key in bad for key in keys]] = np.nan
                error = {"code": "decode", "path": "", "reason": "test"}
                writer.add(batch.keys, found, {key: error for key in keys if key in bad})
            writer.publish()
        return FeatureSet.open(where).fingerprint

    def task(self, name: str = "retrieval", **settings: Any) -> Evaluation:
        given = {"data": self.root / "data", "features": self.root / "features", **settings}
        return Evaluation.load({name: given})


class Model:
    """A model whose embeddings and heads are planted; its objective is of another package."""

    def __init__(self, embeddings: dict[str, np.ndarray], fingerprint: str = "") -> None:
        self.name, self.folder, self.pooling = "planted", None, None
        self.embeddings = embeddings
        self.sentence_head: nn.Module = nn.Identity()
        self.image_head: nn.Module = nn.Identity()
        self.needs = [
            FeatureNeed("text", "cnn", head="of-words"),
            FeatureNeed("image", "cnn", head="of-pixels"),
        ]
        self.fingerprint = fingerprint
        self.no_heads = ""

    def encode_once(self, sentences: Any) -> None:
        assert set(sentences) <= set(self.embeddings)

    def encode(self, sentences: Any) -> np.ndarray:
        return np.array([self.embeddings[each] for each in sentences], dtype=np.float32)

    @property
    def summary(self) -> Any:
        use = SimpleNamespace(fingerprint=self.fingerprint)
        return SimpleNamespace(features={need.name: use for need in self.needs})

    def heads(self) -> Any:
        if self.no_heads:
            raise NotDefinedError(self.no_heads)
        objective = SimpleNamespace(
            name="foreign",
            features=self.needs,
            sentence_head="sentences",
            parts=lambda heads: [(objective, heads)],
        )
        modules = {"sentences": self.sentence_head, "of-words": nn.Identity()}
        return SimpleNamespace(
            objective=objective, modules=nn.ModuleDict({**modules, "of-pixels": self.image_head})
        )


def plain_recalls(sim: np.ndarray, image_of: list[int]) -> dict[str, float]:
    """METRICS from similarities [images, captions], one query at a time."""
    found = {}
    for k in (1, 5, 10):
        hits = [any(image_of[c] == i for c in np.argsort(-sim[i])[:k]) for i in range(sim.shape[0])]
        found[f"I2T R@{k}"] = 100 * np.mean(hits)
    for k in (1, 5, 10):
        hits = [image_of[c] in np.argsort(-sim[:, c])[:k] for c in range(sim.shape[1])]
        found[f"T2I R@{k}"] = 100 * np.mean(hits)
    return found


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    one, other = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (one, other))
    return one @ other.T


@dataclass
class World:
    folder: Folder
    model: Model
    pixels: dict[str, np.ndarray]

    def expected(self, captions: int = 5, images: list[str] | None = None) -> dict[str, float]:
        names = images or self.folder.tested
        pairs = [(i, t) for i, n in enumerate(names) for t in self.folder.images[n][:captions]]
        with torch.no_grad():
            one = self.model.image_head(torch.tensor(np.array([self.pixels[n] for n in names])))
            two = self.model.sentence_head(
                torch.tensor(np.array([self.model.embeddings[t] for _, t in pairs]))
            )
        return plain_recalls(cosines(one.numpy(), two.numpy()), [i for i, _ in pairs])


def make_world(root: Path, count: int = 23, failed: tuple[str, ...] = ()) -> World:
    """Images with two to six captions, embeddings that are random but lean to their image."""
    rng = np.random.default_rng(4)
    images = {f"{i:02d}": [f"{i} says {n}" for n in range(2 + i % 5)] for i in range(count)}
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
