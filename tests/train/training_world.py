"""A tiny world to train in: a BERT of two layers, twenty images, their captions and features.

And what tests of runs do with them: kill, compare weights and curves.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from prepared_data import as_prepared
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
from sightline.models.sentence_transformers_folder import tokenizer_sha256
from train.loop import Callback
from train.records import RunState, RunSummary
from train.run_spec import RunSpec

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
        """A short run with a checkpoint after each dev score.

        ``changes`` replace top-level parts, or update `train` and `student`.
        """
        root = self.root
        student = {"name": "tiny", "model": str(self.student), "max_length": MAX_LENGTH}
        train = {"batch_size": 8, "learning_rate": 1e-3, "max_steps": 6}
        train |= {"eval_steps": 2, "logging_steps": 1, **changes.pop("train", {})}
        body: dict[str, Any] = {
            "run": objective,
            "student": student | changes.pop("student", {}),
            "train": {"save_steps": train["eval_steps"], **train},
            "device": "cpu",
            "objective": objective,
            "pairs": root,
            "sentences": root,
            "tokens": self.root / "tokens",
            "dev": root / "dev.tsv",
            "out": out,
        }
        if objective == "mcse":
            body["parameters"] = {"image": "tiny-cnn", "weight": 0.5}
            body["features"] = {"image-tiny-cnn": root / "features"}
        return RunSpec.model_validate({**body, **changes})


def silent(line: str) -> None:
    """Swallows progress lines."""


def curves_of(summary: RunSummary) -> dict[str, list[tuple[int, float]]]:
    """The log of a run by metric, as (step, value) pairs; without the rate, which is a timing."""
    names = {name for entry in summary.log for name in entry} - {"step", "sentences_per_second"}
    return {name: summary.curve(name) for name in names}


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


def make_world(root: Path, failed: int = 0) -> World:
    """Write the world; the first ``failed`` images have an error instead of features."""
    things = list(itertools.product(COLOURS, SHAPES))
    keys = [key_of_bytes(f"{colour} {shape}".encode()) for colour, shape in things]
    images, captions = [], []
    for i, (colour, shape) in enumerate(things):
        name, split = f"{i:02d}.png", "train" if i < 18 else "dev"
        image = {"image_id": name, "split": split}
        images.append({**image, "path": name, "key": keys[i], "width": 8, "height": 8})
        texts = [
            f"a {colour} {shape}",
            f"there is a {shape} and it is {colour}",
            f"one {shape} painted {colour} on the left",
        ]
        captions += [
            {**image, "caption_id": f"{name}#{n}", "text": text} for n, text in enumerate(texts)
        ]
    sentences = [
        {"text": f"the {shape} is {place} the {other}"}
        for shape, other in itertools.permutations(SHAPES, 2)
        for place in ("above", "below")
    ]
    for name, rows, schema in (
        ("images", images, IMAGES),
        ("captions", captions, CAPTIONS),
        ("sentences", sentences, SENTENCES),
    ):
        write_manifest(root / f"{name}.parquet", pa.Table.from_pylist(rows, schema), schema)
    as_prepared(root)
    _write_student(root, [row["text"] for row in captions + sentences])
    rng = np.random.default_rng(0)
    rows = dict(zip(keys, rng.normal(size=(len(keys), IMAGE_DIM)), strict=True))
    write_features(root / "features", "image", "test/tiny-cnn", rows, keys[:failed], untrained=True)
    lines = ["score\tsentence1\tsentence2"]
    for one, other in itertools.islice(itertools.combinations(things, 2), 0, 180, 6):
        score = 2.5 * (one[0] == other[0]) + 2.5 * (one[1] == other[1])
        lines.append(f"{score}\ta {one[0]} {one[1]}\tone {other[1]} painted {other[0]}")
    (root / "dev.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return World(root, root / "student", keys)


def _write_student(root: Path, texts: list[str]) -> None:
    """The student, and the tokens of ``texts``."""
    folder = root / "student"
    folder.mkdir()
    words = sorted({word for text in texts for word in text.split()})
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
    tokenizer = BertTokenizerFast.from_pretrained(folder)
    ids = tokenizer(texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]
    digest = tokenizer_sha256(tokenizer)
    header = TokenHeader(digest, MAX_LENGTH, 0, len(tokenizer))
    write_tokens(root / "tokens", header, keys_of_texts(texts), ids)


def write_features(
    folder: Path,
    kind: Any,
    name: str,
    rows: Mapping[bytes, np.ndarray],
    failed: Collection[bytes] = (),
    untrained: bool = False,
) -> None:
    """A feature set of ``rows`` in float16; those of ``failed`` keys are errors."""
    spec = FeatureSpec(
        kind=kind,
        encoder=EncoderRecord(
            name=name, source="random:0", weights_sha256="1" * 64, untrained=untrained
        ),
        preprocessing={"resize": 8},
        precision="fp32",
        dim=len(next(iter(rows.values()))),
        dtype="float16",
    )
    error = {"code": "decode", "path": "", "reason": "test"}
    with SetWriter(folder, spec) as writer:
        for batch in writer.plan(list(rows), batch_size=64):
            keys = [key.tobytes() for key in batch.keys]
            good = [rows[key] for key in keys if key not in failed]
            values = np.array(good, dtype=np.float32).reshape(-1, spec.dim)
            writer.add(batch, values, {key: error for key in keys if key in failed})
        writer.publish()
