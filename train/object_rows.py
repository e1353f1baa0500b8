"""Phrases and their objects on the paired stream: a ragged table, read a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sightline.cache import FeatureSet, PhraseTokens, RaggedPhrases, TokenSet, ranges
from sightline.errors import SightlineError
from train.batch import Phrases
from train.lookup import FeatureLookup
from train.pairs import Pairs

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class ObjectRows:
    """The phrases of every pair, and where to find the features of their objects.

    Attributes:
        content_digest: that of the phrase tokens.
        offsets: int64 [n + 1]; phrases of pair i are offsets[i] … offsets[i + 1] − 1.
        starts, ends: int64 [m] token spans.
        features: name of a set → features of the object of each phrase.
        dropped: phrases left out because their object could not be extracted.
    """

    content_digest: str
    offsets: NDArray[np.int64]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    features: Mapping[str, FeatureLookup]
    dropped: int = 0

    @classmethod
    def find(
        cls,
        path: Path,
        pairs: Pairs,
        sets: Mapping[str, FeatureSet],
        tokens: TokenSet,
        rows_of: Callable[[str, NDArray[np.uint8]], NDArray[np.int64]],
    ) -> ObjectRows:
        """The objects of ``pairs``, with the features of ``sets``.

        Args:
            rows_of: finds the rows of keys in a set, or raises naming what is missing.

        Raises:
            SightlineError: the phrase tokens are missing, damaged or from another tokenizer, no
                pair has a phrase, or a feature set lacks an object.
        """
        phrase_tokens = PhraseTokens.open(path)
        header = phrase_tokens.header
        if (header.tokenizer_sha256, header.max_length) != (
            tokens.header.tokenizer_sha256,
            tokens.header.max_length,
        ):
            raise SightlineError(
                f"{phrase_tokens.path}: made with a different tokenizer or max_length than "
                f"{tokens.path} ({header.student}, {header.max_length} tokens; "
                f"{tokens.header.student}, {tokens.header.max_length} tokens); run `sightline "
                "phrase-tokens` with the student of this run"
            )
        found = phrase_tokens.of_pairs(pairs.image_keys, pairs.caption_keys)
        if not len(found.starts):
            raise SightlineError(
                f"{phrase_tokens.path}: has {len(phrase_tokens):,} phrases, but none for the "
                f"{len(pairs):,} pairs to train on; make it from the phrases of this data set"
            )
        failed = {key for features in sets.values() for key in features.failed}
        bad = np.array([key.tobytes() in failed for key in found.cutouts], dtype=bool)
        found = _without(found, bad)
        features = {
            name: FeatureLookup(each, rows_of(name, found.cutouts)) for name, each in sets.items()
        }
        starts, ends = found.starts.astype(np.int64), found.ends.astype(np.int64)
        content = phrase_tokens.record.content_digest
        return cls(content, found.offsets, starts, ends, features, int(bad.sum()))

    def exchanged(self) -> ObjectRows:
        """Every phrase with the object of its caption's next phrase, the last with the first's.

        The control of the object term. Where a caption names one object twice in a row, the phrase
        keeps it.
        """
        counts = np.diff(self.offsets)
        next_ = np.arange(len(self.starts)) + 1
        full = counts > 0
        next_[self.offsets[1:][full] - 1] = self.offsets[:-1][full]
        features = {name: each.of(next_) for name, each in self.features.items()}
        return replace(self, features=features)

    def moved(self, device: torch.device) -> ObjectRows:
        """The same phrases with the features on ``device``."""
        features = {name: each.moved(device) for name, each in self.features.items()}
        return replace(self, features=features)

    def take(self, pairs: NDArray[np.int64]) -> tuple[Phrases, dict[str, Tensor]]:
        """Phrases of ``pairs``, and the features of their objects by name: float32 [P, D]."""
        import torch

        begin = self.offsets[pairs]
        counts = self.offsets[pairs + 1] - begin
        index = ranges(begin, counts)
        owners = np.repeat(np.arange(len(pairs)), counts)
        owners, starts, ends = map(torch.from_numpy, (owners, self.starts[index], self.ends[index]))
        features = {name: each.take(index) for name, each in self.features.items()}
        return Phrases(owners, starts, ends, counts), features


def _without(found: RaggedPhrases, bad: NDArray[np.bool_]) -> RaggedPhrases:
    kept = np.concatenate([[0], np.cumsum(~bad)]).astype(np.int64)
    return RaggedPhrases(
        kept[found.offsets], found.starts[~bad], found.ends[~bad], found.cutouts[~bad]
    )
