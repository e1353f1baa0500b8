"""The training loop. `Loop._step` is one step; the rest decides what to report and save, and when.

A step depends on nothing before it except the weights, the optimiser and the number of the step:
batch k is a function of k, dropout is seeded by the run's seed, k and the process, the learning
rate follows from the step. So a resumed run equals an uninterrupted one, bit for bit on a CPU.

Several processes, and chunks of a batch, are the same step: a process encodes its share of the
batch, detaches the graph, gathers the embeddings of all, computes the loss of the whole batch, and
propagates the gradient of its own embeddings back into the encoder.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NoReturn

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from sightline import devices
from sightline.devices import peak_memory
from sightline.errors import SightlineError
from train.batch import Batch
from train.checkpoints import FAILURE_FILE, Best, Checkpoints, Progress
from train.data import TrainingData, make_feed
from train.gradient_cache import CachedEmbeddings, chunks_of
from train.log_names import DEV
from train.log_window import LogWindow
from train.model import TOTAL, GroundedModel
from train.objectives.objective import Views
from train.optimizer import learning_rate, make_optimizer
from train.processes import Processes
from train.run_spec import TrainConfig
from train.watch import BadStep, Watch

_MODEL_FILE, _OPTIMIZER_FILE, STATE_FILE = "model.safetensors", "optimizer.pt", "state.json"


class NonFiniteLoss(SightlineError):
    """A loss term or a gradient became NaN or infinite; the message says where."""


@dataclass
class LoopState:
    """The progress of a run.

    Attributes:
        step: optimiser steps done.
        steps: of the whole run.
        log: entries so far, each with its ``step``.
        best: dev score of the best weights, or None.
        should_stop: end after this step, with a checkpoint; a callback may set it, in any process.
        signal: number of the signal that asked for it, or 0; the same in all processes.
    """

    steps: int
    step: int = 0
    log: list[dict[str, float]] = field(default_factory=list)
    best: float | None = None
    should_stop: bool = False
    signal: int = 0


class Callback:
    """Observes a run; a subclass overrides the methods that it needs."""

    def begin(self, state: LoopState, model: GroundedModel) -> None:
        """Before the first step, of a resumed run too."""

    def step(self, state: LoopState) -> None:
        """After an optimiser step, before anything is logged, scored or saved."""

    def log(self, state: LoopState, entry: dict[str, float]) -> None:
        """A log entry was added: means since the last one, or the dev score."""

    def end(self, state: LoopState) -> None:
        """After the last step, or the one after which the run stops."""


class Loop:
    """Trains a `GroundedModel` on `TrainingData`.

    Args:
        seed: of the run.
        processes: that train together; each has a loop, model and data of its own.
        checkpoints, best, progress: of its folder, which process 0 writes to.
        dev_score: scores the current model, in process 0; None trains without selection.

    Attributes:
        state: its progress.

    Raises:
        SightlineError: a precision that the device does not have.
    """

    def __init__(
        self,
        model: GroundedModel,
        data: TrainingData,
        config: TrainConfig,
        *,
        seed: int,
        device: torch.device,
        processes: Processes,
        checkpoints: Checkpoints,
        best: Best,
        progress: Progress,
        dev_score: Callable[[], float] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        if model.precision == "fp16" and device.type == "cpu":
            raise SightlineError("precision fp16 needs a GPU; on a CPU use fp32 or bf16")
        self._data, self._config, self._seed = data, config, seed
        self._batch = make_feed(data, device, config.device_cache)
        self._device, self._processes = device, processes
        self._model = model.to(device)
        # no DistributedDataParallel: what is exchanged is embeddings, and gradients once a step
        self._optimizer = make_optimizer(model, config)
        self._scaler = GradScaler(device.type) if model.precision == "fp16" else None
        # under fp16 the loss scaler skips a step whose gradient overflows, and halves the scale
        self._watch = Watch(norm_counts=self._scaler is None)
        self._waits = not devices.runs_ahead(device) or self._scaler is not None
        self._started: float | None = None
        self._micro_batches = micro_batches(config, data)
        self._checkpoints, self._best, self.progress = checkpoints, best, progress
        self._dev_score = dev_score
        self._callbacks = callbacks
        self._window = LogWindow()
        self.state = LoopState(-(-self._micro_batches // config.gradient_accumulation))

    def run(self, resume: Path | None = None) -> LoopState:
        """Train to the end, or until a callback stops it.

        Args:
            resume: checkpoint to resume from.

        Raises:
            NonFiniteLoss: a loss or gradient became NaN or infinite; nothing is saved after it.
            LostProcess: another process ended.
        """
        state, config = self.state, self._config
        if resume is not None:
            self._load(resume)
        self._processes.follow_main(self._model.state_dict().values())
        for callback in self._callbacks:
            callback.begin(state, self._model)
        while state.step < state.steps and not self.progress.stopped_early:
            self._step()
            for callback in self._callbacks:
                callback.step(state)
            self._agree_to_stop()
            every = config.save_steps or config.eval_steps
            saves = state.step == state.steps or state.should_stop or state.step % every == 0
            logs = state.step % config.logging_steps == 0
            if saves or logs or self._score_is_due():
                self._look()
                self._pause()
            if logs:
                self._log(self._window.means(learning_rate(config, state.step - 1, state.steps)))
                self._window = LogWindow()
            if self._score_is_due():
                self._select()
            if saves or state.should_stop:
                self._processes.together(self._save)
            if state.should_stop:
                break
        for callback in self._callbacks:
            callback.end(state)
        return state

    def _step(self) -> None:
        """Draw, forward, backward, clip, step: the micro-batches of one optimiser step.

        On a GPU nothing here waits for the device: `_look` does, once in `logging_steps` and before
        anything is saved.
        """
        state, config = self.state, self._config
        if self._started is None:
            self._started = time.perf_counter()
        first = state.step * config.gradient_accumulation
        numbers = range(first, min(first + config.gradient_accumulation, self._micro_batches))
        self._model.train()
        self._optimizer.zero_grad()
        terms, sentences = dict[int, dict[str, Tensor]](), 0
        for k in numbers:
            batch = self._batch(k)
            terms[k] = self._micro_batch(batch, len(numbers))
            sentences += len(batch)
        self._processes.add_gradients(self._model.encoder)
        # every process has the whole gradient of the heads
        of_heads = (weight.grad for weight in self._model.heads.parameters())
        self._processes.follow_main([each for each in of_heads if each is not None])
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), config.max_grad_norm)
        self._watch.add(state.step + 1, terms, norm)
        if self._waits:
            self._look()
        self._update(learning_rate(config, state.step, state.steps))
        state.step += 1
        self.progress.sentences += sentences
        self._window.step(norm, sentences)
        if self._waits:
            self._pause()

    def _update(self, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        if self._scaler is None:
            self._optimizer.step()
            return
        self._scaler.step(self._optimizer)
        self._scaler.update()

    def _micro_batch(self, batch: Batch, parts: int) -> dict[str, Tensor]:
        """Gradients of one of ``parts`` micro-batches: embed, gather, terms, and back.

        Those of the heads are of the whole batch, those of the encoder of this process's rows.

        Returns:
            The terms, without a graph.
        """
        processes, rank = self._processes, self._processes.rank
        torch.manual_seed(dropout_seed(self._seed, batch.k, rank))
        shares = processes.shares(len(batch))
        chunks = [batch.part(rows) for rows in chunks_of(shares[rank], self._config.chunk)]
        own = CachedEmbeddings(self._model.encode, chunks, self._device)
        sentences = _leaf(processes.gathered(own.sentences, [len(rows) for rows in shares]))
        phrases, of_shares = None, [range(0)] * len(shares)
        if own.phrases is not None:
            assert batch.phrases is not None
            of_shares = [batch.phrases.range_of(rows) for rows in shares]
            phrases = _leaf(processes.gathered(own.phrases, [len(each) for each in of_shares]))
        terms = self._model.terms(batch, Views(sentences[0], sentences[1], phrases))
        loss = terms[TOTAL] / parts
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        own.backward(_rows(sentences, shares[rank]), _rows(phrases, of_shares[rank]))
        terms = {name: term.detach() for name, term in terms.items()}
        self._window.add(terms, self._model.objective.statistics(batch), parts)
        return terms

    def _look(self) -> None:
        """Wait for the device; stop if a step since the last look was not finite.

        All processes have the same terms and gradients, so they find the same step.
        """
        bad = self._watch.first_bad()
        if bad is None:
            return

        def stop() -> NoReturn:
            raise self._non_finite(bad)

        self._processes.together(stop)

    def _pause(self) -> None:
        """Count the time since the first step after the last pause."""
        if self._started is not None:
            seconds = time.perf_counter() - self._started
            self._window.seconds += seconds
            self.progress.seconds += seconds
            self._started = None

    def _log(self, entry: dict[str, float]) -> None:
        self.state.log.append({**entry, "step": self.state.step})
        for callback in self._callbacks:
            callback.log(self.state, entry)

    def _agree_to_stop(self) -> None:
        """Stop in all processes after this step if a callback in one of them asks for it."""
        state = self.state
        wish = self._processes.most(1 + state.signal if state.should_stop else 0)
        if wish:
            state.should_stop, state.signal = True, wish - 1

    def _score_is_due(self) -> bool:
        """Whether the weights are scored after this step."""
        state = self.state
        if self._dev_score is None:
            return False
        return state.step == state.steps or state.step % self._config.eval_steps == 0

    def _select(self) -> None:
        """Score the weights, keep them when they are a new best, and stop early if none came."""
        assert self._dev_score is not None
        state, dev_score = self.state, self._dev_score
        score = float(self._processes.from_main(lambda: repr(float(dev_score()))))
        if not math.isfinite(score):
            self._fail(
                SightlineError(
                    f"the dev score of step {state.step} is {score}: all embeddings are equal or "
                    "not finite; lower the learning rate"
                )
            )
        if state.best is None or score > state.best:
            self._processes.together(lambda: self._keep_best(score))
            state.best = score
        self._log({DEV: score})
        patience = self._config.early_stopping_patience
        scores = [entry[DEV] for entry in state.log if DEV in entry]
        # counted from the log, which is part of every checkpoint
        if patience is not None and len(scores) - 1 - scores.index(max(scores)) >= patience:
            self.progress.stopped_early = state.step < state.steps
            state.should_stop = True

    def _keep_best(self, score: float) -> None:
        if self._processes.main:
            self._best.keep(self._model.state_dict(), self.state.step, score)

    def _fail(self, error: SightlineError) -> None:
        """End all processes with an error that each of them has found; process 0 reports it."""

        def fail() -> NoReturn:
            raise error

        self._processes.together(fail)

    def _save(self) -> None:
        """Write the checkpoint of this step, in process 0."""
        if self._processes.main:
            self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        for name, peak in peak_memory(self._device).items():
            self.progress.peak_memory[name] = max(peak, self.progress.peak_memory.get(name, 0))
        made = self._checkpoints.made(self.state.step)
        made.mkdir(parents=True, exist_ok=True)
        weights = {name: value.contiguous() for name, value in self._model.state_dict().items()}
        save_file(weights, made / _MODEL_FILE, metadata={"format": "pt"})
        state = {
            "optimizer": self._optimizer.state_dict(),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
        }
        torch.save(state, made / _OPTIMIZER_FILE)
        (made / STATE_FILE).write_text(json.dumps(asdict(self.state)))
        self._checkpoints.publish(self.state.step, self.progress)

    def _load(self, checkpoint: Path) -> None:
        self._model.load_state_dict(load_file(checkpoint / _MODEL_FILE))
        found = torch.load(checkpoint / _OPTIMIZER_FILE, map_location="cpu", weights_only=True)
        self._optimizer.load_state_dict(found["optimizer"])
        if self._scaler is not None and found["scaler"] is not None:
            self._scaler.load_state_dict(found["scaler"])
        state = read_state(checkpoint)
        self.state.step, self.state.log, self.state.best = state.step, state.log, state.best

    def _non_finite(self, bad: BadStep) -> NonFiniteLoss:
        """The error that names a bad step; process 0 lists the texts of its batch in a file."""
        batch = self._data[bad.micro_batch]
        keys = [key.tobytes().hex() for key in batch.keys]
        report = {
            "step": bad.step,
            "micro_batch": batch.k,
            "stream": batch.stream,
            "values": {name: repr(value) for name, value in bad.values.items()},
            "keys": keys,
        }
        path = self._checkpoints.folder.parent / FAILURE_FILE
        if self._processes.main:
            self._checkpoints.report(report)
        kept = self._checkpoints.newest()
        terms = ", ".join(f"{name} is {bad.values[name]}" for name in bad.culprits)
        return NonFiniteLoss(
            f"step {bad.step} (micro-batch {batch.k}, {batch.stream}): {terms}. Nothing is saved "
            f"after it; {f'the last checkpoint is {kept}' if kept else 'there is no checkpoint'}. "
            f"{path} lists the {len(keys)} texts of the batch by key ({keys[0][:16]} …). Lower the "
            "learning rate, or train in fp32: that starts over. After a first step look at the "
            "features: `sightline cache verify`"
        )


def read_state(checkpoint: Path) -> LoopState:
    """The state of a checkpoint."""
    return LoopState(**json.loads((checkpoint / STATE_FILE).read_bytes()))


def micro_batches(config: TrainConfig, data: TrainingData) -> int:
    """Micro-batches of the whole run."""
    if config.max_steps is not None:
        return config.max_steps * config.gradient_accumulation
    assert config.epochs is not None
    return config.epochs * len(data)


def dropout_seed(seed: int, k: int, rank: int) -> int:
    """The seed of dropout in micro-batch ``k``, in process ``rank``."""
    words = f"dropout {seed} {k}" + (f" {rank}" if rank else "")
    digest = hashlib.sha256(words.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _leaf(embeddings: Tensor) -> Tensor:
    """The same numbers as a new leaf, with their own gradient."""
    return embeddings.detach().requires_grad_()


def _rows(embeddings: Tensor | None, rows: range) -> Tensor | None:
    """The gradient of some ``rows`` of [2, n, d]; None if no term depends on them."""
    if embeddings is None or embeddings.grad is None:
        return None
    return embeddings.grad[:, rows.start : rows.stop]
