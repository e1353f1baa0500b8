"""The training loop. What happens in a step is `Loop._step`; the rest is when to say and keep what.

Nothing in a step depends on what happened before it but the weights, the optimiser and the number
of the step: batch k is a function of k, dropout is seeded by the run's seed and k, the learning
rate follows from the step. So a resumed run is an unbroken one, bit for bit on a CPU.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from safetensors.torch import load_file, save_file
from torch import Tensor

from sightline.devices import peak_memory
from sightline.errors import SightlineError
from sightline.files import write_bytes
from train.batch import Batch
from train.checkpoints import Best, Checkpoints, Progress
from train.data import TrainingData
from train.model import TOTAL, GroundedModel
from train.optimizer import learning_rate, make_optimizer
from train.run_folder import FAILURE_FILE
from train.run_spec import TrainConfig

DEV = "dev"
"""Name of the dev score in a log entry (Spearman's ρ × 100)."""

_MODEL_FILE, _OPTIMIZER_FILE, STATE_FILE = "model.safetensors", "optimizer.pt", "state.json"


class NonFiniteLoss(SightlineError):
    """A loss term or a gradient became NaN or infinite; the message says where."""


@dataclass
class LoopState:
    """How far a run is.

    Attributes:
        step: optimiser steps done.
        steps: of the whole run.
        log: entries so far, each with its ``step``.
        best: dev score of the best weights, or None.
        should_stop: end after this step, with a checkpoint; a callback may set it.
    """

    steps: int
    step: int = 0
    log: list[dict[str, float]] = field(default_factory=list)
    best: float | None = None
    should_stop: bool = False


class Callback:
    """What wants to know how a run goes on; a subclass has the methods that it needs."""

    def begin(self, state: LoopState, model: GroundedModel) -> None:
        """Before the first step, also of a resumed run."""

    def step(self, state: LoopState) -> None:
        """After an optimiser step, before anything is logged, scored or saved."""

    def log(self, state: LoopState, entry: dict[str, float]) -> None:
        """A log entry was added: means since the last one, or the dev score."""

    def end(self, state: LoopState) -> None:
        """After the last step, or the one after which the run was to stop."""


class Loop:
    """Trains a `GroundedModel` on `TrainingData`.

    Args:
        seed: of the run.
        checkpoints, best, progress: of its folder.
        dev_score: scores the model as it is; None trains without selection.

    Attributes:
        state: how far it is.

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
        checkpoints: Checkpoints,
        best: Best,
        progress: Progress,
        dev_score: Callable[[], float] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        if config.precision == "fp16" and device.type == "cpu":
            raise SightlineError("precision fp16 needs a GPU; on a CPU use fp32 or bf16")
        AcceleratorState._reset_state(reset_partial_state=True)  # an earlier run of this process
        self._accelerator = Accelerator(
            cpu=device.type == "cpu",
            mixed_precision="no" if config.precision == "fp32" else config.precision,
        )
        if self._accelerator.num_processes > 1:
            raise SightlineError(
                f"training was started on {self._accelerator.num_processes} processes; it runs on "
                "one, because in-batch negatives are not gathered across processes"
            )
        self._data, self._config, self._seed = data, config, seed
        self._device = device
        self._model = model.to(device)
        self._forward, self._optimizer = self._accelerator.prepare(
            model, make_optimizer(model, config)
        )
        self._micro_batches = micro_batches(config, data)
        self._checkpoints, self._best, self.progress = checkpoints, best, progress
        self._dev_score = dev_score
        self._callbacks = callbacks
        self._window = _Window()
        self.state = LoopState(-(-self._micro_batches // config.gradient_accumulation))

    def run(self, resume: Path | None = None) -> LoopState:
        """Train to the end, or until a callback stops it.

        Args:
            resume: checkpoint to go on from.

        Raises:
            NonFiniteLoss: a loss or gradient became NaN or infinite; that step is undone.
        """
        state, config = self.state, self._config
        if resume is not None:
            self._load(resume)
        for callback in self._callbacks:
            callback.begin(state, self._model)
        while state.step < state.steps and not self.progress.stopped_early:
            self._step()
            for callback in self._callbacks:
                callback.step(state)
            last = state.step == state.steps
            if state.step % config.logging_steps == 0:
                self._log(self._window.means(learning_rate(config, state.step - 1, state.steps)))
                self._window = _Window()
            if self._dev_score is not None and (last or state.step % config.eval_steps == 0):
                self._select(self._dev_score)
            every = config.save_steps or config.eval_steps
            if last or state.should_stop or state.step % every == 0:
                self._save()
            if state.should_stop:
                break
        for callback in self._callbacks:
            callback.end(state)
        return state

    def _step(self) -> None:
        """Draw, forward, backward, clip, step: the micro-batches of one optimiser step."""
        state, config = self.state, self._config
        first = state.step * config.gradient_accumulation
        batches = range(first, min(first + config.gradient_accumulation, self._micro_batches))
        started = time.perf_counter()
        self._forward.train()
        self._optimizer.zero_grad()
        sentences = 0
        for k in batches:
            batch = self._data[k].to(self._device)
            torch.manual_seed(_dropout_seed(self._seed, k))
            terms: dict[str, Tensor] = self._forward(batch)
            total = terms[TOTAL]
            if not torch.isfinite(total):
                self._stop_non_finite(batch, {name: term.item() for name, term in terms.items()})
            self._accelerator.backward(total / len(batches))
            self._window.add(terms, self._model.objective.statistics(batch), len(batches))
            sentences += len(batch)
        norm = self._accelerator.clip_grad_norm_(self._model.parameters(), config.max_grad_norm)
        assert norm is not None
        # under fp16 the loss scaler skips such a step and halves the scale
        if config.precision != "fp16" and not math.isfinite(float(norm)):
            self._stop_non_finite(batch, {"gradient norm": float(norm)})
        rate = learning_rate(config, state.step, state.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        state.step += 1
        seconds = time.perf_counter() - started
        self._window.step(float(norm), sentences, seconds)
        self.progress.sentences += sentences
        self.progress.seconds += seconds

    def _log(self, entry: dict[str, float]) -> None:
        self.state.log.append({**entry, "step": self.state.step})
        for callback in self._callbacks:
            callback.log(self.state, entry)

    def _select(self, dev_score: Callable[[], float]) -> None:
        """Score the weights, keep them when they are a new best, and stop early if none came."""
        state, score = self.state, dev_score()
        if not math.isfinite(score):
            raise SightlineError(
                f"the dev score of step {state.step} is {score}: all embeddings are alike or not "
                "finite; lower the learning rate"
            )
        if state.best is None or score > state.best:
            state.best = score
            self._best.keep(self._model.state_dict(), state.step, score)
        self._log({DEV: score})
        patience = self._config.early_stopping_patience
        scores = [entry[DEV] for entry in state.log if DEV in entry]
        # counted from the log, which is part of every checkpoint
        if patience is not None and len(scores) - 1 - scores.index(max(scores)) >= patience:
            self.progress.stopped_early = state.step < state.steps
            state.should_stop = True

    def _save(self) -> None:
        """Write the checkpoint of this step."""
        for name, peak in peak_memory(self._device).items():
            self.progress.peak_memory[name] = max(peak, self.progress.peak_memory.get(name, 0))
        made = self._checkpoints.made(self.state.step)
        made.mkdir(parents=True, exist_ok=True)
        weights = {name: value.contiguous() for name, value in self._model.state_dict().items()}
        save_file(weights, made / _MODEL_FILE, metadata={"format": "pt"})
        scaler = self._accelerator.scaler
        state = {
            "optimizer": self._optimizer.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }
        torch.save(state, made / _OPTIMIZER_FILE)
        (made / STATE_FILE).write_text(json.dumps(asdict(self.state)))
        self._checkpoints.publish(self.state.step, self.progress)

    def _load(self, checkpoint: Path) -> None:
        self._model.load_state_dict(load_file(checkpoint / _MODEL_FILE))
        found = torch.load(checkpoint / _OPTIMIZER_FILE, map_location="cpu", weights_only=True)
        self._optimizer.load_state_dict(found["optimizer"])
        if self._accelerator.scaler is not None and found["scaler"] is not None:
            self._accelerator.scaler.load_state_dict(found["scaler"])
        state = read_state(checkpoint)
        self.state.step, self.state.log, self.state.best = state.step, state.log, state.best

    def _stop_non_finite(self, batch: Batch, values: dict[str, float]) -> None:
        """Keep the state before this step as a checkpoint, write down the batch, and stop."""
        step = self.state.step
        names = [name for name, value in values.items() if not math.isfinite(value)]
        culprits = [name for name in names if name != TOTAL] or names
        kept = f"step {step} is the state to start from"
        if step and not self._finite():
            before = self._checkpoints.newest()
            kept = f"the weights of step {step} are not finite either; " + (
                f"the last checkpoint is {before}" if before else "there is no checkpoint before"
            )
        elif step:  # a run that has done no step starts over by itself
            self._save()
            kept = f"the weights of step {step} are kept in {self._checkpoints.folder}"
        keys = [key.tobytes().hex() for key in batch.keys]
        path = self._checkpoints.folder.parent / FAILURE_FILE
        report = {
            "step": step + 1,
            "micro_batch": batch.k,
            "stream": batch.stream,
            "values": {name: repr(value) for name, value in values.items()},
            "keys": keys,
        }
        write_bytes(path, (json.dumps(report, indent=1) + "\n").encode())
        raise NonFiniteLoss(
            f"step {step + 1} (micro-batch {batch.k}, {batch.stream}): "
            f"{', '.join(f'{name} is {values[name]}' for name in culprits)}. {kept}, and "
            f"{path} lists the {len(keys)} texts of the batch by key ({keys[0][:16]} …). "
            f"{self._advice(step)}; other parameters start over, and in the "
            "same folder they replace what is kept"
        )

    def _advice(self, step: int) -> str:
        if step or not self._data.feature_sets:
            return "Lower the learning rate, or train in fp32"
        folders = ", ".join(str(features.path) for features in self._data.feature_sets.values())
        return f"It was the first step, so look at the features: `sightline cache verify` {folders}"

    def _finite(self) -> bool:
        return all(bool(torch.isfinite(weight).all()) for weight in self._model.parameters())


class _Window:
    """Sums since the last log entry; they stay on the device until they are asked for."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, list[Any]] = defaultdict(lambda: [0.0, 0])
        self._loss: Any = 0.0
        self._steps = self._sentences = 0
        self._seconds = self._norm = 0.0

    def add(self, terms: dict[str, Tensor], statistics: dict[str, Tensor], parts: int) -> None:
        """Take the terms of one of ``parts`` micro-batches of a step."""
        self._loss = self._loss + terms[TOTAL].detach() / parts
        figures = {f"loss_{name}": term for name, term in terms.items() if name != TOTAL}
        for name, figure in {**figures, **statistics}.items():
            sums = self._sums[name]
            sums[0] = sums[0] + figure.detach().float()
            sums[1] += 1

    def step(self, norm: float, sentences: int, seconds: float) -> None:
        self._steps, self._norm = self._steps + 1, norm
        self._sentences += sentences
        self._seconds += seconds

    def means(self, rate: float) -> dict[str, float]:
        """The log entry: means of the terms, the last gradient norm and learning rate."""
        entry = {"loss": float(self._loss) / self._steps, "grad_norm": self._norm}
        entry["learning_rate"] = rate
        entry |= {name: float(value) / count for name, (value, count) in self._sums.items()}
        if self._seconds > 0:
            entry["sentences_per_second"] = self._sentences / self._seconds
        return entry


def read_state(checkpoint: Path) -> LoopState:
    """The state of a checkpoint."""
    return LoopState(**json.loads((checkpoint / STATE_FILE).read_bytes()))


def micro_batches(config: TrainConfig, data: TrainingData) -> int:
    """Micro-batches of the whole run."""
    if config.max_steps is not None:
        return config.max_steps * config.gradient_accumulation
    assert config.epochs is not None
    return config.epochs * len(data)


def _dropout_seed(seed: int, k: int) -> int:
    """What dropout is drawn from in micro-batch ``k``."""
    digest = hashlib.sha256(f"dropout {seed} {k}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
