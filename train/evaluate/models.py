"""Models under evaluation: their names, their sentences' embeddings, the space of their heads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from safetensors import SafetensorError

from sightline.cache import FeatureSet
from sightline.devices import Precision
from sightline.digest import Pinned, digest
from sightline.errors import SightlineError
from sightline.files.file_kinds import file_kind, unexpected
from sightline.machine.progress import progress
from sightline.models.pooling import check_pooling
from sightline.models.sentence_transformers_folder import pin, read_recipe
from train.embed import Embedder, of_length_one, refuse_text
from train.evaluate.ranking import NotDefinedError
from train.export import HEADS_FILE, MODEL_FOLDER
from train.objectives import ObjectiveModule, make_objective
from train.records import FILE_NAME, FeatureUse, RunSummary
from train.run_folder import STATE_FILE

if TYPE_CHECKING:
    from torch import nn

_BATCH = 4096  # rows that a head projects at once


class EvaluatedModel:
    """An encoder that embeds the distinct sentences of all tasks once, in one call.

    Attributes:
        name: as tables show it.
        embedder: the encoder.
        folder: of the training run; None for any other model.
        summary: of the training run; None for any other model.
        pooling: the one that was asked for; None if the folder's own is used.
        pinned: which model it is, where no summary says it; None: not known.
        recipe: digest of what its folder says about embedding, where no summary says it.
        shows_progress: whether what takes long says how far it is.
    """

    def __init__(
        self,
        name: str,
        embedder: Embedder,
        folder: Path | None = None,
        summary: RunSummary | None = None,
        pooling: str | None = None,
        pinned: Pinned | None = None,
    ) -> None:
        self.name, self.embedder, self.pinned = name, embedder, pinned
        self.folder, self.summary = folder, summary
        self.pooling = pooling
        self.recipe = ""
        self.shows_progress = False
        self._row_of: dict[str, int] = {}
        self._rows = np.empty((0, embedder.dim), dtype=np.float32)

    @classmethod
    def load(
        cls,
        source: str,
        pooling: str | None = None,
        device: str = "auto",
        precision: Precision = "fp32",
    ) -> EvaluatedModel:
        """The folder of a training run, a model folder, or a name on the hub.

        Raises:
            SightlineError: an unknown pooling; see `Embedder.load`; or a run that is not finished.
        """
        checked = None if pooling is None else check_pooling(pooling)
        folder = Path(source)
        if not (folder / FILE_NAME).is_file():
            if (folder / STATE_FILE).is_file():
                raise SightlineError(
                    f"{source}: its training is not finished; resume it with the command that "
                    "began it"
                )
            embedder = Embedder.load(source, checked, device=device, precision=precision)
            model = cls(source, embedder, pooling=checked, pinned=pin(source))
            model.recipe = digest(asdict(read_recipe(source, bare=checked is not None)))
            return model
        summary = RunSummary.read(folder)
        if missing := summary.missing(folder):
            raise SightlineError(
                f"{folder}: {missing[0]} of this run is missing; restore it, or make it again with "
                "the command that trained the run"
            )
        embedder = Embedder.load(folder / MODEL_FOLDER, checked, device=device, precision=precision)
        return cls(summary.run, embedder, folder, summary, checked)

    def encode_once(self, sentences: Iterable[str]) -> None:
        """Embed ``sentences`` in one call of the encoder, and forget those of the call before.

        Nothing happens if all of them are embedded already.
        """
        refuse_text(sentences)
        distinct = dict.fromkeys(sentences)
        if distinct.keys() - self._row_of.keys():
            with self.progress("encoding", len(distinct), "sentences") as advance:
                texts, embedder = list(distinct), self.embedder
                self._rows = embedder.encode(texts, normalize=False, advance=advance)
            self._row_of = {sentence: row for row, sentence in enumerate(distinct)}

    def encode(self, sentences: Sequence[str]) -> np.ndarray:
        """Embeddings float32 [n, d], in the order of ``sentences``.

        Raises:
            TypeError: ``sentences`` is one string.
        """
        rows = self.pooled(sentences)
        return of_length_one(rows) if self.embedder.normalize else rows

    def pooled(self, sentences: Sequence[str]) -> np.ndarray:
        """What `encode` gives before any normalisation: the heads of a run were trained on that."""
        self.encode_once(sentences)
        return self._rows[[self._row_of[sentence] for sentence in sentences]]

    def progress(
        self, title: str, total: int, unit: str
    ) -> AbstractContextManager[Callable[[int], None]]:
        """Of work with this model, as `sightline.machine.progress.progress` shows it."""
        if not self.shows_progress:
            return nullcontext(lambda _: None)
        return progress(f"{self.name}: {title}", total, unit)

    def objective(self) -> ObjectiveModule:
        """The run's objective with its trained heads, in eval mode on the CPU.

        Raises:
            NotDefinedError: this model has none (says why).
            SightlineError: the file is damaged or belongs to another run.
        """
        folder, summary = self.folder, self.summary
        if folder is None or summary is None:
            raise NotDefinedError(
                "it is not a training run of Sightline, and has no heads; give the folder of a run "
                "that learned from images, such as one of mcse, kdmcse or dalr"
            )
        from safetensors.torch import load_file

        file = folder / HEADS_FILE
        params = make_objective(summary.objective, summary.parameters)
        names = {need.name for need in params.features}
        if missing := sorted(names - summary.features.keys()):
            raise SightlineError(
                f"{folder}: its objective reads {', '.join(missing)}, but the run learned from "
                f"{', '.join(sorted(summary.features)) or 'no features'}: it is of another version "
                "of Sightline; train it again"
            )
        dims = {name: summary.features[name].dim for name in names}
        objective = params.build(self.embedder.dim, dims)
        try:
            if (kind := file_kind(file)) not in (None, "safetensors"):
                raise unexpected(file, kind, "the heads of a run, as safetensors")
            objective.heads.load_state_dict(load_file(file))
        except (SafetensorError, OSError, RuntimeError) as error:
            raise SightlineError(
                f"{file}: cannot be read ({error}); train the run again"
            ) from error
        return objective.eval()


def project(head: nn.Module, rows: np.ndarray) -> np.ndarray:
    """``head`` applied to float [n, d], in batches: float32 [n, d']."""
    import torch

    with torch.inference_mode():
        parts = [
            head(torch.from_numpy(rows[start : start + _BATCH].astype(np.float32))).numpy()
            for start in range(0, len(rows), _BATCH)
        ]
    return np.concatenate(parts)


@dataclass(frozen=True)
class NamedModel:
    """Where a model is, and its names in tables and figures.

    Attributes:
        name: its own.
        source: a folder or a name on the hub.
        run: shared by the seeds of one training run, which make one row; else ``name``.
    """

    name: str
    source: str
    run: str


def name_models(words: Sequence[str]) -> list[NamedModel]:
    """A name for each model, without loading it.

    A training run has its own name, followed by its seed if several seeds of it are given, which
    differ in nothing else; any other model is called as it was given.

    Args:
        words: folders or names on the hub; a prefix `NAME=` renames the model.
    """
    runs: dict[str, list[tuple[str, RunSummary | None]]] = {}
    order: list[tuple[str, str, RunSummary | None]] = []
    for word in words:
        label, source = "", word
        if "=" in word and not Path(word).exists():
            label, _, source = word.partition("=")
        if not source or word.startswith("="):
            raise SightlineError(f"--model: found {word!r}, expected MODEL or NAME=MODEL")
        summary = RunSummary.read(Path(source)) if (Path(source) / FILE_NAME).is_file() else None
        source_name = str(Path(source)) if Path(source).exists() else source  # also of ./source
        run = label or (source_name if summary is None else summary.run)
        for other_source, earlier in runs.setdefault(run, []):
            name = run
            if summary is not None and earlier is not None and summary.is_seed_of(earlier):
                if summary.seed != earlier.seed:
                    continue
                name = f"{run}, seed {summary.seed}"
            raise SightlineError(
                f"two models are called {name!r}: {other_source} and {source}; rename one of them: "
                "NAME=PATH"
            )
        runs[run].append((source, summary))
        order.append((run, source, summary))
    return [
        NamedModel(
            f"{run}, seed {summary.seed}" if summary and len(runs[run]) > 1 else run, source, run
        )
        for run, source, summary in order
    ]


@dataclass(frozen=True)
class ImageSpace:
    """Two trained heads with one output space.

    Attributes:
        sentences: projects embeddings: [n, hidden] → [n, d].
        images: projects image features: [n, dim] → [n, d].
        encoder: the encoder of those features, as in the run's parameters.
        features: those that the run learned from.
    """

    sentences: nn.Module
    images: nn.Module
    encoder: str
    features: FeatureUse


def image_space(model: EvaluatedModel) -> ImageSpace:
    """The space of sentences and images of a training run.

    It is found through the objective (`image_heads`), so any objective that projects image features
    has one.

    Raises:
        NotDefinedError: the run has no such space.
        SightlineError: see `EvaluatedModel.objective`.
    """
    objective, summary = model.objective(), model.summary
    assert summary is not None  # it has heads
    if (heads := objective.image_heads()) is None:
        raise NotDefinedError(
            f"its objective, {summary.objective}, projects no image features; runs that learned "
            "from images, such as those of mcse, kdmcse or dalr, have heads for them"
        )
    need, sentences, images = heads
    return ImageSpace(sentences, images, need.encoder, summary.features[need.name])


def rows_of_images(features: FeatureSet, keys: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Feature rows of images, without those that failed when they were extracted.

    Args:
        keys: SHA-256 of each image's bytes.

    Returns:
        float [m, f] and the m positions in ``keys``, int64.

    Raises:
        NotDefinedError: all of them failed.
        SightlineError: the set lacks an image that did not fail.
    """
    kept = [position for position, key in enumerate(keys) if key not in features.failed]
    if not kept:
        raise NotDefinedError(
            f"{features.path}: all {len(keys)} images failed when they were extracted; see its "
            "failures, and extract them again"
        )
    return features.take([keys[position] for position in kept]), np.array(kept, dtype=np.int64)
