"""Rows of token and feature sets by the number of a training row, from the host or a device.

A run reads the same rows in every epoch. On a GPU they are moved there once if they fit, and a
batch is then a lookup on the device; the values are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sightline.cache import FeatureSet, TokenSet
from sightline.devices import to_device

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_CHUNK = 1 << 15
"""Rows that are moved at once."""


@dataclass(frozen=True)
class FeatureLookup:
    """Cached features of training rows 0 … n − 1.

    Attributes:
        table: the feature set, read on the host, or the rows of it that are needed, on a device:
            [distinct, D], in the type of the cache.
        rows: int64 [n], row of the table for each training row.
    """

    table: FeatureSet | Tensor
    rows: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        """Features of ``rows``: float32 [len(rows), D]."""
        import torch

        at = self.rows[rows]
        if not isinstance(self.table, FeatureSet):
            return self.table[_index(at, self.table.device)].float()
        return torch.from_numpy(self.table.gather(at).astype(np.float32, copy=False))

    def of(self, rows: NDArray[np.int64]) -> FeatureLookup:
        """Those of ``rows``, which become rows 0, 1, …"""
        return replace(self, rows=self.rows[rows])

    @property
    def nbytes(self) -> int:
        """What the distinct rows take on a device."""
        if not isinstance(self.table, FeatureSet):
            return self.table.nbytes
        return len(np.unique(self.rows)) * self.table.dim * self.table.dtype.itemsize

    def moved(self, device: torch.device) -> FeatureLookup:
        """The same features on ``device``, each distinct row once."""
        import torch

        if not isinstance(self.table, FeatureSet):
            return replace(self, table=self.table.to(device))
        distinct, places = np.unique(self.rows, return_inverse=True)
        dtype = torch.from_numpy(np.empty(0, self.table.dtype)).dtype
        table = torch.empty(len(distinct), self.table.dim, dtype=dtype, device=device)
        for start in range(0, len(distinct), _CHUNK):
            part = self.table.gather(distinct[start : start + _CHUNK])
            table[start : start + len(part)] = torch.from_numpy(part).to(device)
        return FeatureLookup(table, places.astype(np.int64))


@dataclass(frozen=True)
class TokenLookup:
    """Token ids of training rows 0 … n − 1.

    Attributes:
        tokens: their token set.
        rows: int64 [n], row of the set for each training row.
        lengths: int64 [n], tokens of each row.
        table: the padded ids of all rows, on a device: int32 [n, longest]; None reads the set.
    """

    tokens: TokenSet
    rows: NDArray[np.int64]
    lengths: NDArray[np.int64]
    table: Tensor | None = None

    @classmethod
    def of(cls, tokens: TokenSet, rows: NDArray[np.int64]) -> TokenLookup:
        """Those of ``rows`` of ``tokens``."""
        return cls(tokens, rows, tokens.lengths[rows].astype(np.int64))

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        """Token ids of ``rows``, padded to the longest: int64 [len(rows), L]."""
        import torch

        if self.table is None:
            return torch.from_numpy(pad(self.tokens, self.rows[rows]).astype(np.int64))
        longest = int(self.lengths[rows].max())
        return self.table[:, :longest][_index(rows, self.table.device)].long()

    @property
    def nbytes(self) -> int:
        """What the padded rows take on a device."""
        return len(self.rows) * int(self.lengths.max(initial=0)) * 4

    def moved(self, device: torch.device) -> TokenLookup:
        """The same ids on ``device``, padded to the longest of all rows."""
        import torch

        shape = len(self.rows), int(self.lengths.max())
        table = torch.full(shape, self.tokens.header.pad_token_id, dtype=torch.int32, device=device)
        for start in range(0, len(self.rows), _CHUNK):
            part = pad(self.tokens, self.rows[start : start + _CHUNK])
            table[start : start + len(part), : part.shape[1]] = torch.from_numpy(part).to(device)
        return replace(self, table=table)


def pad(tokens: TokenSet, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int32]:
    """Token ids of ``rows``, padded to the longest: int32 [n, L]."""
    flat, lengths = tokens.gather(np.asarray(rows, dtype=np.int64))
    inside = np.arange(lengths.max()) < lengths[:, None]  # (n, L)
    ids = np.full(inside.shape, tokens.header.pad_token_id, dtype=np.int32)
    ids[inside] = flat
    return ids


def _index(rows: NDArray[np.int64], device: torch.device) -> Tensor:
    import torch

    return to_device(torch.tensor(rows), device)  # a copy: rows may be read-only
