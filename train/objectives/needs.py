"""What an objective reads of the cache, and the width of the space that heads project it to."""

from __future__ import annotations

from dataclasses import dataclass

from sightline.cache.feature_kind import RowOf, feature_kind
from sightline.cache.record import Kind
from train.batch import feature_name

PROJECTION_DIM = 256
"""Width of the space that sentences share with images and teachers (METHODS, table of heads)."""


@dataclass(frozen=True)
class FeatureNeed:
    """A feature set that an objective reads on paired batches.

    Attributes:
        kind: one of `sightline.cache.feature_kind.KINDS`. Rows of an image are looked up by its
            key, those of a caption by the caption's; `object` rows, one for each phrase of the
            caption, by the cut-out's.
        encoder: name of the encoder, as in the parameters.
        terms: the terms that read it.
        head: the head that projects it, if one does. Several needs may share a head if they are
            of one encoder.
    """

    kind: Kind
    encoder: str
    terms: tuple[str, ...] = ()
    head: str | None = None

    @property
    def row_of(self) -> RowOf:
        """Which key of a pair its rows have."""
        return feature_kind(self.kind).row_of

    @property
    def name(self) -> str:
        """As users, batches and records call it, such as `image-clip`."""
        return feature_name(self.kind, self.encoder)

    @property
    def command(self) -> str:
        """The command that makes such a feature set."""
        return f"sightline extract {self.kind}"

    def __str__(self) -> str:
        of_terms = f" for term {', '.join(self.terms)}" if self.terms else ""
        return f"{self.kind} features of {self.encoder}{of_terms}"
