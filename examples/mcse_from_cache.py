"""MCSE trained from cached features, in one file of plain PyTorch.

    python examples/mcse_from_cache.py demo/data

`make demo` fills that folder. This trains the demo's MCSE (ResNet) and prints its Spearman
correlations. Batches, losses and steps are those of `sightline train`, which adds checkpoints,
several processes, GPUs, less padding, and the other objectives (docs/training.md).
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from sightline.cache import FeatureSet, TokenSet, keys_of_texts
from train.losses import info_nce
from train.optimizer import learning_rate, make_optimizer
from train.run_spec import TrainConfig
from train.schedule import Schedule

SEED, STEPS = 0, 180
WEIGHT = 2.0  # λ of the image term
CONFIG = TrainConfig(batch_size=64, learning_rate=2e-3, max_steps=STEPS, eval_steps=90)


class Data:
    """Captions with their images' features, and plain sentences, in the order of a run."""

    def __init__(self, tables: Path, features: Path, tokens: Path) -> None:
        """
        Args:
            tables: folder with `images.parquet`, `captions.parquet` and `sentences.parquet`.
            features: feature set of the images; tokens: token set of all texts.
        """
        self.features, self.tokens = FeatureSet.open(features), TokenSet.open(tokens)
        images = pq.read_table(tables / "images.parquet").to_pylist()
        key_of = {row["image_id"]: row["key"] for row in images}
        captions = [
            row
            for row in pq.read_table(tables / "captions.parquet").to_pylist()
            if row["split"] in ("train", "") and key_of[row["image_id"]] not in self.features.failed
        ]
        sentences = pq.read_table(tables / "sentences.parquet")["text"].to_pylist()
        # where each caption's image and every text are in their sets
        self.images = self.features.rows([key_of[row["image_id"]] for row in captions])
        self.texts = {
            "pairs": self.tokens.rows(keys_of_texts([row["text"] for row in captions])),
            "text": self.tokens.rows(keys_of_texts(sentences)),
        }
        self.schedule = Schedule(len(captions), len(sentences), CONFIG.batch_size, SEED)

    def __getitem__(self, k: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Batch k: token ids [N, L], mask [N, L], and of a paired batch image features [N, D]."""
        draw = self.schedule.draw(k)
        rows = self.schedule.rows(draw)
        flat, lengths = self.tokens.gather(self.texts[draw.stream][rows])
        mask = np.arange(lengths.max()) < lengths[:, None]
        ids = np.full(mask.shape, self.tokens.header.pad_token_id, dtype=np.int64)
        ids[mask] = flat
        images = None
        if draw.stream == "pairs":
            images = torch.from_numpy(self.features.gather(self.images[rows])).float()
        return torch.from_numpy(ids), torch.from_numpy(mask).long(), images


class MCSE(nn.Module):
    """A student with its heads: L_text + λ L_img (Zhang et al., NAACL 2022, eqs. 3 and 4)."""

    def __init__(self, student: Path, image_width: int) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(student, add_pooling_layer=False)
        hidden = self.encoder.config.hidden_size
        text = nn.Linear(hidden, hidden)
        nn.init.normal_(text.weight, std=0.02)
        nn.init.zeros_(text.bias)
        self.heads = nn.ModuleDict(
            {
                "text": nn.Sequential(text, nn.Tanh()),
                "grounding": nn.Sequential(nn.Linear(hidden, 256), nn.Tanh()),
                "image": nn.Sequential(nn.Linear(image_width, 256), nn.Tanh()),
            }
        )

    def embed(self, ids: Tensor, mask: Tensor) -> Tensor:
        """[CLS] of the last layer: [N, L] → [N, hidden]."""
        return self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state[:, 0]

    def forward(self, ids: Tensor, mask: Tensor, images: Tensor | None) -> Tensor:
        """The loss of a batch."""
        views = self.embed(ids, mask), self.embed(ids, mask)  # dropout makes them differ
        loss = info_nce(*map(self.heads["text"], views))
        if images is None:
            return loss
        projected = self.heads["image"](images)
        one, other = (info_nce(self.heads["grounding"](view), projected) for view in views)
        return loss + WEIGHT * (one + other) / 2


def train(model: MCSE, data: Data, steps: int) -> Iterator[tuple[int, float]]:
    """Train ``model``; yields (step, loss) after each step."""
    optimizer = make_optimizer(model, CONFIG)
    for step in range(steps):
        model.train()
        optimizer.zero_grad()
        loss = model(*data[step])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CONFIG.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(CONFIG, step, steps)
        optimizer.step()
        yield step + 1, float(loss.detach())


def score(model: MCSE, student: Path, file: Path) -> float:
    """Spearman × 100 of a file with the columns score, sentence1 and sentence2."""
    tokenizer = AutoTokenizer.from_pretrained(student)
    rows = [line.split("\t") for line in file.read_text().splitlines()[1:]]
    gold, *sides = zip(*rows, strict=True)
    embeddings = []
    model.eval()
    with torch.inference_mode():
        for side in sides:
            tokens = tokenizer(list(side), padding=True, truncation=True, return_tensors="pt")
            embeddings.append(model.embed(tokens["input_ids"], tokens["attention_mask"]))
    cosines = nn.functional.cosine_similarity(*embeddings)
    correlation: Any = spearmanr(cosines.numpy(), np.array(gold, dtype=float))
    return 100 * float(correlation.statistic)


def main(folder: Path) -> None:
    torch.manual_seed(SEED)
    tables = folder / "datasets/scenes"
    student, similarity = tables / "student", tables / "similarity"
    data = Data(tables, folder / "features/scenes/image/resnet", folder / "tokens/scenes-bert")
    model = MCSE(student, data.features.dim)
    best, weights = -100.0, {}
    for step, loss in train(model, data, STEPS):
        if step % 30 == 0:
            print(f"step {step}: loss {loss:.3f}")
        if step % CONFIG.eval_steps == 0:
            dev = score(model, student, similarity / "dev.tsv")
            print(f"step {step}: dev {dev:.2f}")
            if dev > best:
                best, weights = dev, copy.deepcopy(model.state_dict())
    model.load_state_dict(weights)
    print(f"test {score(model, student, similarity / 'test.tsv'):.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
