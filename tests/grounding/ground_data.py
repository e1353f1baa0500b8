"""A small data set on the disk, and a grounder and a segmenter that need no model."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from prepared_data import as_prepared
from torch import Tensor

from pipeline.extract.run_options import RunOptions
from pipeline.extract.runner import SetSummary, run
from pipeline.grounding.captioned_images import CaptionedImage, units_of
from pipeline.grounding.ground import grounding_job
from pipeline.grounding.grounding_settings import CaptionChoice, Rules
from pipeline.grounding.protocols import Answer, Caption, Dropped, Grounded
from pipeline.grounding.segmenters.box import BoxSegmenter
from sightline.cache import CAPTIONS, IMAGES, PHRASES, key_of_file, write_manifest
from sightline.cache.groundings import read_phrases
from sightline.cache.prepared import PreparedDataset

BATCH, BLOCK = 4, 3


class DataSet:
    """Images and captions in a folder; ``write`` rewrites the manifests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.captions: dict[str, list[str]] = {}
        (folder / "images").mkdir(parents=True)

    def add(self, name: str, *captions: str, size: tuple[int, int] = (24, 16)) -> Path:
        """A noise image (height, width) seeded by its name."""
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
        pixels = np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)
        path = self.folder / "images" / name
        Image.fromarray(pixels).save(path)
        self.captions[name] = list(captions) or [f"A red dog and a blue ball of {name}", "x dog"]
        return path

    @classmethod
    def of(cls, folder: Path, count: int) -> DataSet:
        """A data set of ``count`` images, 0.png, 1.png …"""
        data = cls(folder)
        for i in range(count):
            data.add(f"{i}.png")
        return data

    def write(self) -> None:
        """Write both manifests and the record."""
        images = []
        for name in self.captions:
            path = self.folder / "images" / name
            try:
                with Image.open(path) as image:
                    width, height = image.size
            except OSError:
                width = height = 0
            row = {"image_id": name, "path": name, "key": key_of_file(path), "split": "train"}
            images.append({**row, "width": width, "height": height})
        captions = [
            {"caption_id": f"{name}#{k}", "image_id": name, "text": text, "split": "train"}
            for name, texts in self.captions.items()
            for k, text in enumerate(texts)
        ]
        write_table(self.folder / "images.parquet", images, IMAGES)
        write_table(self.folder / "captions.parquet", captions, CAPTIONS)
        as_prepared(self.folder)

    def units(self, choice: CaptionChoice = "all") -> Sequence[CaptionedImage]:
        """Write the manifests and read the units to ground."""
        self.write()
        return units_of(PreparedDataset(self.folder, self.folder / "images"), choice)


class WordGrounder:
    """Every word of three or more letters is a phrase; its box depends on word and image."""

    name = "words"

    def __init__(self, hook: Callable[[Sequence[Caption]], None] | None = None) -> None:
        self.calls: list[int] = []
        self._hook = hook

    def describe(self) -> dict[str, object]:
        return {"family": self.name}

    def ground(self, images: Sequence[Tensor], captions: Sequence[Caption]) -> list[Answer]:
        if self._hook is not None:
            self._hook(captions)
        self.calls.append(len(captions))
        return [self._answer(i, c) for i, c in zip(images, captions, strict=True)]

    def _answer(self, image: Tensor, caption: Caption) -> Answer:
        height, width = image.shape[1:]
        found = []
        for match in re.finditer(r"\w{3,}", caption.text):
            seed = hashlib.sha256(match[0].encode() + caption.image_key).digest()
            x, y = seed[0] % width, seed[1] % height
            box = torch.tensor([[x, y, x + 1 + seed[2] % 9, y + 1 + seed[3] % 9]]).float()
            score = torch.tensor([(seed[4] + 1) / 256])
            found.append(Grounded(match[0], *match.span(), box, score))
        return found, [] if found else [Dropped("", "no_phrase")]


class HookedBoxes(BoxSegmenter):
    """The rectangles themselves; the hook is given the images and may change the masks."""

    def __init__(self, hook: Callable[[Sequence[Tensor], list[Tensor]], None]) -> None:
        self._hook = hook

    def segment(self, images: Sequence[Tensor], boxes: Sequence[Tensor]) -> list[Tensor]:
        masks = super().segment(images, boxes)
        self._hook(images, masks)
        return masks


def run_ground(
    data: DataSet,
    out: Path,
    grounder: WordGrounder | None = None,
    segmenter: BoxSegmenter | None = None,
    *,
    choice: CaptionChoice = "all",
    rules: Rules | None = None,
    batch_size: int = BATCH,
    workers: int = 2,
    max_failed: float = 1.0,
    retry_failed: bool = False,
) -> SetSummary:
    """Ground the current data set."""
    job = grounding_job(
        data.units(choice),
        grounder or WordGrounder(),
        segmenter or BoxSegmenter(),
        rules or Rules(duplicate_iou=None),
        out,
        batch_size=batch_size,
        block_images=BLOCK,
        workers=workers,
    )
    return run(job, max_failed, options=RunOptions(retry_failed=retry_failed), shard_rows=3)


def write_phrases(data: DataSet, path: Path) -> Path:
    """The phrases of grounding the data set, as a manifest; returns its path."""
    run_ground(data, path.with_suffix(""))
    write_manifest(path, read_phrases(path.with_suffix("")), PHRASES)
    return path


def annotated(phrases: Path) -> dict[str, Any]:
    """Settings of a grounding that takes phrases, boxes and masks from a manifest."""
    return {
        "captions": "all",
        "grounder": {"family": "annotations", "path": str(phrases)},
        "segmenter": {"family": "annotations"},
        "rules": {"duplicate_iou": None},
    }


def write_table(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> Path:
    """A manifest of these rows; returns its path."""
    write_manifest(path, pa.Table.from_pylist(rows, schema=schema), schema)
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
