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
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from sightline import devices
from sightline.devices import peak_memory
from sightline.errors import SightlineError
from sightline.plugins import OURS, package_of, wrong
from train.batch import Batch
from train.data import TrainingData, make_feed
from train.distributed import Processes
from train.export import on_the_host
from train.gradient_cache import CachedEmbeddings, chunks_of
from train.model import TOTAL, Student
from train.objectives.module import AwaitedTerms, statistics_of
from train.optimizer import learning_rate, make_optimizer
from train.records import DEV, RunState
from train.run_folder import LOOP_FILE, MODEL_FILE, RunFolder
from train.run_spec import TrainConfig
from train.schedule import Stream, micro_batches, optimizer_steps

SAVE_SECONDS = 600.0
"""From one checkpoint to the next, unless `save_steps` says how many steps."""


class NonFiniteLoss(SightlineError):
    """A loss term or a gradient became NaN or infinite; the message says where."""


class Callback:
    """Observes a run; a subclass overrides the methods that it needs."""

    def begin(self, state: RunState, model: Student) -> None:
        """Before the first step, of a resumed run too."""

    def step(self, state: RunState) -> None:
        """After an optimiser step, before anything is logged, scored or saved."""

    def log(self, state: RunState, entry: dict[str, float]) -> None:
        """A log entry was added: means since the last one, or the dev score."""

    def end(self, state: RunState) -> None:
        """After the last step, or the one after which the run stops."""


