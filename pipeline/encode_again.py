"""Encode a few rows of a feature set again and compare them, to check what its maker claims.

The result for an imported set is kept in its record.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.extract.code_change import SAME, SAME_LENGTH, Agreement
from pipeline.extract.encode_missing import WEIGHTS_CAST, fill_features
from pipeline.extract.inputs import FeatureInputs
from pipeline.extract.settings import ExtractSettings
from pipeline.interchange.rows import unit_rows
from pipeline.machine import Machine
from sightline.cache import CacheError, FeatureSet
from sightline.cache.keys import Keys, as_keys, find_keys, unique_sorted
from sightline.cache.record import (
    FILE_NAME,
    Provenance,
    Recheck,
    read_record,
    set_output,
    write_record,
)
from sightline.errors import SightlineError
from sightline.wording import counted

if TYPE_CHECKING:
    from pipeline.encoders.config import EncoderConfig


@dataclass(frozen=True)
class Checked:
    """The result.

    Attributes:
        recheck: what the record of an imported set keeps of it.
        equal: number of rows with identical bytes.
        faults: one line for each row that differs: by `SAME` or `SAME_LENGTH`.
        note: what the record of an imported set now says; None for one of our own.
    """

    recheck: Recheck
    equal: int
    faults: list[str]
    note: Provenance | None = None

    def __str__(self) -> str:
        recheck = self.recheck
        lines = [
            f"{counted(recheck.rows, 'row')} encoded again: {self.equal} with identical bytes, "
            f"smallest cosine {recheck.smallest_cosine:.6f}, largest difference "
            f"{recheck.largest_difference:.3g}"
        ]
        lines += [f"set.json now says: {self.note}"] if self.note else []
        return "\n".join([*lines, *self.faults])


def check(
    inputs: FeatureInputs,
    config: EncoderConfig,
    folder: Path,
    count: int,
    settings: ExtractSettings,
    machine: Machine,
) -> Checked:
    """Encode ``count`` rows of the set in ``folder`` again; that number also draws them.

    Raises:
        SightlineError: the encoder cannot be built or does not match the record, or no input
            matches a row.
        BusyError: a run is writing there.
    """
    features = FeatureSet.open(folder)
    rows = _drawn(folder, features, inputs.entries.keys, count)
    order = unique_sorted(inputs.entries.keys)
    chosen = order[find_keys(inputs.entries.keys[order], as_keys(rows))]
    by_key = dict(zip(rows, inputs.entries.take(chosen), strict=True))
    with tempfile.TemporaryDirectory() as scratch:
        sample = inputs.only(chosen)
        again = _encode(features, sample, config, Path(scratch) / "set", settings, machine)
        _require_the_same_encoder(folder, features, again)
        _require_every_row(folder, again, by_key)
        old, new = features.take(rows), again.take(rows)
    if features.record.spec.normalised:
        new = unit_rows(new)
    new = new.astype(old.dtype)
    agreement = Agreement.of(old, new)
    faults = [
        f"{folder}: row {features.find([rows[i]])[0]} ({_name(by_key[rows[i]])}) has "
        f"cosine {agreement.cosine[i]:.6f}, expected at least {SAME}, and its length differs by "
        f"{agreement.off[i]:.2%}, expected at most {SAME_LENGTH:.0%}"
        for i in np.flatnonzero(agreement.differs)
    ]
    respec = again.record.spec
    recheck = Recheck(
        rows=len(rows),
        differing=len(faults),
        smallest_cosine=round(float(agreement.cosine.min()), 8),
        largest_difference=float(f"{np.abs(old.astype(float) - new.astype(float)).max():.6g}"),
        encoder=f"{respec.encoder.name}, weights {respec.encoder.source}"[:1000],
        fingerprint=respec.fingerprint,
    )
    equal = int((old.view(np.uint8) == new.view(np.uint8)).all(axis=1).sum())
    imported = features.record.provenance.imported
    return Checked(recheck, equal, faults, _noted(folder, recheck) if imported else None)


def _noted(folder: Path, recheck: Recheck) -> Provenance:
    """Keep the result for an imported set in its record; what this now says."""
    with set_output(folder) as output:
        record = read_record(folder, "features")
        provenance = record.provenance.checked(recheck)
        if provenance != record.provenance:
            write_record(output, record.model_copy(update={"provenance": provenance}))
    return provenance


def _drawn(folder: Path, features: FeatureSet, keys: Keys, count: int) -> list[bytes]:
    """Random keys of the set whose input is available."""
    available = keys[unique_sorted(keys)]
    rows = available[find_keys(features.keys, available) >= 0]
    if not len(rows):
        raise CacheError(f"{folder}: none of its {len(features):,} rows matches these inputs")
    picked = np.random.default_rng(count).choice(len(rows), min(count, len(rows)), replace=False)
    return [rows[i].tobytes() for i in sorted(picked)]


def _encode(
    features: FeatureSet,
    sample: FeatureInputs,
    config: EncoderConfig,
    out: Path,
    settings: ExtractSettings,
    machine: Machine,
) -> FeatureSet:
    """Encode the same inputs with the precision, batch shape and threads of the record."""
    spec = features.record.spec
    foreign = spec.is_foreign
    recorded = {
        "max_failed": 1.0,
        "batch_size": _recorded(features, "batch_size") or settings.batch_size,
        "dtype": "float32" if foreign else spec.dtype,
        "precision": "fp32" if foreign else spec.precision.removesuffix(WEIGHTS_CAST),
    }
    threads = _recorded(features, "threads") or machine.threads
    settings = settings.model_copy(update=recorded)
    machine = machine.model_copy(update={"threads": threads})
    try:
        fill_features(sample, config, out, settings, machine)
    except SightlineError:
        if not (out / FILE_NAME).exists():  # else it is about failed rows, reported below
            raise
    return FeatureSet.open(out)


def _recorded(features: FeatureSet, name: str) -> int | None:
    """A setting from the first shard whose rows were all computed with a single value of it."""
    numbers = (shard.computed.get(name) for shard in features.record.shards)
    return next((number for number in numbers if isinstance(number, int)), None)


def _require_the_same_encoder(folder: Path, features: FeatureSet, again: FeatureSet) -> None:
    spec, respec = features.record.spec, again.record.spec
    if spec.is_foreign:
        if respec.dim != spec.dim:
            raise SightlineError(
                f"{folder}: its rows have {spec.dim:,} numbers, but {respec.encoder.name} makes "
                f"{respec.dim:,}; give the encoder that made them"
            )
        return
    if spec.normalised:  # an export of our own rows, of which the encoder knows nothing
        preprocessing = {name: v for name, v in spec.preprocessing.items() if name != "normalised"}
        spec = spec.model_copy(update={"preprocessing": preprocessing})
    if respec.fingerprint != spec.fingerprint:
        lines = respec.differences(spec)
        raise SightlineError(
            f"{folder}: the encoder differs from its record:\n  "
            + "\n  ".join(lines)
            + "\n  give the one that made it"
        )


def _require_every_row(folder: Path, again: FeatureSet, by_key: dict[bytes, Any]) -> None:
    if again.failed:
        key, code = min(again.failed.items())
        raise CacheError(
            f"{folder}: {counted(len(again.failed), 'row')} cannot be encoded again: "
            f"{_name(by_key[key])} is {code}; give the inputs that the set was made from"
        )


def _name(entry: Any) -> str:
    return repr(entry) if isinstance(entry, str) else str(getattr(entry, "place", entry))
