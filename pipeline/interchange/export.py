"""A feature set as a folder for other tools and for a hub, with the record that leads back."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from pipeline.interchange.card import card
from pipeline.interchange.row_files import Form, Source, write_files
from pipeline.interchange.unit_rows import unit_rows
from sightline.cache import (
    CAPTIONS,
    IMAGES,
    SENTENCES,
    CacheError,
    FeatureSet,
    FeatureSetRecord,
    FeatureSpec,
    key_column,
    keys_of_texts,
    places_of,
    read_manifest,
)
from sightline.cache.index import Content
from sightline.cache.keys import Keys
from sightline.cache.record import Provenance, read_features
from sightline.digest import blake3_of_file
from sightline.errors import SightlineError
from sightline.output import Output, json_record
from sightline.wording import in_bytes

RECORD, SCHEMA = "export.json", "sightline.export/1"
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class ExportRecord(BaseModel):
    """`export.json`: which set a folder holds, so that an import restores it bit for bit.

    Attributes:
        form: the format of the rows.
        spec: of the set; ``fingerprint`` and ``content_digest`` belong to it.
        provenance: of the set when it was exported.
        computed: how the rows were computed, if all in the same way; else empty.
        failed: key (hex) → code of the failed rows.
        digests: name → BLAKE3 of every file that holds rows or keys.
        files: every file of the folder except this one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)

    schema_: Annotated[Literal["sightline.export/1"], Field(alias="schema")] = SCHEMA
    form: Literal["parquet", "npy", "safetensors"]
    spec: FeatureSpec
    fingerprint: _Hex
    content_digest: _Hex
    provenance: Provenance
    rows: Annotated[int, Field(ge=0, lt=1 << 48)]
    computed: dict[str, str | int]
    failed: dict[_Hex, Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]]
    digests: dict[str, _Hex]
    files: tuple[str, ...] = ()


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
    form: Form,
    describe: Callable[[FeatureSetRecord], dict[str, str]],
    *,
    dataset: Path | None = None,
    normalise: bool = False,
    licence: str | None = None,
) -> Exported:
    """Write the feature set in ``folder`` to the folder ``out``, with a card and a record.

    Args:
        describe: provenance of a set, for the card: name → value.
        dataset: a prepared data set, whose image paths or texts are written beside the keys.
        normalise: divide each row by its length.
        licence: identifier for the card, as hubs write it.

    Raises:
        CacheError: no feature set there, or a damaged one.
        SightlineError: too many rows for a folder on a hub or for the disk, a data set without
            any of the rows, an invalid licence, or as `Output`.
    """
    if licence is not None and not _LICENCE.fullmatch(licence):
        raise SightlineError(f"licence {licence!r}: expected an identifier such as cc-by-4.0")
    read_features(folder)  # one clear error before anything else
    features = FeatureSet.open(folder)
    record = features.record
    if normalise and record.spec.normalised:
        normalise = False
    spec = normalised_spec(record.spec) if normalise else record.spec
    content = Content(spec)

    def read(rows: range) -> tuple[Keys, NDArray]:
        keys = features.keys[rows.start : rows.stop]
        values = features.gather(np.arange(rows.start, rows.stop))
        if normalise:
            values = unit_rows(values).astype(features.dtype)
        content.add_rows(keys, values)
        return keys, values

    inputs = [folder] if dataset is None else [folder, dataset]
    names = {} if dataset is None else names_in(dataset, features)
    texts = spec.kind in ("text", "teacher")
    source = Source(read, len(features), features.dim, features.dtype, texts, names)
    with Output(out, RECORD, json_record(SCHEMA), inputs) as output, output.scratch() as made:
        _require_space(made, source)
        write_files(form, made, source)
        digest = content.digest(features.failed)
        if not normalise and digest != record.content_digest:
            raise CacheError(
                f"{folder}: its rows do not match its record; `sightline cache verify` names the "
                "damaged files"
            )
        digests = {name: blake3_of_file(made / name) for name in _names(made)}
        about = ExportRecord(
            form=form.value,
            spec=spec,
            fingerprint=spec.fingerprint,
            content_digest=digest,
            provenance=record.provenance,
            rows=len(features),
            computed=_computed(record),
            failed={key.hex(): features.failed[key] for key in sorted(features.failed)},
            digests=digests,
        )
        now = {"spec": spec, "fingerprint": spec.fingerprint, "content_digest": digest}
        said = describe(record.model_copy(update=now))
        said.pop("Size", None)  # of the set, not of this folder
        (made / "README.md").write_text(card(spec, form, said, licence, list(names)), "utf-8")
        output.publish(made, about.model_dump(mode="json", by_alias=True, exclude={"files"}))
    files = [out / name for name in (*digests, "README.md", RECORD)]
    unnamed = max((each.null_count for each in names.values()), default=0)
    return Exported(len(features), len(files), sum(f.stat().st_size for f in files), unnamed)


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
            "--dataset"
        )
    found: list[str | None] = [None] * len(features)
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
        column, values = "caption", _texts_of(dataset)
        keys = keys_of_texts(values)
    rows = features.find(keys)
    for row, value in zip(rows[::-1].tolist(), reversed(values), strict=True):  # the first one wins
        if row >= 0:
            found[row] = value
    if len(features) and not (rows >= 0).any():
        raise SightlineError(
            f"{dataset}: has none of the {len(features):,} rows of {features.path}; give the data "
            "set that these features were extracted from"
        )
    return {column: pa.array(found, pa.string())}


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
        if text is not None
    ]


def _computed(record: FeatureSetRecord) -> dict[str, str | int]:
    """How all shards were computed, or nothing if they differ."""
    ways = [shard.computed for shard in record.shards]
    return dict(ways[0]) if ways and all(way == ways[0] for way in ways) else {}


def _names(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def _require_space(folder: Path, source: Source) -> None:
    needed = source.rows * (source.row_bytes + 100) + (1 << 20)
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise SightlineError(
            f"{folder.parent}: this export needs about {in_bytes(needed)}, but only "
            f"{in_bytes(free)} are free; free some space or choose another output folder"
        )


def schema_of(data: bytes, path: Path) -> ExportRecord:
    """The record in ``data``, read from ``path``.

    Raises:
        SightlineError: it is not one; names the field.
    """
    from pydantic import ValidationError

    try:
        record = ExportRecord.model_validate_json(data)
    except (ValidationError, RecursionError) as error:
        first: Any = error.errors()[0] if isinstance(error, ValidationError) else {}
        where = ".".join(str(part) for part in first.get("loc", ())) or "JSON"
        raise SightlineError(
            f"{path}: {where}: {first.get('msg', 'nested too deeply')}; expected the record that "
            "`sightline cache export` wrote; export the set again"
        ) from error
    if record.fingerprint != record.spec.fingerprint:
        raise SightlineError(f"{path}: its fingerprint does not match its description")
    return record
