"""A tiny world to train in: a BERT of two layers, twenty images, their captions and features."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
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
from train.loop import Callback
from train.records import RunState, RunSummary
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


class Killed(Exception):
    """Stands for the process being killed."""


class KillAfter(Callback):
    """Dies at the end of a step, before that step is logged, scored or saved."""

    def __init__(self, at: int) -> None:
        self.at = at

    def step(self, state: RunState) -> None:
        if state.step == self.at:
            raise Killed


def weights_of(run: Path) -> dict[str, Tensor]:
    """The exported weights of a finished run, of encoder and heads."""
    heads = load_file(run / "heads.safetensors")
    return load_file(run / "model/model.safetensors") | {f"head {k}": v for k, v in heads.items()}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert one.keys() == other.keys()
    assert [name for name, weight in one.items() if not torch.equal(weight, other[name])] == []


def assert_alike(one: dict[str, Tensor], other: dict[str, Tensor], bound: float) -> None:
    """Within rounding, after a few steps with a learning rate of 1e-3.

    Adam divides by the size of a gradient, so a difference in rounding can be a whole step of 1e-3
    where the gradient is almost 0: a few weights may differ by more than the bound.
    """
    differences = torch.cat([(one[name] - other[name]).abs().ravel() for name in one])
    assert differences.mean() < bound / 10
    assert torch.quantile(differences, 0.99) < bound


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
    rows = dict(zip(keys, rng.normal(size=(len(keys), IMAGE_DIM)), strict=True))
    write_features(folder, "image", "test/tiny-cnn", rows, keys[:failed], untrained=True)


def write_features(
    folder: Path,
    kind: Any,
    name: str,
    rows: Mapping[bytes, np.ndarray],
    failed: Collection[bytes] = (),
    untrained: bool = False,
) -> None:
    """A feature set of ``rows`` in float16; those of ``failed`` keys are errors."""
    encoder = EncoderRecord(
        name=name, source="random:0", weights_sha256="1" * 64, untrained=untrained
    )
    dim = len(next(iter(rows.values())))
    spec = FeatureSpec(
        kind=kind,
        encoder=encoder,
        preprocessing={"resize": 8},
        precision="fp32",
        dim=dim,
        dtype="float16",
    )
    error = {"code": "decode", "path": "", "reason": "test"}
    with SetWriter(folder, spec) as writer:
        for batch in writer.plan(list(rows), batch_size=64):
            keys = [key.tobytes() for key in batch.keys]
            values = np.array([rows[key] for key in keys], dtype=np.float32)
            values[[key in failed for key in keys]] = np.nan  # no row, as decode errors have none
            writer.add(batch.keys, values, {key: error for key in keys if key in failed})
        writer.publish()


def _write_dev(path: Path, things: list[tuple[str, str]]) -> None:
    lines = ["score\tsentence1\tsentence2"]
    for (colour, shape), (other_colour, other_shape) in itertools.islice(
        itertools.combinations(things, 2), 0, 180, 6
    ):
        score = 2.5 * (colour == other_colour) + 2.5 * (shape == other_shape)
        lines.append(f"{score}\ta {colour} {shape}\tone {other_shape} painted {other_colour}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
