"""A data set for the training benchmarks, on disk as `sightline` leaves it, with drawn features.

Token ids, image features (2048 wide for MCSE, 512 for the others), CLIP text features, two teachers
(768 wide) and about four objects a caption; and the five systems that read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sightline.cache import (
    CAPTIONS,
    IMAGES,
    SENTENCES,
    EncoderRecord,
    FeatureSpec,
    PhraseTokenHeader,
    SetWriter,
    TokenHeader,
    as_keys,
    key_of_text,
    keys_of_texts,
    pair_keys,
    whole_files,
    write_manifest,
    write_phrase_tokens,
    write_tokens,
)
from train.data import TrainingData
from train.objectives import make_objective
from train.run_spec import RunSpec

LONGEST = 32
PHRASES_EACH = 4
TEACHERS = [{"encoder": "simcse", "weight": 0.33}, {"encoder": "diffcse", "weight": 0.67}]
SETS: dict[str, tuple[str, int]] = {
    "resnet": ("image", 2048),
    "clip": ("image", 512),
    "clip-text": ("text", 512),
    "simcse": ("teacher", 768),
    "diffcse": ("teacher", 768),
    "clip-objects": ("object", 512),
}
SYSTEMS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "simcse": ("simcse", {}, {}),
    "mcse": ("mcse", {"image": "resnet"}, {"image-resnet": "resnet"}),
    "kdmcse": (
        "kdmcse",
        {"image": "clip", "text": "clip-text", "caption": "random"},
        {"image-clip": "clip", "text-clip-text": "clip-text"},
    ),
    "dalr": (
        "dalr",
        {"image": "clip", "teachers": TEACHERS},
        {"image-clip": "clip", "teacher-simcse": "simcse", "teacher-diffcse": "diffcse"},
    ),
    "mcseo": ("mcseo", {"image": "clip"}, {"image-clip": "clip", "object-clip": "clip-objects"}),
}


class Cache:
    """Manifests, token ids, phrase tokens and feature sets of one data set, on disk."""

    def __init__(
        self,
        folder: Path,
        texts: Sequence[str],
        ids: Sequence[list[int]],
        vocabulary_size: int,
        sentences: tuple[Sequence[str], Sequence[list[int]]] | None = None,
    ) -> None:
        """
        Args:
            texts, ids: distinct captions and their token ids; each has an image of its own.
            sentences: the same of a stream of plain sentences.
        """
        self.folder, self._has_text = folder, sentences is not None
        self._header = TokenHeader("bench", "0" * 64, LONGEST, 0, vocabulary_size)
        images = [key_of_text(f"image {number}") for number in range(len(texts))]
        names = [f"{number:07}.jpg" for number in range(len(texts))]
        count = len(texts)
        captions = {"caption_id": names, "image_id": names, "text": texts, "split": [""] * count}
        self._manifest("captions.parquet", captions, CAPTIONS)
        sizes = {"width": [1] * count, "height": [1] * count, "split": [""] * count}
        sizes |= whole_files(count)
        self._manifest(
            "images.parquet", {"image_id": names, "path": names, "key": images, **sizes}, IMAGES
        )
        keys = keys_of_texts(texts)
        write_tokens(folder / "tokens", self._header, keys, ids)
        cutouts = self._phrases(ids, as_keys(images), keys)
        of_kind = {"image": images, "object": cutouts, "text": keys, "teacher": keys}
        for name, (kind, dim) in SETS.items():
            self._features(name, kind, as_keys(of_kind[kind]), dim)
        if sentences is not None:
            self._manifest("sentences.parquet", {"text": sentences[0]}, SENTENCES)
            write_tokens(
                folder / "text-tokens", self._header, keys_of_texts(sentences[0]), sentences[1]
            )

    def _phrases(self, ids: Sequence[list[int]], images: Any, keys: Any) -> list[bytes]:
        rng = np.random.default_rng(0)
        rows, starts, ends, cutouts = [], [], [], []
        for row, tokens in enumerate(ids):
            for number in range(min(PHRASES_EACH, len(tokens) - 2)):
                start = int(rng.integers(1, len(tokens) - 1))
                rows.append(row)
                starts.append(start)
                ends.append(min(start + 2, len(tokens) - 1))
                cutouts.append(key_of_text(f"object {row} {number}"))
        phrases = PhraseTokenHeader("bench", "0" * 64, LONGEST, len(rows))
        pairs = pair_keys(images[rows], keys[rows])
        path = self.folder / "phrases"
        write_phrase_tokens(path, phrases, pairs, as_keys(cutouts), starts, ends)
        return cutouts

    def _manifest(self, name: str, columns: dict[str, Any], schema: pa.Schema) -> None:
        write_manifest(self.folder / name, pa.table(columns, schema=schema), schema)

    def _features(self, name: str, kind: Any, keys: Any, dim: int) -> None:
        record = EncoderRecord(name=f"bench/{name}", source="random:0", weights_sha256="0" * 64)
        spec = FeatureSpec(
            kind=kind, encoder=record, preprocessing={}, precision="fp32", dim=dim, dtype="float16"
        )
        rng = np.random.default_rng(1)
        with SetWriter(self.folder / name, spec) as writer:
            for batch in writer.plan(keys, batch_size=256):
                writer.add(batch.keys, rng.normal(size=(len(batch.keys), dim)).astype(np.float32))
            writer.publish()

    def spec(self, system: str, batch_size: int, **changes: Any) -> RunSpec:
        """A run of ``system`` over both streams; ``changes`` replace top-level parts."""
        objective, parameters, sets = SYSTEMS[system]
        body: dict[str, Any] = {
            "run": system,
            "student": {"name": "bench", "model": "bench", "max_length": LONGEST},
            "train": {"batch_size": batch_size, "max_steps": 1},
            "objective": objective,
            "parameters": {**parameters, "caption": "random"},
            "pairs": {
                "captions": self.folder / "captions.parquet",
                "images": self.folder / "images.parquet",
                "tokens": self.folder / "tokens",
                "phrases": self.folder / "phrases",
            },
            "features": {feature: self.folder / name for feature, name in sets.items()},
            "out": self.folder / "run",
        }
        if self._has_text:
            body["text"] = {
                "sentences": self.folder / "sentences.parquet",
                "tokens": self.folder / "text-tokens",
            }
        return RunSpec.model_validate({**body, **changes})

    def data(self, system: str, batch_size: int, *, only_pairs: bool = False) -> TrainingData:
        """The inputs of a run of ``system``; ``only_pairs`` leaves the plain sentences out."""
        spec = self.spec(system, batch_size, **({"text": None} if only_pairs else {}))
        return TrainingData(spec, make_objective(spec.objective, spec.parameters))
