"""How to look at features: samples, batches and thresholds, by default or as a run has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from sightline import settings
from sightline.cache.caption_choice import CaptionPolicy
from train.run_spec import RunSpec

if TYPE_CHECKING:
    from train.objectives.kdmcse import KDMCSEParams

Tell = Callable[[str, int, int, str], None]
"""Takes what is being done, how many are done, how many there are, and their unit."""


@dataclass(frozen=True)
class Terms:
    """The configured threshold of each term; None where it has none.

    Attributes:
        released: both are compared with products, as in `variant: released`.
    """

    image: float | None = None
    teacher_text: float | None = None
    released: bool = False

    def of(self, term: str) -> list[float]:
        """Thresholds that the configuration compares with the scores of `Filter.term`."""
        if term == "released":
            given = (self.image, self.teacher_text) if self.released else ()
        else:
            given = () if self.released else (getattr(self, term),)
        return [threshold for threshold in given if threshold is not None]


class Settings(settings.Settings):
    """How to look at the sets.

    Attributes:
        batch_size: rows per batch that a threshold is tried on; by default 64, or as configured.
        batches: number of such batches.
        caption: captions of an image that a training would read, random, longest or all; by default
            all, or as configured.
        data_seed: of that choice.
        seed: of the run whose batches are drawn, and of every sample.
        thresholds: to try; by default 0.1, 0.15 … 0.95.
        sample: images and captions whose matches are ranked; None: what 5e11 multiplications
            allow.
        configured: thresholds of the configuration.
        run: the run of params.yaml that batch size, captions and thresholds are from; None:
            defaults.
    """

    batch_size: int = Field(default=64, ge=2)
    batches: int = Field(default=100, ge=1)
    caption: CaptionPolicy = "all"
    data_seed: int = 0
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    thresholds: list[float] = []
    sample: int | None = Field(default=None, ge=2)
    configured: Terms = Terms()
    run: str | None = None

    @property
    def whose(self) -> str:
        """Of the thresholds in `configured`: a run's, or KDMCSE's own."""
        return "default" if self.run is None else "configured"


def kdmcse_settings(params: KDMCSEParams | None = None) -> Settings:
    """Captions and thresholds as KDMCSE has them, by its defaults or with ``params``."""
    from train.objectives.kdmcse import KDMCSEParams  # imports torch

    own = params or KDMCSEParams(weight=0)  # reads no encoder, so that none has to be named
    terms = Terms(own.image_threshold, own.teacher_text_threshold, own.variant == "released")
    return Settings(configured=terms, caption=own.caption, data_seed=own.data_seed)


def settings_of_runs(
    sets: Sequence[Path], objectives: Mapping[str, str], spec_of: Callable[[str], RunSpec]
) -> Settings | None:
    """Batch size, captions and thresholds of the first run of KDMCSE that reads ``sets``.

    Args:
        objectives: run → its objective.
        spec_of: run → what it trains; asked only for runs of KDMCSE.

    Returns:
        None if no run does.
    """
    from train.objectives.kdmcse import KDMCSEParams  # imports torch

    wanted = {path.resolve() for path in sets}
    for run in (name for name, objective in objectives.items() if objective == "kdmcse"):
        spec = spec_of(run)
        if wanted <= {path.resolve() for path in spec.features.values()}:
            own = kdmcse_settings(KDMCSEParams.model_validate(spec.parameters))
            return own.model_copy(update={"batch_size": spec.train.batch_size, "run": run})
    return None
