"""Features that others made become a feature set, whose record says so."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.interchange.found_rows import FoundRows, Part, find_rows
from pipeline.interchange.image_names import ImageNames
from pipeline.interchange.imported import foreign_spec, write_rows
from pipeline.interchange.unit_rows import are_unit
from sightline.cache import FeatureSetRecord, key_of_file, key_of_text
from sightline.cache.keys import KEY_BYTES, Keys, unique_sorted
from sightline.cache.record import DTypeName, Kind
from sightline.errors import SightlineError
from sightline.progress import progress

_DTYPE: dict[str, DTypeName] = {"float16": "float16", "float32": "float32"}


@dataclass(frozen=True)
class ImportOptions:
    """What the files do not say.

    Attributes:
        images: folder of the images that the metadata names, or their manifest.
        kind, features, names: as for `find_rows`.
        source: what computed the rows, for the record.
        allow_missing: leave out rows whose image is not there.
    """

    images: Path | None = None
    kind: Kind | None = None
    features: str | None = None
    names: str | None = None
    source: str | None = None
    allow_missing: bool = False


@dataclass(frozen=True)
class Imported:
    """What an import wrote.

    Attributes:
        form: layout of the files.
        missing: rows left out because their image is not there.
        repeated: rows left out because an earlier one has the same key.
        contradicting: those of them with other numbers.
    """

    record: FeatureSetRecord
    form: str
    missing: int = 0
    repeated: int = 0
    contradicting: int = 0


def import_rows(source: Path, out: Path, options: ImportOptions) -> Imported:
    """Import a folder of clip-retrieval, DataComp's archives, or tables as the feature set ``out``.

    A row's key is the SHA-256 of the image, or of the text, that the metadata names. The first row
    of a key counts. Reads the files twice, a few megabytes at a time.

    Raises:
        SightlineError: as `find_rows`; no images given; images that are not there; files whose
            rows differ in length or dtype.
    """
    found = find_rows(source, options.kind, options.features, options.names)
    first = found.parts[0].rows
    for part in found.parts:
        if (part.rows.dim, part.rows.dtype) != (first.dim, first.dtype):
            raise SightlineError(
                f"{part.rows.path}: rows of {part.rows.dim} {part.rows.dtype.name}, but "
                f"{first.path} has {first.dim} {first.dtype.name}; they are not one set"
            )
    keys, known = _keys(source, found, options)
    missing = int((~known).sum())
    kept = np.flatnonzero(known)
    kept = kept[np.sort(unique_sorted(keys[known]))]
    if not len(kept):
        raise SightlineError(f"{source}: contains no rows")
    wanted = np.zeros(len(keys), dtype=bool)
    wanted[kept] = True
    seen = _Seen(keys, known, wanted)
    spec = foreign_spec(
        _sha256(found.parts),
        found.form,
        found.kind,
        first.dim,
        _DTYPE[first.dtype.name],
        options.source or f"imported from {found.form}",
        {**found.known, "normalised": _measure(found.parts, seen)},
    )
    inputs = [source] if options.images is None else [source, options.images]
    record = write_rows(out, spec, keys[kept], _blocks(found.parts, keys, wanted), inputs)
    repeated = int(known.sum()) - len(kept)
    return Imported(record, found.form, missing, repeated, seen.contradicting)


def _keys(source: Path, found: FoundRows, options: ImportOptions) -> tuple[Keys, NDArray[np.bool_]]:
    """Key of every row, uint8 [n, 32], and whether it has one, bool [n]."""
    total = sum(part.rows.rows for part in found.parts)
    keys = np.zeros((total, KEY_BYTES), dtype=np.uint8)
    known = np.zeros(total, dtype=bool)
    images: ImageNames | None = None
    start, lost = 0, ""
    with progress(f"hash {found.kind}s", total, found.kind + "s") as advance:
        for part in found.parts:
            names = part.names()
            if found.kind == "image":
                if options.images is None:
                    raise SightlineError(
                        f"{source}: a row's key is the SHA-256 of its image, and these rows name "
                        f"images such as {_example(names)}; give the folder of these images, or "
                        "their manifest, with --images"
                    )
                images = images or ImageNames(options.images)
                of_part = images.keys(names)
            else:
                of_part = [key_of_text(text) if text else None for text in names]
            for i, key in enumerate(of_part):
                if key is not None:
                    keys[start + i] = np.frombuffer(key, dtype=np.uint8)
                    known[start + i] = True
                else:
                    lost = lost or f"{names[i]!r} (row {i} of {part.rows.path.name})"
            start += len(names)
            advance(len(names))
    if lost and not (options.allow_missing and known.any()):
        where = f"not in {options.images}" if found.kind == "image" else "empty"
        remedy = "; --allow-missing leaves these rows out" if known.any() else ""
        raise SightlineError(
            f"{source}: {int((~known).sum()):,} of {total:,} rows have no key, because their "
            f"{found.kind} is {where}, such as {lost}{remedy}"
        )
    return keys, known


def _example(names: Sequence[str | None]) -> str:
    return next((repr(name[:80]) for name in names if name), "none")


def _sha256(parts: list[Part]) -> str:
    """SHA-256 (hex) of the file that the rows come from, or of the list of them if several."""
    sums = [key_of_file(path).hex() for part in parts for path in part.files]
    if len(sums) == 1:
        return sums[0]
    return hashlib.sha256("".join(f"{each}\n" for each in sums).encode()).hexdigest()


class _Seen:
    """Counts rows that repeat a key with other numbers than its first row."""

    def __init__(self, keys: Keys, known: NDArray[np.bool_], wanted: NDArray[np.bool_]) -> None:
        repeats = {keys[i].tobytes() for i in np.flatnonzero(known & ~wanted)}
        self._keys, self._first = keys, dict.fromkeys(repeats, b"")
        self._known = known
        self.contradicting = 0

    def look(self, start: int, rows: NDArray) -> None:
        """The next rows, [n, dim]."""
        if not self._first:
            return
        for i, row in enumerate(rows, start):
            key = self._keys[i].tobytes()
            if not self._known[i] or key not in self._first:
                continue
            digest = hashlib.blake2b(row.tobytes(), digest_size=16).digest()
            if not self._first[key]:
                self._first[key] = digest
            elif self._first[key] != digest:
                self.contradicting += 1


def _measure(parts: list[Part], seen: _Seen) -> bool:
    """Whether every row has length 1; shows them all to ``seen``."""
    normalised, start = True, 0
    with progress("measure", sum(part.rows.rows for part in parts), "rows") as advance:
        for part in parts:
            for rows in part.rows.read():
                normalised = normalised and are_unit(rows)
                seen.look(start, rows)
                start += len(rows)
                advance(len(rows))
    return normalised


def _blocks(
    parts: list[Part], keys: Keys, wanted: NDArray[np.bool_]
) -> Iterator[tuple[Keys, NDArray]]:
    """The wanted rows and their keys."""
    start = 0
    with progress("import", len(keys), "rows") as advance:
        for part in parts:
            for rows in part.rows.read():
                here = slice(start, start + len(rows))
                some = wanted[here]
                yield keys[here][some], rows[some]
                start += len(rows)
                advance(len(rows))
