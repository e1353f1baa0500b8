"""What a table or figure takes: commands, data that is missing here, and steps of training."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline import graph
from pipeline.configure import CONFIGS, GRAPH_FILE, configuration
from pipeline.params import Params, validate_params
from sightline.errors import SightlineError
from train.report.papers import MINUTES, Entry, PaperRow, every_entry

if TYPE_CHECKING:
    from train.report.paper_table import ExpectedRun
    from train.run_spec import RunSpec

SIZES = {
    "wiki": 1_000_000,
    "flickr30k": 29_783,
    "coco": 82_783,
    "flickr30k-coco": 112_566,
    "cc12m": 1_000_000,
    "cc12m-2": 1_000_000,
}
"""Sentences, or training images, as the papers have them (MCSE table 3, KDMCSE table 4)."""
_CAPTIONS = 5  # of an image, where a run reads all of them
_MTEB = "mteb"

HOW = (
    "Steps: from each configuration, epochs × batches of the papers' 1,000,000 sentences, 29,783 "
    "(Flickr30k) or 82,783 (COCO) images, one caption or five of each; once per seed."
)
"""How `Cost` is estimated."""
APART = (
    "Configurations share names of runs: give each a clone of its own, and name all their results: "
    "`sightline paper mcse:1 --results one/results --results other/results`."
)


@dataclass(frozen=True)
class Cost:
    """The trainings of an entry.

    Attributes:
        runs: of the entry; `trainings`: times their seeds; `steps`: of all of them.
        configured: trainings of its configurations, of which these are a part.
        minutes: "configuration run" → minutes of one seed, where a paper prints them.
    """

    runs: int
    trainings: int
    steps: int
    configured: int
    minutes: Mapping[str, float]

    def __str__(self) -> str:
        if not self.runs:
            return "no training"
        each = "1 run" if self.runs == 1 else f"{self.runs} runs"
        text = f"{each}, {self.trainings} trainings with all seeds, {_short(self.steps)} steps"
        if self.configured > self.trainings:
            text += f" (the configurations have {self.configured} trainings)"
        if self.minutes:
            printed = ", ".join(f"{run} {each:g}" for run, each in self.minutes.items())
            text += f"; minutes of a training on one A100 (DALR table 7): {printed}"
        return text


class Plans:
    """Answers for entries; every configuration and evaluation set is read once."""

    def __init__(self) -> None:
        here = CONFIGS.is_dir()
        root = Path() if here else Path(__file__).parents[3]
        self._configs, self._graph_file = root / CONFIGS, root / GRAPH_FILE
        self._params: dict[str, Params] = {}
        self._specs: dict[tuple[str, str], RunSpec] = {}
        self._states: dict[str, str] = {}

    def params(self, name: str) -> Params:
        """A configuration of this folder, or else of the clone that Sightline runs from."""
        if name not in self._params:
            given = configuration(name, self._configs, self._graph_file)
            self._params[name] = validate_params(given, name)
        return self._params[name]

    def spec(self, name: str, run: str) -> RunSpec:
        """The first seed of a run."""
        if (name, run) not in self._specs:
            params = self.params(name)
            self._specs[name, run] = graph.run_spec(params, run, params.graph.seeds[0])
        return self._specs[name, run]

    def expected(self, name: str, run: str) -> ExpectedRun:
        """What results of a run record."""
        from train.objectives import make_objective
        from train.report.paper_table import ExpectedRun

        spec = self.spec(name, run)
        data = {} if spec.pairs is None else {"pairs": spec.pairs.captions.parent.name}
        if spec.text is not None:
            data["text"] = spec.text.sentences.parent.name
        parameters: dict[str, Any] = {
            "objective": make_objective(spec.objective, spec.parameters).describe(),
            "student": spec.student.model_dump(mode="json"),
            "train": spec.train.model_dump(mode="json"),
        }
        return ExpectedRun(parameters, data)

    def configurations(self, entry: Entry) -> list[str]:
        """Names of those that an entry needs, each once."""
        return list(dict.fromkeys([*(name for name, _ in entry.trainings), *entry.configurations]))

    def commands(self, entry: Entry) -> list[str]:
        """What produces an entry, in order; each configuration in a folder of its own."""
        found: list[str] = []
        if entry.kind != "settings":
            for name in dict.fromkeys(name for name, _ in entry.trainings):
                found += [f"sightline configure {name}", "sightline repro --pull"]
            found += dict.fromkeys(row.command for row in entry.rows if row.command)
        return [*found, *entry.commands]

    def command_of(self, row: PaperRow) -> str:
        """What trains the seeds of a row in its configuration, or scores its model."""
        if not row.configuration:
            return row.command
        system = self.params(row.configuration).run(row.run).system
        return f"sightline repro --pull 'train-{system}@{row.run}-*'"

    def cost(self, entry: Entry) -> Cost:
        """The trainings of an entry; settings and illustrations take none."""
        from train.schedule import Schedule

        if entry.kind == "settings":
            return Cost(0, 0, 0, 0, {})
        trainings = steps = 0
        for name, run in entry.trainings:
            spec, seeds = self.spec(name, run), len(self.params(name).graph.seeds)
            pairs, text = _sizes(spec, self.expected(name, run))
            if spec.train.max_steps is not None:
                own = spec.train.max_steps
            else:
                epoch = Schedule(pairs, text, spec.train.batch_size, 0).steps_per_epoch
                own = (spec.train.epochs or 0) * epoch // spec.train.gradient_accumulation
            trainings += seeds
            steps += seeds * own
        every = [self.params(name) for name in dict.fromkeys(n for n, _ in entry.trainings)]
        configured = sum(len(each.runs) * len(each.graph.seeds) for each in every)
        printed = self._minutes
        minutes = {" ".join(key): printed[key] for key in entry.trainings if key in printed}
        return Cost(len(entry.trainings), trainings, steps, configured, minutes)

    def missing(self, entry: Entry) -> list[str]:
        """Files and folders that the entry needs and that are not here."""
        found: list[str] = []
        for name in self.configurations(entry):
            if entry.kind == "settings":
                break
            params = self.params(name)
            trained = any(each == name for each, _ in entry.trainings)
            wanted = _data_sets(params) if trained else entry.needs
            for data in wanted:
                if data in params.datasets:
                    found += _absent(params.dataset(data).source.inputs())
            if trained:
                found += self._evaluation(params)
        if any("--data data/senteval" in command for command in self.commands(entry)):
            found += _absent([Path("data/senteval/downstream")])
        if _MTEB in entry.needs and self._task(_MTEB, {}):
            found.append("MTEB's data sets (docs/mteb.md)")
        return list(dict.fromkeys(found))

    def _evaluation(self, params: Params) -> Iterator[str]:
        yield from _absent([params.evaluation.dev])
        for name, task in params.evaluation.tasks.items():
            if not task.data.is_relative_to("data/datasets"):  # which the graph makes
                yield from self._task(task.task or name, task.settings)

    def _task(self, name: str, settings: Mapping[str, Any]) -> list[str]:
        """The data of a task, if it cannot be evaluated here."""
        from train.evaluate.task import make_task

        data = settings.get("data")
        if data is not None and not Path(data).exists():
            return [str(data)]
        key = f"{name} {sorted(settings.items(), key=str)}"
        if key not in self._states:
            rest = {each: value for each, value in settings.items() if each != "task"}
            try:
                make_task(name, rest)
                self._states[key] = ""
            except SightlineError as error:
                self._states[key] = f"{name}: {str(error).splitlines()[0]}"
        return [self._states[key]] if self._states[key] else []

    @cached_property
    def _minutes(self) -> dict[tuple[str, str], float]:
        return {
            (row.configuration, row.run): row.scores[MINUTES]
            for entry in every_entry()
            for row in entry.rows
            if MINUTES in row.scores
        }


def _data_sets(params: Params) -> list[str]:
    """Data sets that a configuration reads from outside."""
    wanted, found = [params.graph.pairs, params.graph.text], []
    while wanted:
        name = wanted.pop(0)
        if name in params.joined:
            wanted += [params.joined[name].first, params.joined[name].second]
        else:
            found.append(name)
    return found


def _sizes(spec: RunSpec, expected: ExpectedRun) -> tuple[int, int]:
    """Pairs and sentences of a training."""
    captions = _CAPTIONS if expected.parameters["objective"].get("caption") == "all" else 1
    pairs = SIZES[expected.data["pairs"]] * captions if spec.pairs is not None else 0
    return pairs, SIZES[expected.data["text"]] if spec.text is not None else 0


def _absent(paths: Sequence[Path]) -> list[str]:
    """Those that are not there; of several below a folder that is not there, the folder."""
    gone = [path for path in paths if not path.exists()]
    if len(gone) > 1 and not (above := Path(os.path.commonpath(gone))).exists():
        return [above.as_posix()]
    return [path.as_posix() for path in gone]


def _short(count: int) -> str:
    return f"{count / 1e6:,.1f} million" if count >= 1e6 else f"{count:,}"
