"""The rows of a stream: as an objective sees them, what it brings, and what a batch has of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sightline.cache import RaggedPhrases, TokenSet, ranges
from sightline.devices import to_device
from sightline.errors import SightlineError
from sightline.plugins import expect, expect_array, wrong
from train.batch import Block, TokenRows, TokenSpans
from train.schedule import Stream

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from train.objectives import Objective


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


@dataclass(frozen=True)
class StreamRows:
    """All rows of one stream, in the order of their numbers.

    Attributes:
        stream: `pairs` or `text`.
        texts: of the rows.
        keys: uint8 [n, 32], of the texts.
        images: uint8 [n, 32], keys of the rows' images; None for plain sentences.
        lookups: where the features of the rows are, by name.
    """

    stream: Stream
    texts: Sequence[str]
    keys: NDArray[np.uint8]
    images: NDArray[np.uint8] | None = None
    lookups: Mapping[str, Lookup] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.keys)

    def only(self, rows: NDArray[np.int64]) -> StreamRows:
        """Some of the rows, without features."""
        images = None if self.images is None else self.images[rows]
        texts = [self.texts[int(row)] for row in rows]
        return StreamRows(self.stream, texts, self.keys[rows], images)

    def features(self, name: str, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """What a feature set has for these ``rows``: [len(rows), width].

        Args:
            name: of a need (`FeatureNeed.name`) whose rows are those of images or captions.

        Raises:
            SightlineError: there are none in this stream.
        """
        if name not in self.lookups:
            raise SightlineError(
                f"the rows of {self.stream} have no features {name!r}, only "
                f"{', '.join(self.lookups) or 'none'}"
            )
        return self.lookups[name].take(rows).float().numpy()

    def extra(self, rows: NDArray[np.int64], features: Sequence[str] = ()) -> ExtraTexts:
        """The texts of other ``rows`` as extra texts, with their images.

        Args:
            rows: int64 [n], for each row the number of another.
            features: see `ExtraTexts`.
        """
        images = None if self.images is None else self.images[rows]
        return ExtraTexts(self.keys[rows], images, tuple(features))


@dataclass(frozen=True)
class ExtraTexts:
    """A second text of each row of a stream, such as a hard negative: a block of the batch.

    Attributes:
        keys: uint8 [n, 32], of the texts, which are in the stream's token set.
        images: uint8 [n, 32], keys of their images, if features of images are named.
        features: names of needs that batches have for these texts too, or for their images:
            `batch.features_of(kind, encoder, of=BLOCK)`.
    """

    keys: NDArray[np.uint8]
    images: NDArray[np.uint8] | None = None
    features: Sequence[str] = ()

    @property
    def digest(self) -> str:
        """SHA-256 (hex) of which texts and images they are."""
        images = b"" if self.images is None else self.images.tobytes()
        return hashlib.sha256(self.keys.tobytes() + images).hexdigest()


_TAKEN = {"sentences", "phrases"}


def extra_texts_of(objective: Objective, rows: StreamRows) -> Mapping[str, ExtraTexts]:
    """Its `extra_texts`; SightlineError if they are something else, or do not fit the rows."""
    texts = objective.extra_texts(rows)
    expect(texts, dict, objective, "extra_texts")
    kinds = {need.name: need.row_of for need in objective.features}
    usable = ", ".join(name for name, of in kinds.items() if of != "object") or "no features"
    for block, second in texts.items():
        subject = f"extra_texts, {block}"
        expect(second, ExtraTexts, objective, subject)
        if block in _TAKEN or "/" in block:
            raise wrong(objective, subject, block, "a name of its own, without slashes")
        expect_array(second.keys, "uint8", (len(rows), 32), objective, f"{subject}, keys")
        for name in second.features:
            if kinds.get(name) not in ("caption", "image"):
                raise wrong(objective, f"{subject}, features", name, usable)
            if kinds[name] == "image":
                expect_array(
                    second.images, "uint8", (len(rows), 32), objective, f"{subject}, images"
                )
    return texts


def order_of(
    objective: Objective, rows: StreamRows, seed: int, pass_number: int
) -> NDArray[np.int64] | None:
    """Its `order`; SightlineError if that is no permutation of the rows."""
    order = objective.order(rows, pass_number, seed)
    if order is not None:
        expect_array(order, "int64", (len(rows),), objective, "order")
        if not np.array_equal(np.sort(order), np.arange(len(rows))):
            raise wrong(objective, "order", order, f"each of 0 … {len(rows) - 1} once")
    return order


@dataclass(frozen=True)
class Texts:
    """A text for each row of a stream.

    Attributes:
        lengths: int64 [n], tokens of each text.
        ids: its token ids, padded to the longest.
    """

    lengths: NDArray[np.int64]
    ids: Lookup

    @classmethod
    def of(cls, tokens: TokenSet, keys: NDArray[np.uint8]) -> Texts:
        """The texts of ``keys`` in a token set.

        Raises:
            MissingKeys: it lacks some of them.
        """
        at = tokens.rows(keys)
        lengths = tokens.lengths[at].astype(np.int64)
        longest = int(lengths.max())

        def padded(rows: NDArray[np.int64]) -> NDArray[np.int32]:
            flat, sizes = tokens.gather(rows)
            ids = np.full((len(rows), longest), tokens.header.pad_token_id, dtype=np.int32)
            ids[np.arange(longest) < sizes[:, None]] = flat
            return ids

        return cls(lengths, Lookup(padded, at))

    def take(self, rows: NDArray[np.int64]) -> TokenRows:
        """The texts of ``rows``, as a block of the batch."""
        lengths = self.lengths[rows]
        return TokenRows(self.ids.take(rows)[:, : int(lengths.max())].long(), lengths)


@dataclass(frozen=True)
class TrainedStream:
    """One stream, with all that a batch of it may have.

    Attributes:
        rows: as the objective sees them.
        texts: by the name of their block: the rows' own, ``sentences``, and extra texts.
        features: by the name that a batch has for them.
        order: pass → order of the rows; None for the shuffled one.
        phrases: of the rows, if the objective reads objects.
        of_objects: names of the features that are of the phrases' objects.
    """

    rows: StreamRows
    texts: Mapping[str, Texts]
    features: Mapping[str, Lookup]
    order: Callable[[int], NDArray[np.int64] | None]
    phrases: RaggedPhrases | None = None
    of_objects: frozenset[str] = frozenset()

    @property
    def nbytes(self) -> int:
        """What the token ids and features of its rows take on a device."""
        lookups = (*(texts.ids for texts in self.texts.values()), *self.features.values())
        return sum(lookup.nbytes for lookup in lookups)

    def moved(self, device: torch.device) -> TrainedStream:
        """The same on ``device``."""
        texts = {k: replace(text, ids=text.ids.moved(device)) for k, text in self.texts.items()}
        features = {name: lookup.moved(device) for name, lookup in self.features.items()}
        return replace(self, texts=texts, features=features)

    def blocks_and_features(
        self, rows: NDArray[np.int64]
    ) -> tuple[dict[str, Block], dict[str, Tensor]]:
        """What a batch of ``rows`` holds."""
        blocks: dict[str, Block] = {name: texts.take(rows) for name, texts in self.texts.items()}
        numbers = rows
        if self.phrases is not None:
            blocks["phrases"], numbers = take_phrases(self.phrases, rows)
        features = {
            name: lookup.take(numbers if name in self.of_objects else rows).float()
            for name, lookup in self.features.items()
        }
        return blocks, features


def take_phrases(
    phrases: RaggedPhrases, pairs: NDArray[np.int64]
) -> tuple[TokenSpans, NDArray[np.int64]]:
    """The phrases of ``pairs``, and their numbers among all, int64 [P]."""
    import torch

    begin = phrases.offsets[pairs]
    counts = phrases.offsets[pairs + 1] - begin
    numbers = ranges(begin, counts)
    owners = np.repeat(np.arange(len(pairs)), counts)
    spans = phrases.starts[numbers], phrases.ends[numbers]
    owners, starts, ends = (torch.from_numpy(array.astype(np.int64)) for array in (owners, *spans))
    return TokenSpans(owners, starts, ends, counts), numbers
