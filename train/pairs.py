"""Which captions, images and phrases to train on: caption policy, failures, and the controls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.cache import (
    CAPTIONS,
    IMAGES,
    TRAINED_SPLITS,
    PhraseTokens,
    RaggedPhrases,
    TokenSet,
    key_column,
    keys_of_texts,
    read_manifest,
)
from sightline.cache.caption_choice import CaptionPolicy, choose_captions
from sightline.errors import SightlineError
from train.rows import StreamRows


def read_pairs(
    captions_file: Path, images_file: Path, policy: CaptionPolicy, seed: int
) -> StreamRows:
    """The training pairs of two manifests: rows whose split is `train` or empty.

    Args:
        policy: `random` takes one caption of each image, drawn once by a hash of ``seed`` and the
            image id, so the choice depends on neither the order of the manifest nor other images;
            `longest` takes the one with the most words (then most characters, then the first);
            `all` takes every caption.
    """
    captions = read_manifest(captions_file, CAPTIONS)
    splits = captions.column("split").to_pylist()
    rows = [row for row, split in enumerate(splits) if split in TRAINED_SPLITS]
    if not rows:
        names = ", ".join(map(repr, dict.fromkeys(splits))) or "no rows at all"
        raise SightlineError(
            f"{captions_file}: no caption to train on: splits are {names}, expected 'train' or ''"
        )
    columns = (captions.column(name).to_pylist() for name in ("text", "image_id"))
    texts, image_ids = ([column[row] for row in rows] for column in columns)
    chosen = choose_captions(image_ids, texts, policy, seed)
    texts = [texts[i] for i in chosen]

    images = read_manifest(images_file, IMAGES)
    keys = key_column(images.column("key"))
    row_of = {image_id: row for row, image_id in enumerate(images.column("image_id").to_pylist())}
    absent = [image_ids[i] for i in chosen if image_ids[i] not in row_of]
    if absent:
        raise SightlineError(
            f"{images_file}: {len(absent)} images of {captions_file} are not in it, such as "
            f"{absent[0]!r}; the two manifests must come from one `sightline prepare`"
        )
    image_rows = np.array([row_of[image_ids[i]] for i in chosen], dtype=np.int64)
    return StreamRows("pairs", texts, keys_of_texts(texts), keys[image_rows])


def without_images(pairs: StreamRows, failed: set[bytes]) -> StreamRows:
    """The pairs whose image is not among ``failed``."""
    assert pairs.images is not None
    return pairs.only(np.flatnonzero(_others(pairs.images, failed)))


def sample(pairs: StreamRows, count: int, seed: int) -> StreamRows:
    """``count`` pairs drawn by ``seed``, in order; a larger draw contains every smaller one."""
    if count > len(pairs):
        raise SightlineError(
            f"pairs is {count:,}, but there are {len(pairs):,} to draw from; lower it or remove it"
        )
    order = np.random.default_rng([seed, len(pairs)]).permutation(len(pairs))
    return pairs.only(np.sort(order[:count]))


def drawn_at_random(images: NDArray[np.uint8], seed: int) -> NDArray[np.uint8]:
    """For every pair an image drawn with replacement, once for the whole run: uint8 [n, 32].

    Unlike with `exchanged`, captions of one image no longer share an image either.
    """
    distinct = np.unique(images, axis=0)
    _need_two(len(distinct), "random_images", "images")
    rows = np.random.default_rng([seed, len(distinct)]).integers(len(distinct), size=len(images))
    return distinct[rows]


def exchanged(keys: NDArray[np.uint8], seed: int, control: str) -> NDArray[np.uint8]:
    """``keys`` with every distinct key replaced by another: the control of MCSE's table 2.

    One fixed permutation for the whole run. It is a single cycle through all distinct keys, so none
    stays, and the captions of one image still share an image.

    Args:
        control: the parameter that asks for it.
    """
    distinct, which = np.unique(keys, axis=0, return_inverse=True)
    _need_two(len(distinct), control, "rows")
    cycle = np.random.default_rng([seed, len(distinct)]).permutation(len(distinct))
    successor = np.empty_like(cycle)
    successor[cycle] = np.roll(cycle, -1)
    return distinct[successor[which.ravel()]]


def _need_two(count: int, control: str, kind: str) -> None:
    if count < 2:
        raise SightlineError(f"{control} needs at least two different {kind}; found {count}")


def _others(keys: NDArray[np.uint8], failed: set[bytes]) -> NDArray[np.bool_]:
    """Which of ``keys`` are not among ``failed``: bool [n]."""
    if not failed:
        return np.ones(len(keys), dtype=bool)
    return np.array([key.tobytes() not in failed for key in keys], dtype=bool)


def phrases_without(phrases: RaggedPhrases, failed: set[bytes]) -> RaggedPhrases:
    """Those whose object is not among ``failed``."""
    kept = _others(phrases.cutouts, failed)
    before = np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)
    spans = phrases.starts[kept], phrases.ends[kept]
    return RaggedPhrases(before[phrases.offsets], *spans, phrases.cutouts[kept])


def with_next_objects(phrases: RaggedPhrases) -> RaggedPhrases:
    """Every phrase with the object of its caption's next phrase, the last with the first's.

    The control of the object term. Where a caption names one object twice in a row, the phrase
    keeps it.
    """
    next_ = np.arange(len(phrases.starts)) + 1
    full = np.diff(phrases.offsets) > 0
    next_[phrases.offsets[1:][full] - 1] = phrases.offsets[:-1][full]
    return replace(phrases, cutouts=phrases.cutouts[next_])


def read_phrases(path: Path, pairs: StreamRows, tokens: TokenSet) -> tuple[RaggedPhrases, str]:
    """The phrases of ``pairs``, and the content digest of the phrase tokens."""
    phrases = PhraseTokens.open(path)
    header = phrases.header
    if (header.tokenizer_sha256, header.max_length, header.prompt) != (
        tokens.header.tokenizer_sha256,
        tokens.header.max_length,
        tokens.header.prompt,
    ):
        raise SightlineError(
            f"{phrases.path}: made with a different tokenizer, max_length or prompt than "
            f"{tokens.path} ({header.max_length} and {tokens.header.max_length} tokens); run "
            "`sightline tokens --phrases` with this run's student"
        )
    assert pairs.images is not None
    rows = phrases.of_pairs(pairs.images, pairs.keys)
    if not len(rows.starts):
        raise SightlineError(
            f"{phrases.path}: has {len(phrases):,} phrases, but none for the {len(pairs):,} pairs "
            "to train on; make it from the phrases of this data set"
        )
    return rows, phrases.record.content_digest
