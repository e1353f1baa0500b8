"""A small grounding with everything a page must handle: markup, drops, damaged rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from ground_data import DataSet

from pipeline.grounding.gallery.cards import Contents, read_contents
from pipeline.grounding.gallery.page import write_gallery
from sightline.cache import key_of_file, key_of_text
from sightline.cache.keys import as_keys
from sightline.cache.record import TableSpec
from sightline.cache.rle import encode_mask
from sightline.cache.table_sets import write_rows
from sightline.cache.tables import GROUNDED

HOSTILE = (
    "a \"dog\" & <script>window.hacked = 1</script> <img src=x onerror='window.hacked=1'> "
    "</script><b>bold</b> 👩‍👧 a cat"
)


class Grounding(DataSet):
    """A data set with phrases and drops, as a grounder would have made them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / "grounding"
        self.rows: dict[str, dict[str, Any]] = {}
        self.sizes: dict[str, tuple[int, int]] = {}

    def image(self, name: str, width: int, height: int, *captions: str) -> None:
        key = key_of_file(self.add(name, *captions, size=(height, width)))
        self.sizes[name] = height, width
        self.rows[name] = {"image_key": key, "captions": 1, "phrases": [], "drops": []}

    def phrase(
        self,
        name: str,
        caption: str,
        phrase: str,
        box: tuple[int, int, int, int] = (1, 1, 7, 7),
        score: float = 1.0,
        **changes: Any,
    ) -> None:
        """Add a phrase at its first occurrence in the caption, with an elliptical mask."""
        height, width = self.sizes[name]
        y, x = np.mgrid[:height, :width] + 0.5
        x0, y0, x1, y1 = box
        across, down = (2 * x - x0 - x1) / (x1 - x0), (2 * y - y0 - y1) / (y1 - y0)
        start = caption.index(phrase)
        row = {
            "caption_key": key_of_text(caption),
            "phrase": phrase,
            "char_start": start,
            "char_end": start + len(phrase),
            "box": box,
            "score": score,
            "mask": encode_mask(across**2 + down**2 <= 1),
            "cutout_key": key_of_text(f"{name} {box}"),
        }
        self.rows[name]["phrases"].append({**row, **changes})

    def drop(self, name: str, caption: str, phrase: str, reason: str, detail: str = "") -> None:
        row = {"phrase": phrase, "reason": reason, "detail": detail}
        self.rows[name]["drops"].append({"caption_key": key_of_text(caption), **row})

    def write(self) -> None:
        """Write the manifests and the grounding."""
        super().write()
        keys = as_keys([row["image_key"] for row in self.rows.values()])
        spec = TableSpec(kind="grounding", description={"format": "test"})
        table = pa.Table.from_pylist(list(self.rows.values()), schema=GROUNDED)
        write_rows(self.path, spec, keys, table)

    def contents(self, limit: int = 1000) -> Contents:
        captions, images = self.folder / "captions.parquet", self.folder / "images.parquet"
        return read_contents(self.path, captions, images, limit)

    def page(self) -> Path:
        """Write the page; its path."""
        path = self.folder / "page.html"
        write_gallery(self.contents(), self.folder / "images", path)
        return path


def small_grounding(folder: Path) -> Grounding:
    """Three images: a plain one, a hostile one, and one of everything that can be wrong."""
    made = Grounding(folder)
    plain, friends = "a man in a red hat holds a small dog", "two friends <3 outside"
    made.image("plain.jpg", 400, 300, plain, friends)
    made.phrase("plain.jpg", plain, "a man in a red hat", (40, 20, 180, 280), 0.91)
    made.phrase("plain.jpg", plain, "a red hat", (80, 20, 140, 60), 0.62)
    made.phrase("plain.jpg", plain, "a small dog", (190, 150, 300, 260), 0.35)
    made.phrase("plain.jpg", friends, "two friends", (20, 10, 390, 290), 0.5)
    made.drop("plain.jpg", friends, "outside", "ambiguous")
    made.image("hostile.png", 64, 48, HOSTILE)
    script = "<script>window.hacked = 1</script>"
    made.phrase("hostile.png", HOSTILE, script, (5, 5, 30, 30), 0.8)
    made.phrase("hostile.png", HOSTILE, "👩‍👧", (20, 10, 60, 40), 0.7)
    made.drop("hostile.png", HOSTILE, "<i>a cat</i>", "too_small", 'box of 3 pixels < "4"')
    wrong = "one caption of what is wrong"
    made.image("wrong.jpg", 120, 200, wrong)
    small = encode_mask(np.ones((5, 5), dtype=bool))
    made.phrase("wrong.jpg", wrong, "one caption", (0, 0, 50, 50), 0.2, mask=small)
    odd = {"char_start": 4, "char_end": 8}
    made.phrase("wrong.jpg", wrong, "what", (-30, 150, 500, 900), 0.3, **odd)
    made.drop("wrong.jpg", wrong, "wrong", "low_score", "0.100 < 0.3")
    made.drop("wrong.jpg", wrong, "wrong", "no_box")
    made.image("silent.jpg", 50, 50, "nothing was found here")
    made.write()
    return made
