"""A momentum encoder with a queue of negatives, MoCo's rule, on sentences."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from train.batch import Batch, Embeddings
from train.objectives import Objective, ObjectiveModule

if TYPE_CHECKING:
    from train.model import Student


class MomentumQueue(Objective):
    """Each sentence finds the momentum encoder's key of itself among a queue of others' keys.

        mean_i −log( exp(q_i·k_i/τ) / (exp(q_i·k_i/τ) + Σ_j exp(q_i·n_j/τ)) )

    q: first view of the student; k: second view of the momentum encoder; n: the queue (He et al.
    2020, eq. 1). After each batch its keys take the place of the oldest.

    Attributes:
        queue: keys of earlier batches that each batch is compared with.
        momentum: m; the momentum encoder moves by 1 − m towards the student after each step.
    """

    name: ClassVar[str] = "momentum-queue"
    source: ClassVar[str] = "MoCo (He et al., CVPR 2020, arXiv 1911.05722), on sentences"

    queue: int = Field(default=256, ge=1)
    momentum: float = Field(default=0.995, ge=0, le=1)

    @property
    def weights(self) -> dict[str, float]:
        return {"text": 1.0}

    def build(self, hidden: int, dims: Mapping[str, int]) -> MomentumEncoder:
        return MomentumEncoder(self, hidden, dims)


class MomentumEncoder(ObjectiveModule):
    """The slow encoder with its head, and the queue of its keys [queue, hidden]."""

    queue: Tensor
    oldest: Tensor

    def __init__(self, params: MomentumQueue, hidden: int, dims: Mapping[str, int]) -> None:
        super().__init__(params, hidden, dims)
        self.momentum = params.momentum
        self.register_buffer("queue", normalize(torch.randn(params.queue, hidden), dim=1))
        self.register_buffer("oldest", torch.zeros((), dtype=torch.int64))

    def start(self, student: Student) -> None:
        self.slow = nn.ModuleList(
            [copy.deepcopy(student.encoder), copy.deepcopy(self.heads["text"])]
        )
        self.slow.requires_grad_(False)
        self.encode = student.encode

    def forward(self, batch: Batch, embeddings: Embeddings) -> dict[str, Tensor]:
        queries = normalize(self.heads["text"](embeddings["sentences"][0]), dim=1)  # (N, d)
        encoder, head = self.slow
        with torch.no_grad():
            keys = normalize(head(self.encode(batch.sentences, encoder)[1]), dim=1)  # (N, d)
        own = (queries * keys).sum(dim=1, keepdim=True)
        logits = torch.cat([own, queries @ self.queue.T.clone()], dim=1) / self.params.temperature
        self._enqueue(keys)
        return {"text": cross_entropy(logits, logits.new_zeros(len(logits), dtype=torch.int64))}

    def _enqueue(self, keys: Tensor) -> None:
        newest = keys[-len(self.queue) :]
        numbers = torch.arange(len(newest), device=keys.device)
        self.queue[(self.oldest + numbers) % len(self.queue)] = newest.to(self.queue.dtype)
        self.oldest.copy_((self.oldest + len(newest)) % len(self.queue))

    @torch.no_grad()
    def after_step(self, student: Student) -> None:
        encoder, head = self.slow
        for slow, fast in ((encoder, student.encoder), (head, self.heads["text"])):
            for own, other in zip(slow.parameters(), fast.parameters(), strict=True):
                own.lerp_(other, 1 - self.momentum)
