"""How to look at features: samples, batches and thresholds, by default or as a run has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from sightline.cache.caption_choice import CaptionPolicy
from sightline.settings import Settings
from train.run_spec import RunSpec

if TYPE_CHECKING:
    from train.objectives.kdmcse import KDMCSE

Tell = Callable[[str, int, int, str], None]
"""Takes what is being done, how many are done, how many there are, and their unit."""


class DiagnosisSettings(Settings):
    """How to look at the sets.

    Attributes:
        batch_size: rows per batch that a threshold is tried on; by default 64, or as configured.
        batches: number of such batches.
        caption: captions of an image that a training would read, random, longest or all; by default
            all, or as configured.
        data_seed: of that choice.
        seed: seed of the run whose batches are drawn, and of every sample.
        thresholds: those to try; by default 0.1, 0.2 … 0.8, 0.85, 0.9 and 0.95.
        sample: images whose cosines and ranks are computed, drawn at random.
        configured: term of KDMCSE → threshold of the configuration.
        run: the run of params.yaml that batch size, captions and thresholds are from; None:
            defaults.
    """

    batch_size: int = Field(default=64, ge=2)
    batches: int = Field(default=100, ge=1)
    caption: CaptionPolicy = "all"
    data_seed: int = 0
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    thresholds: list[float] = []
    sample: int = Field(default=2000, ge=2)
    configured: dict[str, float] = {}
    run: str | None = None

    def configured_of(self, term: str) -> list[float]:
        """The configured threshold of a term, if it has one."""
        return [self.configured[term]] if term in self.configured else []


def kdmcse_settings(params: KDMCSE | None = None) -> DiagnosisSettings:
    """Captions and thresholds as KDMCSE has them, by its defaults or with ``params``.

    Thresholds of `variant: released` are of products, which have a scale of their own: none.
    """
    from train.objectives.kdmcse import KDMCSE

    params = params or KDMCSE(weight=0)  # reads no encoder, so that none has to be named
    terms = {"image": params.image_threshold, "teacher_text": params.teacher_text_threshold}
    configured = {
        term: threshold
        for term, threshold in terms.items()
        if threshold is not None and params.variant == "paper"
    }
    return DiagnosisSettings(
        configured=configured, caption=params.caption, data_seed=params.data_seed
    )


def settings_of_runs(
    sets: Sequence[Path], objectives: Mapping[str, str], spec_of: Callable[[str], RunSpec]
) -> DiagnosisSettings | None:
    """Batch size, captions and thresholds of the first run of KDMCSE that reads ``sets``.

    Args:
        objectives: run → its objective.
        spec_of: run → what it trains; asked only for runs of KDMCSE.

    Returns:
        None if no run does.
    """
    from train.objectives.kdmcse import KDMCSE

    folders = {path.resolve() for path in sets}
    for run in (name for name, objective in objectives.items() if objective == "kdmcse"):
        spec = spec_of(run)
        if folders <= {path.resolve() for path in spec.features.values()}:
            settings = kdmcse_settings(KDMCSE.model_validate(spec.parameters))
            return settings.model_copy(update={"batch_size": spec.train.batch_size, "run": run})
    return None
