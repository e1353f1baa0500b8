"""Encode a few rows of a feature set again and compare: is it what its maker claims?"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.cache import CacheError, FeatureSet
from pipeline.cache.commit import FILE_NAME
from pipeline.cache.diff import cosines
from pipeline.cache.keys import KeyTable, as_keys
from pipeline.extract.encode_missing import (
    ExtractSettings,
    extract_images,
    extract_objects,
    extract_texts,
)
from pipeline.recompute_inputs import Making, Origin, find_making, options
from sightline.errors import SightlineError

SAME = 0.9999
"""Cosine that rows of two devices or batch shapes reach; below it they are other rows."""


@dataclass
class Recomputed:
    """What came of it.

    Attributes:
        rows: rows that were encoded again.
        equal: those whose bytes came out the same.
        smallest_cosine: of the row that came out most different.
        faults: one line for each row below `SAME`.
    """

    rows: int
    equal: int
    smallest_cosine: float
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.rows} rows encoded again: {self.equal} the same bytes, "
            f"smallest cosine {self.smallest_cosine:.6f}"
        )


def recompute(folder: Path, count: int, seed: int, origin: Origin, device: str) -> Recomputed:
    """Encode ``count`` random rows of the set in ``folder`` again.

    Raises:
        SightlineError: the encoder cannot be built, is not the record's, or no input is there.
    """
    features = FeatureSet.open(folder)
    making = find_making(folder, features, origin)
    by_key = making.inputs
    rows = _drawn(folder, features, by_key, count, seed)
    with tempfile.TemporaryDirectory() as scratch:
        again = _encode(features, making, [by_key[key] for key in rows], device, Path(scratch))
        _require_the_same_encoder(folder, features, again)
        _require_every_row(folder, again, by_key)
        old, new = features.take(rows), again.take(rows)
    cosine = cosines(old, new)
    faults = [
        f"{folder}: row {features.find([rows[i]])[0]} ({_name(by_key[rows[i]])}) comes out with "
        f"cosine {cosine[i]:.6f}, expected at least {SAME}"
        for i in np.flatnonzero(~(cosine >= SAME))
    ]
    equal = int((old.view(np.uint8) == new.view(np.uint8)).all(axis=1).sum())
    return Recomputed(len(rows), equal, float(cosine.min()), faults)


def _drawn(
    folder: Path, features: FeatureSet, by_key: dict[bytes, Any], count: int, seed: int
) -> list[bytes]:
    """Random keys that the set holds and whose input is at hand."""
    here = as_keys(sorted(by_key))
    known = here[KeyTable(features.keys).find(here) >= 0]
    if not len(known):
        raise CacheError(f"{folder}: none of its {len(features):,} rows is among these inputs")
    picked = np.random.default_rng(seed).choice(len(known), min(count, len(known)), replace=False)
    return [known[i].tobytes() for i in sorted(picked)]


def _encode(
    features: FeatureSet, making: Making, inputs: list[Any], device: str, scratch: Path
) -> FeatureSet:
    """The same inputs through the encoder, in the batch shape of the record."""
    from pipeline.encoders.build_encoder import build_image_encoder, build_text_encoder
    from sightline.devices import pick_device

    spec, where = features.record.spec, pick_device(device)
    sizes = [shard.computed.get("batch_size") for shard in features.record.shards]
    settings = ExtractSettings(
        batch_size=next((size for size in sizes if isinstance(size, int)), 64),
        workers=0,
        max_failed=1.0,
        dtype=spec.dtype,
        precision=spec.precision,
        device=str(where),
    )
    out = scratch / "set"
    try:
        if spec.kind in ("image", "object"):
            model = build_image_encoder(making.config, where, spec.precision)
            if making.rules is None:
                extract_images(inputs, model, out, settings)
            else:
                extract_objects(inputs, model, making.rules, out, settings)
        else:
            model = build_text_encoder(making.config, where, spec.precision)
            extract_texts(inputs, model, out, settings, spec.kind)
    except SightlineError:
        if not (out / FILE_NAME).exists():  # else it is about rows in error, which are told below
            raise
    return FeatureSet.open(out)


def _require_the_same_encoder(folder: Path, features: FeatureSet, again: FeatureSet) -> None:
    if again.fingerprint != features.fingerprint:
        lines = again.record.spec.differences(features.record.spec)
        raise SightlineError(
            f"{folder}: the encoder here is not the one of its record:\n  "
            + "\n  ".join(lines)
            + "\n  name the right one with --encoder and --weights"
        )


def _require_every_row(folder: Path, again: FeatureSet, by_key: dict[bytes, Any]) -> None:
    if again.failed:
        key, code = min(again.failed.items())
        raise CacheError(
            f"{folder}: {len(again.failed)} of the rows that were drawn cannot be encoded again: "
            f"{_name(by_key[key])} is {code}; give the inputs that the set was made from with "
            f"{options(again.record.spec.kind)}"
        )


def _name(entry: Any) -> str:
    return repr(entry) if isinstance(entry, str) else str(entry.place)
