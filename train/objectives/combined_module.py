"""The module of a combination: those of its parts, which share heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from train.batch import Batch, Embeddings
from train.objectives.combined import Combined
from train.objectives.module import ObjectiveModule, module_of, terms_of
from train.objectives.objective import FeatureNeed

if TYPE_CHECKING:
    from train.model import Student


class CombinedModule(ObjectiveModule):
    """Σ over parts of weight × total of the part.

    Heads with the same name, shape and encoder are shared: all terms in the grounded space project
    sentences with the same grounding head. A head is called by the first part that has it.

    Attributes:
        parts: name → module.
    """

    def __init__(self, params: Combined, hidden: int, dims: Mapping[str, int]) -> None:
        """
        Args:
            hidden, dims: see `Objective.build`.
        """
        super().__init__(params, hidden, {})
        self.parts: dict[str, ObjectiveModule] = {}
        first: dict[object, nn.Module] = {}  # of a name, encoder and shape
        for name, part in params.objectives.items():
            built = module_of(part, hidden, {need.name: dims[need.name] for need in part.features})
            self.parts[name] = built
            for head, module in built.heads.items():
                shapes = (*(weight.shape for weight in module.parameters()),)
                # of the features that it projects; None: it projects sentences
                encoder = next((n.encoder for n in part.features if n.head == head), None)
                shared = first.setdefault((head, encoder, shapes), module)
                if shared is module:
                    self.heads[f"{name}-{head}"] = module
                built.heads[head] = shared
        self._registered = nn.ModuleList(self.parts.values())

    def start(self, student: Student) -> None:
        for part in self.parts.values():
            part.start(student)

    def forward(self, batch: Batch, embeddings: Embeddings) -> dict[str, Tensor]:
        return {
            f"{name}.{term}": value
            for name, part in self.parts.items()
            for term, value in terms_of(part, batch, embeddings).items()
        }

    def after_step(self, student: Student) -> None:
        for part in self.parts.values():
            part.after_step(student)

    def image_heads(self) -> list[tuple[FeatureNeed, nn.Module, nn.Module]]:
        return [heads for part in self.parts.values() for heads in part.image_heads()]
