"""Re-encode a few rows of a feature set and compare them, to verify its claims.

The result for an imported set is kept in its record.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pipeline import graph
from pipeline.extract.encode_missing import WEIGHTS_CAST, extract
from pipeline.extract.inputs import CutoutRules, FeatureInputs, inputs_of
from pipeline.extract.runner import RunSettings
from pipeline.interchange.rows import unit_rows
from sightline.cache import CacheError, FeatureSet
from sightline.cache.diff import cosines
from sightline.cache.keys import KeyTable, as_keys
from sightline.cache.record import (
    FILE_NAME,
    FeatureSpec,
    Kind,
    Provenance,
    Recheck,
    read_features,
    set_output,
    write_record,
)
from sightline.errors import SightlineError

if TYPE_CHECKING:
    from pipeline.encoders.config import EncoderConfig

SAME = 0.9999
"""Minimum cosine between rows of different devices or batch shapes; below it, rows differ."""
SAME_LENGTH = 0.01
"""Largest relative difference between the lengths of such rows, which a cosine does not see."""


@dataclass(frozen=True)
class NamedInputs:
    """The inputs of a set's rows, as given by the user.

    Attributes:
        inputs: a folder or manifest of images, or a file of texts; it may lack some keys.
            For objects, the images manifest. None: inputs and encoder from params.yaml.
        root: base folder of a manifest's paths.
        phrases: for objects, the phrases manifest or the records of a grounding.
        encoder, weights: override those in the record.
        params: the parameter file.
    """

    inputs: Path | None = None
    root: Path | None = None
    phrases: Path | None = None
    encoder: str | None = None
    weights: str | None = None
    params: Path = Path("params.yaml")


@dataclass
class Recomputed:
    """The result.

    Attributes:
        rows: number of re-encoded rows.
        equal: number of rows with identical bytes.
        smallest_cosine: cosine of the row that differs most.
        largest_difference: of two numbers at the same place, absolute.
        made: what encoded them again.
        faults: one line for each row that differs: by `SAME` or `SAME_LENGTH`.
    """

    rows: int
    equal: int
    smallest_cosine: float
    largest_difference: float
    made: FeatureSpec
    faults: list[str] = field(default_factory=list)

    @property
    def recheck(self) -> Recheck:
        """The result as the record of an imported set keeps it."""
        encoder = self.made.encoder
        return Recheck(
            rows=self.rows,
            differing=len(self.faults),
            smallest_cosine=round(self.smallest_cosine, 8),
            largest_difference=float(f"{self.largest_difference:.6g}"),
            encoder=f"{encoder.name}, weights {encoder.source}"[:1000],
            fingerprint=self.made.fingerprint,
        )

    def __str__(self) -> str:
        return (
            f"{self.rows} rows re-encoded: {self.equal} with identical bytes, "
            f"smallest cosine {self.smallest_cosine:.6f}, largest difference "
            f"{self.largest_difference:.3g}"
        )


def recompute(folder: Path, count: int, seed: int, named: NamedInputs, device: str) -> Recomputed:
    """Re-encode ``count`` random rows of the set in ``folder``.

    Raises:
        SightlineError: the encoder cannot be built or does not match the record, or no input is
            available.
    """
    features = FeatureSet.open(folder)
    inputs, config = _inputs(folder, features, named)
    keys = [key.tobytes() for key in inputs.keys]
    by_key = dict(zip(keys, inputs.entries, strict=True))
    rows = _drawn(folder, features, by_key, count, seed)
    with tempfile.TemporaryDirectory() as scratch:
        drawn = replace(inputs, entries=[by_key[key] for key in rows])
        again = _encode(features, drawn, config, device, Path(scratch))
        _require_the_same_encoder(folder, features, again)
        _require_every_row(folder, again, by_key)
        old, new = features.take(rows), again.take(rows)
    if features.record.spec.normalised:
        new = unit_rows(new)
    new = new.astype(old.dtype)
    cosine, off = cosines(old, new), _length_differences(old, new)
    faults = [
        f"{folder}: row {features.find([rows[i]])[0]} ({_name(by_key[rows[i]])}) has "
        f"cosine {cosine[i]:.6f}, expected at least {SAME}, and its length differs by "
        f"{off[i]:.2%}, expected at most {SAME_LENGTH:.0%}"
        for i in np.flatnonzero(~((cosine >= SAME) & (off <= SAME_LENGTH)))
    ]
    equal = int((old.view(np.uint8) == new.view(np.uint8)).all(axis=1).sum())
    largest = float(np.abs(old.astype(np.float64) - new.astype(np.float64)).max())
    return Recomputed(len(rows), equal, float(cosine.min()), largest, again.record.spec, faults)


def note_in_record(folder: Path, found: Recomputed) -> Provenance:
    """Keep the result of re-encoding rows of an imported set in its record.

    Raises:
        BusyError: a run is writing there.
    """
    with set_output(folder) as output:
        record = read_features(folder)
        provenance = record.provenance.checked(found.recheck)
        if provenance != record.provenance:
            write_record(output, record.model_copy(update={"provenance": provenance}))
    return provenance


def _length_differences(first: NDArray, second: NDArray) -> NDArray[np.float64]:
    """Relative difference of the lengths of each pair of rows, [n, dim] each: float64 [n]."""
    one, two = (np.linalg.norm(rows.astype(np.float64), axis=1) for rows in (first, second))
    return np.abs(one - two) / np.maximum(np.maximum(one, two), np.finfo(np.float64).tiny)


def _drawn(
    folder: Path, features: FeatureSet, by_key: dict[bytes, Any], count: int, seed: int
) -> list[bytes]:
    """Random keys of the set whose input is available."""
    here = as_keys(sorted(by_key))
    known = here[KeyTable(features.keys).find(here) >= 0]
    if not len(known):
        raise CacheError(f"{folder}: none of its {len(features):,} rows matches these inputs")
    picked = np.random.default_rng(seed).choice(len(known), min(count, len(known)), replace=False)
    return [known[i].tobytes() for i in sorted(picked)]


def _encode(
    features: FeatureSet, drawn: FeatureInputs, config: EncoderConfig, device: str, scratch: Path
) -> FeatureSet:
    """Encode the same inputs with the batch shape and threads of the record."""
    spec = features.record.spec
    foreign = spec.is_foreign
    settings = RunSettings(
        batch_size=_recorded(features, "batch_size") or 64,
        threads=_recorded(features, "threads"),
        workers=0,
        max_failed=1.0,
        dtype="float32" if foreign else spec.dtype,
        precision="fp32" if foreign else spec.precision.removesuffix(WEIGHTS_CAST),
        device=device,
    )
    out = scratch / "set"
    try:
        extract(drawn, config, out, settings)
    except SightlineError:
        if not (out / FILE_NAME).exists():  # else it is about failed rows, reported below
            raise
    return FeatureSet.open(out)


def _recorded(features: FeatureSet, name: str) -> int | None:
    """A setting from the first shard whose rows were all computed with a single value of it."""
    found = (shard.computed.get(name) for shard in features.record.shards)
    return next((number for number in found if isinstance(number, int)), None)


def _require_the_same_encoder(folder: Path, features: FeatureSet, again: FeatureSet) -> None:
    spec, made = features.record.spec, again.record.spec
    if spec.is_foreign:
        if made.dim != spec.dim:
            raise SightlineError(
                f"{folder}: its rows have {spec.dim:,} numbers, but {made.encoder.name} makes "
                f"{made.dim:,}; give the encoder that made them with --encoder and --weights"
            )
        return
    if spec.normalised:  # an export of our own rows, of which the encoder knows nothing
        rest = {name: v for name, v in spec.preprocessing.items() if name != "normalised"}
        spec = spec.model_copy(update={"preprocessing": rest})
    if made.fingerprint != spec.fingerprint:
        lines = made.differences(spec)
        raise SightlineError(
            f"{folder}: the encoder differs from its record:\n  "
            + "\n  ".join(lines)
            + "\n  give the right one with --encoder and --weights"
        )


def _require_every_row(folder: Path, again: FeatureSet, by_key: dict[bytes, Any]) -> None:
    if again.failed:
        key, code = min(again.failed.items())
        raise CacheError(
            f"{folder}: {len(again.failed)} of the sampled rows cannot be re-encoded: "
            f"{_name(by_key[key])} is {code}; give the inputs that the set was made from with "
            f"{_options(again.record.spec.kind)}"
        )


def _name(entry: Any) -> str:
    return repr(entry) if isinstance(entry, str) else str(entry.place)


def _inputs(
    folder: Path, features: FeatureSet, named: NamedInputs
) -> tuple[FeatureInputs, EncoderConfig]:
    """Inputs and encoder of the set in ``folder``, from params.yaml or the user's options."""
    kind = features.record.spec.kind
    if named.inputs is None and named.phrases is None:
        return _inputs_of_graph(folder, kind, named.params)
    config = _encoder_of_record(folder, features, named)
    return _named_inputs(folder, features, named), config


