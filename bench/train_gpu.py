"""Training on a GPU: whole steps of `train.loop.Loop`, and how long a published run would take.

    python bench/train_gpu.py --json training.json
    python bench/train_gpu.py --device cpu --quick     # tiny shapes, nothing compiled

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
import gc
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models.cache import LONGEST, SYSTEMS, Cache
from train_step import IMAGE_DIM, PlainLoop, RowsOfTexts, word_tokenizer
from transformers import BertConfig, BertModel

from sightline.cache import keys_of_texts
from sightline.devices import device_name, pick_device
from train.data import TrainingData
from train.distributed import Processes
from train.loop import Callback, Loop
from train.model import GroundedModel
from train.objectives import make_objective
from train.records import DEV, RunState
from train.run_folder import RunFolder
from train.run_spec import Precision, TrainConfig
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


FULL = Shape(1_000_000, 29_783, 30_000, 1_500, 128, 12, 768, 33, 3, 2_000)
QUICK = Shape(2_000, 200, 400, 40, 8, 2, 64, 4, 2, 75)


@dataclass(frozen=True)
class Variant:
    """How a step is computed."""

    precision: Precision
    compiled: bool

    def __str__(self) -> str:
        return f"{self.precision}, {'compiled' if self.compiled else 'eager'}"


VARIANTS = [Variant("bf16", False), Variant("bf16", True), Variant("fp32", False)]


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
        self.tokenizer = word_tokenizer([" ".join(words)])
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
            "learning_rate": 3e-5,
            **changes,
        }


def drawn(
    words: list[str], count: int, mean: float, spread: float, seed: int
) -> tuple[list[str], list[list[int]]]:
    """Distinct texts with lengths spread as in Flickr30k or Wikipedia, and their token ids."""
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

    def step(self, state: RunState) -> None:
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
            compiled=variant.compiled,
        )
        self._stop = Stop()
        self._loop = Unsaved(
            model,
            data,
            config,
            seed=0,
            device=world.device,
            processes=Processes(),
            folder=RunFolder(world.folder / "never"),
            state=RunState(),
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


class OutOfTime(Exception):
    """A part was given up before it had measured anything."""


def medians(
    sides: dict[str, Callable[[int], None]], world: World, deadline: float
) -> dict[str, float]:
    """Seconds of a step of each side, from one round at least.

    Raises:
        OutOfTime: the deadline passed while the sides were still starting.
    """
    shape, device = world.shape, world.device
    for name, run in sides.items():
        if time.monotonic() > deadline:
            raise OutOfTime
        start = time.perf_counter()
        run(shape.block)  # compiles
        wait(device)
        print(
            f"  {name}: first {shape.block} steps {time.perf_counter() - start:.1f} s", flush=True
        )
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
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def both_streams(
    world: World, variants: Sequence[Variant], figures: Figures, deadline: float
) -> None:
    """The plain loop and MCSE's variants on wiki + flickr."""
    data = world.cache.data("mcse", world.shape.batch)
    plain = PlainSide(world, data)  # before the data moves
    sides: dict[str, Callable[[int], None]] = {PLAIN: plain}
    sides |= {str(variant): OurSide(world, "mcse", data, variant) for variant in variants}
    found = medians(sides, world, deadline)
    for name, seconds in found.items():
        row = {"side": name, "ms": seconds * 1e3, "over_plain": found[PLAIN] / seconds}
        figures.add("wiki+flickr", row)
        print(f"wiki+flickr  mcse {name:<16}{row['ms']:9.2f} ms {row['over_plain']:6.2f} × plain")


def captions(world: World, variant: Variant, figures: Figures, deadline: float) -> None:
    """Every system on paired steps alone."""
    sides: dict[str, Callable[[int], None]] = {
        system: OurSide(
            world, system, world.cache.data(system, world.shape.batch, only_pairs=True), variant
        )
        for system in SYSTEMS
    }
    found = medians(sides, world, deadline)
    for system, seconds in found.items():
        over = seconds / found["simcse"]
        row = {"system": system, "variant": str(variant), "ms": seconds * 1e3, "over_simcse": over}
        figures.add("captions", row)
        print(f"captions  {system:<8}{variant!s:<16}{row['ms']:9.2f} ms {over:6.2f} × SimCSE")


