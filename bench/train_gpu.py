"""Training on a GPU: whole steps of `train.loop.Loop`, and how long a published run would take.

    python bench/train_gpu.py --json training.json
    python bench/train_gpu.py --device cpu --quick          # tiny shapes: does it work?

BERT-base with random weights, batches of 128, over drawn data of the papers' shapes: 1,000,000
sentences of at most 32 tokens and 29,783 pairs with cached features. Three parts, and after each
row the figures so far are in the file:

- wiki+flickr: the plain float32 loop of `bench/train_step.py` and MCSE in both precisions, eager
  and compiled, on the same rows of both streams;
- the projection: `train_run` of DALR for 2,000 steps with one dev score, extended to the four
  epochs of the papers with a dev score and a checkpoint every `eval_steps`;
- captions: every step is paired, for all five systems, relative to SimCSE.

Sides alternate in blocks of steps, the device is waited for before and after each, and medians
count. A loop is paused between blocks as a signal would stop it, but writes no checkpoint then.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models.cache import LONGEST, SYSTEMS, Cache
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from train_step import IMAGE_DIM, PlainLoop, RowsOfTexts
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from pipeline.cache import keys_of_texts
from sightline.devices import device_name, pick_device
from train.checkpoints import Progress
from train.data import TrainingData
from train.log_names import DEV
from train.loop import Callback, Loop, LoopState
from train.model import GroundedModel
from train.objectives import make_objective
from train.processes import Processes
from train.run_folder import RunFolder
from train.run_spec import Precision, RunSpec, TrainConfig
from train.train_run import train_run

RATIO, SHARE, MINUTES = 3.0, 1.15, 10.0
"""Ours to the plain loop; a system's step to SimCSE's; DALR on wiki + flickr."""
PUBLISHED = 245.0
"""Minutes of DALR on wiki + flickr on an A100, as published."""
PLAIN = "plain, fp32"
EPOCHS = 4


@dataclass(frozen=True)
class Shape:
    """How large everything is."""

    sentences: int
    pairs: int
    words: int
    dev: int
    batch: int
    layers: int
    width: int
    block: int
    rounds: int
    steps: int


FULL = Shape(1_000_000, 29_783, 30_000, 1_500, 128, 12, 768, 34, 5, 2_000)
QUICK = Shape(2_000, 200, 400, 40, 8, 2, 64, 4, 2, 24)


@dataclass(frozen=True)
class Variant:
    """How a step is computed."""

    precision: Precision
    compiled: bool

    def __str__(self) -> str:
        return f"{self.precision}, {'compiled' if self.compiled else 'eager'}"


EAGER = [Variant("fp32", False), Variant("bf16", False)]
COMPILED = [Variant("fp32", True), Variant("bf16", True)]


class Figures:
    """What was measured so far, in a file that is whole at any time."""

    def __init__(self, path: Path | None, found: dict[str, Any]) -> None:
        self.path, self.found = path, found

    def add(self, part: str, row: dict[str, Any]) -> None:
        self.found.setdefault(part, []).append(row)
        self.write()

    def write(self) -> None:
        if self.path is not None:
            part = self.path.with_name(self.path.name + ".part")
            part.write_text(json.dumps(self.found, indent=1) + "\n", encoding="utf-8")
            part.replace(self.path)


class World:
    """The drawn data, the student, and the loops over them."""

    def __init__(self, shape: Shape, folder: Path, device: torch.device) -> None:
        self.shape, self.folder, self.device = shape, folder, device
        words = [f"w{number}" for number in range(shape.words)]
        self.tokenizer = word_tokenizer(words)
        self.captions, of_captions = drawn(words, shape.pairs, 12.3, 5.2, 1)
        self.sentences, of_sentences = drawn(words, shape.sentences, 21.0, 10.0, 2)
        for texts, ids in ((self.captions, of_captions), (self.sentences, of_sentences)):
            found: Any = self.tokenizer(texts[:64], truncation=True, max_length=LONGEST)
            assert found["input_ids"] == ids[:64], "the ids are not the tokenizer's"
        self.cache = Cache(
            folder,
            self.captions,
            of_captions,
            len(self.tokenizer),
            (self.sentences, of_sentences),
        )
        rng = np.random.default_rng(3)
        self.images = rng.standard_normal((shape.pairs, IMAGE_DIM), np.float32).astype(np.float16)
        self.student = folder / "student"
        self.encoder().save_pretrained(self.student)
        self.tokenizer.save_pretrained(self.student)
        self.dev = folder / "dev.tsv"
        scores = rng.uniform(0, 5, shape.dev)
        halves = zip(scores, self.sentences, self.sentences[shape.dev :], strict=False)
        lines = [f"{score:.2f}\t{one}\t{other}" for score, one, other in halves]
        self.dev.write_text("\n".join(["score\tsentence1\tsentence2", *lines]) + "\n", "utf-8")

    def encoder(self) -> Any:
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(self.tokenizer),
            hidden_size=self.shape.width,
            num_hidden_layers=self.shape.layers,
            num_attention_heads=self.shape.width // 64,
            intermediate_size=4 * self.shape.width,
            pad_token_id=0,
        )
        return BertModel(config, add_pooling_layer=False).train()  # pyright: ignore[reportArgumentType]

    def train(self, **changes: Any) -> dict[str, Any]:
        return {
            "batch_size": self.shape.batch,
            "device": self.device.type,
            "learning_rate": 3e-5,
            **changes,
        }


def word_tokenizer(words: list[str]) -> PreTrainedTokenizerFast:
    """Words as tokens, [CLS] and [SEP] around them: a real fast tokenizer without a download."""
    first = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    numbers = {word: number for number, word in enumerate([*first, *words])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )


def drawn(
    words: list[str], count: int, mean: float, spread: float, seed: int
) -> tuple[list[str], list[list[int]]]:
    """Distinct texts whose lengths are spread like those of Flickr30k or Wikipedia, and their ids."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.normal(mean, spread, count), 5, 60).astype(int)
    chosen = np.split(rng.integers(0, len(words), lengths.sum()), np.cumsum(lengths)[:-1])
    texts: dict[str, list[int]] = {}
    for number, some in enumerate(chosen):
        # the first words count, so that no two texts are equal
        numbers = [number % len(words), number // len(words), *some.tolist()[2:]]
        text = " ".join([words[each] for each in numbers])
        texts[text] = [2, *(each + 4 for each in numbers[: LONGEST - 2]), 3]
    assert len(texts) == count
    return list(texts), list(texts.values())


class Unsaved(Loop):
    """A loop that can be stopped and continued; it writes no checkpoints."""

    def _save(self) -> None:
        pass


class Stop(Callback):
    """Stops a loop after some steps; `run` then continues it."""

    def __init__(self) -> None:
        self.left = 0

    def step(self, state: LoopState) -> None:
        self.left -= 1
        state.should_stop = self.left == 0


class OurSide:
    """Steps of one system as a run takes them: feed, step, log, checks."""

    def __init__(self, world: World, system: str, data: TrainingData, variant: Variant) -> None:
        _, parameters, _ = SYSTEMS[system]
        objective = make_objective(SYSTEMS[system][0], {**parameters, "caption": "random"})
        config = TrainConfig.model_validate(
            # as many steps as a whole run, so that none of these is its last
            world.train(epochs=EPOCHS, precision=variant.precision)
        )
        model = GroundedModel(
            world.encoder(),
            objective,
            "cls",
            data.dims,
            precision=variant.precision,
            compiled_rows=config.batch_size if variant.compiled else None,
        )
        folder = RunFolder(world.folder / "never")
        self._stop = Stop()
        self._loop = Unsaved(
            model,
            data,
            config,
            seed=0,
            device=world.device,
            processes=Processes(),
            checkpoints=folder.checkpoints,
            best=folder.best,
            progress=Progress(""),
            callbacks=[self._stop],
        )

    def __call__(self, steps: int) -> None:
        self._stop.left, self._loop.state.should_stop = steps, False
        self._loop.run()


class PlainSide:
    """The plain loop, on the same rows."""

    def __init__(self, world: World, data: TrainingData) -> None:
        encoder = world.encoder().to(world.device)
        self._loop = PlainLoop(encoder, world.tokenizer, world.device)
        self._schedule = data.schedule
        self._streams = {
            "pairs": RowsOfTexts(world.captions, world.images),
            "text": RowsOfTexts(world.sentences, None),
        }
        for k in range(2):
            draw, batch = self._schedule.draw(k), data[k]
            rows = self._schedule.rows(draw)
            texts = [self._streams[draw.stream].texts[row] for row in rows]
            assert np.array_equal(keys_of_texts(texts), batch.keys), "the sides read other rows"
        self._step = 0

    def __call__(self, steps: int) -> None:
        for k in range(self._step, self._step + steps):
            draw = self._schedule.draw(k)
            self._loop.step(self._streams[draw.stream], self._schedule.rows(draw))
        self._step += steps


def measure(
    sides: dict[str, Callable[[int], None]],
    shape: Shape,
    device: torch.device,
    deadline: float,
    row: Callable[[str, float], None],
) -> None:
    """Seconds of a step of each side, told to ``row`` whenever a round is complete."""
    for run in sides.values():
        run(shape.block)  # warms up, and compiles
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(shape.rounds):
        if number and time.monotonic() > deadline:
            break
        for name in list(sides) if number % 2 else list(sides)[::-1]:
            wait(device)
            start = time.perf_counter()
            sides[name](shape.block)
            wait(device)
            seconds[name].append((time.perf_counter() - start) / shape.block)
    for name, taken in seconds.items():
        row(name, statistics.median(taken))


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
