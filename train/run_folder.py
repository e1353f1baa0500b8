"""The folder of a training run: its ownership, its finished results, and one run at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sightline.digest import digest
from sightline.errors import SightlineError
from sightline.output import Output, json_record
from train.checkpoints import CHECKPOINTS_FOLDER, FAILURE_FILE, Best, Checkpoints
from train.export import EXPORTED_FILES, HEADS_FILE, MODEL_FOLDER
from train.records import FILE_NAME, SCHEMA, RunSummary

_BEST_FILE = "best.safetensors"
_OF_AN_EXPORT = ("modules.json", "config.json", "model.safetensors", "tokenizer_config.json")
_WHILE_IT_RUNS = (_BEST_FILE, FAILURE_FILE)


class RunFolder:
    """Where a run writes: results that stay, and what a stopped run needs to resume.

    Only files that ``run.json``, the checkpoints or an unfinished run have listed are replaced or
    removed (`sightline.output`); notes beside or below them stay.

    Args:
        inputs: files and folders that the run reads.
    """

    def __init__(self, path: Path, inputs: Iterable[Path] = ()) -> None:
        self.path = path
        self.output = Output(path, FILE_NAME, json_record(SCHEMA), inputs)
        self.checkpoints = Checkpoints(self.output)
        self.best = Best(path / _BEST_FILE, self.output.run_folder)

    @contextmanager
    def claimed(self) -> Iterator[Path]:
        """Lock the folder, so that no other run writes there at the same time.

        Yields:
            A new folder for work in progress, removed at the end.

        Raises:
            BusyError: another run is writing there.
            SightlineError: the folder is a file, contains files that no run of ours left, or
                contains an input.
        """
        self._require_ours()
        with self.output as output:
            output.owned |= self.checkpoints.listed()
            if self.checkpoints.begun:
                there = (name for name in _WHILE_IT_RUNS if (self.path / name).is_file())
                output.owned.update(there)
            of_a_model = (f"{MODEL_FOLDER}/{name}" for name in EXPORTED_FILES)
            output.check([HEADS_FILE, *_WHILE_IT_RUNS, *of_a_model])
            self.path.mkdir(parents=True, exist_ok=True)
            with output.scratch() as made:
                self.checkpoints.part = made / CHECKPOINTS_FOLDER
                yield made

    def finished(self, digest: str, code: Mapping[str, str]) -> RunSummary | None:
        """The finished run of this specification and code, or None."""
        found = RunSummary.load(self.path)
        return found if found and not self.outdated(found, digest, code) else None

    def outdated(self, found: RunSummary, digest: str, code: Mapping[str, str]) -> str:
        """Why a finished run has to be trained again; empty if it does not."""
        if found.spec_digest != digest:
            return "its parameters or inputs changed"
        if not found.is_of(code):
            changed = [name for name in code if found.code.get(name) != code[name]]
            gone = [name for name in found.code if name not in code]
            return f"its code changed: {', '.join(changed or gone)}"
        model = self.path / MODEL_FOLDER
        files = [self.path / HEADS_FILE, *(model / name for name in _OF_AN_EXPORT)]
        missing = [file.name for file in files if not file.is_file()]
        return f"its model is incomplete: {missing[0]} is missing" if missing else ""

    def accept(self, code: Mapping[str, str]) -> bool:
        """Record that ``code`` does not change the finished run's results; False if it already is.

        Raises:
            BusyError: a training run writes to the folder.
            SightlineError: there is no finished run.
        """
        with self.output:
            found = RunSummary.read(self.path)
            if found.is_of(code):
                return False
            accepted = (*found.accepted_code, digest(dict(code)))
            summary = found.model_copy(update={"accepted_code": accepted})
            self.output.commit(summary.to_bytes())
            return True

    def begin(self) -> bool:
        """Remove what another run left, so that nothing stale is read beside the new results.

        Returns whether a finished run was replaced.
        """
        replaced = (self.path / FILE_NAME).is_file()
        self.output.claim(self.output.owned)
        self.output.remove(self.output.owned - {FILE_NAME})
        self.output.remove([FILE_NAME])
        self.output.claim(_WHILE_IT_RUNS)
        self.checkpoints.begin()
        return replaced

    def finish(self, summary: RunSummary, made: Path) -> RunSummary:
        """Publish the files of ``made`` and ``run.json``, and remove what is no longer needed."""
        names = self.output.move_in(made)
        summary = summary.model_copy(update={"files": tuple(sorted(names))})
        self.output.commit(summary.to_bytes())
        self.output.remove_unlisted()
        return summary

    def tidy(self) -> None:
        """Remove what a run that was killed while it finished left beside its results."""
        self.output.remove_unlisted()

    def _require_ours(self) -> None:
        names = (MODEL_FOLDER, CHECKPOINTS_FOLDER, HEADS_FILE, *_WHILE_IT_RUNS)
        there = [name for name in names if (self.path / name).exists()]
        ours = (self.path / FILE_NAME).exists() or self.checkpoints.begun or self.output.begun
        if there and not ours:
            raise SightlineError(
                f"{self.path}: contains {', '.join(there)}, which no training run of Sightline "
                "left and this one would overwrite; name another folder, or move them away"
            )
