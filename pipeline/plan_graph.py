"""The plan of the whole graph: every stage of params.yaml that runs a model, in its order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pipeline import graph, stages
from pipeline.cache.record import Kind
from pipeline.datasets.source import RECORD
from pipeline.params import Params
from sightline.errors import SightlineError
from sightline.planning import Planning, WorkPlan, in_bytes, in_time


@dataclass(frozen=True)
class StagePlan:
    """What one stage would do.

    Attributes:
        stage: its command, after ``sightline stage``.
        sets: what it writes.
        problem: why it cannot be planned, such as an input that an earlier stage has yet to make;
            empty if it can.
    """

    stage: str
    sets: tuple[WorkPlan, ...] = ()
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return f"{self.stage}: cannot be planned yet: {self.problem}"
        return "\n".join(map(str, self.sets))


@dataclass(frozen=True)
class GraphPlan:
    """Every stage, and the sums of what is known."""

    stages: tuple[StagePlan, ...]

    @property
    def sets(self) -> list[WorkPlan]:
        """What all stages write."""
        return [each for stage in self.stages for each in stage.sets]

    @property
    def write_bytes(self) -> int:
        """Bytes of the sets whose size is known."""
        return sum(each.write_bytes or 0 for each in self.sets)

    @property
    def seconds(self) -> float | None:
        """Seconds of the sets that were timed; None if none was."""
        known = [each.seconds for each in self.sets if each.seconds is not None]
        return sum(known) if known else None

    @property
    def complete(self) -> bool:
        """Whether the sums hold everything."""
        timed = all(each.seconds is not None for each in self.sets)
        sized = all(each.write_bytes is not None for each in self.sets)
        return timed and sized and not any(stage.problem for stage in self.stages)

    def to_json(self) -> dict[str, Any]:
        """As a JSON object."""
        shown = [
            {
                "stage": each.stage,
                "problem": each.problem,
                "sets": [plan.to_json() for plan in each.sets],
            }
            for each in self.stages
        ]
        seconds = None if self.seconds is None else round(self.seconds, 3)
        return {
            "stages": shown,
            "write_bytes": self.write_bytes,
            "seconds": seconds,
            "complete": self.complete,
        }

    def __str__(self) -> str:
        parts = [f"{in_bytes(self.write_bytes)} to write"]
        if self.seconds is not None:
            parts.append(f"about {in_time(self.seconds)}")
        least = "" if self.complete else "at least "
        return "\n".join([*map(str, self.stages), f"in all: {least}{', '.join(parts)}"])


def plan_graph(params: Params, planning: Planning) -> GraphPlan:
    """Plan every stage; one that lacks an input does not keep the others from being planned.

    Raises:
        SightlineError: a probe was asked for, and no stage has anything to compute.
    """
    anywhere = replace(planning, probe=None if planning.probe else planning.probe)
    found = _without_files(params)
    for name, command in _stages(params):
        try:
            found.append(StagePlan(name, tuple(anywhere.of(command))))
        except SightlineError as error:
            found.append(StagePlan(name, problem=str(error)))
    planned = GraphPlan(tuple(found))
    if not any(stage.problem for stage in found):
        planning.probes("params.yaml", sum(each.left for each in planned.sets))
    return planned


def _without_files(params: Params) -> list[StagePlan]:
    """The data sets that are neither prepared nor can be, because their files are missing."""
    return [
        StagePlan(f"prepare {name}", problem=f"{missing[0]}: no such file or folder; put it there")
        for name, dataset in params.datasets.items()
        if not (graph.dataset_folder(name) / RECORD).is_file()
        and (missing := [path for path in dataset.source.inputs() if not path.exists()])
    ]


def _stages(params: Params) -> Iterator[tuple[str, Callable[[], object]]]:
    chosen = params.graph
    for dataset in chosen.grounded:
        yield f"ground {dataset}", partial(stages.ground, params, dataset)
    features: list[tuple[str, Kind, list[str]]] = [
        ("image-features", "image", chosen.image_encoders),
        ("object-features", "object", chosen.object_encoders),
        ("text-features", "text", chosen.text_encoders),
        ("teachers", "teacher", chosen.teachers),
    ]
    for stage, kind, encoders in features:
        for encoder in encoders:
            work = partial(stages.features, params, chosen.pairs, kind, encoder)
            yield f"{stage} {chosen.pairs} {encoder}", work
    for run in params.runs:
        for seed in chosen.seeds:
            yield f"train {run} {seed}", partial(stages.train, params, run, seed)
