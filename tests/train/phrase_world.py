"""Phrases and objects for the tiny world: colour and shape of a caption name an object each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow.parquet as pq
import torch
from conftest import COLOURS, MAX_LENGTH, SHAPES, World
from feature_sets import Features
from loss_oracles import object_phrase_nce
from torch import Tensor

from sightline.cache import (
    PhraseTokenHeader,
    as_keys,
    key_of_bytes,
    key_of_text,
    pair_keys,
    write_phrase_tokens,
)
from train.batch import Batch

Named = tuple[int, int, bytes]
"""First token, last + 1, key of the cut-out."""


class Objects:
    """Phrase tokens in ``root/phrases``, features of the cut-outs in ``features``.

    Of an image's three captions the first names its colour and its shape, the second the shape
    twice and the colour, and the third one of the two alone.
    """

    def __init__(self, world: World, features: Features, name: str, dim: int) -> None:
        images = {
            row["image_id"]: row["key"]
            for row in pq.read_table(world.root / "images.parquet").to_pylist()
        }
        self.named: dict[bytes, list[Named]] = {}
        pairs: list[tuple[bytes, bytes]] = []
        for row in pq.read_table(world.root / "captions.parquet").to_pylist():
            words, image = row["text"].split(), images[row["image_id"]]
            found = [
                (position + 1, position + 2, key_of_bytes(image + word.encode()))
                for position, word in enumerate(words)
                if word in COLOURS + SHAPES
            ]
            if row["caption_id"].endswith("#1"):  # "there is a circle …": the article belongs to it
                start, end, shape = found[0]
                found = [(start - 1, end, shape), (end + 1, end + 2, shape), found[1]]
            if row["caption_id"].endswith("#2"):
                found = found[:1]
            self.named[key_of_text(row["text"])] = found
            pairs += [(image, key_of_text(row["text"]))] * len(found)
        every = [named for found in self.named.values() for named in found]
        self.path = features.root / "phrases"
        write_phrase_tokens(
            self.path,
            PhraseTokenHeader("tiny", "0" * 64, MAX_LENGTH, len(every)),
            pair_keys(*(as_keys(list(side)) for side in zip(*pairs, strict=True))),
            as_keys([cutout for _, _, cutout in every]),
            [start for start, _, _ in every],
            [end for _, end, _ in every],
        )
        rng = np.random.default_rng(5)
        self.rows = {
            cutout: rng.normal(size=dim).astype(np.float16).astype(np.float64)
            for cutout in dict.fromkeys(cutout for _, _, cutout in every)
        }
        features.write(name, "object", self.rows)
        del features.rows[name]  # not one row a sentence

    def of(self, key: np.ndarray) -> list[tuple[slice, Tensor]]:
        """Token span and object of every phrase of a caption."""
        return [
            (slice(start, end), torch.from_numpy(self.rows[cutout]))
            for start, end, cutout in self.named[key.tobytes()]
        ]


def object_term(
    objects: Objects,
    batch: Batch,
    tokens: tuple[list[Tensor], list[Tensor]],
    ground: Callable[[Tensor], Tensor],
    project: Callable[[Tensor], Tensor],
    temperature: float,
) -> Tensor:
    """MCSEO's eq. 7, phrase by phrase: the mean over views and captions with two phrases."""
    of_views = []
    for view in tokens:
        phrases, cutouts, owners = [], [], []
        for owner, (key, states) in enumerate(zip(batch.keys, view, strict=True)):
            for span, row in objects.of(key):
                phrases.append(ground(torch.stack(list(states[span])).mean(dim=0)))
                cutouts.append(project(row))
                owners.append(owner)
        of_views.append(object_phrase_nce(phrases, cutouts, owners, temperature))
    return (of_views[0] + of_views[1]) / 2
