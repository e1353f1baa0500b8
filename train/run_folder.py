"""The folder of a training run: its ownership, its checkpoint, its results, one run at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from blake3 import blake3
from pydantic import ValidationError

from sightline.digest import blake3_of_file, digest
from sightline.errors import SightlineError, room_for
from sightline.files.output import Output, json_record
from train.export import EXPORTED_FILES, HEADS_FILE, MODEL_FOLDER
from train.records import FILE_NAME, SCHEMA, RunState, RunSummary

CHECKPOINTS = "checkpoints"
TENSORS = MODEL_FILE, LOOP_FILE = "model.safetensors", "loop.pt"
STATE_FILE = f"{CHECKPOINTS}/state.json"


class RunFolder:
    """Where a run writes: results that stay, and what a stopped run needs to resume.

    The checkpoint is ``checkpoints/state.json`` with the tensors that it lists: those of its step,
    in ``a`` or ``b`` beside it, and the best weights, named by their step. New ones are written
    beside them, the state is replaced last, and what it no longer lists goes after that. A finished
    run stays until its successor is done. Only files that ``run.json`` or an unfinished run have
    listed are replaced or removed (`sightline.files.output`); notes beside or below them stay.

    Args:
        inputs: files and folders that the run reads.

    Attributes:
        scratch: folder for work in progress, while the folder is claimed.
    """

    def __init__(self, path: Path, inputs: Iterable[Path] = ()) -> None:
        self.path = path
        self.scratch = path
        self._listed = set[str]()  # files of the checkpoint that is on disk
        self.output = Output(path, FILE_NAME, json_record(SCHEMA), inputs)

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Lock the folder, so that no other run writes there at the same time.

        Raises:
            BusyError: another run is writing there.
            SightlineError: the folder is a file, contains files that no run of ours left, or
                contains an input.
        """
        self._require_ours()
        with self.output as output:
            of_a_model = (f"{MODEL_FOLDER}/{name}" for name in EXPORTED_FILES)
            output.check([HEADS_FILE, STATE_FILE, *of_a_model])
            self.path.mkdir(parents=True, exist_ok=True)
            with output.scratch() as self.scratch:
                yield

    # ---- a finished run -------------------------------------------------------------------------

    def finished(self, digest: str, code: Mapping[str, str]) -> RunSummary | None:
        """The finished run of this specification and code, or None."""
        return None if self.why_outdated(digest, code) else RunSummary.read(self.path)

    def why_outdated(self, digest: str, code: Mapping[str, str]) -> str:
        """Why the run has to be trained, again if it is finished; empty if it does not."""
        try:
            summary = RunSummary.read(self.path)
        except SightlineError as error:
            return str(error)
        if summary.spec_digest != digest:
            return "its parameters or inputs changed"
        if not summary.is_of(code):
            changed = [name for name in code if summary.code.get(name) != code[name]]
            gone = [name for name in summary.code if name not in code]
            return f"its code changed: {', '.join(changed or gone)}"
        missing = summary.missing(self.path)
        return f"its model is incomplete: {missing[0]} is missing" if missing else ""

    def accept(self, code: Mapping[str, str]) -> bool:
        """Record that ``code`` does not change the finished run's results; False if it already is.

        Raises:
            BusyError: a training run writes to the folder.
            SightlineError: there is no finished run.
        """
        with self.output:
            summary = RunSummary.read(self.path)
            if summary.is_of(code):
                return False
            accepted = (*summary.accepted_code, digest(dict(code)))
            summary = summary.model_copy(update={"accepted_code": accepted})
            self.output.commit(summary.to_bytes())
            return True

    # ---- a run ----------------------------------------------------------------------------------

    def begin(self, state: RunState) -> None:
        """Remove what an unfinished run left; a finished one stays until `finish`.

        Args:
            state: of the new run; written first, so that a kill halfway leaves no checkpoint.
        """
        self._write(state)
        self.output.claim([STATE_FILE])
        self.output.remove_unlisted(but=[STATE_FILE])

    def keep_best(self, state: RunState, weights: bytes) -> None:
        """Keep the weights of `state.best_step`, beside those that the checkpoint lists."""
        name = f"{CHECKPOINTS}/best-{state.best_step}.safetensors"
        with room_for("the best weights", self.path):
            self.output.write(name, weights)
        superseded = state.best_tensors.keys() - self._listed
        state.best_tensors = {name: blake3(weights).hexdigest()}
        self.output.remove(superseded - {name})

    @contextmanager
    def checkpoint(self, state: RunState) -> Iterator[Path]:
        """A folder for the tensors of ``state``: the new checkpoint, once the block has ended."""
        name = "b" if any(f.startswith(f"{CHECKPOINTS}/a/") for f in state.tensors) else "a"
        root = self.scratch / "checkpoint"
        part = root / CHECKPOINTS / name
        with room_for("the checkpoint", self.path):
            part.mkdir(parents=True, exist_ok=True)
            yield part
            files = sorted(part.iterdir())
            state.tensors = {f.relative_to(root).as_posix(): blake3_of_file(f) for f in files}
            self.output.move_in(root)
            self._write(state)
        of_checkpoints = {name for name in self.output.owned if name.startswith(CHECKPOINTS)}
        self.output.remove(of_checkpoints - self._listed - {STATE_FILE})

    def state(self) -> RunState | None:
        """The state of an unfinished run, without a checkpoint at step 0; None if there is none."""
        path = self.path / STATE_FILE
        tensors = (self.path / CHECKPOINTS / part / name for part in "ab" for name in TENSORS)
        if not path.is_file() and not any(file.is_file() for file in tensors):
            return None
        try:
            return RunState.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise self._damaged(path) from error

    def check(self, state: RunState) -> None:
        """Refuse a checkpoint whose tensors, the best weights among them, are not as written."""
        self._listed = {*state.tensors, *state.best_tensors}
        for name, digest_then in {**state.tensors, **state.best_tensors}.items():
            file = self.path / name
            if not file.is_file() or blake3_of_file(file) != digest_then:
                raise self._damaged(file)

    def tensors_of(self, state: RunState) -> Path:
        """The folder with the tensors of a checkpoint."""
        return (self.path / next(iter(state.tensors))).parent

    def finish(self, summary: RunSummary, results: Path) -> RunSummary:
        """Publish the files of ``results`` and ``run.json``; remove what is no longer needed.

        The run that this one replaces goes now. If a kill comes between, no ``run.json`` names a
        model that is half another's, and the checkpoint of the last step makes the results again.
        """
        self.output.claim(self.output.owned)
        self.output.remove([FILE_NAME])
        names = self.output.move_in(results)
        summary = summary.model_copy(update={"files": tuple(sorted(names))})
        self.output.commit(summary.to_bytes())
        self.output.remove_unlisted()
        return summary

    def _write(self, state: RunState) -> None:
        self.output.write(STATE_FILE, state.model_dump_json(indent=1, by_alias=True).encode())
        self._listed = {*state.tensors, *state.best_tensors}

    def _damaged(self, file: Path) -> SightlineError:
        return SightlineError(
            f"{file}: missing or changed, so training cannot resume from this checkpoint; "
            f"restore it, or delete {self.path / CHECKPOINTS} to train again"
        )

    def _require_ours(self) -> None:
        names = (MODEL_FOLDER, CHECKPOINTS, HEADS_FILE)
        present = [name for name in names if (self.path / name).exists()]
        if present and not ((self.path / FILE_NAME).exists() or self.output.begun):
            raise SightlineError(
                f"{self.path}: contains {', '.join(present)}, which no training run of Sightline "
                "left and this one would overwrite; name another folder, or move them away"
            )