class Clock(Callback):
    """When steps began, were logged and ended; before it logs, a loop waits for the GPU."""

    def __init__(self) -> None:
        self.logged: dict[int, float] = {}

    def begin(self, state: RunState, model: GroundedModel) -> None:
        self.begun = time.perf_counter()

    def log(self, state: RunState, entry: dict[str, float]) -> None:
        if DEV in entry:
            self.scored = time.perf_counter()
        else:
            self.logged[state.step] = time.perf_counter()

    def end(self, state: RunState) -> None:
        self.ended = time.perf_counter()


def projection(world: World, variant: Variant, figures: Figures) -> None:
    """DALR on wiki + flickr, from some steps, one dev score and one checkpoint."""
    shape, out = world.shape, world.folder / "run"
    train = world.train(
        max_steps=shape.steps,
        eval_steps=shape.steps,
        precision=variant.precision,
        compile="on" if variant.compiled else "off",
    )
    spec = world.cache.spec(
        "dalr",
        shape.batch,
        train=train,
        student={"name": "bench", "model": str(world.student), "max_length": LONGEST},
        dev=world.dev,
        out=out,
        device=world.device.type,
    )
    clock = Clock()
    train_run(spec, say=lambda line: print(f"  {line}", flush=True), callbacks=[clock])
    marks = sorted(clock.logged)
    last, first = marks[-1], marks[len(marks) // 10]  # compiled by then
    step = (clock.logged[last] - clock.logged[first]) / (last - first)
    start = max(0.0, clock.logged[first] - clock.begun - first * step)  # compiling, most of it
    dev = clock.scored - clock.logged[last]
    checkpoint = clock.ended - clock.scored
    steps = EPOCHS * len(TrainingData(spec, make_objective(spec.objective, spec.parameters)))
    scores = -(-steps // TrainConfig(epochs=EPOCHS).eval_steps)
    seconds = start + steps * step + scores * (dev + checkpoint)
    row = {
        "variant": str(variant),
        "measured_steps": last - first,
        "ms": step * 1e3,
        "start": start,
        "dev_score": dev,
        "checkpoint": checkpoint,
        "steps": steps,
        "scores": scores,
        "steps_minutes": steps * step / 60,
        "minutes": seconds / 60,
    }
    figures.add("projection", row)
    print(
        f"projection  dalr {variant}: {steps:,} steps of {row['ms']:.2f} ms "
        f"({row['steps_minutes']:.1f} min), {start:.1f} s to start, {scores} times {dev:.2f} s "
        f"for a dev score and {checkpoint:.2f} s for a checkpoint: {row['minutes']:.1f} min "
        f"(published: {PUBLISHED:g})"
    )
    shutil.rmtree(out)


def release() -> None:
    """Give back what the last part held."""
    gc.collect()
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def main() -> None:
    """Measure part by part, as far as the time goes."""
    parser = argparse.ArgumentParser(description="Training on a GPU.")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to see it work")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing more after these")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    options = parser.parse_args()
    device = pick_device(options.device)
    deadline = time.monotonic() + options.seconds
    shape = QUICK if options.quick else FULL
    about = {"device": device_name(device), "torch": torch.__version__, "shape": asdict(shape)}
    figures = Figures(options.json, about)
    print(f"{about['device']}, torch {torch.__version__}, {shape}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        start = time.perf_counter()
        world = World(shape, Path(scratch), device)
        print(f"data drawn in {time.perf_counter() - start:.0f} s", flush=True)
        variants = [each for each in VARIANTS if device.type == "cuda" or not each.compiled]
        parts: list[tuple[str, Callable[[], None]]] = [
            ("wiki+flickr", partial(both_streams, world, variants, figures, deadline)),
            ("projection", lambda: projection(world, quickest(variants, figures), figures)),
            *(
                (f"captions, {each}", partial(captions, world, each, figures, deadline))
                for each in variants
                if each.precision == "bf16"
            ),
        ]
        for number, (name, part) in enumerate(parts):
            try:
                if number and time.monotonic() > deadline:
                    raise OutOfTime
                part()
            except OutOfTime:
                figures.found["left_out"] = [name for name, _ in parts[number:]]
                figures.write()
                print(f"out of time; left out: {'; '.join(figures.found['left_out'])}")
                break
            release()


def quickest(variants: Sequence[Variant], figures: Figures) -> Variant:
    """The one with the shortest step on wiki + flickr."""
    ms = {row["side"]: row["ms"] for row in figures.found["wiki+flickr"]}
    return min(variants, key=lambda variant: ms[str(variant)])


if __name__ == "__main__":
    main()
