"""Runs of every objective on the tiny world: feature sets, phrases, and students that can learn."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch import Tensor
from training_world import COLOURS, MAX_LENGTH, SHAPES, World, write_features
from transformers import BertConfig, BertModel

from sightline.cache import (
    PhraseTokenHeader,
    TokenSet,
    as_keys,
    key_of_bytes,
    key_of_text,
    pair_keys,
    write_phrase_tokens,
)
from train.batch import Batch
from train.data import TrainingData
from train.model import Student
from train.objectives import make_objective
from train.run_spec import RunSpec
from train.student import load_student

Rows = Mapping[bytes, np.ndarray]
TEACHERS = [{"encoder": "first", "weight": 0.33}, {"encoder": "second", "weight": 0.67}]
FIVE: dict[str, dict[str, Any]] = {
    "simcse": {},
    "mcse": {"image": "clip", "weight": 0.5},
    "kdmcse": {
        **{"image": "clip", "text": "clip", "weight": 0.5, "text_margin": 0.1},
        **{"image_threshold": 0.9, "teacher_text_threshold": 0.9},
    },
    "dalr": {"image": "clip", "teachers": TEACHERS, "consistency_margin": -0.5},
    "mcseo": {"image": "clip", "image_weight": 0.5, "object_weight": 0.5},
}
"""Objective → parameters in which every term counts."""


class Features:
    """Feature sets in ``root/<kind>/<encoder>``, and their rows, float64, by key.

    Rows of one image share most of what they are, in all sets of a width. Of an image's three
    captions the first names its colour and its shape, the second the shape twice and the colour,
    and the third one of the two alone.

    Attributes:
        rows: set → key of the caption, or of the cut-out for objects → row.
        named: key of a caption → first token, last + 1, and key of the cut-out of each phrase.
        phrases: folder of the phrase tokens.
    """

    def __init__(self, world: World, root: Path) -> None:
        self.world, self.root = world, root
        self.rows: dict[str, Rows] = {}
        self.named: dict[bytes, list[tuple[int, int, bytes]]] = {}
        images = pq.read_table(world.root / "images.parquet").to_pylist()
        captions = pq.read_table(world.root / "captions.parquet").to_pylist()
        image_keys = {image["image_id"]: image["key"] for image in images}
        self._image_of = {key_of_text(row["text"]): image_keys[row["image_id"]] for row in captions}
        for name, dim in {"clip": 7, "resnet": 5}.items():
            self.add(f"image/{name}", dim, offset=1.5)
        self.add("text/clip", 7, offset=1.5)
        for name, dim in {"first": 9, "second": 9, "third": 9, "wide": 11}.items():
            self.add(f"teacher/{name}", dim)
        # every order of its cosines is a tie
        self.write("teacher/ties", dict.fromkeys(self._image_of, np.ones(9)))
        self.phrases = root / "phrases"
        self._add_phrases(captions)

    def add(self, name: str, dim: int, offset: float = 0.0) -> None:
        """Write random rows; with an ``offset`` their cosines are above 0."""
        rng, common = np.random.default_rng([dim, *name.encode()]), np.random.default_rng(dim)
        of_image = {key: common.normal(size=dim) + offset for key in self.world.image_keys}
        rows: dict[bytes, np.ndarray] = {}
        for caption, image in self._image_of.items():
            key = image if name.startswith("image") else caption
            if key not in rows:
                rows[key] = of_image[image] + rng.normal(size=dim) * 0.7
        self.write(name, rows)

    def write(self, name: str, rows: Rows, *failed: bytes) -> None:
        """Write a set; the rows of ``failed`` keys are errors."""
        rows = {key: row.astype(np.float16).astype(np.float64) for key, row in rows.items()}
        kind = name.partition("/")[0]
        write_features(self.root / name, kind, f"test/{name}", rows, failed)
        if kind == "image":
            rows = {caption: rows[image] for caption, image in self._image_of.items()}
        self.rows[name] = rows

    def of(self, name: str, batch: Batch) -> Tensor:
        """The rows of the batch's captions, or of their objects: float64 [n, d]."""
        keys = [key.tobytes() for key in batch.keys]
        if name.startswith("object"):
            keys = [cutout for key in keys for _, _, cutout in self.named[key]]
        return torch.from_numpy(np.stack([self.rows[name][key] for key in keys]))

    def _add_phrases(self, captions: list[dict[str, Any]]) -> None:
        pairs, phrases = [], []
        for row in captions:
            words, key = row["text"].split(), key_of_text(row["text"])
            named = [
                (place + 1, place + 2, key_of_bytes(self._image_of[key] + word.encode()))
                for place, word in enumerate(words)
                if word in COLOURS + SHAPES
            ]
            if row["caption_id"].endswith("#1"):  # "there is a circle …": the article belongs to it
                start, end, shape = named[0]
                named = [(start - 1, end, shape), (end + 1, end + 2, shape), named[1]]
            self.named[key] = named[:1] if row["caption_id"].endswith("#2") else named
            pairs += [(self._image_of[key], key)] * len(self.named[key])
            phrases += self.named[key]
        images, keys = (as_keys(column) for column in zip(*pairs, strict=True))
        starts, ends, cutouts = (list(column) for column in zip(*phrases, strict=True))
        digest = TokenSet.open(self.world.root / "tokens").header.tokenizer_sha256
        header = PhraseTokenHeader(digest, MAX_LENGTH, len(phrases))
        keys = pair_keys(images, keys)
        write_phrase_tokens(self.phrases, header, keys, as_keys(cutouts), starts, ends)
        rng = np.random.default_rng(5)
        self.write("object/clip", {key: rng.normal(size=7) for key in dict.fromkeys(cutouts)})


