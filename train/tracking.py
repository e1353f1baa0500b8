"""Trackers: what shows a run while it trains, such as TensorBoard, Weights & Biases or MLflow.

A tracker is one of accelerate's, or another package's subclass of its `GeneralTracker`. It is told
every entry of the run's log once. What it was told is kept beside the run, so a resumed run goes on
in its own curve. A tracker that fails is left out, with a warning, until the run is resumed.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from accelerate.state import PartialState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker, get_available_trackers
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sightline.errors import SightlineError
from sightline.machine.progress import Say
from sightline.settings import Registry, flatten
from train.loop import Callback
from train.model import Student
from train.records import RunState
from train.run_inputs import RunInputs

TRACKERS = Registry(
    "tracker",
    "sightline.trackers",
    {name: f"{kind.__module__}:{kind.__name__}" for name, kind in LOGGER_TYPE_TO_CLASS.items()},
)
"""Those of accelerate, and entry points of other packages."""

RECORD = "trackers.json"
PROJECT = "sightline"
"""Where a service has projects or experiments, and its own settings name none."""


class TrackedRun(BaseModel):
    """What a tracker has of a run.

    Attributes:
        id: under which it knows the run.
        last: metric → the last step that it was told.
    """

    model_config = ConfigDict(extra="forbid")

    id: str
    last: dict[str, int] = {}


class TrackersRecord(BaseModel):
    """What all trackers have of a run.

    Attributes:
        spec_digest, code: of the run, as in `RunState`.
        ended: the run has done its last step.
        curves: name of a tracker → what it has.
    """

    model_config = ConfigDict(extra="forbid")

    schema_: Literal["sightline.trackers/1"] = Field(default="sightline.trackers/1", alias="schema")

    spec_digest: str
    code: str
    ended: bool = False
    curves: dict[str, TrackedRun] = {}


class Tracking(Callback):
    """Tells trackers the log of a run, in process 0.

    Args:
        names: of trackers.
        folder: beside the run, for what they write and what they were told.
        say: takes warnings, and where a tracker writes.
    """

    def __init__(self, names: Sequence[str], inputs: RunInputs, folder: Path, say: Say) -> None:
        self._kinds: dict[str, Any] = {name: tracker_class(name) for name in names}
        self._inputs, self._folder, self._say = inputs, folder, say
        self._trackers: dict[str, GeneralTracker] = {}

    def begin(self, state: RunState, model: Student) -> None:
        self._told = self._told_before(state)
        for name in self._kinds:
            self._attempt(name, partial(self._start, name))
        for entry in state.log:
            self._tell(int(entry["step"]), entry)
        self._save()

    def log(self, state: RunState, entry: dict[str, float]) -> None:
        self._tell(state.step, entry)
        self._save()

    def end(self, state: RunState) -> None:
        self._told.ended = state.step == state.steps or state.stopped_early
        self._save()

    def close(self) -> None:
        """Let the trackers finish; safe to call more than once."""
        for name, tracker in [*self._trackers.items()]:
            self._attempt(name, tracker.finish)
        self._trackers.clear()

    def _told_before(self, state: RunState) -> TrackersRecord:
        """What they were told of this run; nothing if it starts over."""
        file, new = (
            self._folder / RECORD,
            TrackersRecord(spec_digest=state.spec_digest, code=state.code),
        )
        if not file.is_file():
            return new
        try:
            told = TrackersRecord.model_validate_json(file.read_bytes())
        except ValidationError:
            self._say(f"{file}: damaged, so every tracker begins a new curve")
            return new
        same = (told.spec_digest, told.code) == (new.spec_digest, new.code)
        return told if same and (state.step or not told.ended) else new

    def _start(self, name: str) -> None:
        spec, kind = self._inputs.spec, self._kinds[name]
        is_new = (curve := self._told.curves.get(name)) is None
        curve = curve or TrackedRun(id=secrets.token_hex(16))
        run, folder = f"{spec.run}-seed-{spec.seed}", self._folder / name
        has_folder = name == "dvclive" or (kind.requires_logging_directory and name != "aim")
        where = f" in {folder}" if has_folder else ""
        self._say(f"{spec.run}: tracked by {name}{where}")  # first: it may wait for its service
        PartialState()  # which the log of accelerate's trackers needs
        arguments = _arguments(run, folder, curve, is_new).get(name)
        if arguments is None:
            tracker = kind(run, *([folder] if has_folder else []))
        else:
            tracker = kind(**arguments)
        tracker.start()
        if name in _GIVES_AN_ID:
            curve.id = str(attrgetter(_GIVES_AN_ID[name])(tracker))
        if is_new:
            settings = spec.model_dump(mode="json")
            settings["parameters"] = self._inputs.objective.describe()
            flat = flatten(settings)
            for setting, value in flat.items():
                if not isinstance(value, bool | int | float | str):
                    flat[setting] = json.dumps(value)
            tracker.store_init_configuration(flat)
        self._trackers[name], self._told.curves[name] = tracker, curve

    def _tell(self, step: int, entry: Mapping[str, float]) -> None:
        for name, tracker in [*self._trackers.items()]:
            last = self._told.curves[name].last
            values = {
                metric: value
                for metric, value in entry.items()
                if metric != "step" and step > last.get(metric, 0)
            }
            if values and self._attempt(name, partial(tracker.log, dict(values), step=step)):
                last |= dict.fromkeys(values, step)

    def _attempt(self, name: str, act: Callable[[], Any]) -> bool:
        """Whether ``act`` did not fail; a tracker that fails is told nothing more."""
        try:
            with redirect_stdout(sys.stderr):
                act()
            return True
        except Exception as error:
            self._trackers.pop(name, None)
            package = self._kinds[name].__module__.partition(".")[0]
            whose = "" if name in TRACKERS.built_in else f" of the package {package!r}"
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self._say(
                f"{self._inputs.spec.run}: warning: the tracker {name}{whose} failed ({reason}); "
                "the run goes on without it, and tells it what it missed if it is resumed"
            )
            return False

    def _save(self) -> None:
        """Replace the record; what a crash of the machine takes, trackers are told again."""
        part = self._folder / f"{RECORD}.part"
        part.write_text(self._told.model_dump_json(indent=1, by_alias=True) + "\n")
        part.replace(self._folder / RECORD)


def tracker_class(name: str) -> type[GeneralTracker]:
    """The tracker called ``name``."""
    kind = TRACKERS.subclass(name, GeneralTracker)
    if name in TRACKERS.built_in and name not in map(str, get_available_trackers()):
        raise SightlineError(
            f"tracker {name}: its package is not installed; run: pip install {name}"
        )
    return kind


_GIVES_AN_ID = {"mlflow": "tracker.info.run_id", "aim": "tracker.hash"}
"""Services that choose the id of a run → where their tracker has it."""


def _arguments(
    run: str, folder: Path, curve: TrackedRun, is_new: bool
) -> dict[str, dict[str, Any]]:
    """What each of accelerate's trackers is made with, so that it goes on with ``curve``.

    Args:
        run: what the run is called.
        folder: of the tracker.
        is_new: to the tracker.
    """
    run_id = None if is_new else curve.id
    return {
        "tensorboard": {
            "run_name": folder.name,
            "logging_dir": folder.parent,
            "purge_step": 1 + max(curve.last.values(), default=-1),  # hides what is there from it
        },
        "wandb": {
            "run_name": os.environ.get("WANDB_PROJECT", PROJECT),
            "name": run,
            "id": curve.id,
            "resume": "allow",
        },
        "trackio": {"run_name": PROJECT, "name": f"{run}-{curve.id[:8]}", "resume": "allow"},
        "swanlab": {
            "run_name": PROJECT,
            "experiment_name": run,
            "id": curve.id,
            "resume": "allow",
        },
        "comet_ml": {"run_name": PROJECT, "experiment_key": curve.id},
        "mlflow": {"experiment_name": PROJECT, "run_name": run, "run_id": run_id},
        "aim": {"run_name": run, "logging_dir": ".", "run_hash": run_id},
        "clearml": {"run_name": PROJECT, "task_name": run},
        "dvclive": {
            "dir": str(folder),
            "resume": not is_new,
            "save_dvc_exp": False,
            "dvcyaml": None,
        },
    }
