"""The module of an objective: its heads, its state, and the loss terms of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

from torch import Tensor, nn

from sightline.plugins import OURS, expect, expect_all, expect_methods, package_of, wrong
from train.batch import Batch
from train.losses import info_nce
from train.objectives.parameters import (
    PROJECTION_DIM,
    FeatureNeed,
    GroundedParams,
    ObjectiveParams,
)

if TYPE_CHECKING:
    from train.model import Student

Embeddings: TypeAlias = Mapping[str, Tensor]
"""Name of a block of the batch → float [2, n, d], two dropout views of its rows, before any head.
Those of sentences are pooled, those of phrases are means over their tokens."""

P = TypeVar("P", bound=ObjectiveParams)


class Objective(nn.Module, ABC, Generic[P]):
    """A loss over batches of the two streams, made of named terms.

    Its parameters that require a gradient are trained. A checkpoint holds all of its parameters and
    buffers; an export holds `heads`.

    Every process of a run has its own copy, calls it with the whole batch, and draws the same
    random numbers in `forward` and `after_step`; so all copies stay equal.

    Attributes:
        params: its parameters.
        heads: trained heads by name. Retrieval needs those that project features.
    """

    def __init__(self, params: P) -> None:
        super().__init__()
        self.params = params
        self.heads = nn.ModuleDict()

    def start(self, student: Student) -> None:
        """Called once before the first step, with the student as it was loaded.

        A momentum encoder is copied here. In a resumed run the checkpoint then overwrites all
        parameters and buffers. Where `forward` encodes, keep the student's method `encode`: a
        student that is an attribute would be a part of this module.
        """

    @abstractmethod
    def forward(self, batch: Batch, embeddings: Embeddings) -> dict[str, Tensor]:
        """Unweighted terms of one batch, each a scalar; `batch.stream` says which ones exist."""

    def after_step(self, student: Student) -> None:
        """Called after each step of the optimiser, but not after one that fp16 skipped."""

    def text_term(self, sentences: Tensor) -> Tensor:
        """L_text: both dropout views of a sentence attract (Gao et al. 2021, eq. 4).

        Args:
            sentences: both views, [2, N, d]; ``heads["text"]`` projects them.
        """
        first, second = map(self.heads["text"], sentences)
        return info_nce(first, second, self.params.temperature)

    def image_heads(self) -> list[tuple[FeatureNeed, nn.Module, nn.Module]]:
        """Image features that a head projects: what they are, and both heads of their space.

        Returns:
            Each need, the head of sentences (`heads["grounding"]`), and that of the features.
        """
        return [
            (need, self.heads["grounding"], self.heads[need.head])
            for need in self.params.features
            if need.kind == "image" and need.head is not None
        ]

    def statistics(self, batch: Batch) -> dict[str, Tensor]:
        """Figures that are logged beside the terms of a batch: name → scalar; none by default.

        A mean over `logging_steps` that is not finite is left out of the log.
        """
        return {}

    def warnings(self, batches: Iterable[Batch]) -> list[str]:
        """What looks wrong in the first paired batches of a run; nothing by default.

        The batches are on the CPU, exactly as the run will see them. Each line is printed before
        the first step, after the name of the run.
        """
        return []


_LOGGED = {"step", "loss", "dev", "learning_rate", "grad_norm", "sentences_per_second"}


def module_of(objective: ObjectiveParams, hidden: int, dims: Mapping[str, int]) -> Objective[Any]:
    """What its `build` makes; SightlineError if that is no module of an objective."""
    built = expect(objective.build(hidden, dims), Objective, objective, "build")
    expect_methods(type(built), Objective)
    return built


def terms_of(objective: Objective[Any], batch: Batch, embeddings: Embeddings) -> dict[str, Tensor]:
    """Its terms of a batch; SightlineError if they are something else than scalars it weighs."""
    try:
        terms = expect(objective(batch, embeddings), dict, objective, "forward")
    except KeyError as error:
        if package_of(objective) in OURS:
            raise
        names = ", ".join([*objective.heads, *embeddings, *batch.features])
        expected = f"a head, a block or features that there are ({names})"
        raise wrong(objective, "forward", error.args[0], expected) from error
    weights = objective.params.weights
    for name, term in terms.items():
        if name not in weights or getattr(term, "shape", None) != ():
            raise wrong(objective, f"forward, {name}", term, f"scalars named {', '.join(weights)}")
    return terms


def outside_packages(objective: Objective[Any]) -> list[str]:
    """The packages of others that it, or a part of it, is from."""
    parts = (part for part in objective.modules() if isinstance(part, Objective))
    return sorted({*map(package_of, parts)} - OURS)


def statistics_of(objective: Objective[Any], batch: Batch) -> dict[str, Tensor]:
    """Its `statistics`; SightlineError if they are something else than scalars by name."""
    figures = expect(objective.statistics(batch), dict, objective, "statistics")
    for name, figure in figures.items():
        if not isinstance(name, str) or getattr(figure, "shape", None) != ():
            raise wrong(objective, f"statistics, {name}", figure, "a tensor of shape [] by name")
        if name in _LOGGED or name.startswith("loss_"):
            raise wrong(objective, "statistics", name, "a name that the log has for nothing else")
    return figures


def warnings_of(objective: Objective[Any], batches: Iterable[Batch]) -> Sequence[str]:
    """Its `warnings`; SightlineError if they are something else than lines of text."""
    return expect_all(objective.warnings(batches), str, objective, "warnings")


G = TypeVar("G", bound=GroundedParams)


class GroundedObjective(Objective[G]):
    """An objective whose parameters are `GroundedParams`, and whose heads follow from its needs.

    It has g_text if a term reads it; if features are projected, g_s (`grounding`) and the heads
    that do it.

    Attributes:
        terms_of_text_head: the terms that read g_text.
    """

    terms_of_text_head: ClassVar[tuple[str, ...]] = ("text",)

    def __init__(self, params: G, hidden: int, dims: Mapping[str, int]) -> None:
        """
        Args:
            hidden, dims: see `ObjectiveParams.build`.
        """
        super().__init__(params)
        width = params.projection_dim
        if params.on(self.terms_of_text_head):
            self.heads["text"] = text_head(hidden)
        projected = {need.head: dims[need.name] for need in params.features if need.head}
        if projected:
            self.heads["grounding"] = head(hidden, width)
        for name, inputs in projected.items():
            self.heads[name] = head(inputs, width)


def head(inputs: int, outputs: int = PROJECTION_DIM) -> nn.Sequential:
    """Linear + Tanh, the "single-layer MLP with Tanh" of the papers: [N, inputs] → [N, outputs]."""
    return nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh())


def text_head(hidden: int) -> nn.Sequential:
    """g_text, initialised as BERT initialises its own layers (SimCSE's released code does)."""
    layers = head(hidden, hidden)
    nn.init.normal_(layers[0].weight, std=0.02)  # pyright: ignore[reportArgumentType]
    nn.init.zeros_(layers[0].bias)  # pyright: ignore[reportArgumentType]
    return layers


def image_term(first: Tensor, second: Tensor, images: Tensor, temperature: float) -> Tensor:
    """L_img: each view finds its image; the average over the views (Zhang et al. 2022, eq. 3).

    Args:
        first, second: both views in the grounded space, [N, d].
        images: [N, d], row i is sentence i's.
    """
    return (info_nce(first, images, temperature) + info_nce(second, images, temperature)) / 2
