"""The rows of a stream as an objective sees them before a run, and second texts that it brings."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sightline.errors import SightlineError
from sightline.plugins import expect, expect_array, wrong
from train.schedule import Stream

if TYPE_CHECKING:
    from train.objectives import ObjectiveParams
    from train.streams import Lookup


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

    def second(self, rows: NDArray[np.int64], features: Sequence[str] = ()) -> SecondTexts:
        """The texts of other ``rows`` as second texts, with their images.

        Args:
            rows: int64 [n], for each row the number of another.
            features: see `SecondTexts`.
        """
        images = None if self.images is None else self.images[rows]
        return SecondTexts(self.keys[rows], images, tuple(features))


@dataclass(frozen=True)
class SecondTexts:
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


def second_texts_of(objective: ObjectiveParams, rows: StreamRows) -> Mapping[str, SecondTexts]:
    """Its `second_texts`; SightlineError if they are something else, or do not fit the rows."""
    found = objective.second_texts(rows)
    expect(found, dict, objective, "second_texts")
    kinds = {need.name: need.row_of for need in objective.features}
    usable = ", ".join(name for name, of in kinds.items() if of != "object") or "no features"
    for block, second in found.items():
        what = f"second_texts, {block}"
        expect(second, SecondTexts, objective, what)
        if block in _TAKEN or "/" in block:
            raise wrong(objective, what, block, "a name of its own, without slashes")
        expect_array(second.keys, "uint8", (len(rows), 32), objective, f"{what}, keys")
        for name in second.features:
            if kinds.get(name) not in ("caption", "image"):
                raise wrong(objective, f"{what}, features", name, usable)
            if kinds[name] == "image":
                expect_array(second.images, "uint8", (len(rows), 32), objective, f"{what}, images")
    return found


def order_of(
    objective: ObjectiveParams, rows: StreamRows, seed: int, pass_number: int
) -> NDArray[np.int64] | None:
    """Its `order`; SightlineError if that is no permutation of the rows."""
    order = objective.order(rows, pass_number, seed)
    if order is not None:
        expect_array(order, "int64", (len(rows),), objective, "order")
        if not np.array_equal(np.sort(order), np.arange(len(rows))):
            raise wrong(objective, "order", order, f"each of 0 … {len(rows) - 1} once")
    return order
