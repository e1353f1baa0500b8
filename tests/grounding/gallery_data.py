"""A small grounding with everything a page must handle: markup, drops, damaged rows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from sightline.cache import CAPTIONS, IMAGES, key_of_file, key_of_text, write_manifest
from sightline.cache.keys import as_keys
from sightline.cache.prepared import RECORD, SCHEMA
from sightline.cache.record import TableSpec
from sightline.cache.rle import encode_mask
from sightline.cache.sets import write_rows
from sightline.cache.tables import GROUNDED

HOSTILE = (
    "a \"dog\" & <script>window.hacked = 1</script> <img src=x onerror='window.hacked=1'> "
    "</script><b>bold</b> 👩‍👧 a cat"
)


@dataclass(frozen=True)
class Files:
    """Paths that the command takes."""

    phrases: Path
    captions: Path
    images: Path
    root: Path

    @property
    def options(self) -> list[str]:
        return [
            str(self.phrases),
            *("--data", str(self.captions.parent)),
        ]


class Builder:
    """Collects images, captions, phrases and drops, and writes them as grounding does."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "images"
        self.root.mkdir(parents=True)
        self.folder = folder
        self.images: list[dict[str, Any]] = []
        self.captions: list[dict[str, Any]] = []
        self.phrases: list[dict[str, Any]] = []
        self.drops: list[dict[str, Any]] = []

    def image(self, name: str, width: int, height: int, captions: list[str]) -> bytes:
        """Draw an image with a darker upper left; returns its key."""
        y, x = np.mgrid[:height, :width]
        hue = len(self.images) * 40 % 255
        pixels = np.stack([x * 255 // width, y * 255 // height, np.full_like(x, hue)], axis=2)
        Image.fromarray(pixels.astype(np.uint8)).save(self.root / name, quality=90)
        key = key_of_file(self.root / name)
        row = {"image_id": name, "path": name, "key": key, "split": ""}
        self.images.append({**row, "width": width, "height": height})
        for i, text in enumerate(captions):
            row = {"caption_id": f"{name}#{i}", "image_id": name, "text": text, "split": ""}
            self.captions.append(row)
        return key

    def phrase(
        self,
        image: bytes,
        caption: str,
        phrase: str,
        box: tuple[int, int, int, int],
        score: float,
        **changes: Any,
    ) -> None:
        """Add a phrase at its first occurrence in the caption, with an elliptical mask."""
        row = next(row for row in self.images if row["key"] == image)
        y, x = np.mgrid[: row["height"], : row["width"]] + 0.5
        x0, y0, x1, y1 = box
        centre, radii = ((x0 + x1) / 2, (y0 + y1) / 2), ((x1 - x0) / 2, (y1 - y0) / 2)
        mask = ((x - centre[0]) / radii[0]) ** 2 + ((y - centre[1]) / radii[1]) ** 2 <= 1
        start = caption.index(phrase)
        self.phrases.append(
            {
                "image_key": image,
                "caption_key": key_of_text(caption),
                "phrase": phrase,
                "char_start": start,
                "char_end": start + len(phrase),
                "box": box,
                "score": score,
                "mask": encode_mask(mask),
                "cutout_key": key_of_text(f"{image.hex()} {box}"),
                **changes,
            }
        )

    def drop(self, image: bytes, caption: str, phrase: str, reason: str, detail: str = "") -> None:
        self.drops.append(
            {
                "image_key": image,
                "caption_key": key_of_text(caption),
                "phrase": phrase,
                "reason": reason,
                "detail": detail,
            }
        )

    def write(self) -> Files:
        """Write manifests and a grounding of one shard."""
        images, captions = self.folder / "images.parquet", self.folder / "captions.parquet"
        write_manifest(images, pa.Table.from_pylist(self.images, schema=IMAGES), IMAGES)
        write_manifest(captions, pa.Table.from_pylist(self.captions, schema=CAPTIONS), CAPTIONS)
        (self.folder / RECORD).write_text(json.dumps({"schema": SCHEMA}))
        grounding = self.folder / "grounding"
        grounding.mkdir()
        grounded = [
            {
                "image_key": row["key"],
                "captions": 1,
                "phrases": [each for each in self.phrases if each["image_key"] == row["key"]],
                "drops": [each for each in self.drops if each["image_key"] == row["key"]],
            }
            for row in self.images
        ]
        keys = as_keys([row["key"] for row in self.images])
        spec = TableSpec(kind="grounding", description={"format": "test"})
        write_rows(grounding, spec, keys, pa.Table.from_pylist(grounded, schema=GROUNDED))
        return Files(grounding, captions, images, self.root)


def small_grounding(folder: Path) -> Files:
    """Three images: a plain one, a hostile one, and one of everything that can be wrong."""
    build = Builder(folder)
    plain = ["a man in a red hat holds a small dog", "two friends <3 outside"]
    first = build.image("plain.jpg", 400, 300, plain)
    build.phrase(first, plain[0], "a man in a red hat", (40, 20, 180, 280), 0.91)
    build.phrase(first, plain[0], "a red hat", (80, 20, 140, 60), 0.62)
    build.phrase(first, plain[0], "a small dog", (190, 150, 300, 260), 0.35)
    build.phrase(first, plain[1], "two friends", (20, 10, 390, 290), 0.5)
    build.drop(first, plain[1], "outside", "scene")
    second = build.image("hostile.png", 64, 48, [HOSTILE])
    build.phrase(second, HOSTILE, "<script>window.hacked = 1</script>", (5, 5, 30, 30), 0.8)
    build.phrase(second, HOSTILE, "👩‍👧", (20, 10, 60, 40), 0.7)
    build.drop(second, HOSTILE, "<i>a cat</i>", "too_small", 'box of 3 pixels < "4"')
    wrong = "one caption of what is wrong"
    third = build.image("wrong.jpg", 120, 200, [wrong])
    size = encode_mask(np.ones((5, 5), dtype=bool))
    build.phrase(third, wrong, "one caption", (0, 0, 50, 50), 0.2, mask=size)
    build.phrase(third, wrong, "what", (-30, 150, 500, 900), 0.3, char_start=4, char_end=8)
    build.drop(third, wrong, "wrong", "low_score", "0.100 < 0.3")
    build.drop(third, wrong, "wrong", "no_box")
    build.image("silent.jpg", 50, 50, ["nothing was found here"])
    return build.write()
