"""Boxes in a table that somebody else made: a phrase of a caption, and a box of its image, a row.

docs/grounding.md describes the columns.
"""

# pyarrow.compute makes its functions when it is imported:
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NotRequired

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    Field,
    FiniteFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)
from typing_extensions import TypedDict

from pipeline.datasets.manifests import cleaned
from pipeline.grounding.captioned_images import CaptionedImages
from pipeline.grounding.drawn_boxes import BoxFormat, PhraseBoxes, folded
from sightline.cache import key_column
from sightline.cache.keys import find_keys, keys_of_texts, unique_sorted
from sightline.cache.manifest import KEY, image_names, key_array
from sightline.cache.phrase_tokens import pair_keys
from sightline.errors import SightlineError
from sightline.tables.image_names import AMBIGUOUS, UNKNOWN, ImageNames
from sightline.tables.outside_columns import Row, Wanted, choose
from sightline.tables.outside_tables import open_table
from sightline.user_files import CONTROL, Identifier, Name, short, should_be
from sightline.wording import counted

EXPECTED = (
    "boxes: a table (CSV, TSV, JSON lines, JSON, Parquet or Arrow) with image, caption, phrase and "
    "box, or a phrases manifest"
)
_HINTS = {
    ("images", "annotations"): "COCO's annotations, whose boxes have categories in place of "
    "phrases; docs/grounding.md shows how to join them to captions as a table",
    ("id", "regions"): "Visual Genome's regions, each a phrase without a caption around it; MCSEO "
    "learns from several phrases of one caption, so they would teach it nothing",
}
"""Columns of JSON that is no such table → what it is, and what to do."""
_AT_ONCE = 10_000
_RELATIVE = ("rel_xyxy", "rel_xywh")
_SLACK = 0.01
"""By how much of an image a box may exceed it, from rounding."""
_ROWS = (
    "Each row has an image, a caption, a phrase of it and a box of four numbers; docs/grounding.md "
    "shows how to make such rows of other annotations"
)


def _even(polygon: list[float]) -> list[float]:
    if len(polygon) % 2:
        raise ValueError
    return polygon


class _RunLengths(TypedDict):
    """COCO's run-length code, compressed or not."""

    size: tuple[PositiveInt, PositiveInt]
    counts: str | list[Annotated[int, Field(ge=0, lt=2**34)]]


_Place = Annotated[float, Field(ge=-1e6, le=1e6)]
_Polygon = Annotated[list[_Place], AfterValidator(_even)]
"""One of fewer than three points covers nothing."""
_Mask = Annotated[
    list[_Polygon] | _RunLengths,
    should_be(
        "polygons, [[x, y, x, y, x, y, …], …], or COCO's run lengths, {size: [height, width], "
        "counts}"
    ),
]
_Box = Annotated[
    tuple[FiniteFloat, FiniteFloat, FiniteFloat, FiniteFloat],
    should_be("four numbers, such as [4, 5, 20, 10]"),
]
_At = Annotated[int, Field(ge=0, lt=2**31)]


class BoxRow(TypedDict):
    """A row of the table."""

    image: Identifier
    phrase: Name
    box: _Box
    box_format: BoxFormat
    caption: NotRequired[str]
    caption_id: NotRequired[Identifier]
    char_start: NotRequired[_At]
    char_end: NotRequired[_At]
    score: NotRequired[Annotated[FiniteFloat, Field(ge=0, le=1)]]
    mask: NotRequired[_Mask]


_ROW = TypeAdapter(BoxRow)
_HELD = pa.schema(
    [
        ("phrase", pa.string()),
        ("char_start", pa.int32()),
        ("char_end", pa.int32()),
        ("box", pa.list_(pa.float32(), 4)),
        ("relative", pa.bool_()),
        ("score", pa.float32()),
        ("row", pa.int32()),
        ("mask", pa.large_string()),
    ]
)


