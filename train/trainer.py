"""transformers' Trainer with our batches, our loss, dev selection and whole checkpoints."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import (
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from sightline.errors import SightlineError
from sightline.files import write_bytes
from train.batch import Batch
from train.callbacks import DEV
from train.checkpoints import Best, Checkpoints, Progress, random_state, restore_random_state
from train.data import TrainingData
from train.model import TOTAL, GroundedModel
from train.run_folder import FAILURE_FILE
from train.run_spec import TrainConfig


class NonFiniteLoss(SightlineError):
    """A loss term or a gradient became NaN or infinite; the message says where."""


class SightlineTrainer(Trainer):
    """Trains a `GroundedModel` on `TrainingData`.

    Of transformers' Trainer only this is replaced: where batches come from, what the loss is, how
    the dev score is computed, and how a checkpoint is written. The whole run is one of its epochs,
    so that item k of the data loader is micro-batch k of the run.
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
        callbacks: list[TrainerCallback] | None = None,
    ) -> None:
        self.data = data
        self._objective = model.objective
        self.config = config
        self.micro_batches = micro_batches(config, data)
        self.checkpoints = checkpoints
        self.best = best
        self.progress = progress
        self.dev_score = dev_score
        self._sums: defaultdict[str, list[Any]] = defaultdict(lambda: [0.0, 0])
        self._window = [0.0, 0]  # seconds and rows since the last log entry
        self._clock: float | None = None
        self._step_start: dict[str, Any] = {}
        super().__init__(
            model=model,
            args=training_arguments(
                config, self.micro_batches, seed, device, checkpoints, dev_score
            ),
            train_dataset=data,
            eval_dataset=None if dev_score is None else [],  # pyright: ignore[reportArgumentType]
            callbacks=[_StepStart(self), *(callbacks or [])],
        )
        self.remove_callback(PrinterCallback)
        if self.args.world_size > 1:
            raise SightlineError(
                f"training was started on {self.args.world_size} processes; it runs on one, "
                "because in-batch negatives are not gathered across processes"
            )

    def get_train_dataloader(self) -> DataLoader:
        return DataLoader(
            self.data, batch_size=1, sampler=range(self.micro_batches), collate_fn=_only
        )

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list, None]:
        self._start_clock()  # gathering a batch is part of a step
        batches, _ = super().get_batch_samples(*args, **kwargs)
        return batches, None

    def _get_num_items_in_batch(self, *args: Any) -> None:
        return None  # a term is a mean over its own micro-batch

    def floating_point_ops(self, inputs: Any) -> int:
        return 0  # not counted

    def _prepare_inputs(self, inputs: Any) -> Any:
        return inputs.to(self.args.device)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        batch: Batch = inputs
        terms: dict[str, Tensor] = model(batch)
        total = terms[TOTAL]
        if not torch.isfinite(total):
            self._stop_non_finite(batch, {name: term.item() for name, term in terms.items()})
        figures = {f"loss_{name}": term for name, term in terms.items() if name != TOTAL}
        figures |= self._objective.statistics(batch)
        for name, figure in figures.items():
            sums = self._sums[name]
            sums[0] = sums[0] + figure.detach().float()
            sums[1] += 1
        self._window[1] += len(batch)
        self.progress.sentences += len(batch)
        self._last_batch = batch
        return (total, terms) if return_outputs else total

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        norm: Any = super()._get_grad_norm(model, grad_norm)
        # under fp16 the loss scaler skips such a step and halves the scale
        if self.config.precision != "fp16" and not math.isfinite(float(norm)):
            self._stop_non_finite(self._last_batch, {"gradient norm": float(norm)})
        return norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            self._stop_clock()
            for name, (value, count) in self._sums.items():
                logs[name] = float(value) / count
            seconds, rows = self._window
            if seconds > 0:
                logs["sentences_per_second"] = rows / seconds
            self._sums.clear()
            self._window = [0.0, 0]
        super().log(logs, start_time)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """The dev score; keeps the weights when it is a new best, and may stop the run early."""
        assert self.dev_score is not None
        with self._paused():
            score = self.dev_score()
            if not math.isfinite(score):
                raise SightlineError(
                    f"the dev score of step {self.state.global_step} is {score}: all embeddings "
                    "are alike or not finite; lower the learning rate"
                )
            best = self.state.best_metric
            if best is None or score > best:
                weights = self.model.state_dict()  # pyright: ignore[reportOptionalMemberAccess]
                self.best.keep(weights, self.state.global_step, score)
            metrics = {f"eval_{DEV}": score}
            self.log({DEV: score})
            self.control = self.callback_handler.on_evaluate(
                self.args, self.state, self.control, metrics
            )
            self._stop_early()
        return metrics

    def _stop_early(self) -> None:
        patience = self.config.early_stopping_patience
        scores = [entry[DEV] for entry in self.state.log_history if DEV in entry]
        # counted from the log, which is part of every checkpoint
        if patience is not None and len(scores) - 1 - scores.index(max(scores)) >= patience:
            self.progress.stopped_early = self.state.global_step < self.state.max_steps
            self.control.should_training_stop = True
            self.control.should_save = True

    def _get_output_dir(self, trial: Any) -> str:
        return str(self.checkpoints.part)

    def _save_checkpoint(self, model: Any, trial: Any = None) -> None:
        with self._paused():
            super()._save_checkpoint(model, trial)
            made = self.checkpoints.made(self.state.global_step)
            self.state.best_model_checkpoint = None  # a name under `part`; the best are in `best`
            self.state.save_to_json(str(made / "trainer_state.json"))
            self.checkpoints.publish(self.state.global_step, self.progress)

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        assert output_dir is not None
        assert self.model is not None
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        save_file(
            {name: value.contiguous() for name, value in self.model.state_dict().items()},
            Path(output_dir) / "model.safetensors",
            metadata={"format": "pt"},
        )

    def _stop_non_finite(self, batch: Batch, values: dict[str, float]) -> None:
        """Keep the state before this step as a checkpoint, write down the batch, and stop."""
        step = self.state.global_step
        names = [name for name, value in values.items() if not math.isfinite(value)]
        culprits = [name for name in names if name != TOTAL] or names
        kept = f"step {step} is the state to start from"
        if step and not self._finite():
            before = self.checkpoints.newest()
            kept = f"the weights of step {step} are not finite either; " + (
                f"the last checkpoint is {before}" if before else "there is no checkpoint before"
            )
        elif step:  # a run that has done no step starts over by itself
            self.progress.sentences = self._step_start["sentences"]
            restore_random_state(self._step_start)
            self._save_checkpoint(self.model)
            kept = f"the weights of step {step} are kept in {self.checkpoints.folder}"
        keys = [key.tobytes().hex() for key in batch.keys]
        path = self.checkpoints.folder.parent / FAILURE_FILE
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
        if step or not self.data.feature_sets:
            return "Lower the learning rate, or train in fp32"
        folders = ", ".join(str(features.path) for features in self.data.feature_sets.values())
        return f"It was the first step, so look at the features: `sightline cache verify` {folders}"

    def _finite(self) -> bool:
        assert self.model is not None
        return all(bool(torch.isfinite(weight).all()) for weight in self.model.parameters())

    def note_step_start(self) -> None:
        """Remember the random state, for a step that has to be undone."""
        self._step_start = {**random_state(), "sentences": self.progress.sentences}

    def _start_clock(self) -> None:
        if self._clock is None:
            self._clock = time.perf_counter()

    def _stop_clock(self) -> None:
        if self._clock is not None:
            elapsed = time.perf_counter() - self._clock
            self._window[0] += elapsed
            self.progress.seconds += elapsed
            self._clock = None

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Time spent in here is not training time."""
        self._stop_clock()
        yield
        self._clock = None


class _StepStart(TrainerCallback):
    """Tells the trainer where an optimiser step begins."""

    def __init__(self, trainer: SightlineTrainer) -> None:
        self._trainer = trainer

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._trainer.note_step_start()


def micro_batches(config: TrainConfig, data: TrainingData) -> int:
    """Micro-batches of the whole run."""
    if config.max_steps is not None:
        return config.max_steps * config.gradient_accumulation
    assert config.epochs is not None
    return config.epochs * len(data)


def training_arguments(
    config: TrainConfig,
    batches: int,
    seed: int,
    device: torch.device,
    checkpoints: Checkpoints,
    dev_score: object | None,
) -> TrainingArguments:
    """Our parameters in the words of transformers' Trainer.

    Raises:
        SightlineError: a precision that the device does not have.
    """
    if config.precision == "fp16" and device.type == "cpu":
        raise SightlineError("precision fp16 needs a GPU; on a CPU use fp32 or bf16")
    steps = -(-batches // config.gradient_accumulation)
    arguments = TrainingArguments(
        output_dir=str(checkpoints.folder),
        max_steps=steps,
        per_device_train_batch_size=1,  # an item of the data set is a whole batch
        gradient_accumulation_steps=config.gradient_accumulation,
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        lr_scheduler_type="linear",
        warmup_steps=math.ceil(config.warmup * steps),
        max_grad_norm=config.max_grad_norm,
        optim="adamw_torch_fused",
        bf16=config.precision == "bf16",
        fp16=config.precision == "fp16",
        use_cpu=device.type == "cpu",
        seed=seed,
        logging_steps=config.logging_steps,
        logging_nan_inf_filter=False,
        eval_strategy="no" if dev_score is None else "steps",
        eval_steps=config.eval_steps,
        metric_for_best_model=None if dev_score is None else DEV,
        greater_is_better=None if dev_score is None else True,
        save_strategy="steps",
        save_steps=config.save_steps or config.eval_steps,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    arguments._n_gpu = min(arguments.n_gpu, 1)  # one process, one device: no DataParallel
    return arguments


def _only(items: list[Batch]) -> Batch:
    return items[0]
