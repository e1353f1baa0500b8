"""A training batch: token ids, cached features and, where there are objects, phrases."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sightline.devices import to_device
from train.schedule import Stream

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from sightline.cache.record import Kind


def feature_name(kind: Kind, encoder: str | None) -> str:
    """What a feature set is called in a run: `image-clip` are the image features of clip."""
    return f"{kind}-{encoder}"


@dataclass(frozen=True)
class Phrases:
    """The phrases of a batch, P in all, in the order of their captions.

    Attributes:
        owners: int64 [P], row of the caption that contains the phrase, ascending.
        starts, ends: int64 [P], the phrase's tokens are starts … ends − 1 of that row.
        counts: int64 [N], phrases of each caption; on the host, so that cutting a batch does not
            wait for the device.
    """

    owners: Tensor
    starts: Tensor
    ends: Tensor
    counts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.owners)

    def to(self, device: torch.device) -> Phrases:
        """The same phrases on ``device``."""
        owners, starts, ends = (
            to_device(tensor, device) for tensor in (self.owners, self.starts, self.ends)
        )
        return Phrases(owners, starts, ends, self.counts)

    def range_of(self, rows: range) -> range:
        """Which phrases are in ``rows``, consecutive captions of the batch."""
        ends = np.concatenate([[0], np.cumsum(self.counts)])
        return range(int(ends[rows.start]), int(ends[rows.stop]))

    def part(self, rows: range) -> Phrases:
        """Those in ``rows``, consecutive captions, which become captions 0 … of the part."""
        of = self.range_of(rows)
        owners, starts, ends = (
            tensor[of.start : of.stop] for tensor in (self.owners, self.starts, self.ends)
        )
        return Phrases(owners - rows.start, starts, ends, self.counts[rows.start : rows.stop])


@dataclass(frozen=True)
class TokenRows:
    """Rows of a batch as the encoder reads them.

    Attributes:
        input_ids: int64 [n, L], padded to the longest of them.
        lengths: int64 [n] on the host, tokens of each row.
        phrases: those in these rows, with owners 0 … n − 1; None if the objective reads no
            objects.
    """

    input_ids: Tensor
    lengths: NDArray[np.int64]
    phrases: Phrases | None = None

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class Batch:
    """Micro-batch ``k``, ready for the model.

    Attributes:
        k: number of the micro-batch within the run.
        seed: of the run; with `k` it seeds what is drawn inside the batch (see `generator`).
        stream: `pairs` or `text`.
        input_ids: int64 [N, L], padded with ``pad_token_id`` to the longest of the batch.
        lengths: int64 [N] on the host, tokens of each row, special tokens included.
        features: by `feature_name`, float32: one row per sentence [N, D], of objects one per phrase
            [P, D]; empty on the text stream.
        keys: uint8 [N, 32] of the texts, for error messages.
        phrases: the phrases of all captions; None if the objective reads no objects.
    """

    k: int
    seed: int
    stream: Stream
    input_ids: Tensor
    lengths: NDArray[np.int64]
    features: Mapping[str, Tensor]
    keys: NDArray[np.uint8]
    phrases: Phrases | None = None

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device) -> Batch:
        """The same batch with its tensors on ``device``."""
        features = {name: to_device(rows, device) for name, rows in self.features.items()}
        phrases = None if self.phrases is None else self.phrases.to(device)
        ids = to_device(self.input_ids, device)
        return replace(self, input_ids=ids, features=features, phrases=phrases)

    def features_of(self, kind: Kind, encoder: str | None) -> Tensor:
        """The rows of one feature set."""
        return self.features[feature_name(kind, encoder)]

    @property
    def sentences(self) -> TokenRows:
        """All rows, as the encoder reads them."""
        return TokenRows(self.input_ids, self.lengths, self.phrases)

    def part(self, rows: range) -> TokenRows:
        """Consecutive ``rows``, as the encoder reads them."""
        if len(rows) == len(self):
            return self.sentences
        lengths = self.lengths[rows.start : rows.stop]
        longest = int(lengths.max()) if rows else 0
        ids = self.input_ids[rows.start : rows.stop, :longest]
        return TokenRows(ids, lengths, None if self.phrases is None else self.phrases.part(rows))

    def generator(self) -> torch.Generator:
        """A CPU generator fixed by (seed, k): the same draw again after a resume."""
        import torch

        digest = hashlib.sha256(f"{self.seed}:{self.k}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