class BoxTable(PhraseBoxes):
    """The boxes of a table; it answers once it is matched to a data set.

    Args:
        box_format: of rows that do not say theirs.
        strict: refuse a damaged row; else it is left out.
    """

    def __init__(self, path: Path, box_format: BoxFormat | None, strict: bool = False) -> None:
        super().__init__(path, "boxes", box_format=box_format)
        self._strict = strict
        self._box_format: BoxFormat | None = box_format

    def match(self, units: CaptionedImages, masks: bool) -> list[str]:
        """Read the table and hold the boxes of the captions to ground.

        Args:
            masks: whether each row must have one; else they are not read.

        Returns:
            What was read otherwise than it is written, and what is left out, for the user.

        Raises:
            SightlineError: a wrong value, or no box is of a caption to ground.
        """
        file = _BoxRows(self.path, self._box_format, masks, self._strict)
        table = file.read()
        rows = self._image_rows(table["image"], units, file.table.notes)
        captions, images = units.captions, units.images
        owners = pc.index_in(captions["image_id"], images["image_id"]).to_numpy()
        image_keys, texts = key_column(images["key"]), keys_of_texts(captions["text"].to_pylist())
        pairs = pair_keys(image_keys[owners], texts)
        if file.by_id:
            of = pc.index_in(table["caption"], captions["caption_id"]).fill_null(-1).to_numpy()
            of_boxes = np.where((of < 0)[:, None], np.uint8(0), texts[of])
        else:
            of_boxes = key_column(table["caption"])
        of_boxes = pair_keys(image_keys[rows], of_boxes)
        distinct = pairs[unique_sorted(pairs)]
        places = find_keys(distinct, of_boxes)
        grounded = np.zeros(len(distinct), dtype=bool)
        grounded[find_keys(distinct, pairs[units.caption_rows])] = True
        kept = (rows >= 0) & (places >= 0) & grounded[places]
        edges = np.column_stack([images["width"], images["height"]])[rows]
        corners = pc.list_flatten(table["box"]).to_numpy().reshape(-1, 4)
        pixels = kept & ~table["relative"].to_numpy()
        remarkable = {
            "images that are not in the data set": rows == UNKNOWN,
            "images whose name several files have (write paths)": rows == AMBIGUOUS,
            "captions that the data set does not have": (rows >= 0) & (places < 0),
            "captions that only `captions=all` grounds": (rows >= 0) & (places >= 0) & ~kept,
            "images beyond whose edges they reach, which cuts them (were they drawn at another "
            "size?)": pixels & (corners[:, 2:] > edges + _SLACK * edges + 1).any(1),
        }
        for subject, which in remarkable.items():
            if which.any():
                first = table.slice(int(which.argmax()), 1).to_pylist()[0]
                example = f"{first['image']!r} in {file.table.unit} {first['row']}"
                boxes = f"{which.sum():,} of {len(table):,} boxes"
                file.table.notes.append(
                    f"{self.path.name}: {boxes} are of {subject}, such as {example}"
                )
        if not kept.any():
            column = captions["caption_id" if file.by_id else "text"]
            raise SightlineError(
                f"{self.path}: no box is of a caption to ground; {'; '.join(file.table.notes)}. "
                f"Images here: {_few(table['image'])}; in the data set: {_few(images['image_id'])}."
                f" Captions here: {', '.join(file.captions)}; in the data set: {_few(column)}"
            )
        self.hold(of_boxes[kept], table.drop_columns(["image", "caption"]).filter(pa.array(kept)))
        return file.table.notes

    def _image_rows(
        self, column: pa.ChunkedArray, units: CaptionedImages, remarks: list[str]
    ) -> NDArray[np.int64]:
        """The row of each image in the manifest, or `UNKNOWN` or `AMBIGUOUS`: int64 [n]."""
        names = column.unique()
        distinct = names.to_pylist()
        paths = image_names(units.manifest, units.images)
        images = ImageNames(paths, units.root, units.images["image_id"].to_pylist())
        of_file = images.of_file(distinct)
        if of_file.beginning:
            remarks.append(f"{self.path.name}: {of_file.beginning!r} before all names left out")
        try:
            rows = np.array([of_file.find(name) for name in distinct], dtype=np.int64)
        except SightlineError as error:
            raise SightlineError(f"{self.path}: {error}") from error
        remarks += [f"{self.path.name}: {remark}" for remark in of_file.remarks()]
        return rows[pc.index_in(column, names).to_numpy()]