@dataclass(frozen=True)
class Case:
    """One objective with its parameters on the tiny world.

    Attributes:
        sets: name of a feature need → its set, where that is not ``<kind>/<encoder>``; None: the
            run is not given one.
        inputs: fields of the run in place of its own.
    """

    features: Features
    objective: str
    parameters: dict[str, Any]
    sets: dict[str, str | None] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)
    streams: tuple[str, ...] = ("pairs", "text")
    dropout: float = 0.0

    @property
    def student(self) -> Path:
        """A student without dropout, or with so much."""
        folder = self.features.root / f"student-{self.dropout}"
        if not folder.is_dir():
            shutil.copytree(self.features.world.student, folder)
            config = BertConfig.from_pretrained(folder)
            config.hidden_dropout_prob = config.attention_probs_dropout_prob = self.dropout
            # At the usual 0.02 all sentences of an untrained BERT are nearly one: their text term
            # is log N, its gradient is rounding, and Adam makes steps of full size out of that.
            config.initializer_range = 0.3
            torch.manual_seed(2)
            BertModel(config).save_pretrained(folder)
        return folder

    def spec(self, out: Path | None = None, **train: Any) -> RunSpec:
        """A run in batches of 6."""
        world, out = self.features.world, out or self.features.root / "unused"
        needs = make_objective(self.objective, self.parameters).features
        names = {need.name: f"{need.kind}/{need.encoder}" for need in needs} | self.sets
        of_objects = any(need.kind == "object" for need in needs)
        inputs = {"phrases": self.features.phrases} if of_objects else {}
        spec = world.spec(
            out,
            self.objective,
            **(inputs | self.inputs),
            student={"model": str(self.student)},
            train={"batch_size": 6, **train},
            parameters=self.parameters,
            features={need: self.features.root / name for need, name in names.items() if name},
            dev=None,
        )
        fields = {"pairs": "pairs", "text": "sentences"}
        absent = [field for stream, field in fields.items() if stream not in self.streams]
        return spec.model_copy(update=dict.fromkeys(absent))

    def data(self) -> TrainingData:
        """The batches of the run."""
        objective, spec = make_objective(self.objective, self.parameters), self.spec()
        if not objective.trains_on_text:
            spec = spec.model_copy(update={"sentences": None})
        return TrainingData(spec, objective)

    def build(self) -> tuple[Student, TrainingData]:
        """The model that a run would train, and its data."""
        data = self.data()
        objective = make_objective(self.objective, self.parameters)
        torch.manual_seed(1)
        embedder, _ = load_student(self.spec().student)
        return Student(embedder.model, objective, "cls", data.dims).train(), data


def terms_of(model: Student, batch: Batch) -> dict[str, Tensor]:
    """The loss terms of ``batch``, and their total."""
    return model.terms(batch, model.embed(batch.blocks))


def case_of(features: Features, objective: str, **parameters: Any) -> Case:
    """One of the five, with every caption of an image; ``parameters`` replace those of `FIVE`."""
    return Case(features, objective, {"caption": "all", **FIVE[objective], **parameters})


def paired(data: TrainingData) -> Batch:
    """The first batch of image–caption pairs."""
    return next(batch for batch in map(data.__getitem__, range(9)) if batch.stream == "pairs")
