"""Where the rows of a set come from: as JSON, and as text for a paper's appendix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline import layout
from sightline.cache.prepared import LICENCE_UNKNOWN, dataset_facts
from sightline.cache.record import FeatureSpec, SetRecord
from sightline.wording import counted, in_bytes

_NORMALISED = {
    True: "normalised",
    False: "not normalised",
    None: "whether normalised is not recorded",
}


def about(folder: Path, record: SetRecord) -> dict[str, Any]:
    """How a set was made, its rows, size and licence, as a JSON object.

    The licence is that of its data set, known for sets in the graph's folders.
    """
    place = layout.below_features(folder)
    licence = dataset_facts(layout.dataset_folder(place[0])).licence if place else LICENCE_UNKNOWN
    spec = record.spec
    facts: dict[str, Any] = {"path": folder.as_posix(), "kind": spec.kind}
    if isinstance(spec, FeatureSpec):
        encoder = spec.encoder
        computed = [shard.computed for shard in record.shards]
        facts |= {
            "encoder": encoder.name,
            "weights": encoder.source,
            "untrained": encoder.untrained,
            "revision": encoder.revision,
            "weights_sha256": encoder.weights_sha256,
            "preprocessing": spec.preprocessing,
            "precision": spec.precision,
            "dtype": spec.dtype,
            "normalised": spec.normalised,
            "dim": spec.dim,
        }
    else:
        facts["description"] = spec.description
        computed = [shard.computed for shard in record.shards if shard.computed]
    distinct = {_words(computer): computer for computer in computed}
    return facts | {
        "rows": record.rows,
        "failed": record.failed,
        "cut": record.cut,
        "cut_in_words": record.cut_in_words,
        "shards": len(record.shards),
        "files": len(record.files),
        "bytes": record.size,
        "size": in_bytes(record.size),
        "computed": [distinct[words] for words in sorted(distinct)],
        "imported": record.provenance.imported,
        "provenance": str(record.provenance),
        "fingerprint": record.fingerprint,
        "content_digest": record.content_digest,
        "licence": licence,
    }


def described(facts: Mapping[str, Any]) -> dict[str, str]:
    """`about` in words: name → value, each on one line."""
    lines, rows = {}, f"{facts['rows']:,}"
    if "encoder" in facts:
        revision = f", revision {facts['revision']}" if facts["revision"] else ""
        untrained = " (untrained weights)" if facts["untrained"] else ""
        lines = {
            "Encoder": f"{facts['encoder']}, weights {facts['weights']}{revision}{untrained}",
            "Weights SHA-256": facts["weights_sha256"],
            "Preprocessing": _words(facts["preprocessing"]),
            "Precision": f"computed in {facts['precision']}, stored as {facts['dtype']}, "
            + _NORMALISED[facts["normalised"]],
        }
        rows += f" of {facts['dim']:,} numbers"
    else:
        lines["Made with"] = _words(facts["description"])
    cut = f"; {facts['cut_in_words']}" if facts["cut"] else ""
    return lines | {
        "Rows": f"{rows}; failed: {facts['failed']:,}{cut}",
        "Size": f"{facts['size']} in {counted(facts['files'], 'file')}",
        "Computed on": "; ".join(map(_words, facts["computed"])) or "not recorded",
        "Provenance": facts["provenance"],
        "Fingerprint": facts["fingerprint"],
        "Content digest": facts["content_digest"],
        "Licence of the data": facts["licence"],
    }


def _words(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
