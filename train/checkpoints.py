"""Checkpoints that appear whole, belong to one run specification, and are found again."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from blake3 import blake3
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from pipeline.cache import SightlineError
from pipeline.cache.atomic import fsync_file, fsync_folder, write_bytes

PROGRESS_FILE = "sightline.json"
_MARK = "sightline.txt"
_PREFIX = "checkpoint-"
_PART = ".part"


@dataclass
class Progress:
    """What a checkpoint knows beside what transformers' Trainer stores.

    Attributes:
        digest: of the run specification (see `train.run.spec_digest`).
        seconds: spent in training steps so far, dev scores and checkpoints left out.
        sentences: rows trained on so far.
        stopped_early: the early stop ended the run here.
    """

    digest: str
    seconds: float = 0.0
    sentences: int = 0
    stopped_early: bool = False


_FIELDS = fields(Progress)


class Checkpoints:
    """The folder of one run's checkpoints: the newest whole one is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def part(self) -> Path:
        """Where the next checkpoint is written before it gets its name."""
        return self.folder / _PART

    def made(self, step: int) -> Path:
        """Where transformers' Trainer writes the checkpoint of a step, under `part`."""
        return self.part / f"{_PREFIX}{step}"

    def publish(self, step: int, progress: Progress) -> Path:
        """Give the checkpoint written under `part` its name, durably; drop the older ones."""
        made = self.made(step)
        files = {path.name: _digest(path) for path in sorted(made.iterdir())}
        body = {"progress": asdict(progress), "blake3": files}
        write_bytes(made / PROGRESS_FILE, json.dumps(body, indent=1).encode())
        for path in made.iterdir():
            fsync_file(path)
        fsync_folder(made)
        final = self.folder / made.name
        shutil.rmtree(final, ignore_errors=True)
        made.rename(final)
        fsync_folder(self.folder)
        for other in self.folder.glob(f"{_PREFIX}*"):
            if other != final:
                shutil.rmtree(other, ignore_errors=True)
        return final

    def newest(self) -> Path | None:
        """The last checkpoint, or None."""
        steps = {step_of(path): path for path in self.folder.glob(f"{_PREFIX}*")}
        return steps[max(steps)] if steps else None

    @property
    def begun(self) -> bool:
        """Whether a run has begun in this folder and not ended."""
        return (self.folder / _MARK).is_file()

    def begin(self) -> None:
        """Forget the checkpoints of another run, and mark the folder as this one's."""
        self.clear()
        write_bytes(self.folder / _MARK, b"checkpoints of a training run that is not finished\n")

    def clear(self) -> None:
        """Remove every checkpoint; killed halfway, none of them seems to be there."""
        gone = self.folder.with_name(f".{self.folder.name}.gone")
        shutil.rmtree(gone, ignore_errors=True)
        if self.folder.exists():
            self.folder.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def read(self, path: Path) -> Progress:
        """The progress of a checkpoint, all of whose files are as they were written.

        Raises:
            SightlineError: a file of it is missing or damaged.
        """
        try:
            body = json.loads((path / PROGRESS_FILE).read_bytes())
            progress = Progress(**{each.name: body["progress"][each.name] for each in _FIELDS})
            files = dict(body["blake3"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._damaged(path / PROGRESS_FILE) from error
        for name, digest in files.items():
            file = path / name
            if not file.is_file() or _digest(file) != digest:
                raise self._damaged(file)
        return progress

    def _damaged(self, file: Path) -> SightlineError:
        return SightlineError(
            f"{file}: missing, or not as it was written, so this checkpoint cannot be gone on "
            f"from; put it back, or delete {self.folder} to train anew"
        )


@dataclass(frozen=True)
class Best:
    """The best weights so far: one file, replaced at once."""

    path: Path

    def keep(self, state: dict[str, Tensor], step: int, score: float) -> None:
        """Make ``state`` the best weights."""
        cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        metadata = {"step": str(step), "score": repr(score)}
        write_bytes(self.path, save(cpu, metadata))

    def load(self) -> tuple[dict[str, Tensor], int] | None:
        """The weights and the step they are from, or None where there are none."""
        if not self.path.is_file():
            return None
        try:
            with safe_open(self.path, framework="pt") as file:
                step = int(file.metadata()["step"])
                return {name: file.get_tensor(name) for name in file.keys()}, step  # noqa: SIM118
        except (SafetensorError, KeyError, TypeError, ValueError):
            return None

    def clear(self) -> None:
        """Forget them."""
        self.path.unlink(missing_ok=True)


def random_state() -> dict[str, Any]:
    """torch's random state on the CPU and, where there is one, the CUDA device."""
    state: dict[str, Any] = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Put back what `random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def step_of(checkpoint: Path) -> int:
    """The step after which a checkpoint was made; -1 for a name that none has."""
    number = checkpoint.name.removeprefix(_PREFIX)
    return int(number) if number.isdecimal() else -1


def _digest(path: Path) -> str:
    return blake3().update_mmap(path).hexdigest()