class _BoxRows:
    """The rows of a table, checked. Damage costs its own row, or is refused if ``strict``.

    Attributes:
        table: the file; its notes say what was read otherwise than it is written, and is left out.
        by_id: whether captions are named by their ids, not their texts.
        captions: the first few, for messages.
    """

    def __init__(self, path: Path, box_format: BoxFormat | None, masks: bool, strict: bool) -> None:
        self.table = open_table(path, EXPECTED, ("image", "caption", "phrase", "box"))
        if hint := self.table.known_as(_HINTS):
            raise SightlineError(f"{path}: {hint}")
        self._path, self._format = path, box_format
        has = self.table.columns
        requested = {name: Wanted((), None) for name in ("phrase", "box")}
        requested["image"] = Wanted((), None, "image_id" not in has)
        requested["caption"] = Wanted((), None, "caption_id" not in has)
        optional = ("char_start", "char_end", "box_format", "score", *(("mask",) if masks else ()))
        requested |= {name: Wanted((), None, False) for name in optional}
        try:
            chosen = choose(self.table, requested)
        except SightlineError as error:
            raise SightlineError(f"{error}. {_ROWS}") from None
        columns = {name: names[0] for name, names in chosen.items()}
        columns.setdefault("image", "image_id")
        self.by_id = "caption" not in columns
        if self.by_id:
            columns["caption_id"] = "caption_id"
        if box_format is None and "box_format" not in columns:
            if columns["box"] != "box":
                raise SightlineError(
                    f"{path}: the boxes in {columns['box']!r} may be corners, or a corner and a "
                    "size; add a column box_format, or give `grounder.box_format`: xyxy or xywh "
                    "in pixels, rel_xyxy or rel_xywh from 0 to 1"
                )
            self._format = "xyxy"
        if masks and "mask" not in columns:
            raise SightlineError(
                f"{path}: has no column 'mask', which `segmenter.family=annotations` takes masks "
                "from; choose `segmenter.family=sam2` or `segmenter.family=box`"
            )
        self._columns, self._masks, self._strict = columns, masks, strict
        self.captions: list[str] = []
        self._damaged: list[SightlineError] = []

    def read(self) -> pa.Table:
        """The columns of `_HELD` but for masks that are not asked for, image, and caption: its
        id, or the key of its text.
        """
        fields = [field for field in _HELD if field.name != "mask" or self._masks]
        caption = ("caption", pa.string() if self.by_id else KEY)
        schema = pa.schema([*fields, ("image", pa.string()), caption])
        rows = self.table.read(list(self._columns.values()))
        batches = iter(lambda: list(islice(rows, _AT_ONCE)), [])
        table = pa.concat_tables(
            [schema.empty_table(), *(self._batch(batch, schema) for batch in batches)]
        )
        if self._damaged:
            first, count = self._damaged[0], len(self._damaged)
            if self._strict:
                raise SightlineError(
                    f"{counted(count, 'damaged row')}, the first: {first}. Mend the rows, or leave "
                    "out `grounder.strict`"
                )
            if not len(table):
                raise first
            self.table.notes.append(f"{counted(count, 'damaged row')} left out, the first: {first}")
        if not len(table):
            raise SightlineError(f"{self._path}: has no rows; expected {EXPECTED}")
        most = pc.max(pc.list_flatten(table["box"])).as_py()
        if most <= 1 and not pc.any(table["relative"]).as_py():
            raise SightlineError(
                f"{self._path}: all its boxes lie between 0 and 1, but are read as pixels; those "
                "of parts of the image are rel_xyxy or rel_xywh, in `grounder.box_format` or a "
                "column box_format"
            )
        return table

    def _batch(self, rows: Sequence[Row], schema: pa.Schema) -> pa.Table:
        records: list[dict[str, Any]] = []
        for number, values in rows:
            try:
                records.append(self._record(number, self._checked(number, values)))
            except SightlineError as error:
                self._damaged.append(error)
        self.captions += [short(record["caption"]) for record in records[: 3 - len(self.captions)]]
        at = schema.get_field_index("caption")
        table = pa.Table.from_pylist(records, schema.set(at, pa.field("caption", pa.string())))
        if self.by_id:
            return table
        texts = cleaned(table["caption"]).to_pylist()
        return table.set_column(at, schema.field(at), key_array(keys_of_texts(texts)))

    def _checked(self, number: int | str, values: Sequence[Any]) -> BoxRow:
        cells = zip(self._columns, values, strict=True)
        # NaN is pandas' missing number
        record = {k: v for k, v in cells if v is not None and v != "" and v == v}
        record |= {k: _parsed(record[k]) for k in ("box", "mask") if isinstance(record.get(k), str)}
        if self._format is not None:
            record.setdefault("box_format", self._format)
        try:
            row = _ROW.validate_python(record)
        except ValidationError as error:
            raise self.table.refusal(number, error) from None
        for name in ("caption", "caption_id", "mask"):
            if name in self._columns and name not in row:
                raise self.table.error(number, f"{name}: is missing")
        return row

    def _record(self, number: int | str, row: BoxRow) -> dict[str, Any]:
        """A row as it is held."""
        start, end = row.get("char_start"), row.get("char_end")
        if (start is None) != (end is None):
            raise self.table.error(number, "one of char_start and char_end is missing; give both")
        caption = row.get("caption", "")
        if start is not None and not self.by_id:
            if folded(caption[start:end]) != folded(row["phrase"]):
                raise self.table.error(
                    number,
                    f"char_start: the caption reads {short(caption[start:end])} from {start} to "
                    f"{end}, expected the phrase, {short(row['phrase'])}; spans count characters "
                    "from 0, without the one at the end",
                )
            # as `cleaned` leaves the caption
            start, end = (len(CONTROL.sub("", caption[:at]).lstrip()) for at in (start, end))
        held = {"phrase": row["phrase"], "char_start": start, "char_end": end, "row": number}
        held |= {"box": self._corners(number, row), "relative": row["box_format"] in _RELATIVE}
        held |= {"image": str(row["image"]), "score": row.get("score", 1.0)}
        if "mask" in row:
            held["mask"] = json.dumps(row["mask"])
        return {**held, "caption": str(row["caption_id"]) if "caption_id" in row else caption}

    def _corners(self, number: int | str, row: BoxRow) -> tuple[float, ...]:
        x, y, right, bottom = row["box"]
        if row["box_format"] in ("xywh", "rel_xywh"):
            right, bottom = x + right, y + bottom
        corners = (x, y, right, bottom)
        if row["box_format"] in _RELATIVE and not all(-_SLACK <= c <= 1 + _SLACK for c in corners):
            raise self.table.error(
                number,
                f"box: found {short(row['box'])}, expected edges from 0 to 1, since its box_format "
                f"is {row['box_format']}",
            )
        return corners


def _parsed(cell: str) -> Any:
    """The value that a cell writes as JSON; else the cell."""
    with suppress(ValueError, RecursionError):
        return json.loads(cell)
    return cell


def _few(column: pa.ChunkedArray) -> str:
    return ", ".join(map(short, pc.unique(column.slice(0, 100)).to_pylist()[:3]))
