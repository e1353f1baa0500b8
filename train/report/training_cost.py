"""What the training of each run took: time, memory and size, from its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from train.evaluate.results import NOT_TRAINED, RunResult, TrainingSummary
from train.report.table import Cell, cell_of

T = TypeVar("T")


@dataclass(frozen=True)
class TrainingCost:
    """One run over its seeds. What a result does not hold is None or empty.

    Attributes:
        minutes: of the training steps alone, without dev scores and exports.
        peak_memory: bytes, the largest over the seeds.
        memory_of: "GPU" if there was one, otherwise "process"; both if the seeds differ.
        parameters: trained ones, of encoder and heads; several values if the seeds differ.
        devices: the GPU, or the model of the CPU.
        processes: how many trained it: 2, or "1, then 2" if it was resumed with more.
        missing: what the results do not hold.
    """

    run: str
    seeds: tuple[int, ...]
    minutes: Cell
    sentences_per_second: Cell
    steps: Cell
    peak_memory: int | None
    memory_of: tuple[str, ...]
    parameters: tuple[int, ...]
    devices: tuple[str, ...]
    precisions: tuple[str, ...]
    processes: tuple[str, ...]
    missing: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As a JSON object, unrounded."""
        return asdict(self)


def training_costs(results: Sequence[RunResult]) -> tuple[TrainingCost, ...]:
    """A row for each run that Sightline trained; none if no result holds anything about it."""
    runs: dict[str, list[RunResult]] = {}
    for result in results:
        if result.objective != NOT_TRAINED:
            runs.setdefault(result.run, []).append(result)
    if not any(each.training for members in runs.values() for each in members):
        return ()
    return tuple(_cost(name, members) for name, members in runs.items())


def notes_on_training(costs: Sequence[TrainingCost]) -> list[str]:
    """What is missing, and which figures of different runs do not measure the same thing."""
    missing: dict[tuple[str, ...], list[str]] = {}
    for cost in costs:
        if cost.missing:
            missing.setdefault(cost.missing, []).append(cost.run)
    notes = [
        f"the results of {', '.join(runs)} do not hold {', '.join(what)} of the training; "
        "evaluate them again"
        for what, runs in missing.items()
    ]
    found: dict[str, list[str]] = {}
    for cost in costs:
        for device in cost.devices:
            found.setdefault(device, []).append(cost.run)
    if len(found) > 1:
        of_each = "; ".join(f"{device}: {', '.join(runs)}" for device, runs in found.items())
        notes.append(
            f"the runs were trained on different devices ({of_each}): minutes, sentences per "
            "second and memory are not comparable"
        )
    return notes


def _cost(name: str, members: list[RunResult]) -> TrainingCost:
    members = sorted(members, key=lambda result: result.seed)
    every = [result.training for result in members]
    seconds = _each(every, lambda one: one.seconds)
    rates = _each(every, lambda one: one.sentences_per_second)
    memory = _each(every, lambda one: one.peak_memory_bytes)
    parameters = _each(every, lambda one: one.trained_parameters)
    devices = _each(every, lambda one: one.device or None)
    names = _each(every, lambda one: one.processor or one.device or None)
    precisions = _each(every, lambda one: one.precision or None)
    processes = _each(every, lambda one: ", then ".join(map(str, one.processes)) or None)
    held = {
        "the minutes": seconds,
        "the sentences per second": rates,
        "the peak memory": memory,
        "the number of parameters": parameters,
        "the device": devices,
        "the precision": precisions,
        "the number of processes": processes,
    }
    return TrainingCost(
        run=name,
        seeds=tuple(result.seed for result in members),
        minutes=_cell([each / 60 for each in seconds]),
        sentences_per_second=_cell(rates),
        steps=_cell(_each(every, lambda one: one.steps)),
        peak_memory=max(memory, default=None),
        memory_of=tuple(dict.fromkeys(map(_memory_of, devices))) if memory else (),
        parameters=tuple(dict.fromkeys(parameters)),
        devices=tuple(dict.fromkeys(names)),
        precisions=tuple(dict.fromkeys(precisions)),
        processes=tuple(dict.fromkeys(processes)),
        missing=tuple(what for what, values in held.items() if not values),
    )


def _each(
    every: Sequence[TrainingSummary | None], get: Callable[[TrainingSummary], T | None]
) -> list[T]:
    """The value of every seed; none at all if one lacks it: never a mean over the others."""
    values = [None if one is None else get(one) for one in every]
    found = [value for value in values if value is not None]
    return found if len(found) == len(values) else []


def _cell(values: Sequence[float]) -> Cell:
    return cell_of(values) if values else Cell(None, None, reason="the results do not hold it")


def _memory_of(device: str) -> str:
    return "process" if device in ("cpu", "mps") else "GPU"
