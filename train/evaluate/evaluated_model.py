"""A model under evaluation: a training run, a folder or a name on the hub."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError

from sightline.errors import SightlineError
from sightline.pooling import Pooling
from train.embed import Embedder
from train.export import HEADS_FILE, MODEL_FOLDER
from train.objectives import Objective, make_objective
from train.records import FILE_NAME, RunSummary

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class TrainedHeads:
    """The heads of a finished run: `objective` says which of them projects what."""

    objective: Objective
    modules: nn.ModuleDict


class EvaluatedModel:
    """An encoder that embeds every distinct sentence once, for all tasks together.

    Attributes:
        name: as tables show it.
        embedder: the encoder.
        folder: of the training run; None for any other model.
        summary: of the training run; None for any other model.
        pooling: the one that was asked for; None if the folder's own is used.
    """

    def __init__(
        self,
        name: str,
        embedder: Embedder,
        folder: Path | None = None,
        summary: RunSummary | None = None,
        pooling: Pooling | None = None,
    ) -> None:
        """
        Args:
            pooling: the one that was asked for; None if the folder's own is used.
        """
        self.name, self.embedder = name, embedder
        self.folder, self.summary = folder, summary
        self.pooling: Pooling | None = pooling
        self._row_of: dict[str, int] = {}
        self._rows = np.empty((0, embedder.dim), dtype=np.float32)

    @classmethod
    def load(
        cls, source: str, pooling: Pooling | None = None, device: str = "auto"
    ) -> EvaluatedModel:
        """The folder of a training run, a model folder, or a name on the hub.

        Raises:
            SightlineError: see `Embedder.load`; or a run that is not finished.
        """
        folder = Path(source)
        if not (folder / FILE_NAME).is_file():
            return cls(source, Embedder.load(source, pooling, device=device), pooling=pooling)
        summary = RunSummary.read(folder)
        embedder = Embedder.load(folder / MODEL_FOLDER, pooling, device=device)
        return cls(summary.run, embedder, folder, summary, pooling)

    def encode_once(self, sentences: Iterable[str]) -> None:
        """Embed those of ``sentences`` that are not embedded yet, in one call of the encoder."""
        new = [each for each in dict.fromkeys(sentences) if each not in self._row_of]
        if not new:
            return
        rows = self.embedder.encode(new)
        start = len(self._row_of)
        self._row_of.update((each, start + i) for i, each in enumerate(new))
        self._rows = np.concatenate([self._rows, rows]) if start else rows

    def encode(self, sentences: Sequence[str]) -> np.ndarray:
        """Embeddings float32 [n, d], in the order of ``sentences``."""
        self.encode_once(sentences)
        return self._rows[[self._row_of[each] for each in sentences]]

    def heads(self) -> TrainedHeads:
        """The trained heads, in eval mode on the CPU.

        Raises:
            NoHeadsError: this model has none (says why).
            SightlineError: the file is damaged or belongs to another run.
        """
        folder, summary = self.folder, self.summary
        if folder is None or summary is None:
            raise NoHeadsError(
                "it is not a training run of Sightline, and has no heads; give the folder of a run "
                "that learned from images, such as one of mcse, kdmcse or dalr"
            )
        from safetensors.torch import load_file

        file = folder / HEADS_FILE
        objective = make_objective(summary.objective, summary.parameters)
        dims = {need.name: summary.features[need.name].dim for need in objective.features}
        modules = objective.heads(self.embedder.dim, dims)
        try:
            modules.load_state_dict(load_file(file))
        except (SafetensorError, OSError, RuntimeError) as error:
            raise SightlineError(
                f"{file}: cannot be read ({error}); train the run again"
            ) from error
        return TrainedHeads(objective, modules.eval())  # pyright: ignore[reportArgumentType]


class NoHeadsError(SightlineError):
    """A model has no trained heads; the message says why."""


def project(head: nn.Module, rows: np.ndarray, batch: int = 4096) -> np.ndarray:
    """``head`` applied to float [n, d], in batches: float32 [n, d']."""
    import torch

    with torch.inference_mode():
        parts = [
            head(torch.from_numpy(rows[start : start + batch].astype(np.float32))).numpy()
            for start in range(0, len(rows), batch)
        ]
    return np.concatenate(parts)
