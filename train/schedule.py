"""Which rows make up micro-batch k: the two-stream schedule of METHODS §6, as functions of k.

Nothing here has state: a run that resumes at micro-batch k sees what an uninterrupted one would.
k counts micro-batches over the whole run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from train.run_spec import TrainConfig

Stream = Literal["pairs", "text"]
"""Where a batch comes from: image–caption pairs, or plain sentences."""

_STREAM_NUMBER: dict[Stream, int] = {"pairs": 0, "text": 1}


def batches_per_pass(rows: int, batch_size: int) -> int:
    """Batches of one pass over ``rows``; a last batch of one row is merged into the one before.

    A single row has no negatives, so its contrastive loss would be 0.
    """
    batches = -(-rows // batch_size)
    return batches - 1 if batches > 1 and rows % batch_size == 1 else batches


@dataclass(frozen=True)
class Draw:
    """What micro-batch k is: batch ``position`` of ``pass_number`` over ``stream``."""

    stream: Stream
    pass_number: int
    position: int


@dataclass(frozen=True)
class Schedule:
    """The order of batches of a run.

    Attributes:
        pairs, text: rows of the two streams; either may be 0.
        pairs_per_epoch: number of pairs that determines how many steps an epoch has and which of
            them are paired; None means `pairs`. With fewer `pairs` each is used more often in as
            many steps.
        batch_size: rows of a batch (one more where a single row was merged in).
        seed: of the run; each pass over a stream is shuffled by (seed, stream, pass).

    Raises:
        ValueError: both streams are empty, a stream has one row, or batches hold fewer than two.
    """

    pairs: int
    text: int
    batch_size: int
    seed: int
    pairs_per_epoch: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 2:
            raise ValueError(f"batch_size {self.batch_size}: a batch of one row has no negatives")
        if self.pairs == self.text == 0 or 1 in (self.pairs, self.text):
            raise ValueError(f"{self.pairs} pairs and {self.text} sentences: too few to train on")

    @property
    def pair_batches(self) -> int:
        """Paired batches of one epoch."""
        pairs = self.pairs if self.pairs_per_epoch is None else self.pairs_per_epoch
        return batches_per_pass(pairs, self.batch_size)

    @property
    def text_batches(self) -> int:
        """Batches of one pass over the sentences."""
        return batches_per_pass(self.text, self.batch_size)

    @property
    def steps_per_epoch(self) -> int:
        """Micro-batches of one epoch."""
        return self.pair_batches + self.text_batches

    def pairs_before(self, k: int) -> int:
        """How many of micro-batches 0 … k−1 are paired.

        With r = text_batches // pair_batches ≥ 2, micro-batch k is paired when k % r == 0 (MCSE's
        released rule). With r < 2 the paired ones are spread evenly: micro-batch k is paired when
        floor((k+1)p) > floor(kp), p = pair_batches / (pair_batches + text_batches).
        """
        if not self.pairs:
            return 0
        if not self.text:
            return k
        ratio = self.text_batches // self.pair_batches
        if ratio >= 2:
            return -(-k // ratio)
        return k * self.pair_batches // self.steps_per_epoch

    def draw(self, k: int) -> Draw:
        """The draw of micro-batch ``k`` ≥ 0."""
        before = self.pairs_before(k)
        if self.pairs_before(k + 1) > before:
            of_pass = batches_per_pass(self.pairs, self.batch_size)
            return Draw("pairs", *divmod(before, of_pass))
        return Draw("text", *divmod(k - before, self.text_batches))

    def rows(self, draw: Draw, order: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Row numbers of a batch within its stream: int64 [n], 2 ≤ n ≤ batch_size + 1.

        Args:
            order: of the pass; None: the shuffled one.
        """
        total = self.pairs if draw.stream == "pairs" else self.text
        if order is None:
            order = shuffled(self.seed, draw.stream, draw.pass_number, total)
        start = draw.position * self.batch_size
        last = draw.position == batches_per_pass(total, self.batch_size) - 1
        return order[start:] if last else order[start : start + self.batch_size]


@lru_cache(maxsize=4)  # both streams, and the previous pass while its last batch is read again
def shuffled(seed: int, stream: Stream, pass_number: int, rows: int) -> NDArray[np.int64]:
    """The order of one pass: a permutation of ``rows`` rows, fixed by (seed, stream, pass)."""
    generator = np.random.default_rng([seed, _STREAM_NUMBER[stream], pass_number])
    order = generator.permutation(rows)
    order.setflags(write=False)  # shared by all callers
    return order


def micro_batches(config: TrainConfig, schedule: Schedule) -> int:
    """Micro-batches of the whole run."""
    if config.max_steps is not None:
        return config.max_steps * config.gradient_accumulation
    assert config.epochs is not None
    return config.epochs * schedule.steps_per_epoch


def optimizer_steps(config: TrainConfig, schedule: Schedule) -> int:
    """Steps of the optimiser in the whole run; the last may have fewer micro-batches."""
    return -(-micro_batches(config, schedule) // config.gradient_accumulation)


def steps_on_pairs(config: TrainConfig, schedule: Schedule, steps: int) -> int:
    """How many of a run's first ``steps`` optimiser steps have a batch of pairs."""
    before, parts = schedule.pairs_before, config.gradient_accumulation
    last = micro_batches(config, schedule)
    return sum(before(min((k + 1) * parts, last)) > before(k * parts) for k in range(steps))
