"""The folder of a training run: whose it is, what of it is finished, and one run at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.cache import SightlineError
from pipeline.cache.atomic import remove_leftovers
from pipeline.cache.lock import locked
from train.checkpoints import Best, Checkpoints
from train.export import HEADS_FILE, MODEL_FOLDER
from train.summary import FILE_NAME, RunSummary

LIVE_FOLDER = "dvclive"
FAILURE_FILE = "failure.json"
_BEST_FILE = "best.safetensors"
_CHECKPOINTS_FOLDER = "checkpoints"
_OF_AN_EXPORT = ("modules.json", "config.json", "model.safetensors", "tokenizer_config.json")


class RunFolder:
    """Where a run writes: results that stay, and what a stopped run needs to go on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / _CHECKPOINTS_FOLDER)
        self.best = Best(path / _BEST_FILE)

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the folder, so that no other run writes there at the same time.

        Raises:
            BusyError: another run does.
            SightlineError: the folder is a file, or holds what no run of ours has left.
        """
        if self.path.exists() and not self.path.is_dir():
            raise SightlineError(f"{self.path}: is a file; name a folder for the run")
        self._require_ours()
        with locked(self.path):
            remove_leftovers(self.path)
            yield

    def finished(self, digest: str) -> RunSummary | None:
        """The finished run of this specification, or None; one without its model is none."""
        found = RunSummary.load(self.path)
        if found is None or found.spec_digest != digest:
            return None
        model = self.path / MODEL_FOLDER
        files = [self.path / HEADS_FILE, *(model / name for name in _OF_AN_EXPORT)]
        return found if all(file.is_file() for file in files) else None

    def begin(self) -> bool:
        """Take away what another run left, so that nothing stale can be read beside the new.

        What tells that the folder is ours goes last, so that a kill in between changes nothing.
        Returns whether a finished run was replaced.
        """
        replaced = (self.path / FILE_NAME).is_file()
        for name in (MODEL_FOLDER, LIVE_FOLDER):
            shutil.rmtree(self.path / name, ignore_errors=True)
        for name in (HEADS_FILE, FAILURE_FILE, _BEST_FILE, FILE_NAME):
            (self.path / name).unlink(missing_ok=True)
        self.checkpoints.begin()
        return replaced

    def end(self) -> None:
        """Take away what only an unfinished run needs."""
        self.checkpoints.clear()
        self.best.clear()
        (self.path / FAILURE_FILE).unlink(missing_ok=True)

    def _require_ours(self) -> None:
        names = (MODEL_FOLDER, _CHECKPOINTS_FOLDER, LIVE_FOLDER, HEADS_FILE, FAILURE_FILE)
        names += (_BEST_FILE, FILE_NAME)
        there = [name for name in names if (self.path / name).exists()]
        if there and not self.checkpoints.begun and not _of_a_run(self.path / FILE_NAME):
            raise SightlineError(
                f"{self.path}: holds {', '.join(there)}, which no training run of Sightline left "
                "and which this one would replace; name another folder, or move them away"
            )


def _of_a_run(path: Path) -> bool:
    """Whether ``path`` is the summary of a run, be it of another version."""
    try:
        body = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(body, dict) and "spec_digest" in body
