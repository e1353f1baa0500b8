"""The provenance of a set, as text for a paper's appendix."""

from __future__ import annotations

from pathlib import Path

from pipeline import graph
from pipeline.grounding import stats
from sightline.cache.prepared import LICENCE_UNKNOWN, dataset_facts
from sightline.cache.record import FeatureSetRecord, SetRecord, TableSetRecord

_NORMALISED = {
    True: "normalised",
    False: "not normalised",
    None: "whether normalised is not recorded",
}


def licence_note(folder: Path) -> str:
    """The licence of the data behind a set in the graph's folders, as far as known."""
    match graph.below_features(folder):
        case (dataset, *_):
            return dataset_facts(graph.dataset_folder(dataset)).licence
    return LICENCE_UNKNOWN


def paragraph(folder: Path, record: SetRecord, licence: str, captions: Path | None = None) -> str:
    """How the set in ``folder`` was made, its rows, size and licence: lines to paste.

    Args:
        captions: manifest of a grounding's captions, to measure how much of them phrases cover.
    """
    lines = {"Set": f"{folder.as_posix()} ({record.spec.kind})", **described(record, licence)}
    if record.spec.kind == "grounding":
        lines |= stats.described(stats.statistics(folder, captions))
    return "\n".join(f"{name + ':':21}{value}" for name, value in lines.items())


def described(record: SetRecord, licence: str) -> dict[str, str]:
    """How a set was made, its rows, size and licence: name → value, each on one line."""
    if isinstance(record, FeatureSetRecord):
        lines = _of_features(record)
        computed = [shard.computed for shard in record.shards]
    else:
        assert isinstance(record, TableSetRecord)
        lines = {
            "Made with": _words(record.spec.description),
            "Rows": f"{record.rows:,}; failed: {record.failed:,}",
        }
        computed = [shard.computed for shard in record.shards if shard.computed]
    on = sorted({", ".join(f"{k} {v}" for k, v in each.items()) for each in computed})
    return lines | {
        "Size": f"{record.size / 1e6:,.1f} MB in {len(record.files):,} files",
        "Computed on": "; ".join(on) or "not recorded",
        "Provenance": str(record.provenance),
        "Fingerprint": record.fingerprint,
        "Content digest": record.content_digest,
        "Licence of the data": licence,
    }


def _of_features(record: FeatureSetRecord) -> dict[str, str]:
    spec, encoder = record.spec, record.spec.encoder
    revision = f", revision {encoder.revision}" if encoder.revision else ""
    untrained = " (untrained weights)" if encoder.untrained else ""
    return {
        "Encoder": f"{encoder.name}, weights {encoder.source}{revision}{untrained}",
        "Weights SHA-256": encoder.weights_sha256,
        "Preprocessing": _words(spec.preprocessing),
        "Precision": f"computed in {spec.precision}, stored as {spec.dtype}, "
        + _NORMALISED[spec.normalised],
        "Rows": f"{record.rows:,} of {spec.dim:,} numbers; failed: {record.failed:,}",
    }


def _words(values: dict[str, object]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
