"""Models side by side: a name of its own for each, and one in memory at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sightline.errors import SightlineError
from sightline.pooling import check_pooling
from train.evaluate.evaluated_model import EvaluatedModel
from train.records import FILE_NAME, RunSummary


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


def name_models(given: Sequence[str]) -> list[NamedModel]:
    """A name for each model, without loading it.

    A training run has its own name, followed by its seed if several seeds of it are given; any
    other model is called as it was given.

    Args:
        given: folders or names on the hub; a prefix `NAME=` renames the model.

    Raises:
        SightlineError: an empty name, a run that is not finished, or two models of one name.
    """
    found: list[tuple[str, str, int | None]] = []
    for each in given:
        label, source = "", each
        if "=" in each and not Path(each).exists():
            label, _, source = each.partition("=")
        if not source or each.startswith("="):
            raise SightlineError(f"--model: found {each!r}, expected MODEL or NAME=MODEL")
        summary = RunSummary.read(Path(source)) if (Path(source) / FILE_NAME).is_file() else None
        if summary is None or label:
            found.append((label or source, source, None))
        else:
            found.append((summary.run, source, summary.seed))
    runs = Counter(name for name, _, seed in found if seed is not None)
    models = [
        NamedModel(
            name if seed is None or runs[name] == 1 else f"{name}, seed {seed}", source, name
        )
        for name, source, seed in found
    ]
    sources: dict[str, str] = {}
    for model in models:
        other = sources.setdefault(model.name, model.source)
        if other != model.source or sum(each == model for each in models) > 1:
            raise SightlineError(
                f"two models are called {model.name!r}: {other} and {model.source}; rename one of "
                "them: NAME=PATH"
            )
    return models


def load_each(
    models: Sequence[NamedModel], pooling: str | None = None, device: str = "auto"
) -> Iterator[tuple[NamedModel, EvaluatedModel]]:
    """Each model with its names; the one before is released unless the caller keeps it.

    Raises:
        SightlineError: an unknown pooling; or see `EvaluatedModel.load`.
    """
    known = None if pooling is None else check_pooling(pooling)
    for model in models:
        yield model, EvaluatedModel.load(model.source, known, device)
