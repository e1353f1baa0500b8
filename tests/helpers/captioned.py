"""A small captions manifest with photographs, and encoders that need no weights."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from PIL import Image

from sightline.cache import CAPTIONS, IMAGES, key_of_bytes, write_manifest
from sightline.cache.prepared import RECORD, SCHEMA

HOSTILE = '<script>alert(1)</script> & "quoted" \x1b[31m {{ 7 * 7 }} \u202e'
CAPTIONS_OF = {
    "a.png": ("a big red dog sits", "a dog sits near the tree"),
    "b.png": ("a big red dog runs", "the red dog runs"),
    "c.png": ("a small blue house", "a dog sits near the tree"),
    "d <b>.png": (HOSTILE, "the round house"),
}
COLOURS = ("red", "green", "blue", "white")


def write_captioned(folder: Path) -> Path:
    """A prepared data set with its images in images/; the last image is in the split `test`."""
    (folder / "images").mkdir(parents=True)
    images, captions = [], []
    for (name, texts), colour in zip(CAPTIONS_OF.items(), COLOURS, strict=True):
        file = folder / "images" / name
        Image.new("RGB", (60, 40), colour).save(file)
        split = "train" if colour != "white" else "test"
        images.append(
            {
                "image_id": name,
                "path": name,
                "key": key_of_bytes(file.read_bytes()),
                "width": 60,
                "height": 40,
                "split": split,
            }
        )
        captions += [
            {"caption_id": f"{name}#{n}", "image_id": name, "text": text, "split": split}
            for n, text in enumerate(texts)
        ]
    for name, rows, schema in (("images", images, IMAGES), ("captions", captions, CAPTIONS)):
        write_manifest(folder / f"{name}.parquet", pa.Table.from_pylist(rows, schema), schema)
    (folder / RECORD).write_text(json.dumps({"schema": SCHEMA}))
    return folder
