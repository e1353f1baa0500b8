"""Cross-modal retrieval: R@1, R@5 and R@10 from image to text and from text to image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from sightline.errors import SightlineError

KS = (1, 5, 10)
"""The K of published tables."""

_CHUNK = 1024  # queries whose similarities are held at once


class UndefinedRecall(SightlineError):
    """An embedding is zero or not finite, so nothing can be ranked."""


@dataclass(frozen=True)
class Retrieval:
    """Recall ×100 by K in each direction; `images` and `captions` are how many were searched."""

    image_to_text: dict[int, float]
    text_to_image: dict[int, float]
    images: int
    captions: int

    def to_json(self) -> dict[str, object]:
        """As a JSON object, recalls keyed "R@1" and so on."""
        body = asdict(self)
        for direction in ("image_to_text", "text_to_image"):
            body[direction] = {f"R@{k}": value for k, value in body[direction].items()}
        return body


def evaluate_retrieval(
    images: np.ndarray, captions: np.ndarray, image_of: np.ndarray, ks: Sequence[int] = KS
) -> Retrieval:
    """Recall of the matching image among all images, and of any matching caption among all.

    An image counts as found at K if any of its captions is among the K nearest (as in the papers).
    A tie is a miss: anything that scores as high as the match is ranked before it, so that
    constant embeddings recall nothing.

    Args:
        images: float [n, d], in the grounded space; any norm.
        captions: float [m, d], in the same space.
        image_of: int [m], the row of each caption's image.

    Raises:
        SightlineError: mismatched sizes, or an image without a caption.
        UndefinedRecall: an embedding is zero or not finite.
    """
    if images.ndim != 2 or captions.ndim != 2 or images.shape[1] != captions.shape[1]:
        raise SightlineError(
            f"retrieval needs images [n, d] and captions [m, d] in one space; found "
            f"{images.shape} and {captions.shape}"
        )
    if image_of.shape != (len(captions),) or set(image_of.tolist()) != set(range(len(images))):
        raise SightlineError(
            f"retrieval needs every one of {len(captions)} captions to name one of {len(images)} "
            "images, and every image to have a caption; check that the captions and the images "
            "are from the same split"
        )
    pictures, texts = _normalised(images, "image"), _normalised(captions, "caption")
    text_ranks = np.empty(len(texts), dtype=np.int64)
    for start in range(0, len(texts), _CHUNK):
        similarity = texts[start : start + _CHUNK] @ pictures.T
        rows = np.arange(len(similarity))
        match = similarity[rows, image_of[start : start + _CHUNK]]
        text_ranks[start : start + _CHUNK] = (similarity >= match[:, None]).sum(axis=1)
    image_ranks = np.empty(len(pictures), dtype=np.int64)
    for start in range(0, len(pictures), _CHUNK):
        similarity = pictures[start : start + _CHUNK] @ texts.T
        own = image_of[None, :] == np.arange(start, start + len(similarity))[:, None]
        match = np.where(own, similarity, -np.inf).max(axis=1)
        before = ((similarity >= match[:, None]) & ~own).sum(axis=1)
        image_ranks[start : start + _CHUNK] = before + 1
    return Retrieval(
        {k: 100.0 * float((image_ranks <= k).mean()) for k in ks},
        {k: 100.0 * float((text_ranks <= k).mean()) for k in ks},
        len(images),
        len(captions),
    )


def chance(image_of: np.ndarray, ks: Sequence[int] = KS) -> Retrieval:
    """The expected recall of random rankings, exactly.

    From text to image, K of n images are drawn. From image to text, K of m captions: an image with
    c captions is missed with probability C(m − c, K) / C(m, K).

    Args:
        image_of: int [m], the row of each caption's image; every image has one.
    """
    counts = np.bincount(image_of)
    images, captions = len(counts), len(image_of)

    def found(own: int, k: int) -> float:
        k = min(k, captions)
        return 1 - math.comb(captions - own, k) / math.comb(captions, k)

    sized = list(zip(*np.unique(counts, return_counts=True), strict=True))
    return Retrieval(
        {k: float(100 * sum(n * found(int(c), k) for c, n in sized) / images) for k in ks},
        {k: 100 * min(k, images) / images for k in ks},
        images,
        captions,
    )


def _normalised(rows: np.ndarray, what: str) -> np.ndarray:
    rows = rows.astype(np.float64)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    broken = np.flatnonzero(~(np.isfinite(norms) & (norms > 0)))
    if len(broken):
        raise UndefinedRecall(
            f"the embedding of {what} {broken[0]} is zero or not finite; "
            "check the encoder and its head"
        )
    return rows / norms
