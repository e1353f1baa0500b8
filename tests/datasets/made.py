"""Reads what `prepare` wrote, and the images that it names, as extraction does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from pipeline.extract.decode import load_image
from sightline.cache import CAPTIONS, IMAGES, SENTENCES, places_of, read_manifest
from sightline.cache.prepared import PreparedDataset

SCHEMAS = {"images": IMAGES, "captions": CAPTIONS, "sentences": SENTENCES}


def rows(out: Path, name: str = "images") -> list[dict[str, Any]]:
    return read_manifest(out / f"{name}.parquet", SCHEMAS[name]).to_pylist()


def column(out: Path, field: str, name: str = "images") -> list[Any]:
    return [row[field] for row in rows(out, name)]


def texts(out: Path) -> dict[str, str]:
    """Caption id → text."""
    return {row["caption_id"]: row["text"] for row in rows(out, "captions")}


def load_all(out: Path) -> list[Image.Image]:
    data = PreparedDataset.open(out)
    table, root = data.images, data.require_images()
    places = [place.below(root) for place in places_of(data.images_manifest, table)]
    return [load_image(*each) for each in zip(places, table["key"].to_pylist(), strict=True)]
