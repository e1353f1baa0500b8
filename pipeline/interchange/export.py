"""A feature set for other tools: a folder of Parquet or npy with a card, or rows in memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, TypeAdapter

from pipeline.interchange.card import card
from pipeline.interchange.rows import KEY, ExportedRows, write_npy, write_parquet
from sightline.cache import (
    FeatureSet,
    FeatureSpec,
    SetRecord,
    as_keys,
    key_column,
    keys_of_texts,
)
from sightline.cache.archive import ANOTHER_PLACE, require_same_rows
from sightline.cache.feature_kind import feature_kind
from sightline.cache.keys import Keys
from sightline.cache.manifest import image_names
from sightline.cache.prepared import PreparedDataset
from sightline.errors import SightlineError
from sightline.files.output import Output, json_record
from sightline.optional_imports import require
from sightline.tables.arrow_files import batches_of
from sightline.user_files import read_json

if TYPE_CHECKING:
    from datasets import Dataset

RECORD, SCHEMA = "export.json", "sightline.export/2"
_ROWS = 1 << 16  # at once
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")


@dataclass(frozen=True)
class Exported:
    """What an export wrote: rows, files and bytes; ``unnamed`` rows are not in the data set."""

    rows: int
    files: int
    bytes: int
    unnamed: int


class ExportRecord(BaseModel):
    """What an export says of itself."""

    form: str
    spec: FeatureSpec
    files: list[str]


def read_exported(folder: Path) -> ExportRecord | None:
    """The record of exported features; None: the folder holds none."""
    path = folder / RECORD
    if not path.is_file():
        return None
    try:
        json_record(SCHEMA)(path.read_bytes())
    except SightlineError:
        return None  # of another tool
    return read_json(path, TypeAdapter(ExportRecord), "the record of exported features")


def export_features(
    folder: Path,
    out: Path,
    form: Literal["parquet", "npy"],
    describe: Callable[[SetRecord[FeatureSpec]], dict[str, str]],
    *,
    dataset: Path | None = None,
    normalise: bool = False,
    licence: str | None = None,
) -> Exported:
    """Write the feature set in ``folder`` to the folder ``out``, with a card.

    Args:
        describe: provenance of a set, for the card: name → value.
        dataset: a prepared data set, whose names of the rows are written beside the keys
            (`names_in`).
        normalise: divide each row by its length.
        licence: identifier for the card, as hubs write it.

    Raises:
        CacheError: no feature set there, or a damaged one.
        SightlineError: a data set without any of the rows, an invalid licence, the export of
            another set or in another format in ``out``, or as `Output`.
    """
    if licence is not None and not _LICENCE.fullmatch(licence):
        raise SightlineError(f"licence {licence!r}: expected an identifier such as cc-by-4.0")
    features = FeatureSet.open(folder)
    record = features.record
    spec = record.spec
    normalise = normalise and not spec.normalised
    if normalise:  # never mixed with the original
        preprocessing = {**spec.preprocessing, "normalised": True}
        spec = spec.model_copy(update={"preprocessing": preprocessing})
    inputs = [folder] if dataset is None else [folder, dataset]
    names = {} if dataset is None else names_in(PreparedDataset.open(dataset), features)
    source = ExportedRows(features, names, normalise)
    with Output(out, RECORD, json_record(SCHEMA), inputs) as output, output.scratch() as work:
        _refuse_another(output, form, spec, features.keys)
        (write_parquet if form == "parquet" else write_npy)(work, source)
        update = {"spec": spec, "fingerprint": spec.fingerprint}
        provenance = describe(record.model_copy(update=update))
        for of_the_set in ("Size", "Content digest") if normalise else ("Size",):
            provenance.pop(of_the_set, None)
        (work / "README.md").write_text(card(spec, form, provenance, licence, list(names)), "utf-8")
        files = [path for path in work.rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        about = {"schema": SCHEMA, "form": form, "spec": spec.model_dump(mode="json")}
        output.publish(work, about)
    unnamed = max((column.null_count for column in names.values()), default=0)
    return Exported(len(features), len(files), size, unnamed)


def _refuse_another(output: Output, form: str, spec: FeatureSpec, keys: Keys) -> None:
    """An export is replaced only by one of the same set, in the same format."""
    record = read_exported(output.folder)
    if record is None:
        return
    tables = [output.folder / name for name in record.files if name.endswith(".parquet")]
    try:
        held = [
            bytes.fromhex(key)
            for table in filter(Path.is_file, tables)
            for batch in batches_of(table, [KEY], _ROWS)
            for key in batch[KEY].to_pylist()
        ]
    except (SightlineError, ValueError) as error:
        raise SightlineError(
            f"{output.place}: holds an export that cannot be read ({error}); {ANOTHER_PLACE}"
        ) from error
    if held and record.form != form:
        raise SightlineError(
            f"{output.place}: holds an export as {record.form}, not {form}; {ANOTHER_PLACE}"
        )
    require_same_rows(output.place, record.spec, as_keys(held), spec, keys)


def to_dataset(features: FeatureSet, data: PreparedDataset | None = None) -> Dataset:
    """The rows of ``features`` in memory: ``key`` (hexadecimal), names, and ``features``.

    For a set larger than memory, export it and open the folder with `datasets.load_dataset`.

    Args:
        data: adds the columns of `names_in`.

    Raises:
        SightlineError: the library `datasets` is not installed, or ``data`` has none of the rows.
    """
    library = require("datasets", "to_dataset")
    rows = ExportedRows(features, {} if data is None else names_in(data, features))
    tables = [rows.schema.empty_table(), *rows.tables(range(len(features)))]
    return library.Dataset(pa.concat_tables(tables))


def names_in(data: PreparedDataset, features: FeatureSet) -> dict[str, pa.Array]:
    """What a data set calls the rows of ``features``: column → values [len(features)].

    The first name of each row, then lists: the ids of all its images or captions, and the split of
    each.

    Raises:
        SightlineError: no manifest there for this kind, or none of the rows is in it.
    """
    kind = feature_kind(features.record.spec.kind)
    if kind.row_of == "object":
        raise SightlineError(
            f"{features.path}: its rows are objects, which have no path of their own; leave out "
            "--data"
        )
    if kind.row_of == "image":
        table, column, ids = data.images, "image_path", "image_id"
        values = image_names(data.images_manifest, table)
        rows = of_ids = features.find(key_column(table["key"]))
    else:
        table, column, ids = data.captions, "caption", "caption_id"
        values = data.texts
        rows = features.find(keys_of_texts(values))
        row_of = dict(zip(values, rows.tolist(), strict=True))
        of_ids = np.array([row_of[text] for text in table["text"].to_pylist()], dtype=np.int64)
    name_of = dict(zip(rows[::-1].tolist(), reversed(values), strict=True))  # the first one wins
    name_of.pop(-1, None)
    if len(features) and not name_of:
        raise SightlineError(
            f"{data.folder}: has none of the {len(features):,} rows of {features.path}; give the "
            "data set that these features were extracted from"
        )
    return {
        column: pa.array(map(name_of.get, range(len(features))), pa.string()),
        f"{ids}s": _listed(table[ids], of_ids, len(features)),
        "splits": _listed(table["split"], of_ids, len(features)),
    }


def _listed(values: pa.ChunkedArray, rows: NDArray[np.int64], count: int) -> pa.Array:
    """The values of each of ``count`` rows, in their order; ``rows`` has the row of each, or -1."""
    order = np.argsort(rows, kind="stable")
    bounds = np.searchsorted(rows, np.arange(count + 1), sorter=order).tolist()
    texts = values.to_pylist()
    sorted_texts = [texts[i] for i in order.tolist()]
    lists = (sorted_texts[start:stop] for start, stop in pairwise(bounds))
    return pa.array(lists, pa.list_(pa.string()))
