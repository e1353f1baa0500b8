"""Checkpoints: published atomically, tied to one run specification, and verified on resume."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from sightline.digest import blake3_of_file
from sightline.errors import SightlineError
from sightline.files import write_bytes
from sightline.output import Output

if TYPE_CHECKING:
    from torch import Tensor

PROGRESS_FILE = "sightline.json"
_MARK = "sightline.txt"
_PREFIX = "checkpoint-"
_NAME = re.compile(rf"{_PREFIX}(\d+)(?:-(\d+))?")
CHECKPOINTS_FOLDER = "checkpoints"
FAILURE_FILE = "failure.json"


@dataclass
class Progress:
    """What a checkpoint records besides weights, optimiser and log.

    Attributes:
        digest: of the run specification (see `train.train_run.spec_digest`).
        code: digest of the code that trains it (see `train.code_digest`).
        seconds: spent in training steps so far, without dev scores and checkpoints.
        sentences: rows trained on so far.
        stopped_early: the early stop ended the run here.
        peak_memory: peak bytes, see `sightline.devices.peak_memory`.
        processes: how many trained it; several numbers if it was resumed with a different number
            of them.
        optimizer: `train.optimizer` of the run; empty in a checkpoint older than this field.
    """

    digest: str
    code: str = ""
    seconds: float = 0.0
    sentences: int = 0
    stopped_early: bool = False
    peak_memory: dict[str, int] = field(default_factory=dict)
    processes: list[int] = field(default_factory=lambda: [1])
    optimizer: str = ""


class Checkpoints:
    """The checkpoints of one run, in its output folder: the newest complete one is kept.

    Attributes:
        folder: where they are.
        part: where the next one is written before it gets its name; a folder of this process.
    """

    def __init__(self, output: Output) -> None:
        self.folder = output.given / CHECKPOINTS_FOLDER
        self.part = self.folder
        self._output = output

    def made(self, step: int) -> Path:
        """The folder under `part` where the loop writes the checkpoint of a step."""
        return self.part / f"{_PREFIX}{step}"

    def publish(self, step: int, progress: Progress) -> Path:
        """Give the checkpoint written under `part` its name, durably; drop the older ones."""
        made = self.made(step)
        files = {path.name: blake3_of_file(path) for path in sorted(made.iterdir())}
        body = {"progress": asdict(progress), "blake3": files}
        write_bytes(made / PROGRESS_FILE, json.dumps(body, indent=1).encode())
        older = self._all()
        final, again = self.folder / made.name, 1
        while final.exists():  # an older one that holds somebody else's file
            again += 1
            final = self.folder / f"{made.name}-{again}"
        self._output.move_whole(made, self._name(final))
        for other in older:
            self._output.remove(self._below(other))
        return final

    def report(self, failure: Mapping[str, Any]) -> None:
        """Keep what made a step fail, beside the checkpoints."""
        self._output.write(FAILURE_FILE, (json.dumps(failure, indent=1) + "\n").encode())

    def newest(self) -> Path | None:
        """The last checkpoint, or None."""
        return max(self._all(), key=_step_and_number, default=None) if self.begun else None

    @property
    def begun(self) -> bool:
        """Whether a run has begun in this folder and not ended."""
        return (self.folder / _MARK).is_file()

    def listed(self) -> set[str]:
        """Files of checkpoints, as the checkpoints list them, by their names in the output."""
        names = {self._name(self.folder / _MARK)} if self.begun else set()
        for path in self._all():
            try:
                files = json.loads((path / PROGRESS_FILE).read_bytes())["blake3"]
                names |= {self._name(path / Path(name).name) for name in (*files, PROGRESS_FILE)}
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return names

    def begin(self) -> None:
        """Forget the checkpoints of another run, and mark the folder as this one's."""
        self.clear()
        mark = self._name(self.folder / _MARK)
        self._output.write(mark, b"checkpoints of a training run that is not finished\n")

    def clear(self) -> None:
        """Remove every checkpoint; after a kill halfway, none appears to exist."""
        self._output.remove([self._name(self.folder / _MARK)])
        self._output.remove(self._below(self.folder))

    def _all(self) -> list[Path]:
        return [path for path in self.folder.glob(f"{_PREFIX}*") if step_of(path) >= 0]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._output.given).as_posix()

    def _below(self, folder: Path) -> list[str]:
        prefix = self._name(folder) + "/"
        return [name for name in self._output.owned if name.startswith(prefix)]

    def read(self, path: Path) -> Progress:
        """The progress of a checkpoint, after checking that its files are as they were written.

        Raises:
            SightlineError: a file of it is missing or damaged.
        """
        try:
            body = json.loads((path / PROGRESS_FILE).read_bytes())
            found = body["progress"]
            progress = Progress(**found)
            files = dict(body["blake3"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(path / PROGRESS_FILE) from error
        for name, digest in files.items():
            file = path / name
            if not file.is_file() or blake3_of_file(file) != digest:
                raise self._damaged(file)
        return progress

    def _damaged(self, file: Path) -> SightlineError:
        return SightlineError(
            f"{file}: missing or changed, so training cannot resume from this checkpoint; "
            f"restore it, or delete {self.folder} to train again"
        )


@dataclass(frozen=True)
class Best:
    """The best weights so far: one file, replaced atomically.

    Attributes:
        via: folder in which a new file is made.
    """

    path: Path
    via: Path | None = None

    def keep(self, state: dict[str, Tensor], step: int, score: float) -> None:
        """Make ``state`` the best weights."""
        from safetensors.torch import save

        cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        metadata = {"step": str(step), "score": repr(score)}
        write_bytes(self.path, save(cpu, metadata), via=self.via)

    @property
    def step(self) -> int | None:
        """The step that the weights are from, or None if there are none."""
        try:
            with safe_open(self.path, framework="pt") as file:
                return int(file.metadata()["step"])
        except (OSError, SafetensorError, KeyError, TypeError, ValueError):
            return None

    def load(self) -> tuple[dict[str, Tensor], int] | None:
        """The weights and the step they are from, or None if there are none."""
        if not self.path.is_file():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                step = int(file.metadata()["step"])
                return {name: file.get_tensor(name) for name in file.keys()}, step  # noqa: SIM118
        except (SafetensorError, KeyError, TypeError, ValueError):
            return None

    def clear(self) -> None:
        """Remove them."""
        self.path.unlink(missing_ok=True)


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was made; -1 for any other name."""
    return _step_and_number(checkpoint)[0]


def _step_and_number(checkpoint: Path) -> tuple[int, int]:
    found = _NAME.fullmatch(checkpoint.name)
    return (int(found[1]), int(found[2] or 1)) if found else (-1, 0)