def _options(kind: Kind) -> str:
    """The options for the inputs of a kind of set."""
    return (
        "--phrases, --inputs (the images manifest) and --root" if kind == "object" else "--inputs"
    )


def _inputs_of_graph(
    folder: Path, kind: Kind, params_file: Path
) -> tuple[FeatureInputs, EncoderConfig]:
    from pipeline.params import load_params

    match graph.below_features(folder):
        case (dataset, _, name):
            params = load_params(params_file)
            config = params.encoder(kind, name)
            return graph.feature_inputs(params, dataset, kind), config
    raise CacheError(
        f"{folder}: not in {graph.FEATURES}/<dataset>/<kind>/<encoder>, so its inputs are "
        f"unknown; give them with {_options(kind)}"
    )


def _named_inputs(folder: Path, features: FeatureSet, named: NamedInputs) -> FeatureInputs:
    """The images, objects or texts given by the user."""
    kind = features.record.spec.kind
    phrases, inputs, root = named.phrases, named.inputs, named.root
    if kind == "object":
        if phrases is None or inputs is None or root is None:
            raise CacheError(f"{folder}: its rows are objects; give all of {_options(kind)}")
        rules = _rules_of_record(folder, features)
        return inputs_of(kind, inputs, root, phrases=phrases, rules=rules)
    if phrases is not None or inputs is None:
        raise CacheError(f"{folder}: its rows are of kind {kind}; give --inputs without --phrases")
    return inputs_of(kind, inputs, root)


