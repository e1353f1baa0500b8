"""A stream of texts, resolved once: where the tokens and features of each row are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sightline.cache import TokenSet
from sightline.devices import to_device
from train.batch import Block, TokenRows
from train.pairs import RaggedPhrases, take_phrases
from train.rows import StreamRows

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class Lookup:
    """Cached rows of a stream, read on the host or looked up on a device.

    A run reads the same rows in every epoch. On a GPU they are moved there once if they fit, and a
    batch is then a lookup on the device; the values are the same.

    Attributes:
        read: rows of the set → [n, width], on the host.
        at: int64 [n], row of the set, or of ``table``, for each row of the stream.
        table: the distinct rows that are needed, on a device: [distinct, width].
    """

    read: Callable[[NDArray[np.int64]], NDArray[Any]]
    at: NDArray[np.int64]
    table: Tensor | None = None

    def take(self, rows: NDArray[np.int64]) -> Tensor:
        """What is cached for ``rows`` of the stream, in the type of the cache: [n, width]."""
        import torch

        at = self.at[rows]
        if self.table is None:
            return torch.from_numpy(self.read(at))
        return self.table[to_device(torch.from_numpy(at), self.table.device)]

    @property
    def nbytes(self) -> int:
        """What the distinct rows take on a device."""
        if self.table is not None:
            return self.table.nbytes
        return len(np.unique(self.at)) * self.read(self.at[:1]).nbytes

    def moved(self, device: torch.device) -> Lookup:
        """The same rows on ``device``, each distinct one once."""
        import torch

        distinct, places = np.unique(self.at, return_inverse=True)
        row = torch.from_numpy(self.read(distinct[:1]))
        table = row.new_empty(len(distinct), row.shape[1], device=device)
        chunk = 1 << 15  # the host may not have the memory for all
        for start in range(0, len(distinct), chunk):
            part = self.read(distinct[start : start + chunk])
            table[start : start + len(part)] = torch.from_numpy(part).to(device)
        return replace(self, at=places.astype(np.int64), table=table)


def padded_ids(tokens: TokenSet, longest: int, rows: NDArray[np.int64]) -> NDArray[np.int32]:
    """Token ids of ``rows`` of a token set, padded: int32 [n, longest]."""
    flat, lengths = tokens.gather(rows)
    ids = np.full((len(rows), longest), tokens.header.pad_token_id, dtype=np.int32)
    ids[np.arange(longest) < lengths[:, None]] = flat
    return ids


@dataclass(frozen=True)
class Texts:
    """A text for each row of a stream: where it is in the token set and in feature sets.

    Attributes:
        lengths: int64 [n], tokens of each text.
        ids: its token ids, padded to the longest.
        features: by name, rows of its image or of itself.
    """

    lengths: NDArray[np.int64]
    ids: Lookup
    features: Mapping[str, Lookup]

    def take(self, rows: NDArray[np.int64]) -> TokenRows:
        """The texts of ``rows``, as a block of the batch."""
        lengths = self.lengths[rows]
        return TokenRows(self.ids.take(rows)[:, : int(lengths.max())].long(), lengths)

    def moved(self, device: torch.device) -> Texts:
        """The same on ``device``."""
        features = {name: lookup.moved(device) for name, lookup in self.features.items()}
        return replace(self, ids=self.ids.moved(device), features=features)


@dataclass(frozen=True)
class TrainedStream:
    """One stream, with all that a batch of it may have.

    Attributes:
        rows: as the objective sees them.
        tokens: the token set.
        texts: of the rows, and their features.
        seconds: second texts, by the name of their block.
        order: pass → order of the rows; None for the shuffled one.
        phrases: of the rows, if the objective reads objects.
        of_objects: names of the features that are of the phrases' objects.
    """

    rows: StreamRows
    tokens: TokenSet
    texts: Texts
    seconds: Mapping[str, Texts]
    order: Callable[[int], NDArray[np.int64] | None]
    phrases: RaggedPhrases | None = None
    of_objects: frozenset[str] = frozenset()

    @property
    def nbytes(self) -> int:
        """What the token ids and features of its rows take on a device."""
        texts = (self.texts, *self.seconds.values())
        return sum(lookup.nbytes for of in texts for lookup in (of.ids, *of.features.values()))

    def moved(self, device: torch.device) -> TrainedStream:
        """The same on ``device``."""
        seconds = {name: second.moved(device) for name, second in self.seconds.items()}
        return replace(self, texts=self.texts.moved(device), seconds=seconds)

    def blocks_and_features(
        self, rows: NDArray[np.int64]
    ) -> tuple[dict[str, Block], dict[str, Tensor]]:
        """What a batch of ``rows`` holds."""
        blocks: dict[str, Block] = {"sentences": self.texts.take(rows)}
        numbers = rows
        if self.phrases is not None:
            blocks["phrases"], numbers = take_phrases(self.phrases, rows)
        features = {
            name: lookup.take(numbers if name in self.of_objects else rows).float()
            for name, lookup in self.texts.features.items()
        }
        for block, second in self.seconds.items():
            blocks[block] = second.take(rows)
            for name, lookup in second.features.items():
                features[f"{block}/{name}"] = lookup.take(rows).float()
        return blocks, features


def texts_of(tokens: TokenSet, keys: NDArray[np.uint8], features: Mapping[str, Lookup]) -> Texts:
    """The texts of ``keys`` in a token set.

    Raises:
        MissingKeys: it lacks some of them.
    """
    at = tokens.rows(keys)
    lengths = tokens.lengths[at].astype(np.int64)
    ids = Lookup(partial(padded_ids, tokens, int(lengths.max())), at)
    return Texts(lengths, ids, features)
