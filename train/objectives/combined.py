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
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, model_validator

from sightline.errors import SightlineError
from sightline.settings import Settings
from train.batch import Batch
from train.objectives.objective import FeatureNeed, Heads, Objective, ObjectiveParams, Views

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
        from train.objectives.known_objectives import make_objective

        common = {name: getattr(self, name) for name in _SHARED}
        made = {}
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
                made[name] = make_objective(part.objective or name, {**part.parameters, **common})
        if not made:
            raise SightlineError("objective combined: every part has weight 0; train at least one")
        return made


class Combined(Objective[CombinedParams]):
    """Σ over parts of weight × total of the part.

    Heads with the same name, shape and encoder are shared: all terms in the grounded space project
    sentences with the same grounding head.
    """

    name = "combined"
    Params = CombinedParams
    source = "a combination of objectives"

    def __init__(self, params: CombinedParams) -> None:
        super().__init__(params)
        self.parts = params.objectives()
        self._heads: dict[str, dict[str, str]] = {}
        self.source = " + ".join(part.source for part in self.parts.values())

    @classmethod
    def features(cls, params: CombinedParams) -> dict[str, FeatureNeed]:
        needs: dict[str, FeatureNeed] = {}
        for name, part in params.objectives().items():
            for need in part.features(part.params).values():
                slot = _slot(need)
                before = needs[slot].terms if slot in needs else ()
                terms = tuple(f"{name}.{term}" for term in need.terms)
                needs[slot] = replace(need, terms=before + terms)
        return needs

    def check_widths(self, dims: Mapping[str, int]) -> None:
        for part in self.parts.values():
            part.check_widths(_widths_of(part, dims))

    def heads(self, hidden: int, dims: Mapping[str, int]) -> nn.ModuleDict:
        from torch import nn

        heads, owners = nn.ModuleDict(), {}
        for name, part in self.parts.items():
            needs = part.features(part.params)
            own = part.heads(hidden, _widths_of(part, dims))
            self._heads[name] = {}
            for kind, module in own.items():
                slots = part.projected_slots.get(kind, ())
                of_head = [needs[slot].encoder for slot in slots if slot in needs]
                encoder = of_head[0] if of_head else None
                shape = tuple(tuple(weight.shape) for weight in module.parameters())
                key = owners.setdefault((kind, encoder, shape), f"{name}-{kind}")
                self._heads[name][kind] = key
                if key not in heads:
                    heads[key] = module
        return heads

    @property
    def projected_slots(self) -> dict[str, tuple[str, ...]]:
        """As of the heads that `heads` made last; {} before."""
        slots: dict[str, dict[str, None]] = {}
        for name, part in self.parts.items():
            needs = part.features(part.params)
            for head, own in part.projected_slots.items():
                if head in self._heads.get(name, {}):
                    found = slots.setdefault(self._heads[name][head], {})
                    found.update((_slot(needs[slot]), None) for slot in own if slot in needs)
        return {head: tuple(found) for head, found in slots.items()}

    def sentence_head(self, head: str) -> str:
        for name, part in self.parts.items():
            for own, key in self._heads[name].items():
                if key == head and own in part.projected_slots:
                    return self._heads[name][part.sentence_head(own)]
        raise KeyError(head)

    @property
    def weights(self) -> dict[str, float]:
        return {
            f"{name}.{term}": self.params.parts[name].weight * weight
            for name, part in self.parts.items()
            for term, weight in part.weights.items()
        }

    @property
    def needs_phrases(self) -> bool:
        return any(part.needs_phrases for part in self.parts.values())

    @property
    def trains_on_text(self) -> bool:
        return any(part.trains_on_text for part in self.parts.values())

    def terms(self, batch: Batch, views: Views, heads: Heads) -> dict[str, Tensor]:
        terms = {}
        for name, part in self.parts.items():
            own = {kind: heads[key] for kind, key in self._heads[name].items()}
            for term, value in part.terms(self._seen_by(part, batch), views, own).items():
                terms[f"{name}.{term}"] = value
        return terms

    def statistics(self, batch: Batch) -> dict[str, Tensor]:
        return {
            f"{name}.{figure}": value
            for name, part in self.parts.items()
            for figure, value in part.statistics(self._seen_by(part, batch)).items()
        }

    def warnings(self, batches: Iterable[Batch]) -> list[str]:
        every = list(batches)
        return [
            f"{name}: {line}"
            for name, part in self.parts.items()
            for line in part.warnings(self._seen_by(part, batch) for batch in every)
        ]

    def describe(self) -> dict[str, Any]:
        described = super().describe()
        del described[_OF_A_PART]
        for name, part in self.parts.items():
            own = part.describe().items()
            described["parts"][name]["parameters"] = {k: v for k, v in own if k not in _SHARED}
        return described

    def _seen_by(self, part: Objective[Any], batch: Batch) -> Batch:
        """``batch`` with features in the slots that ``part`` calls them by."""
        if batch.stream == "text":
            return batch
        needs = part.features(part.params)
        features = {slot: batch.features[_slot(need)] for slot, need in needs.items()}
        return replace(batch, features=features)


def _widths_of(part: Objective[Any], dims: Mapping[str, int]) -> dict[str, int]:
    """``dims`` by the slots that ``part`` calls them by."""
    return {slot: dims[_slot(need)] for slot, need in part.features(part.params).items()}


def _slot(need: FeatureNeed) -> str:
    return f"{need.kind}-{need.encoder}"
