"""Features that others made become a feature set, whose record says so."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import ValidationError

from pipeline.datasets.images import found_images
from pipeline.datasets.manifests import cleaned
from pipeline.interchange.feature_layouts import ImportOptions, RowFile, find
from pipeline.interchange.row_arrays import ARRAYS
from pipeline.interchange.rows import are_unit
from sightline.cache import (
    EncoderRecord,
    FeatureSpec,
    SetRecord,
    SetWriter,
    as_keys,
    key_of_file,
    key_of_text,
)
from sightline.cache.keys import KEY_BYTES, Keys, unique_sorted
from sightline.cache.manifest import image_names
from sightline.cache.prepared import RECORD, PreparedDataset
from sightline.cache.record import FOREIGN, DTypeName, Kind, Provenance
from sightline.errors import SightlineError
from sightline.files.storage import require_of_file
from sightline.machine.progress import progress
from sightline.tables.image_names import AMBIGUOUS, UNKNOWN, ImageNames
from sightline.wording import counted

_BATCH = 1024
_Names = Sequence[str | None]


@dataclass(frozen=True)
class Imported:
    """What an import wrote.

    Attributes:
        form: layout of the files.
        missing: rows left out because their image is not there.
        repeated: rows left out because an earlier one has the same key.
        contradicting: those of them with other numbers.
        columns: of the rows and names of the first file, in words.
        remarks: on names of images.
        trimmed: texts that lost outer white space or control characters, as in every data set.
    """

    record: SetRecord[FeatureSpec]
    form: str
    columns: str
    missing: int = 0
    repeated: int = 0
    contradicting: int = 0
    trimmed: int = 0
    remarks: tuple[str, ...] = ()

    def lines(self, out: Path) -> list[str]:
        """What became of the rows, in words."""
        record, spec = self.record, self.record.spec
        length = "normalised" if spec.normalised else "not normalised"
        lines = [
            f"{out}: {counted(record.rows, 'row')} of {spec.dim:,} {spec.dtype}, "
            f"kind {spec.kind}, {length}, from {self.form}; {record.provenance}",
            self.columns,
        ]
        if self.missing:
            lines.append(f"{counted(self.missing, 'row')} left out: their {spec.kind} is missing")
        lines += self.remarks
        if self.trimmed:
            texts = counted(self.trimmed, "text")
            lines.append(f"white space around {texts} left out, as in every data set")
        if self.repeated:
            lines.append(
                f"{counted(self.repeated, 'row')} left out: an earlier row describes the same "
                f"{spec.kind}; {self.contradicting:,} of them hold other numbers than it"
            )
        if record.failed:
            lines.append(f"{counted(record.failed, 'row')} without a value")
        return lines


def import_rows(source: Path, out: Path, options: ImportOptions) -> Imported:
    """Import a folder of clip-retrieval, DataComp's archives, or tables as the feature set ``out``.

    A row's key is the SHA-256 of the image, or of the text, that the metadata names. The first row
    of a key counts. Reads the files twice, a few megabytes at a time.

    Raises:
        SightlineError: as `find`; no images given; images that are not there; files whose rows
            differ in length or dtype.
    """
    form, parts = find(source, options)
    dim, dtype = _one_shape(parts)
    keys, keyed, counts, trimmed, remarks = _keys(source, parts, options)
    kept = np.flatnonzero(keyed)
    kept = kept[np.sort(unique_sorted(keys[keyed]))]
    if not len(kept):
        raise SightlineError(f"{source}: contains no rows")
    chosen = np.zeros(len(keys), dtype=bool)
    chosen[kept] = True
    every = list(zip(parts, counts, strict=True))
    where = "array" if form in ARRAYS else "column"
    normalised, contradicting = _measure(every, keys, keyed, chosen)
    spec = foreign_spec(
        form,
        [path for part in parts for path in dict.fromkeys((part.rows, part.table))],
        parts[0].kind,
        dim,
        options.source or f"imported from {form}",
        dtype,
        **({} if options.features is None else {where: options.features}),
        normalised=normalised,
    )
    inputs = [source] if options.data is None else [source, options.data]
    blocks = (
        (keys[span][chosen[span]], rows[chosen[span]]) for span, rows in _blocks(every, "import")
    )
    record = write_rows(out, spec, keys[kept], blocks, inputs)
    repeated, missing = int(keyed.sum()) - len(kept), int((~keyed).sum())
    return Imported(
        record, form, parts[0].about, missing, repeated, contradicting, trimmed, remarks
    )


def _one_shape(parts: list[RowFile]) -> tuple[int, DTypeName]:
    """Length and dtype of the rows, which every part must have."""
    shapes = []
    for part in parts:
        rows = next(part.blocks(), np.empty((0, 0), np.float32))
        shapes.append((rows.shape[1], rows.dtype.name))
        if shapes[-1] != shapes[0]:
            (dim, dtype), (other_dim, other_dtype) = shapes[-1], shapes[0]
            raise SightlineError(
                f"{part.rows}: rows of {dim} {dtype}, but {parts[0].rows} has {other_dim} "
                f"{other_dtype}; they are not one set"
            )
    return shapes[0]


def _keys(
    source: Path, parts: list[RowFile], options: ImportOptions
) -> tuple[Keys, NDArray[np.bool_], list[int], int, tuple[str, ...]]:
    """Key of every row, uint8 [n, 32]; whether it has one, bool [n]; the names in each part; how
    many texts differ from what manifests hold; and remarks on the names.
    """
    keys: list[bytes | None] = []
    counts: list[int] = []
    lost = ""
    trimmed = 0
    unkeyed = [part for part in parts if part.kind == "image" and not part.keyed]
    images = _ImageKeys(source, options.data, unkeyed) if unkeyed else None
    for part in parts:
        names = part.names_of_rows()
        if part.keyed:
            part_keys = names
        elif images is not None:
            part_keys = images.of(names)
        else:
            texts = cleaned(pa.array(names, pa.string())).to_pylist()
            trimmed += sum(text != name for text, name in zip(texts, names, strict=True))
            part_keys = [key_of_text(text) if text else None for text in texts]
        if None in part_keys and not lost:
            row = part_keys.index(None)
            lost = f"{names[row]!r:.80} (row {row} of {part.table.name})"
        keys += part_keys
        counts.append(len(names))
    keyed = np.array([key is not None for key in keys], dtype=bool)
    remarks = () if images is None else tuple(images.names.remarks())
    if lost and not (options.allow_missing and keyed.any()):
        kind = parts[0].kind
        where = f"not in {options.data}" if kind == "image" else "empty"
        remedies = ["--allow-missing leaves these rows out"] if keyed.any() else []
        remedies += [] if images is None else images.names.remedies()
        raise SightlineError(
            f"{source}: {int((~keyed).sum()):,} of {len(keys):,} rows have no key, because their "
            f"{'; '.join((f'{kind} is {where}, such as {lost}', *remedies))}"
        )
    raw = b"".join(key or bytes(KEY_BYTES) for key in keys)
    return np.frombuffer(raw, np.uint8).reshape(-1, KEY_BYTES), keyed, counts, trimmed, remarks


class _ImageKeys:
    """Keys of images by name (`sightline.tables.image_names`).

    Args:
        source: the files that name them, for messages.
        data: a folder, whose named images are hashed, or a prepared data set, whose images were.
        parts: those that name images.

    Attributes:
        names: how all of them are found.
    """

    def __init__(self, source: Path, data: Path | None, parts: Sequence[RowFile]) -> None:
        names = (name for part in parts for name in part.names_of_rows() if name)
        if data is None:
            example = next((f"{name!r:.80}" for name in names), "none")
            raise SightlineError(
                f"{source}: a row's key is the SHA-256 of its image, and these rows name images "
                f"such as {example}; give their folder, or a prepared data set, with --data"
            )
        self._root, self._source = data, source
        self._keys: dict[int, bytes | None] = {}  # row → key; None: cannot be read
        folder, ids = data, list[str]()
        if (data / RECORD).is_file():
            dataset = PreparedDataset.open(data)
            folder = dataset.image_root
            self._paths = image_names(dataset.images_manifest, dataset.images)
            ids = dataset.images["image_id"].to_pylist()
            self._keys = dict(enumerate(dataset.images["key"].to_pylist()))
        elif data.is_dir():
            self._paths = sorted(found_images(data, data)[0])
        else:
            raise SightlineError(f"{data}: expected a folder of images, or a prepared data set")
        self.names = ImageNames(self._paths, folder, ids).of_file(names)

    def of(self, names: _Names) -> list[bytes | None]:
        """The key of each image, or None if it is missing, unreadable or unnamed."""
        rows = [self._row(name) for name in names]
        missing = [row for row in dict.fromkeys(rows) if row >= 0 and row not in self._keys]
        with ThreadPoolExecutor(min(8, 2 * (os.cpu_count() or 1))) as pool:
            self._keys.update(zip(missing, pool.map(self._hash, missing), strict=True))
        return [self._keys[row] if row >= 0 else None for row in rows]

    def _row(self, name: str | None) -> int:
        if not name:
            return UNKNOWN
        row = self.names.find(name)
        if row == AMBIGUOUS:
            several = " and ".join(self.names.candidates(name))
            raise SightlineError(
                f"{self._source}: {name!r} may be {several}; give paths in place of names, or the "
                "folder that holds one of them with --data"
            )
        return row

    def _hash(self, row: int) -> bytes | None:
        path = self._root / self._paths[row]
        try:
            return key_of_file(path)
        except OSError as error:
            require_of_file(error, path)
            return None


def _measure(
    parts: list[tuple[RowFile, int]],
    keys: Keys,
    keyed: NDArray[np.bool_],
    chosen: NDArray[np.bool_],
) -> tuple[bool, int]:
    """Whether every row has length 1; how many rows repeat a key with other numbers."""
    repeated = {keys[i].tobytes() for i in np.flatnonzero(keyed & ~chosen)}
    first: dict[bytes, bytes] = {}
    normalised, contradicting = True, 0
    for place, rows in _blocks(parts, "measure"):
        normalised = normalised and are_unit(rows)
        for i in np.flatnonzero(keyed[place]) if repeated else ():
            key = keys[place][i].tobytes()
            if key in repeated:
                contradicting += first.setdefault(key, rows[i].tobytes()) != rows[i].tobytes()
    return normalised, contradicting


def _blocks(parts: list[tuple[RowFile, int]], action: str) -> Iterator[tuple[slice, NDArray]]:
    """All rows, and where they are among all of them.

    Args:
        parts: each with the number of its names.
    """
    end = 0
    with progress(action, sum(names for _, names in parts), "rows") as advance:
        for part, names in parts:
            begin, end = end, end + names
            at = begin
            for rows in part.blocks():
                if at + len(rows) <= end:
                    yield slice(at, at + len(rows)), rows
                    advance(len(rows))
                at += len(rows)
            if at != end:
                raise SightlineError(
                    f"{part.table}: {names:,} rows, but {part.rows.name} has {at - begin:,}; row i "
                    "belongs to row i, so one of them is the wrong file or truncated"
                )


def foreign_spec(
    form: str,
    files: Sequence[Path],
    kind: Kind,
    dim: int,
    source: str,
    dtype: DTypeName = "float32",
    **facts: Any,
) -> FeatureSpec:
    """A record that claims only what is known about rows that another tool made.

    Args:
        files: that they come from; their SHA-256, or that of the list of them, is recorded.
        source: what computed the rows.
        facts: added to the preprocessing, such as ``normalised=True``.
    """
    sums = [key_of_file(path).hex() for path in files]
    listed = "".join(f"{digest}\n" for digest in sums).encode()
    sha256 = sums[0] if len(sums) == 1 else hashlib.sha256(listed).hexdigest()
    try:
        encoder = EncoderRecord(name=f"{FOREIGN}{form}", source=source, weights_sha256=sha256)
    except ValidationError as error:
        raise SightlineError(f"--source {source[:80]!a}: {error.errors()[0]['msg']}") from error
    return FeatureSpec(
        kind=kind,
        encoder=encoder,
        preprocessing={"imported_from": form, "file_sha256": sha256, **facts},
        precision="unknown",
        dim=dim,
        dtype=dtype,
    )


def write_rows(
    out: Path,
    spec: FeatureSpec,
    keys: Keys | Sequence[bytes],
    blocks: Iterable[tuple[Keys | list[bytes], NDArray]],
    inputs: Iterable[Path],
) -> SetRecord[FeatureSpec]:
    """Publish the rows of ``blocks`` (keys and [n, dim] each) as the feature set ``out``.

    Args:
        keys: of all rows.
    """
    how: dict[str, str | int] = {"imported_from": spec.encoder.name}
    with SetWriter(out, spec, inputs) as writer:
        writer.plan(as_keys(keys), batch_size=_BATCH)
        if writer.counts.planned:
            # in the order of the files: what an interrupted import left is written again
            for number, (block_keys, rows) in enumerate(blocks):
                writer.add_block(number, as_keys(block_keys), rows, computed=how)
        record = writer.publish(Provenance(imported=True))
    return cast("SetRecord[FeatureSpec]", record)  # as `spec` is
