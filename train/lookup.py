"""Rows of token and feature sets by the number of a training row, from the host or the device.

A run reads the same rows in every epoch. On a GPU they are moved there once if they fit, and a
batch is then a lookup on the device; the values are the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pipeline.cache import FeatureSet, TokenSet
from sightline.devices import to_device

_CHUNK = 1 << 15
"""Rows that are moved at once."""


class FeatureLookup(ABC):
    """Cached features of training rows 0 … n − 1."""

    @abstractmethod
    def take(self, rows: NDArray[np.int64]) -> Tensor:
        """Features of ``rows``: float32 [len(rows), D]."""

    @abstractmethod
    def of(self, rows: NDArray[np.int64]) -> FeatureLookup:
        """Those of ``rows``, which become rows 0, 1, …"""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """What the distinct rows take on a device."""

    @abstractmethod
    def moved(self, device: torch.device) -> FeatureLookup:
        """The same features on ``device``, each distinct row once, in the type of the cache."""


@dataclass(frozen=True)
class CachedFeatures(FeatureLookup):
    """Read from the cache, on the host.

    Attributes:
        features: their set.
        rows: int64 [n], row of the set for each training row.
    """

    features: FeatureSet
    rows: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        found = self.features.gather(self.rows[rows])
        return torch.from_numpy(found.astype(np.float32, copy=False))

    def of(self, rows: NDArray[np.int64]) -> CachedFeatures:
        return CachedFeatures(self.features, self.rows[rows])

    @property
    def nbytes(self) -> int:
        return len(np.unique(self.rows)) * self.features.dim * self.features.dtype.itemsize

    def moved(self, device: torch.device) -> DeviceFeatures:
        distinct, places = np.unique(self.rows, return_inverse=True)
        dtype = torch.from_numpy(np.empty(0, self.features.dtype)).dtype
        table = torch.empty(len(distinct), self.features.dim, dtype=dtype, device=device)
        for start in range(0, len(distinct), _CHUNK):
            part = self.features.gather(distinct[start : start + _CHUNK])
            table[start : start + len(part)] = torch.from_numpy(part).to(device)
        return DeviceFeatures(table, places.astype(np.int64))


@dataclass(frozen=True)
class DeviceFeatures(FeatureLookup):
    """Held on a device.

    Attributes:
        table: [distinct, D] on the device, float16 or float32.
        places: int64 [n], row of the table for each training row.
    """

    table: Tensor
    places: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        return self.table[_index(self.places[rows], self.table.device)].float()

    def of(self, rows: NDArray[np.int64]) -> DeviceFeatures:
        return DeviceFeatures(self.table, self.places[rows])

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    def moved(self, device: torch.device) -> DeviceFeatures:
        return DeviceFeatures(self.table.to(device), self.places)


class TokenLookup(ABC):
    """Token ids of training rows 0 … n − 1.

    Attributes:
        lengths: int64 [n], tokens of each row.
    """

    lengths: NDArray[np.int64]

    @abstractmethod
    def take(self, rows: NDArray[np.int64]) -> Tensor:
        """Token ids of ``rows``, padded to the longest: int64 [len(rows), L]."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """What the padded rows take on a device."""

    @abstractmethod
    def moved(self, device: torch.device) -> TokenLookup:
        """The same ids on ``device``, padded to the longest of all rows."""


@dataclass(frozen=True)
class CachedTokens(TokenLookup):
    """Read from a token set, on the host."""

    tokens: TokenSet
    rows: NDArray[np.int64]
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, tokens: TokenSet, rows: NDArray[np.int64]) -> CachedTokens:
        """Those of ``rows`` of ``tokens``."""
        return cls(tokens, rows, tokens.lengths[rows].astype(np.int64))

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(pad(self.tokens, self.rows[rows]).astype(np.int64))

    @property
    def nbytes(self) -> int:
        return len(self.rows) * int(self.lengths.max(initial=0)) * 4

    def moved(self, device: torch.device) -> DeviceTokens:
        longest = int(self.lengths.max())
        table = torch.full(
            (len(self.rows), longest), self.tokens.pad_token_id, dtype=torch.int32, device=device
        )
        for start in range(0, len(self.rows), _CHUNK):
            part = pad(self.tokens, self.rows[start : start + _CHUNK])
            table[start : start + len(part), : part.shape[1]] = torch.from_numpy(part).to(device)
        return DeviceTokens(table, self.lengths)


@dataclass(frozen=True)
class DeviceTokens(TokenLookup):
    """Held on a device.

    Attributes:
        table: int32 [n, longest] on the device.
    """

    table: Tensor
    lengths: NDArray[np.int64]

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        longest = int(self.lengths[rows].max())
        return self.table[:, :longest][_index(rows, self.table.device)].long()

    @property
    def nbytes(self) -> int:
        return self.table.nbytes

    def moved(self, device: torch.device) -> DeviceTokens:
        return DeviceTokens(self.table.to(device), self.lengths)


def pad(tokens: TokenSet, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int32]:
    """Token ids of ``rows``, padded to the longest: int32 [n, L]."""
    flat, lengths = tokens.gather(np.asarray(rows, dtype=np.int64))
    inside = np.arange(lengths.max()) < lengths[:, None]  # (n, L)
    ids = np.full(inside.shape, tokens.pad_token_id, dtype=np.int32)
    ids[inside] = flat
    return ids


def _index(rows: NDArray[np.int64], device: torch.device) -> Tensor:
    return to_device(torch.tensor(rows), device)  # a copy: rows may be read-only
