"""A feature set for other tools: a folder of Parquet or npy with a card, or rows in memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa

from pipeline.interchange.card import card
from pipeline.interchange.rows import TEXT_KINDS, Rows, write_npy, write_parquet
from sightline.cache import (
    CAPTIONS,
    IMAGES,
    SENTENCES,
    FeatureSet,
    FeatureSetRecord,
    FeatureSpec,
    key_column,
    keys_of_texts,
    places_of,
    read_manifest,
)
from sightline.cache.prepared import PreparedDataset
from sightline.errors import SightlineError
from sightline.extras import require
from sightline.output import Output, json_record

if TYPE_CHECKING:
    from datasets import Dataset

RECORD, SCHEMA = "export.json", "sightline.export/2"
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")


@dataclass(frozen=True)
class Exported:
    """What an export wrote: rows, files and bytes; ``unnamed`` rows are not in the data set."""

    rows: int
    files: int
    bytes: int
    unnamed: int


def export_features(
    folder: Path,
    out: Path,
    form: Literal["parquet", "npy"],
    describe: Callable[[FeatureSetRecord], dict[str, str]],
    *,
    dataset: Path | None = None,
    normalise: bool = False,
    licence: str | None = None,
) -> Exported:
    """Write the feature set in ``folder`` to the folder ``out``, with a card.

    Args:
        describe: provenance of a set, for the card: name → value.
        dataset: a prepared data set, whose image paths or texts are written beside the keys.
        normalise: divide each row by its length.
        licence: identifier for the card, as hubs write it.

    Raises:
        CacheError: no feature set there, or a damaged one.
        SightlineError: a data set without any of the rows, an invalid licence, or as `Output`.
    """
    if licence is not None and not _LICENCE.fullmatch(licence):
        raise SightlineError(f"licence {licence!r}: expected an identifier such as cc-by-4.0")
    features = FeatureSet.open(folder)
    record = features.record
    normalise = normalise and not record.spec.normalised
    spec = normalised_spec(record.spec) if normalise else record.spec
    inputs = [folder] if dataset is None else [folder, dataset]
    names = {} if dataset is None else names_in(dataset, features)
    source = Rows(features, names, normalise)
    with Output(out, RECORD, json_record(SCHEMA), inputs) as output, output.scratch() as work:
        (write_parquet if form == "parquet" else write_npy)(work, source)
        now = {"spec": spec, "fingerprint": spec.fingerprint}
        provenance = describe(record.model_copy(update=now))
        for of_the_set in ("Size", "Content digest") if normalise else ("Size",):
            provenance.pop(of_the_set, None)
        (work / "README.md").write_text(card(spec, form, provenance, licence, list(names)), "utf-8")
        files = [path for path in work.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        about = {"schema": SCHEMA, "form": form, "spec": spec.model_dump(mode="json")}
        output.publish(work, about)
    unnamed = max((each.null_count for each in names.values()), default=0)
    return Exported(len(features), len(files), size, unnamed)


def to_dataset(features: FeatureSet, data: PreparedDataset | None = None) -> Dataset:
    """The rows of ``features`` in memory: ``key`` (hexadecimal), names, and ``features``.

    For a set larger than memory, export it and open the folder with `datasets.load_dataset`.

    Args:
        data: adds the column ``image_path`` or ``caption``.

    Raises:
        SightlineError: the library `datasets` is not installed, or ``data`` has none of the rows.
    """
    library = require("datasets", "to_dataset")
    rows = Rows(features, {} if data is None else names_in(data.folder, features))
    tables = [rows.schema.empty_table(), *rows.tables(range(len(features)))]
    return library.Dataset(pa.concat_tables(tables))


def normalised_spec(spec: FeatureSpec) -> FeatureSpec:
    """The spec of a set after dividing each row by its length: never mixed with the original."""
    preprocessing = {**spec.preprocessing, "normalised": True}
    return spec.model_copy(update={"preprocessing": preprocessing})


def names_in(dataset: Path, features: FeatureSet) -> dict[str, pa.Array]:
    """What a data set calls the rows of ``features``: column → strings [len(features)].

    Raises:
        SightlineError: no manifest there for this kind, or none of the rows is in it.
    """
    kind = features.record.spec.kind
    if kind == "object":
        raise SightlineError(
            f"{features.path}: its rows are objects, which have no path of their own; leave out "
            "--data"
        )
    names: list[str | None] = [None] * len(features)
    if kind == "image":
        column, manifest = "image_path", dataset / "images.parquet"
        table = read_manifest(manifest, IMAGES)
        ids = table["image_id"].to_pylist()
        places = places_of(manifest, table)
        values = [
            each if place.offset is not None else place.path.as_posix()
            for each, place in zip(ids, places, strict=True)
        ]
        keys = key_column(table["key"])
    else:
        assert kind in TEXT_KINDS
        column, values = "caption", _texts_of(dataset)
        keys = keys_of_texts(values)
    rows = features.find(keys)
    for row, value in zip(rows[::-1].tolist(), reversed(values), strict=True):  # the first one wins
        if row >= 0:
            names[row] = value
    if len(features) and not np.any(rows >= 0):
        raise SightlineError(
            f"{dataset}: has none of the {len(features):,} rows of {features.path}; give the data "
            "set that these features were extracted from"
        )
    return {column: pa.array(names, pa.string())}


def _texts_of(dataset: Path) -> list[str]:
    manifests = {"captions.parquet": CAPTIONS, "sentences.parquet": SENTENCES}
    there = {name: schema for name, schema in manifests.items() if (dataset / name).is_file()}
    if not there:
        raise SightlineError(
            f"{dataset}: has neither captions.parquet nor sentences.parquet; give a prepared data "
            "set"
        )
    return [
        text
        for name, schema in there.items()
        for text in read_manifest(dataset / name, schema)["text"].to_pylist()
    ]
