"""Which cached features a run learned from, as recorded in its summary, model card and reports."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from sightline.cache import FeatureSet, FeatureSetRecord
from sightline.cache.record import Doubt


class FeatureUse(BaseModel):
    """A feature set that a run learned from.

    Attributes:
        name: `<dataset>/<kind>/<encoder>`, as under data/features.
        encoder: architecture; `source`: where its weights came from.
        untrained: its weights are random; every table says so.
        provenance: who computed the rows, as `sightline.cache.record.Provenance` says it.
        doubt: about imported rows that were not recomputed, or not with the same result; every
            table says so.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    encoder: str
    source: str
    revision: str = ""
    weights_sha256: str
    fingerprint: str
    content_digest: str = ""
    dim: int
    rows: int
    untrained: bool
    provenance: str = "computed here"
    doubt: Doubt = ""

    @classmethod
    def of(cls, name: str, record: FeatureSetRecord) -> FeatureUse:
        """From an open feature set: `FeatureUse.of("scenes/image/clip", feature_set.record)`."""
        encoder = record.spec.encoder
        return cls(
            name=name,
            encoder=encoder.name,
            source=encoder.source,
            revision=encoder.revision,
            weights_sha256=encoder.weights_sha256,
            fingerprint=record.fingerprint,
            content_digest=record.content_digest,
            dim=record.spec.dim,
            rows=record.rows,
            untrained=encoder.untrained,
            provenance=str(record.provenance),
            doubt=record.provenance.doubt,
        )

    @classmethod
    def of_set(cls, features: FeatureSet) -> FeatureUse:
        """From an open feature set, named by the last three folders of its path."""
        return cls.of("/".join(features.path.parts[-3:]), features.record)
