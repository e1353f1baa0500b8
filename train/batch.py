"""A training batch: token ids, cached features and, where there are objects, phrases."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from train.schedule import Stream


@dataclass(frozen=True)
class Phrases:
    """The phrases of a batch, P in all, in the order of their captions.

    Attributes:
        owners: int64 [P], row of the caption that contains the phrase, ascending.
        starts, ends: int64 [P], the phrase's tokens are starts … ends − 1 of that row.
    """

    owners: Tensor
    starts: Tensor
    ends: Tensor

    def __len__(self) -> int:
        return len(self.owners)

    def map(self, change: Callable[[Tensor], Tensor]) -> Phrases:
        """The same phrases with every tensor transformed."""
        return Phrases(change(self.owners), change(self.starts), change(self.ends))

    def range_of(self, rows: range) -> range:
        """Which phrases are in ``rows``, consecutive captions of the batch."""
        ends = torch.searchsorted(self.owners, torch.tensor([rows.start, rows.stop]))
        return range(*ends.tolist())


@dataclass(frozen=True)
class Sentences:
    """Rows of a batch as the encoder reads them.

    Attributes:
        input_ids: int64 [n, L], padded to the longest of them.
        lengths: int64 [n], tokens of each row.
        phrases: those in these rows, with owners 0 … n − 1; None if the objective reads no
            objects.
    """

    input_ids: Tensor
    lengths: Tensor
    phrases: Phrases | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device | str) -> Sentences:
        """The same sentences on ``device``."""
        phrases = None if self.phrases is None else self.phrases.map(lambda each: each.to(device))
        return Sentences(self.input_ids.to(device), self.lengths.to(device), phrases)


@dataclass(frozen=True)
class Batch:
    """Micro-batch ``k``, ready for the model.

    Attributes:
        k: number of the micro-batch within the run.
        seed: of the run; with `k` it seeds what is drawn inside the batch (see `generator`).
        stream: `pairs` or `text`.
        input_ids: int64 [N, L], padded with ``pad_token_id`` to the longest of the batch.
        lengths: int64 [N], tokens of each row, special tokens included.
        features: slot → float32, one row per sentence [N, D], or one per phrase [P, D] in the slots
            of objects; empty on the text stream.
        keys: uint8 [N, 32] of the texts, for error messages.
        phrases: the phrases of all captions; None if the objective reads no objects.
    """

    k: int
    seed: int
    stream: Stream
    input_ids: Tensor
    lengths: Tensor
    features: Mapping[str, Tensor]
    keys: NDArray[np.uint8]
    phrases: Phrases | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The same batch with its tensors on ``device``."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        features = {slot: move(rows) for slot, rows in self.features.items()}
        ids, lengths = move(self.input_ids), move(self.lengths)
        phrases = None if self.phrases is None else self.phrases.map(move)
        return replace(self, input_ids=ids, lengths=lengths, features=features, phrases=phrases)

    @property
    def sentences(self) -> Sentences:
        """All rows, as the encoder reads them."""
        return Sentences(self.input_ids, self.lengths, self.phrases)

    def part(self, rows: range) -> Sentences:
        """Consecutive ``rows``, as the encoder reads them; for a batch on the CPU."""
        if len(rows) == len(self):
            return self.sentences
        lengths = self.lengths[rows.start : rows.stop]
        longest = int(lengths.max()) if rows else 0
        ids = self.input_ids[rows.start : rows.stop, :longest]
        if self.phrases is None:
            return Sentences(ids, lengths)
        found = self.phrases.range_of(rows)
        phrases = self.phrases.map(lambda each: each[found.start : found.stop])
        return Sentences(ids, lengths, replace(phrases, owners=phrases.owners - rows.start))

    def generator(self) -> torch.Generator:
        """A CPU generator fixed by (seed, k): the same draw again after a resume."""
        digest = hashlib.sha256(f"{self.seed}:{self.k}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
