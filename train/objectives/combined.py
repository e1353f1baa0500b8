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

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, model_validator

from sightline.errors import SightlineError
from sightline.settings import Settings
from train.batch import Batch
from train.objectives.objective import (
    Embeddings,
    FeatureNeed,
    Heads,
    Objective,
    ObjectiveParams,
    statistics_of,
    warnings_of,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

_OF_A_PART = "temperature"
"""The one common parameter that each part sets for itself."""

_SHARED = ObjectiveParams.model_fields.keys() - {_OF_A_PART}
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


class CombinedParams(ObjectiveParams):
    """Parameters of a combination.

    Attributes:
        parts: name → part. Names prefix the names of terms, as in `mcseo.object`.
    """

    parts: dict[str, Part] = Field(min_length=1)

    @model_validator(mode="after")
    def _parts_make_sense(self) -> CombinedParams:
        if _OF_A_PART in self.model_fields_set:
            raise ValueError(f"{_OF_A_PART} is a parameter of each part; give it there")
        texts = [name for name, part in self.objectives().items() if "text" in part.weights]
        if len(texts) > 1:
            raise ValueError(
                f"parts {' and '.join(texts)} both have the text term; set text_weight to 0 in all "
                "but one"
            )
        return self

    def objectives(self) -> dict[str, Objective[Any]]:
        """Name → objective, of the parts whose weight is above 0.

        Raises:
            SightlineError: a part has parameters that its objective does not have or allow, or
                those that belong to the combination.
        """
        from train.objectives import make_objective

        common = {name: getattr(self, name) for name in _SHARED}
        parts = {}
        for name, part in self.parts.items():
            if misplaced := sorted(_SHARED & part.parameters.keys()):
                raise SightlineError(
                    f"objective combined: parts.{name}: {', '.join(misplaced)} belongs to the "
                    "combination, beside `parts`: all parts see the same pairs"
                )
            if "." in name or part.objective == Combined.name or not name:
                raise SightlineError(
                    f"objective combined: parts.{name}: a part's name must have no dots, and "
                    "a part must not be a combination"
                )
            if part.weight > 0:
                parts[name] = make_objective(part.objective or name, {**part.parameters, **common})
        if not parts:
            raise SightlineError("objective combined: every part has weight 0; train at least one")
        return parts


class Combined(Objective[CombinedParams]):
    """Σ over parts of weight × total of the part.

    Heads with the same name, shape and encoder are shared: all terms in the grounded space project
    sentences with the same grounding head. A head is called by the first part that has it.
    """

    name = "combined"
    Params = CombinedParams
    source = "a combination of objectives"

    def __init__(self, params: CombinedParams) -> None:
        super().__init__(params)
        self.objectives = params.objectives()
        self.source = " + ".join(part.source for part in self.objectives.values())

    @property
    def features(self) -> list[FeatureNeed]:
        needs: dict[str, FeatureNeed] = {}
        for name, part in self.objectives.items():
            for need in part.features:
                before = needs[need.name].terms if need.name in needs else ()
                terms = tuple(f"{name}.{term}" for term in need.terms)
                needs[need.name] = FeatureNeed(need.kind, need.encoder, before + terms)
        return list(needs.values())

    def check_widths(self, dims: Mapping[str, int]) -> None:
        for part in self.objectives.values():
            part.check_widths({need.name: dims[need.name] for need in part.features})

    def heads(self, hidden: int, dims: Mapping[str, int]) -> nn.ModuleDict:
        from torch import nn

        heads = nn.ModuleDict()
        for name, part in self.objectives.items():
            of_part = part.heads(hidden, {need.name: dims[need.name] for need in part.features})
            for head, module in of_part.items():
                first = self.shared(name, head, heads)
                if first is None or _shapes(heads[first]) != _shapes(module):
                    heads[f"{name}-{head}"] = module
        return heads

    def shared(self, part: str, head: str, heads: Container[str]) -> str | None:
        """Which of ``heads`` is called ``head`` by the first part that has it for the encoder."""
        encoder = _encoder(self.objectives[part], head)
        names = (
            f"{name}-{head}"
            for name, objective in self.objectives.items()
            if _encoder(objective, head) == encoder
        )
        return next((name for name in names if name in heads), None)

    def parts(self, heads: Heads) -> list[tuple[Objective[Any], Heads]]:
        return [(part, _HeadsOfPart(self, name, heads)) for name, part in self.objectives.items()]

    @property
    def weights(self) -> dict[str, float]:
        return {
            f"{name}.{term}": self.params.parts[name].weight * weight
            for name, part in self.objectives.items()
            for term, weight in part.weights.items()
        }

    @property
    def trains_on_text(self) -> bool:
        return any(part.trains_on_text for part in self.objectives.values())

    def terms(self, batch: Batch, embeddings: Embeddings, heads: Heads) -> dict[str, Tensor]:
        return {
            f"{name}.{term}": value
            for name, (part, heads_of_part) in zip(self.objectives, self.parts(heads), strict=True)
            for term, value in part.terms(batch, embeddings, heads_of_part).items()
        }

    def statistics(self, batch: Batch) -> dict[str, Tensor]:
        return {
            f"{name}.{figure}": value
            for name, part in self.objectives.items()
            for figure, value in statistics_of(part, batch).items()
        }

    def warnings(self, batches: Iterable[Batch]) -> list[str]:
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


@dataclass(frozen=True)
class _HeadsOfPart:
    """The heads of a combination as one of its parts calls them."""

    whole: Combined
    part: str
    heads: Any

    def __getitem__(self, name: str) -> nn.Module:
        full_name = f"{self.part}-{name}"
        if full_name in self.heads:
            return self.heads[full_name]
        return self.heads[self.whole.shared(self.part, name, self.heads)]


def _encoder(part: Objective[Any], head: str) -> str | None:
    """The encoder whose features a head projects; None: it projects sentences."""
    return next((need.encoder for need in part.features if need.head == head), None)


def _shapes(module: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(weight.shape) for weight in module.parameters()]