def _encoder_of_record(folder: Path, features: FeatureSet, named: NamedInputs) -> EncoderConfig:
    """The encoder named in the record, as far as possible."""
    from pipeline.encoders.config import named_encoder

    spec = features.record.spec
    if spec.is_foreign and not (named.encoder and named.weights):
        raise CacheError(
            f"{folder}: its rows were imported, and its record does not know their encoder; give "
            "it with --encoder and --weights"
        )
    source = named.weights or spec.encoder.source.split(" (")[0]
    if source.startswith("file:") and named.weights is None:
        raise CacheError(
            f"{folder}: its weights come from a file, {source[5:]}; "
            "pass it with --weights file:PATH"
        )
    kind = spec.kind if spec.kind != "object" else "image"
    if kind != "teacher" and "@" in spec.encoder.name and named.encoder is None:
        raise CacheError(
            f"{folder}: its encoder, {spec.encoder.name}, was made from a custom model config; "
            "pass that file with --encoder"
        )
    pooling = spec.preprocessing.get("pooling") if kind == "teacher" else None
    name = named.encoder or spec.encoder.name.replace("/", ":", 1)  # FAMILY:MODEL
    return named_encoder(name, source, kind, pooling=pooling)


def _rules_of_record(folder: Path, features: FeatureSet) -> CutoutRules:
    """The preprocessing of objects, from the record."""
    from pydantic import ValidationError

    spec = features.record.spec
    said = {name: spec.preprocessing.get(name) for name in CutoutRules.model_fields}
    try:
        return CutoutRules.model_validate(said)
    except ValidationError as error:
        raise CacheError(
            f"{folder}: its preprocessing is {str(said)[:200]}, which are not valid cut-out rules; "
            "it was not made by this version of Sightline"
        ) from error
