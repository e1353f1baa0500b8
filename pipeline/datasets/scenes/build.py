"""Writes the demo's data set: images, manifests, phrases, similarity, encoders and student."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.datasets.manifests import ManifestRows, write_captioned
from pipeline.datasets.samples import Placed, Sample
from pipeline.datasets.scenes import ScenesSource
from pipeline.datasets.scenes.captions import Caption, GradedPair, describe, graded_pairs, write
from pipeline.datasets.scenes.encoders import write_models
from pipeline.datasets.scenes.scene import Scene, box_of, draw, png, random_scene, stream
from pipeline.datasets.source import PrepareReport, Progress
from sightline.cache.cutout_identity import CROP_RULE, cutout_key
from sightline.cache.keys import key_of_bytes, key_of_text
from sightline.cache.manifest import PHRASES, write_manifest
from sightline.cache.rle import encode_mask

CAPTIONS_EACH = 5
SPLITS = ("train", "dev", "test")


def build(
    source: ScenesSource, folder: Path, report: PrepareReport, progress: Progress | None = None
) -> None:
    """Fill ``folder``; the same parameters give the same bytes on one machine.

    Writes ``images/``, ``images.parquet``, ``captions.parquet``, ``phrases.parquet``,
    ``sentences.parquet``, ``similarity/{train,dev,test}.tsv``, ``encoders/`` and ``student/``.
    """
    random = stream(source.seed, "scenes")
    scenes = [random_scene(random) for _ in range(source.scenes)]
    for split in SPLITS:  # no split is empty, however few scenes there are
        if not any(scene.split == split for scene in scenes):
            scenes[SPLITS.index(split)] = random_scene(random, split)
    captions, used = _write_captions(scenes, source.seed)
    pixels = _write_pictures(source, folder, scenes, captions, report, progress)

    pairs: dict[str, list[GradedPair]] = {}
    for split in SPLITS:
        count = getattr(source, f"{split}_pairs")
        pairs[split] = graded_pairs(count, split, stream(source.seed, "pairs", split), used)
        used.update(text for pair in pairs[split] for text in pair[1:])
        _write_pairs(folder / "similarity" / f"{split}.tsv", pairs[split])
        report.counts[f"{split}_pairs"] = count

    train = [i for i, scene in enumerate(scenes) if scene.split == "train"]
    write_models(
        folder,
        source,
        pixels[train],
        [scenes[i] for i in train],
        [[caption.text for caption in captions[i]] for i in train],
        pairs["train"],
        progress,
    )


def _write_captions(scenes: list[Scene], seed: int) -> tuple[list[list[Caption]], set[str]]:
    """Five differently worded captions per scene, and all their texts."""
    used: set[str] = set()
    captions: list[list[Caption]] = []
    for number, scene in enumerate(scenes):
        random = stream(seed, "captions", number)
        by_text: dict[str, Caption] = {}
        while len(by_text) < CAPTIONS_EACH:
            description, order = describe(scene, random)
            caption = write(description, random)
            spans = sorted(zip(order, caption.spans, strict=True))  # in the order of the scene
            by_text[caption.text] = Caption(caption.text, tuple(s for _, s in spans), caption.words)
        captions.append(list(by_text.values()))
        used.update(by_text)
    return captions, used


def _write_pictures(
    source: ScenesSource,
    folder: Path,
    scenes: list[Scene],
    captions: list[list[Caption]],
    report: PrepareReport,
    progress: Progress | None,
) -> NDArray[np.uint8]:
    """Draw the scenes and write the manifests about them; pixels uint8 [n, edge, edge, 3]."""
    edge = source.image_size
    (folder / "images").mkdir()
    pixels = np.empty((len(scenes), edge, edge, 3), dtype=np.uint8)
    rows = ManifestRows()
    phrases: list[dict[str, Any]] = []
    for number, scene in enumerate(scenes):
        pixels[number], masks = draw(scene, edge)
        data, name = png(pixels[number]), f"{number:06d}.png"
        (folder / "images" / name).write_bytes(data)
        key = key_of_bytes(data)
        texts = [caption.text for caption in captions[number]]
        rows.add_image(name, Placed(name, key, (edge, edge)), scene.split)
        rows.add_captions(name, Sample(number, name, texts), scene.split)
        phrases += _phrases(key, masks, captions[number])
        if progress is not None:
            progress("drawing", number + 1, len(scenes), "scenes")
    sentences = _sentences(source)
    write_captioned(folder, *rows.tables(), report, where="scenes", sentences=sentences)
    table = pa.Table.from_pylist(phrases, schema=PHRASES)
    write_manifest(folder / "phrases.parquet", table, PHRASES)
    report.counts["phrases"] = len(phrases)
    return pixels


def _phrases(
    image_key: bytes, masks: list[NDArray[np.bool_]], captions: list[Caption]
) -> Iterator[dict[str, Any]]:
    """The true phrases of an image: which words of its captions name which pixels.

    Args:
        masks: bool [height, width] for each thing of the scene.
        captions: each with the span of every thing, in the order of ``masks``.
    """
    records = []
    for mask in masks:
        code = encode_mask(mask)
        cutout = cutout_key(image_key, code["size"], code["counts"], CROP_RULE)
        about = {"box": box_of(mask), "score": 1.0, "mask": code, "cutout_key": cutout}
        records.append({"image_key": image_key, **about})
    for caption in captions:
        key = key_of_text(caption.text)
        for record, (start, end) in zip(records, caption.spans, strict=True):
            span = {"phrase": caption.text[start:end], "char_start": start, "char_end": end}
            yield {**record, "caption_key": key, **span}


def _write_pairs(path: Path, pairs: list[GradedPair]) -> None:
    path.parent.mkdir(exist_ok=True)
    lines = ["score\tsentence1\tsentence2"]
    lines += [f"{pair.score:.3f}\t{pair.sentence1}\t{pair.sentence2}" for pair in pairs]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _sentences(source: ScenesSource) -> list[str]:
    """The text-only corpus: one caption each for undrawn scenes, with things from `train`."""
    random = stream(source.seed, "sentences")
    return [
        write(describe(random_scene(random, "train"), random)[0], random).text
        for _ in range(source.sentences)
    ]
