"""A tiny world to train in: a BERT of two layers, twenty images, their captions and features."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast

from sightline.cache import (
    CAPTIONS,
    IMAGES,
    SENTENCES,
    EncoderRecord,
    FeatureSpec,
    SetWriter,
    TokenHeader,
    key_of_bytes,
    keys_of_texts,
    write_manifest,
    write_tokens,
)
from sightline.cache.prepared import RECORD, SCHEMA
from train.records import RunSummary
from train.run_spec import RunSpec

if TYPE_CHECKING:
    from cases import Features

COLOURS = ("red", "blue", "green", "white")
SHAPES = ("circle", "square", "star", "ring", "cross")
IMAGE_DIM = 12
MAX_LENGTH = 16


@dataclass(frozen=True)
class World:
    """Paths of all inputs of a run."""

    root: Path
    student: Path
    image_keys: list[bytes]

    def spec(self, out: Path, objective: str = "simcse", **changes: Any) -> RunSpec:
        """A short run; ``changes`` replace top-level parts, or update `train` and `student`."""
        body: dict[str, Any] = {
            "run": objective,
            "student": {
                "name": "tiny",
                "model": str(self.student),
                "max_length": MAX_LENGTH,
                **changes.pop("student", {}),
            },
            "train": {
                "batch_size": 8,
                "learning_rate": 1e-3,
                "max_steps": 6,
                "eval_steps": 2,
                "logging_steps": 1,
                **changes.pop("train", {}),
            },
            "device": "cpu",
            "objective": objective,
            "pairs": {
                "captions": self.root / "captions.parquet",
                "images": self.root / "images.parquet",
                "tokens": self.root / "tokens",
            },
            "text": {
                "sentences": self.root / "sentences.parquet",
                "tokens": self.root / "tokens",
            },
            "dev": self.root / "dev.tsv",
            "out": out,
        }
        if objective == "mcse":
            body["parameters"] = {"image": "tiny-cnn", "weight": 0.5}
            body["features"] = {"image-tiny-cnn": self.root / "features"}
        return RunSpec.model_validate({**body, **changes})


def silent(line: str) -> None:
    """Swallows progress lines."""


def curves_of(summary: RunSummary) -> dict[str, list[tuple[int, float]]]:
    """The log of a run by metric, as (step, value) pairs; without the rate, which is a timing."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for entry in summary.log:
        for name in entry.keys() - {"step", "sentences_per_second"}:
            curves.setdefault(name, []).append((int(entry["step"]), entry[name]))
    return curves


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    torch.set_num_threads(1)
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def features(world: World, tmp_path_factory: pytest.TempPathFactory) -> Features:
    from cases import Features

    return Features(world, tmp_path_factory.mktemp("features"))


def make_world(root: Path, failed: int = 0) -> World:
    """Write the world; the first ``failed`` images have an error instead of features."""
    things = list(itertools.product(COLOURS, SHAPES))
    image_keys = [key_of_bytes(f"{colour} {shape}".encode()) for colour, shape in things]
    images = [
        {
            "image_id": f"{i:02d}.png",
            "path": f"{i:02d}.png",
            "key": key,
            "width": 8,
            "height": 8,
            "split": "train" if i < 18 else "dev",
        }
        for i, key in enumerate(image_keys)
    ]
    captions = []
    for i, (colour, shape) in enumerate(things):
        texts = [
            f"a {colour} {shape}",
            f"there is a {shape} and it is {colour}",
            f"one {shape} painted {colour} on the left",
        ]
        captions += [
            {
                "caption_id": f"{i:02d}.png#{n}",
                "image_id": f"{i:02d}.png",
                "text": text,
                "split": images[i]["split"],
            }
            for n, text in enumerate(texts)
        ]
    sentences = [
        f"the {shape} is {place} the {other}"
        for shape, other in itertools.permutations(SHAPES, 2)
        for place in ("above", "below")
    ]
    write_manifest(root / "images.parquet", pa.Table.from_pylist(images, IMAGES), IMAGES)
    write_manifest(root / "captions.parquet", pa.Table.from_pylist(captions, CAPTIONS), CAPTIONS)
    (root / RECORD).write_text(json.dumps({"schema": SCHEMA}))
    rows = [{"text": text} for text in sentences]
    write_manifest(root / "sentences.parquet", pa.Table.from_pylist(rows, SENTENCES), SENTENCES)
    student = _write_student(root / "student", [c["text"] for c in captions] + sentences)
    _write_tokens(root / "tokens", student, [c["text"] for c in captions] + sentences)
    _write_features(root / "features", image_keys, failed)
    _write_dev(root / "dev.tsv", things)
    return World(root, student, image_keys)


def _write_student(folder: Path, texts: list[str]) -> Path:
    words = sorted({word for text in texts for word in text.split()})
    folder.mkdir()
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]))
    tokenizer = BertTokenizerFast(vocab=str(vocabulary), do_lower_case=True, model_max_length=24)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(folder)
    return folder


def _write_tokens(folder: Path, student: Path, texts: list[str]) -> None:
    tokenizer = BertTokenizerFast.from_pretrained(student)
    ids = tokenizer(texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]
    header = TokenHeader(
        student="tiny",
        tokenizer_sha256="0" * 64,
        max_length=MAX_LENGTH,
        pad_token_id=0,
        vocabulary_size=len(tokenizer),
    )
    write_tokens(folder, header, keys_of_texts(texts), ids)


def _write_features(folder: Path, keys: list[bytes], failed: int) -> None:
    rng = np.random.default_rng(0)
    features = dict(zip(keys, rng.normal(size=(len(keys), IMAGE_DIM)), strict=True))
    bad = set(keys[:failed])
    spec = FeatureSpec(
        kind="image",
        encoder=EncoderRecord(
            name="test/tiny-cnn", source="random:0", weights_sha256="1" * 64, untrained=True
        ),
        preprocessing={"resize": 8},
        precision="fp32",
        dim=IMAGE_DIM,
        dtype="float16",
    )
    with SetWriter(folder, spec) as writer:
        for batch in writer.plan(keys, batch_size=8):
            of_batch = [key.tobytes() for key in batch.keys]
            rows = np.array([features[key] for key in of_batch], dtype=np.float32)
            rows[[key in bad for key in of_batch]] = np.nan  # no row, as decode errors have none
            errors = {
                key: {"code": "decode", "path": "", "reason": "test"}
                for key in of_batch
                if key in bad
            }
            writer.add(batch.keys, rows, errors)
        writer.publish()


def _write_dev(path: Path, things: list[tuple[str, str]]) -> None:
    lines = ["score\tsentence1\tsentence2"]
    for (colour, shape), (other_colour, other_shape) in itertools.islice(
        itertools.combinations(things, 2), 0, 180, 6
    ):
        score = 2.5 * (colour == other_colour) + 2.5 * (shape == other_shape)
        lines.append(f"{score}\ta {colour} {shape}\tone {other_shape} painted {other_colour}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
