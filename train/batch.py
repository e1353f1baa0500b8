"""A training batch: named blocks of token rows, and cached features."""

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
class TokenRows:
    """A block of texts, one for each row of the batch, as the encoder reads them.

    Attributes:
        input_ids: int64 [n, L], padded to the longest of them.
        lengths: int64 [n] on the host, tokens of each row, special tokens included.
    """

    input_ids: Tensor
    lengths: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device) -> TokenRows:
        """The same rows on ``device``."""
        return replace(self, input_ids=to_device(self.input_ids, device))

    def range_of(self, rows: range) -> range:
        """Which rows of the block belong to ``rows`` of the batch."""
        return rows

    def part(self, rows: range) -> TokenRows:
        """Those of consecutive ``rows`` of the batch, padded to the longest of them."""
        if len(rows) == len(self):
            return self
        lengths = self.lengths[rows.start : rows.stop]
        longest = int(lengths.max()) if rows else 0
        return TokenRows(self.input_ids[rows.start : rows.stop, :longest], lengths)


@dataclass(frozen=True)
class TokenSpans:
    """A block whose P rows are means over tokens of another's rows, as phrases are.

    Attributes:
        owners: int64 [P], row of the block that contains the span, ascending.
        starts, ends: int64 [P], the span's tokens are starts … ends − 1 of that row.
        counts: int64 [N], spans of each row of the batch; on the host, so that cutting a batch does
            not wait for the device.
        of: name of the block that contains them.
    """

    owners: Tensor
    starts: Tensor
    ends: Tensor
    counts: NDArray[np.int64]
    of: str = "sentences"

    def __len__(self) -> int:
        return len(self.owners)

    def to(self, device: torch.device) -> TokenSpans:
        """The same spans on ``device``."""
        owners, starts, ends = (to_device(tensor, device) for tensor in self._tensors)
        return replace(self, owners=owners, starts=starts, ends=ends)

    def range_of(self, rows: range) -> range:
        """Which spans are in consecutive ``rows`` of the batch."""
        ends = np.concatenate([[0], np.cumsum(self.counts)])
        return range(int(ends[rows.start]), int(ends[rows.stop]))

    def part(self, rows: range) -> TokenSpans:
        """Those in consecutive ``rows``, which become rows 0 … of the part."""
        of = self.range_of(rows)
        owners, starts, ends = (tensor[of.start : of.stop] for tensor in self._tensors)
        counts = self.counts[rows.start : rows.stop]
        return TokenSpans(owners - rows.start, starts, ends, counts, self.of)

    @property
    def _tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.owners, self.starts, self.ends


Block = TokenRows | TokenSpans
Blocks = Mapping[str, Block]
"""Blocks of a batch, or of a part of it, by name. Each knows which of its rows belong to which rows
of the batch, so code that splits, chunks or gathers blocks does not depend on what they hold."""


Embeddings = Mapping[str, "Tensor"]
"""Name of a block → float [2, n, d], two dropout views of its rows, before any head. Those of
sentences are pooled, those of phrases are means over their tokens."""


@dataclass(frozen=True)
class Batch:
    """Micro-batch ``k``, ready for the model.

    Attributes:
        k: number of the micro-batch within the run.
        seed: of the run; with `k` it seeds what is drawn inside the batch (see `generator`).
        stream: `pairs` or `text`.
        blocks: what the encoder embeds, by name: ``sentences``, ``phrases`` if the objective reads
            objects, and extra texts if it brings any.
        features: by `feature_name`, float32: one row per sentence [N, D], of objects one per phrase
            [P, D]; empty on the text stream. Those of a second text have its block before the name.
        keys: uint8 [N, 32] of the texts.
    """

    k: int
    seed: int
    stream: Stream
    blocks: Blocks
    features: Mapping[str, Tensor]
    keys: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.sentences)

    def to(self, device: torch.device) -> Batch:
        """The same batch with its tensors on ``device``."""
        features = {name: to_device(rows, device) for name, rows in self.features.items()}
        blocks = {name: block.to(device) for name, block in self.blocks.items()}
        return replace(self, blocks=blocks, features=features)

    def features_of(self, kind: Kind, encoder: str | None, of: str | None = None) -> Tensor:
        """The rows of one feature set, for the sentences or for the extra texts ``of`` a block."""
        name = feature_name(kind, encoder)
        return self.features[name if of is None else f"{of}/{name}"]

    @property
    def sentences(self) -> TokenRows:
        """The block of sentences."""
        rows = self.blocks["sentences"]
        assert isinstance(rows, TokenRows)
        return rows

    @property
    def phrases(self) -> TokenSpans:
        """The block of phrases; KeyError if the objective reads no objects."""
        spans = self.blocks["phrases"]
        assert isinstance(spans, TokenSpans)
        return spans

    def part(self, rows: range) -> dict[str, Block]:
        """What of each block belongs to consecutive ``rows``."""
        return {name: block.part(rows) for name, block in self.blocks.items()}

    def generator(self) -> torch.Generator:
        """A CPU generator fixed by (seed, k): the same draw again after a resume."""
        import torch

        digest = hashlib.sha256(f"{self.seed}:{self.k}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
