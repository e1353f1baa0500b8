"""What a training run still has to do, and how long that takes: its steps, and a probe of a few."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from sightline.devices import device_name
from sightline.errors import SightlineError
from sightline.files import free_bytes
from sightline.hardware import cpu_warning
from sightline.planning import (
    PROBE_PIECES,
    PROBE_SECONDS,
    Planning,
    Timing,
    WorkPlan,
    in_bytes,
    in_time,
)
from sightline.progress import Say
from train.checkpoints import Progress
from train.embed import Embedder
from train.evaluate.similarity import GradedPairs
from train.loop import Callback, Loop, LoopState, NonFiniteLoss, micro_batches, read_state
from train.model import GroundedModel
from train.precision_probe import probe as probe_precision
from train.precision_probe import stored
from train.processes import Processes
from train.run_folder import RunFolder
from train.run_inputs import (
    RunInputs,
    build_model,
    checkpoint_to_resume,
    earlier_probe,
    rows_at_once,
)
from train.run_spec import AUTO
from train.run_summary import RunSummary
from train.selection import dev_score

_NEVER = 1 << 40
_DEV_PAIRS = 128
"""Pairs of the dev set that a probe scores; the time of all follows."""
_COPIES = 8
"""A checkpoint holds the weights three times (with the optimiser's moments), and an older one goes
after the newer is there; then come the best weights and the result."""


@dataclass(frozen=True)
class _Timed:
    """What a probe measured: the steps, and seconds for a dev score."""

    steps: Timing
    score: float


def plan_run(
    inputs: RunInputs, folder: RunFolder, processes: Processes, planning: Planning
) -> None:
    """Add the plan of a run to ``planning``, without touching its folder.

    Raises:
        SightlineError: the checkpoint is damaged, or several processes were started.
    """
    if processes.count > 1:
        raise SightlineError(
            f"a plan is made by one process, but {processes.count} were started; run `sightline "
            "plan` without a launcher"
        )
    spec, remarks = inputs.spec, list[str]()
    folder.output.check_place()
    if spec.train.precision == AUTO:
        inputs = _with_precision(inputs, folder, processes, planning, remarks.append)
    steps = -(-micro_batches(spec.train, inputs.data) // spec.train.gradient_accumulation)
    finished = folder.finished(inputs.digest, inputs.code)
    done = finished.steps if finished else _resumed(inputs, folder, remarks.append)
    before = None if finished else RunSummary.load(folder.path)
    if before is not None:
        why = folder.outdated(before, inputs.digest, inputs.code)
        remarks.append(f"replaces the finished run: {why}")
    # a finished run may have stopped early
    left = 0 if finished else steps - done
    timed, size = None, None
    if left:
        with _own_randomness(inputs.device):
            model, tokenizer = build_model(inputs, processes)
        embedder = Embedder(model.encoder, tokenizer, spec.student.pooling)
        size = 4 * sum(weight.numel() for weight in model.parameters())
        remarks += _remarks(inputs, left, size, folder)
        if planning.probes(spec.out, left):
            timed = _probed(inputs, processes, model, embedder, steps, planning, remarks.append)
    else:
        planning.probes(spec.out, left)
    scores = 0 if inputs.dev is None else _scores(done, steps, spec.train.eval_steps)
    seconds = None if left else 0.0
    if timed is not None:
        seconds = timed.steps.seconds(left) + scores * timed.score
        if scores:
            share = in_time(scores * timed.score)
            remarks.insert(0, f"{share} of it for {scores:,} dev scores")
    planning.found.append(
        WorkPlan(
            out=spec.out.as_posix(),
            unit="steps",
            there=done,
            left=left,
            write_bytes=size if left else 0,
            room_bytes=None if size is None else _COPIES * size,
            device=device_name(inputs.device),
            seconds=seconds,
            remarks=tuple(remarks),
        )
    )


def _with_precision(
    inputs: RunInputs, folder: RunFolder, processes: Processes, planning: Planning, say: Say
) -> RunInputs:
    """``inputs`` with the precision that the run has or would choose; nothing is stored."""
    rows = rows_at_once(inputs.spec, processes)
    probe = earlier_probe(inputs, folder) or stored(inputs.spec, inputs.device, rows)
    if probe is None and planning.probe is not False:
        probe = probe_precision(inputs.spec, inputs.data, inputs.device, rows)
    if probe is not None:
        say(f"precision auto: {probe}")
        return inputs.of_precision(probe.choice, probe)
    say("precision auto: not chosen yet")
    return inputs.of_precision("fp32")


def _resumed(inputs: RunInputs, folder: RunFolder, say: Say) -> int:
    """Steps of the checkpoint that the run would resume from."""

    def tell(line: str) -> None:
        say(line.removeprefix(f"{inputs.spec.run}: "))

    name = checkpoint_to_resume(inputs, folder, tell)
    return read_state(folder.checkpoints.folder / name).step if name else 0


def _scores(done: int, steps: int, every: int) -> int:
    """Dev scores after steps ``done + 1`` to ``steps``: one ``every`` so many, and the last."""
    return steps // every - done // every + (steps % every != 0)


def _remarks(inputs: RunInputs, left: int, size: int, folder: RunFolder) -> Iterator[str]:
    train = inputs.spec.train
    every = train.save_steps or train.eval_steps
    yield f"{-(-left // every):,} checkpoints of {in_bytes(3 * size)}, whose writing is not timed"
    if train.early_stopping_patience is not None:
        yield "it may stop early"
    if warning := cpu_warning(inputs.device.type):
        yield f"warning: {warning}"
    free = free_bytes(folder.output.folder)
    if _COPIES * size > free:
        yield f"warning: the disk needs {in_bytes(_COPIES * size)} and has {in_bytes(free)} free"


def _own_randomness(device: torch.device) -> AbstractContextManager[None]:
    return torch.random.fork_rng([device] if device.type == "cuda" else [])


class _Enough(Exception):
    """Ends the steps of a probe before anything of them is logged, scored or saved."""


class _Clock(Callback):
    """Notes when each step was done, and ends the loop."""

    def __init__(self, planning: Planning, device: torch.device) -> None:
        self._now, self._device = planning.clock, device
        self._begin = 0.0
        self.marks: list[tuple[float, float]] = []

    def begin(self, state: LoopState, model: GroundedModel) -> None:
        self._begin = self._now()

    def step(self, state: LoopState) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        since = self._now() - self._begin
        self.marks.append((since, 1.0))
        few = len(self.marks) < min(2, state.steps)
        if len(self.marks) == min(PROBE_PIECES, state.steps) or (
            since >= PROBE_SECONDS and not few
        ):
            raise _Enough


def _probed(
    inputs: RunInputs,
    processes: Processes,
    model: GroundedModel,
    embedder: Embedder,
    steps: int,
    planning: Planning,
    say: Say,
) -> _Timed | None:
    """Time steps from the first on, of a model that is then dropped; None if a loss is not finite.

    How long a step takes does not depend on how far the run is. The loop writes nothing but what a
    loss that is not finite leaves, which goes to a temporary folder.
    """
    spec = inputs.spec
    key = spec.model_dump_json(exclude={"seed", "out", "run", "precision_file"})
    if key in planning.timings and f"{key} score" in planning.timings:  # another seed
        return _Timed(planning.timings[key], planning.timings[f"{key} score"].per_weight)
    never = {"eval_steps": _NEVER, "save_steps": None, "logging_steps": _NEVER}
    clock = _Clock(planning, inputs.device)
    with TemporaryDirectory(prefix="sightline-plan-") as made, _own_randomness(inputs.device):
        nowhere = RunFolder(Path(made))
        loop = Loop(
            model,
            inputs.data,
            spec.train.model_copy(update=never),
            seed=spec.seed,
            device=inputs.device,
            processes=processes,
            checkpoints=nowhere.checkpoints,
            best=nowhere.best,
            progress=Progress(inputs.digest),
            callbacks=[clock],
        )
        try:
            loop.run()
        except _Enough:
            pass
        except NonFiniteLoss:
            say(f"warning: the loss of step {len(clock.marks) + 1} is not finite; no time is known")
            return None
    timing = Timing(tuple(clock.marks))
    score = _score_seconds(inputs.dev, embedder, spec.train.eval_batch_size, planning)
    planning.timings |= {key: timing, f"{key} score": Timing(((score, 1.0),))}
    return _Timed(timing, score)


def _score_seconds(
    dev: GradedPairs | None, embedder: Embedder, batch_size: int, planning: Planning
) -> float:
    """Seconds of a dev score, from one of evenly spread pairs."""
    if dev is None or not len(dev):
        return 0.0
    rows = range(0, len(dev), max(1, len(dev) // _DEV_PAIRS))
    first, second = (tuple(side[i] for i in rows) for side in (dev.first, dev.second))
    begin = planning.clock()
    dev_score(embedder, GradedPairs(dev.name, first, second, dev.gold[list(rows)]), batch_size)
    return (planning.clock() - begin) * len(dev) / len(rows)
