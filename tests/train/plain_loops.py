"""Training loops of plain PyTorch, one for each method of the package `three_methods`."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path

import torch
from released_loops import ReleasedModel
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from train.batch import Batch, TokenRows
from train.data import TrainingData

HARD = "hard_negatives"


class PlainModel(ReleasedModel):
    """BERT with heads, whose pass n draws dropout from seed n."""

    def views(self, rows: TokenRows) -> Tensor:  # pyright: ignore
        """The [CLS] states of both dropout views, from one pass: [2, n, d]."""
        inside = torch.arange(rows.input_ids.shape[1]) < torch.from_numpy(rows.lengths)[:, None]
        ids, mask = rows.input_ids.repeat(2, 1), inside.long().repeat(2, 1)
        output = self.encoder(input_ids=ids, attention_mask=mask)
        return output.last_hidden_state[:, 0].unflatten(0, (2, -1))


class MomentumQueue:
    """MoCo: keys of a slow copy, and a list of those of earlier batches."""

    def __init__(self, model: PlainModel, start: Mapping[str, Tensor], momentum: float) -> None:
        self.model, self.momentum = model, momentum
        self.slow = copy.deepcopy(model)
        self.queue = list(start["queue"].double())

    def loss(self, batch: Batch) -> Tensor:
        first = normalize(self.model.project("text", self.model.views(batch.sentences)[0]), dim=1)
        with torch.no_grad():
            second = self.slow.views(batch.sentences)[1]
            keys = normalize(self.slow.project("text", second), dim=1)
        others = torch.stack(self.queue)
        self.queue = (self.queue + list(keys))[-len(self.queue) :]
        total = torch.zeros((), dtype=torch.float64)
        for query, key in zip(first, keys, strict=True):
            scores = torch.cat([(query @ key)[None], others @ query]) / 0.05
            total = total - scores.log_softmax(dim=0)[0]
        return total / len(first)

    @torch.no_grad()
    def after_step(self) -> None:
        for slow, fast in zip(self.slow.parameters(), self.model.parameters(), strict=True):
            slow.copy_(self.momentum * slow + (1 - self.momentum) * fast)


class MinedNegatives:
    """SimCSE with one more negative for each sentence."""

    def __init__(self, model: PlainModel) -> None:
        self.model = model

    def loss(self, batch: Batch) -> Tensor:
        first, second = (
            self.model.project("text", each) for each in self.model.views(batch.sentences)
        )
        others = second
        if HARD in batch.blocks:
            rows = batch.blocks[HARD]
            assert isinstance(rows, TokenRows)
            others = torch.cat([second, self.model.project("text", self.model.views(rows)[0])])
        scores = cosine_similarity(first[:, None], others[None], dim=2) / 0.05
        return cross_entropy(scores, torch.arange(len(first)))

    def after_step(self) -> None:
        pass


class SpreadOut:
    """SimCSE, the second moment of cosines, and the distance to the teacher."""

    def __init__(self, model: PlainModel, linear: Tensor) -> None:
        self.model = model
        model.linear = nn.Parameter(linear.double())

    def loss(self, batch: Batch) -> Tensor:
        views = self.model.views(batch.sentences)
        first, second = (self.model.project("text", each) for each in views)
        scores = cosine_similarity(first[:, None], second[None], dim=2) / 0.05
        loss = cross_entropy(scores, torch.arange(len(first)))
        for view in views:
            cosines = cosine_similarity(view[:, None], view[None], dim=2)
            others = ~torch.eye(len(view), dtype=torch.bool)
            loss = loss + cosines[others].square().mean()
            if batch.stream == "pairs":
                target = normalize(batch.features["teacher-first"].double(), dim=1)
                mapped = normalize(view @ self.model.linear.T, dim=1)
                loss = loss + (mapped - target).square().sum(dim=1).mean() / 2
        return loss

    def after_step(self) -> None:
        pass


def train(
    method: MomentumQueue | MinedNegatives | SpreadOut, data: TrainingData, steps: int, rate: float
) -> list[float]:
    """Losses of so many steps of PyTorch's AdamW, whose rate decays linearly."""
    weights = [weight for weight in method.model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=rate, weight_decay=0.0)
    method.model.train()
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = rate * (steps - step) / steps
        optimizer.zero_grad()
        loss = method.loss(data[step])
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        method.after_step()
        losses.append(loss.item())
    return losses


def model_of(student: Path, start: Mapping[str, Tensor]) -> PlainModel:
    """The model that begins with the weights of a run, in float64."""
    heads = {n: w for n, w in start.items() if n.startswith(("encoder.", "heads.text."))}
    return PlainModel(student, heads, torch.float64)
