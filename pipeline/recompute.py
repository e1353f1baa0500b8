"""Encode a few rows of a feature set again and compare: is it what its maker claims?"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import layout
from pipeline.cache import CAPTIONS, CacheError, FeatureSet, SightlineError, read_manifest
from pipeline.cache.diff import cosines
from pipeline.cache.keys import KeyTable, as_keys, keys_of_texts
from pipeline.extract.run import ExtractSettings, extract_images, extract_texts

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


@dataclass(frozen=True)
class Origin:
    """What the rows of a set came from, as far as a user says it.

    Attributes:
        inputs: a folder or manifest of images, or a file of texts; not all keys need be there.
            None: the inputs and the encoder of params.yaml.
        root: folder that a manifest's paths are relative to.
        encoder, weights: in place of those that the record names.
        params: the parameter file.
    """

    inputs: Path | None = None
    root: Path | None = None
    encoder: str | None = None
    weights: str | None = None
    params: Path = Path("params.yaml")


def recompute(folder: Path, count: int, seed: int, origin: Origin, device: str) -> Recomputed:
    """Encode ``count`` random rows of the set in ``folder`` again.

    Raises:
        SightlineError: the encoder cannot be built, is not the record's, or no input is there.
    """
    features = FeatureSet.open(folder)
    if features.record.spec.kind == "object":
        raise CacheError(f"{folder}: objects cannot be recomputed yet; verify their images' set")
    if origin.inputs is None:
        config, by_key = _of_graph(folder, features, origin.params)
    else:
        config = _of_record(folder, features, origin)
        by_key = _inputs(features.record.spec.kind, origin.inputs, origin.root)
    rows = _drawn(folder, features, by_key, count, seed)
    with tempfile.TemporaryDirectory() as scratch:
        again = _encode(features, config, [by_key[key] for key in rows], device, Path(scratch))
        _require_the_same_encoder(folder, features, again)
        old, new = features.take(rows), again.take(rows)
    cosine = cosines(old, new)
    faults = [
        f"{folder}: row {features.find([rows[i]])[0]} ({_name(by_key[rows[i]])}) comes out with "
        f"cosine {cosine[i]:.6f}, expected at least {SAME}"
        for i in np.flatnonzero(~(cosine >= SAME))
    ]
    equal = int((old.view(np.uint8) == new.view(np.uint8)).all(axis=1).sum())
    return Recomputed(len(rows), equal, float(cosine.min()), faults)


def _of_graph(folder: Path, features: FeatureSet, path: Path) -> tuple[Any, dict[bytes, Any]]:
    """Encoder and inputs of a set in the graph's layout."""
    from pipeline.params import load_params

    try:
        dataset, kind, name = folder.resolve().relative_to(layout.FEATURES.resolve()).parts
    except ValueError:
        raise CacheError(
            f"{folder}: not in {layout.FEATURES}/<dataset>/<kind>/<encoder>, so its inputs are not "
            "known; name them with --inputs"
        ) from None
    params = load_params(path)
    _, source = params.source(dataset)
    spec_kind = features.record.spec.kind
    config = params.encoder(spec_kind, name)  # pyright: ignore[reportArgumentType]
    manifests = layout.dataset_folder(dataset)
    if kind == "image":
        root = layout.image_root(dataset, source)
        return config, _inputs("image", manifests / "images.parquet", root)
    texts = read_manifest(manifests / "captions.parquet", CAPTIONS)["text"].to_pylist()
    return config, _by_key(texts)


def _of_record(folder: Path, features: FeatureSet, origin: Origin) -> Any:
    """The encoder that the record names, as far as it can."""
    from pipeline.encoders.registry import named_encoder

    spec = features.record.spec
    source = origin.weights or spec.encoder.source.split(" (")[0]
    if source.startswith("file:") and origin.weights is None:
        raise CacheError(
            f"{folder}: its weights come from a file, {source[5:]}; "
            "name it with --weights file:PATH"
        )
    kind = spec.kind if spec.kind != "object" else "image"
    pooling = spec.preprocessing.get("pooling") if kind == "teacher" else None
    name = origin.encoder or spec.encoder.name.partition("/")[2]
    return named_encoder(name, source, kind, pooling=pooling)


def _inputs(kind: str, path: Path, root: Path | None) -> dict[bytes, Any]:
    from pipeline.extract.inputs import image_entries_of, texts_in

    if kind == "image":
        return {entry.key: entry for entry in image_entries_of(path, root)}
    return _by_key(texts_in(path))


def _by_key(texts: list[str]) -> dict[bytes, str]:
    return {row.tobytes(): text for row, text in zip(keys_of_texts(texts), texts, strict=True)}


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
    features: FeatureSet, config: Any, inputs: list[Any], device: str, scratch: Path
) -> FeatureSet:
    """The same inputs through the encoder, in the batch shape of the record."""
    from pipeline.encoders.device import resolve_device
    from pipeline.encoders.registry import build_image_encoder, build_text_encoder

    spec, where = features.record.spec, resolve_device(device)
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
    if spec.kind == "image":
        extract_images(inputs, build_image_encoder(config, where, spec.precision), out, settings)
    else:
        model = build_text_encoder(config, where, spec.precision)
        extract_texts(inputs, model, out, settings, spec.kind)  # pyright: ignore
    return FeatureSet.open(out)


def _require_the_same_encoder(folder: Path, features: FeatureSet, again: FeatureSet) -> None:
    if again.fingerprint != features.fingerprint:
        lines = again.record.spec.differences(features.record.spec)
        raise SightlineError(
            f"{folder}: the encoder here is not the one of its record:\n  "
            + "\n  ".join(lines)
            + "\n  name the right one with --encoder and --weights"
        )


def _name(entry: Any) -> str:
    return repr(entry) if isinstance(entry, str) else str(entry.path)