class Loop:
    """Trains a `Student` on `TrainingData`.

    Args:
        seed: of the run.
        processes: that train together; each has a loop, model and data of its own.
        folder: of the run, which process 0 writes to.
        state: how far the run is; `load` a checkpoint's tensors if it has begun.
        dev_score: scores the current model, in process 0; None trains without selection.
    """

    def __init__(
        self,
        model: Student,
        data: TrainingData,
        config: TrainConfig,
        *,
        seed: int,
        device: torch.device,
        processes: Processes,
        folder: RunFolder,
        state: RunState,
        dev_score: Callable[[], float] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self._data, self._config, self._seed = data, config, seed
        self._batch = make_feed(data, device, config.device_cache)
        self._device, self._processes = device, processes
        self._model = model.to(device)
        self._seed_objective("start", 0)
        model.begin()
        # no DistributedDataParallel: what is exchanged is embeddings, and gradients once a step
        self._optimizer = make_optimizer(model, config)
        self._scaler = GradScaler(device.type) if model.precision == "fp16" else None
        # under fp16 the loss scaler skips a step whose gradient overflows, and halves the scale
        self._norm_counts = self._scaler is None
        self._unchecked_steps: list[StepLosses] = []
        self._waits_each_step = not devices.runs_ahead(device) or self._scaler is not None
        self._started: float | None = None
        self._micro_batches = micro_batches(config, data.schedule)
        self._folder = folder
        self._dev_score = dev_score
        self._callbacks = callbacks
        self._window = LogWindow()
        rows = {"pairs": data.schedule.pairs, "text": data.schedule.text}
        streams: list[Stream] = [name for name in get_args(Stream) if rows[name]]
        self._awaited = AwaitedTerms(model.objective.params, streams)
        self.state = state
        state.steps = optimizer_steps(config, data.schedule)

    def run(self) -> None:
        """Train to the end, or until a callback stops it.

        Raises:
            NonFiniteLoss: a loss or gradient became NaN or infinite; nothing is saved after it.
            LostProcess: another process ended.
        """
        state, config = self.state, self._config
        self._saved = time.monotonic()
        self._processes.broadcast(self._model.trainable_state_dict().values())
        for callback in self._callbacks:
            callback.begin(state, self._model)
        while state.step < state.steps and not state.stopped_early:
            self._step()
            for callback in self._callbacks:
                callback.step(state)
            saves = self._agree_to_save() or state.step == state.steps
            logs = state.step == state.steps or state.step % config.logging_steps == 0
            if saves or logs or self._score_is_due():
                self._check_finite()
                self._stop_clock()
            if logs:
                self._log_window()
            if self._score_is_due():
                self._select()
            if state.stopped_early and not logs:
                self._log_window()
            if saves or state.should_stop:
                self._keep(self._save)
                self._saved = time.monotonic()
            if state.should_stop:
                break
        for callback in self._callbacks:
            callback.end(state)

    def _step(self) -> None:
        """Draw, forward, backward, clip, step: the micro-batches of one optimiser step.

        On a GPU nothing here waits for the device: `_check_finite` does, once in `logging_steps`
        and before anything is saved.
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
        self._processes.add_gradients(self._model.encoder, self._model.objective)
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        norm = nn.utils.clip_grad_norm_(self._model.parameters(), config.max_grad_norm)
        self._unchecked_steps.append((state.step + 1, terms, norm))
        if self._waits_each_step:
            self._check_finite()
        moved = self._update(learning_rate(config, state.step, state.steps))
        state.step += 1
        if moved:
            self._seed_objective("after step", state.step)
            self._model.objective.after_step(self._model)
        state.sentences += sentences
        self._window.step(norm, sentences)
        if self._waits_each_step:
            self._stop_clock()

    def _update(self, rate: float) -> bool:
        """A step of the optimiser; False if fp16's loss scaler skipped it."""
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        if self._scaler is None:
            self._optimizer.step()
            return True
        scale = self._scaler.get_scale()
        self._scaler.step(self._optimizer)
        self._scaler.update()
        return self._scaler.get_scale() >= scale  # an overflow halves it

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
        cached = CachedEmbeddings(self._model.embed, chunks, self._device)
        ranges = {
            name: [block.range_of(rows) for rows in shares] for name, block in batch.blocks.items()
        }
        sizes = {name: [len(share) for share in of_ranks] for name, of_ranks in ranges.items()}
        gathered = processes.gather_blocks(cached.embeddings, sizes)
        embeddings = {  # of all processes, each a leaf with its own gradient
            name: rows.detach().requires_grad_() for name, rows in gathered.items()
        }
        self._seed_objective("forward", batch.k)
        terms = self._model.terms(batch, embeddings)
        self._awaited.take(batch, {k: v for k, v in terms.items() if k != TOTAL}, terms[TOTAL])
        loss = terms[TOTAL] / parts
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        gradients = dict[str, Tensor]()  # of this process's rows
        for name, rows in embeddings.items():
            if rows.grad is not None:
                share = ranges[name][rank]
                gradients[name] = rows.grad[:, share.start : share.stop]
        if not gradients and not self.state.step:
            expected = "terms of the embeddings, with a gradient"
            raise wrong(self._model.objective.params, "terms", [*terms], expected)
        cached.backward(gradients)
        terms = {name: term.detach() for name, term in terms.items()}
        self._window.add(terms, statistics_of(self._model.objective.params, batch), parts)
        return terms

    def _seed_objective(self, when: str, number: int) -> None:
        """Seed what the objective draws, which is the same in every process and after a resume."""
        torch.manual_seed(_seed_of(f"objective {when} {self._seed} {number}"))

    def _check_finite(self) -> None:
        """Wait for the device; stop if a step since the last look was not finite.

        All processes have the same terms and gradients, so they find the same step.
        """
        unseen, self._unchecked_steps = self._unchecked_steps, []
        bad = first_bad(unseen, norm_counts=self._norm_counts)
        if bad is not None:
            raise self._non_finite(*bad)

    def _stop_clock(self) -> None:
        """Count the time since the first step after the last pause."""
        if self._started is not None:
            seconds = time.perf_counter() - self._started
            self._window.seconds += seconds
            self.state.seconds += seconds
            self._started = None

    def _log_window(self) -> None:
        step, steps = self.state.step, self.state.steps
        self._log(self._window.means(learning_rate(self._config, step - 1, steps)))
        self._window = LogWindow()

    def _log(self, entry: dict[str, float]) -> None:
        self.state.log.append({**entry, "step": self.state.step})
        for callback in self._callbacks:
            callback.log(self.state, entry)

    def _agree_to_save(self) -> bool:
        """Whether all save after this step: process 0 says so, or a callback wants them to stop.

        It stops all if it is in one of them. Clocks differ, so that of process 0 counts alone.
        """
        state, every = self.state, self._config.save_steps
        late = time.monotonic() - self._saved >= SAVE_SECONDS
        due = self._processes.is_main and (state.step % every == 0 if every else late)
        decision = self._processes.all_reduce_max(
            2 + 2 * state.signal if state.should_stop else int(due)
        )
        if decision > 1:
            state.should_stop, state.signal = True, decision // 2 - 1
        return decision > 0

    def _score_is_due(self) -> bool:
        """Whether the weights are scored after this step."""
        state = self.state
        if self._dev_score is None:
            return False
        return state.step == state.steps or state.step % self._config.eval_steps == 0

    def _select(self) -> None:
        """Score the weights, keep them when they are a new best, and stop early if none came."""
        assert self._dev_score is not None
        state, score = self.state, self._processes.on_main(self._dev_score)
        if not math.isfinite(score):
            raise SightlineError(
                f"the dev score of step {state.step} is {score}: all embeddings are equal or "
                "not finite; lower the learning rate"
            )
        if state.best is None or score > state.best:
            state.best, state.best_step = score, state.step
            kept = self._model.trainable_state_dict()
            self._keep(lambda: self._folder.keep_best(state, save(on_the_host(kept))))
        self._log({DEV: score})
        patience = self._config.early_stopping_patience
        scores = [entry[DEV] for entry in state.log if DEV in entry]
        # counted from the log, which is part of every checkpoint
        if patience is not None and len(scores) - 1 - scores.index(max(scores)) >= patience:
            state.stopped_early = state.step < state.steps
            state.should_stop = True

    def _keep(self, save: Callable[[], None]) -> None:
        """Let process 0 save, and count the time."""
        began = time.monotonic()
        self._processes.on_main(save)
        self.state.saving_seconds += time.monotonic() - began

    def _save(self) -> None:
        """Write the checkpoint of this step."""
        peaks = self.state.peak_memory
        for name, peak in peak_memory(self._device).items():
            peaks[name] = max(peak, peaks.get(name, 0))
        of_the_loop = {
            "optimizer": self._optimizer.state_dict(),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "window": vars(self._window),
        }
        with self._folder.checkpoint(self.state) as tensors:
            weights = {
                name: value.contiguous()
                for name, value in self._model.trainable_state_dict().items()
            }
            save_file(weights, tensors / MODEL_FILE, metadata={"format": "pt"})
            with (tensors / LOOP_FILE).open("wb") as file:  # of Python's: see `system_error`
                torch.save(of_the_loop, file)

    def load(self, tensors: Path) -> None:
        """Take the tensors of the checkpoint that `state` is from."""
        if not (tensors / MODEL_FILE).is_file():
            raise SightlineError(
                f"{tensors}: process 0 resumes from this checkpoint, but this process cannot see "
                "it; put the run's folder where all processes can see it"
            )
        self._model.load_trainable_state_dict(load_file(tensors / MODEL_FILE))
        saved = torch.load(tensors / LOOP_FILE, map_location="cpu", weights_only=True)
        self._optimizer.load_state_dict(saved["optimizer"])
        if self._scaler is not None and saved["scaler"] is not None:
            self._scaler.load_state_dict(saved["scaler"])
        vars(self._window).update(saved["window"])

    def _non_finite(self, step: int, k: int, values: dict[str, float]) -> NonFiniteLoss:
        """The error that names a bad step."""
        saved, stream = self._folder.state(), self._data.schedule.draw(k).stream
        kept = "there is no checkpoint"
        if saved is not None and saved.step:
            kept = f"the last checkpoint is of step {saved.step}"
        bad = [name for name, value in values.items() if not math.isfinite(value)]
        culprits = [name for name in bad if name != TOTAL] or bad
        terms = ", ".join(f"{name} is {values[name]}" for name in culprits)
        remedy = "Lower the learning rate"
        if (package := package_of(self._model.objective.params)) not in OURS:
            remedy = f"Fix the loss of the package {package}, or lower the learning rate"
        if self._model.precision != "fp32":
            remedy += ", or train with `--precision fp32`"
        return NonFiniteLoss(
            f"step {step} (micro-batch {k}, {stream}): {terms}. Nothing is saved after it; {kept}. "
            f"{remedy}: that starts over. In a first step look at the features: `sightline look "
            "features SET`"
        )


class LogWindow:
    """Sums since the last log entry; they stay on the device until they are needed."""

    def __init__(self) -> None:
        self.sums: dict[str, list[Any]] = {}  # term or statistic → [sum, count]
        self.loss: Any = 0.0
        self.norm: Any = 0.0
        self.steps = self.sentences = 0
        self.seconds = 0.0

    def add(self, terms: dict[str, Tensor], statistics: dict[str, Tensor], parts: int) -> None:
        """Take the terms of one of ``parts`` micro-batches of a step."""
        self.loss = self.loss + terms[TOTAL] / parts
        figures = {f"loss_{name}": term for name, term in terms.items() if name != TOTAL}
        for name, figure in {**figures, **statistics}.items():
            sums = self.sums.setdefault(name, [0.0, 0])
            sums[0] = sums[0] + figure.float()
            sums[1] += 1

    def step(self, norm: Tensor, sentences: int) -> None:
        self.steps, self.norm = self.steps + 1, norm
        self.sentences += sentences

    def means(self, rate: float) -> dict[str, float]:
        """The log entry: means of the terms, the last gradient norm and learning rate."""
        entry = {"loss": float(self.loss) / self.steps, "learning_rate": rate}
        if math.isfinite(norm := float(self.norm)):  # else fp16's loss scaler skipped the step
            entry["grad_norm"] = norm
        means = {name: float(value) / count for name, (value, count) in self.sums.items()}
        entry |= {name: mean for name, mean in means.items() if math.isfinite(mean)}  # as JSON
        if self.seconds > 0:
            entry["sentences_per_second"] = self.sentences / self.seconds
        return entry


StepLosses = tuple[int, Mapping[int, Mapping[str, Tensor]], Tensor]
"""Its number, from 1; micro-batch → loss terms; norm of the gradient."""


def first_bad(
    steps: Sequence[StepLosses], *, norm_counts: bool
) -> tuple[int, int, dict[str, float]] | None:
    """The first step that is not finite, or None. Waits for the device.

    Args:
        norm_counts: a gradient norm that is not finite is bad too.

    Returns:
        Its number, the first micro-batch to blame, and that one's loss terms; or the gradient norm,
        if they are finite.
    """
    values = [value[TOTAL].float() for _, terms, _ in steps for value in terms.values()]
    if norm_counts:
        values += [norm.float() for _, _, norm in steps]
    if not values or torch.isfinite(torch.stack(values)).all():
        return None
    for step, terms, norm in steps:
        for k, losses in terms.items():
            if not torch.isfinite(losses[TOTAL]):
                return step, k, {name: term.item() for name, term in losses.items()}
        if norm_counts and not torch.isfinite(norm):
            return step, max(terms), {"gradient norm": norm.item()}
    return None


def dropout_seed(seed: int, k: int, rank: int) -> int:
    """The seed of dropout in micro-batch ``k``, in process ``rank``."""
    return _seed_of(f"dropout {seed} {k}" + (f" {rank}" if rank else ""))


def _seed_of(words: str) -> int:
    digest = hashlib.sha256(words.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
