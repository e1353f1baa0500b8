"""What one model finds nearest to some sentences, as results hold it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True)
class Neighbour:
    """One neighbour.

    Attributes:
        text: the caption; empty if the neighbour is an image.
        captions: ids of the captions that read so.
        images: ids of the images that it describes, or of the image that it is.
        own: whether one of them is an image of the query.
    """

    text: str
    captions: tuple[str, ...]
    images: Annotated[tuple[str, ...], Field(min_length=1)]
    cosine: Annotated[float, Field(allow_inf_nan=False)]
    own: bool


@dataclass(frozen=True)
class Found:
    """What one model finds.

    Attributes:
        neighbours: of each query, nearest first; empty if there is a reason.
        reason: why the model finds nothing, or None.
        warning: why the order says nothing, or None.
    """

    neighbours: tuple[tuple[Neighbour, ...], ...] = ()
    reason: str | None = None
    warning: str | None = None


@dataclass(frozen=True)
class ModelNeighbours:
    """What one model finds, with what it was asked.

    Attributes:
        queries: q sentences.
        images: of each query, the images that it is a caption of; often empty.
        pool: what the captions were found among, in words.
        k: neighbours asked for.
        captions: nearest captions.
        pictures: nearest images; None if none were asked for.
        keys: id → SHA-256 (hex) of the images that are named, by which pages know a photograph.
    """

    queries: tuple[str, ...]
    images: tuple[tuple[str, ...], ...]
    pool: str
    k: int
    captions: Found
    pictures: Found | None = None
    keys: dict[str, Sha256] = field(default_factory=dict)

    def __post_init__(self) -> None:
        counts = [len(self.images)]
        found = (self.captions, self.pictures)
        counts += [len(each.neighbours) for each in found if each and each.reason is None]
        if any(count != len(self.queries) for count in counts):
            raise ValueError(f"not of {len(self.queries)} queries")

    @property
    def named_images(self) -> list[str]:
        """Every image that it names, each once."""
        named = dict.fromkeys(image for images in self.images for image in images)
        for found in filter(None, (self.captions, self.pictures)):
            for answers in found.neighbours:
                named.update(dict.fromkeys(image for each in answers for image in each.images))
        return list(named)

    @property
    def question(self) -> tuple[object, ...]:
        """What models must share to stand side by side."""
        return self.queries, self.images, self.pool, self.k, self.pictures is None
