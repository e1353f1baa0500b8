"""A weighted combination of objectives: an unpublished experiment is just a parameter change.

    objective: combined
    parameters:
      caption: longest
      parts:
        dalr: {parameters: {image: clip, teachers: [{encoder: simcse, weight: 1}]}}
        mcseo: {weight: 0.5, parameters: {image: clip, text_weight: 0, image_weight: 0}}

Every objective has a weight for each of its terms, and 0 switches one off; so parts choose terms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, model_validator

from sightline.errors import SightlineError
from sightline.settings import Settings
from train.objectives.objective import FeatureNeed, Objective
from train.rows import SecondTexts, StreamRows, order_of, second_texts_of

if TYPE_CHECKING:
    from torch import Tensor

    from train.batch import Batch
    from train.objectives.module import ObjectiveModule

_OF_A_PART = "temperature"
"""The one common parameter that each part sets for itself."""

_SHARED = Objective.model_fields.keys() - {_OF_A_PART}
"""The parameters that all parts share."""


class Part(Settings):
    """One objective of a combination.

    Attributes:
        objective: its name; default: that of the part.
        weight: factor of all its terms.
        parameters: its own, except those that all parts share (caption, controls, data_seed).
    """

    model_config = ConfigDict(allow_inf_nan=False)

    objective: str | None = None
    weight: float = Field(default=1.0, ge=0)
    parameters: dict[str, Any] = {}


class Combined(Objective):
    """Σ over parts of weight × total of the part.

    Attributes:
        parts: name → part. Names prefix the names of terms, as in `mcseo.object`.
    """

    name: ClassVar[str] = "combined"

    parts: dict[str, Part] = Field(min_length=1)

    @model_validator(mode="after")
    def _parts_make_sense(self) -> Combined:
        if _OF_A_PART in self.model_fields_set:
            raise ValueError(f"{_OF_A_PART} is a parameter of each part; give it there")
        texts = [name for name, part in self.objectives.items() if part.trains_on_text]
        if len(texts) > 1:
            raise ValueError(
                f"parts {' and '.join(texts)} both have the text term; set text_weight to 0 in all "
                "but one"
            )
        return self

    @cached_property
    def objectives(self) -> dict[str, Objective]:
        """Name → objective, of the parts whose weight is above 0."""
        from train.objectives import make_objective

        common = {name: getattr(self, name) for name in _SHARED}
        parts = {}
        for name, part in self.parts.items():
            if misplaced := sorted(_SHARED & part.parameters.keys()):
                raise SightlineError(
                    f"objective combined: parts.{name}: {', '.join(misplaced)} belongs to the "
                    "combination, beside `parts`: all parts see the same pairs"
                )
            if "." in name or part.objective == self.name or not name:
                raise SightlineError(
                    f"objective combined: parts.{name}: a part's name must have no dots, and "
                    "a part must not be a combination"
                )
            if part.weight > 0:
                parts[name] = make_objective(part.objective or name, {**part.parameters, **common})
        if not parts:
            raise SightlineError("objective combined: every part has weight 0; train at least one")
        return parts

    @property
    def source(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        return " + ".join(part.source for part in self.objectives.values())

    @property
    def features(self) -> list[FeatureNeed]:
        needs: dict[str, FeatureNeed] = {}
        for name, part in self.objectives.items():
            for need in part.features:
                before = needs[need.name].terms if need.name in needs else ()
                terms = tuple(f"{name}.{term}" for term in need.terms)
                needs[need.name] = FeatureNeed(need.kind, need.encoder, before + terms)
        return list(needs.values())

    @property
    def weights(self) -> dict[str, float]:
        return {
            f"{name}.{term}": self.parts[name].weight * weight
            for name, part in self.objectives.items()
            for term, weight in part.weights.items()
        }

    @property
    def trains_on_text(self) -> bool:
        return any(part.trains_on_text for part in self.objectives.values())

    @property
    def files(self) -> list[Path]:
        return [path for part in self.objectives.values() for path in part.files]

    def identity(self) -> dict[str, Any]:
        parts = {
            name: [self.parts[name].weight, part.name, part.identity()]
            for name, part in self.objectives.items()
        }
        return {**super().identity(), "parts": parts}

    def second_texts(self, rows: StreamRows) -> dict[str, SecondTexts]:
        blocks: dict[str, SecondTexts] = {}
        for name, part in self.objectives.items():
            brought = second_texts_of(part, rows)
            if twice := blocks.keys() & brought.keys():
                raise SightlineError(
                    f"objective combined: parts.{name} brings {', '.join(sorted(twice))}, which "
                    "another part brings too; combine objectives whose second texts have names of "
                    "their own"
                )
            blocks |= brought
        return blocks

    def order(self, rows: StreamRows, pass_number: int, seed: int) -> NDArray[np.int64] | None:
        orders = {
            name: order
            for name, part in self.objectives.items()
            if (order := order_of(part, rows, seed, pass_number)) is not None
        }
        if len(orders) > 1:
            raise SightlineError(
                f"objective combined: parts {' and '.join(orders)} both order the rows; use one"
            )
        return next(iter(orders.values()), None)

    def check_widths(self, dims: Mapping[str, int]) -> None:
        for part in self.objectives.values():
            part.check_widths({need.name: dims[need.name] for need in part.features})

    def build(self, hidden: int, dims: Mapping[str, int]) -> ObjectiveModule:
        from train.objectives.combined_module import CombinedModule

        return CombinedModule(self, hidden, dims)

    def statistics(self, batch: Batch) -> dict[str, Tensor]:
        from train.objectives.module import statistics_of

        return {
            f"{name}.{figure}": value
            for name, part in self.objectives.items()
            for figure, value in statistics_of(part, batch).items()
        }

    def warnings(self, batches: Iterable[Batch]) -> list[str]:
        from train.objectives.module import warnings_of

        every = list(batches)
        return [
            f"{name}: {line}"
            for name, part in self.objectives.items()
            for line in warnings_of(part, every)
        ]

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        del described[_OF_A_PART]
        for name, part in self.objectives.items():
            items = part.describe().items()
            described["parts"][name]["parameters"] = {k: v for k, v in items if k not in _SHARED}
        return described
