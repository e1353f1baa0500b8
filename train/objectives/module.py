"""The module of an objective: its heads, and the state that some have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from sightline.plugins import OURS, expect, expect_seam, expect_valid, package_of, wrong
from train.batch import Batch, Embeddings
from train.objectives.needs import PROJECTION_DIM, FeatureNeed
from train.schedule import Stream

if TYPE_CHECKING:
    from train.model import Student
    from train.objectives.objective import Objective


class ObjectiveModule(nn.Module):
    """The heads of an objective, which follow from its needs, and its terms.

    It has g_text if a term reads it; if features are projected, g_s (`grounding`) and the heads
    that do it. Parameters that require a gradient are trained. A checkpoint holds all parameters
    and buffers; an export holds `heads`.

    Every process of a run has its own copy, calls it with the whole batch, and draws the same
    random numbers in `forward` and `after_step`; so all copies stay equal.
    """

    def __init__(self, params: Objective, hidden: int, dims: Mapping[str, int]) -> None:
        """
        Args:
            hidden, dims: see `Objective.build`.
        """
        super().__init__()
        self.params = params
        self.heads = nn.ModuleDict()
        if params.on(params.terms_of_text_head):
            self.heads["text"] = text_head(hidden)
        projected = {need.head: dims[need.name] for need in params.features if need.head}
        if projected:
            width = getattr(params, "projection_dim", PROJECTION_DIM)
            self.heads["grounding"] = head(hidden, width)
            for name, inputs in projected.items():
                self.heads[name] = head(inputs, width)

    def start(self, student: Student) -> None:
        """Called once before the first step, with the student as it was loaded.

        A momentum encoder is copied here. In a resumed run the checkpoint then overwrites all
        parameters and buffers. Where `forward` encodes, keep the student's method `encode`: a
        student that is an attribute would be a part of this module.
        """

    def forward(self, batch: Batch, embeddings: Embeddings) -> dict[str, Tensor]:
        """Unweighted terms of one batch, each a scalar."""
        return self.params.terms(self.heads, batch, embeddings)

    def after_step(self, student: Student) -> None:
        """Called after each step of the optimiser, but not after one that fp16 skipped."""

    def image_heads(self) -> tuple[FeatureNeed, nn.Module, nn.Module] | None:
        """The space in which sentences find images; None if no head projects image features.

        Returns:
            The first such need, the head of sentences (`heads["grounding"]`), and that of the
            features.
        """
        for need in self.params.features:
            if need.kind == "image" and need.head is not None:
                return need, self.heads["grounding"], self.heads[need.head]
        return None


def head(inputs: int, outputs: int = PROJECTION_DIM) -> nn.Sequential:
    """Linear + Tanh, the "single-layer MLP with Tanh" of the papers: [N, inputs] → [N, outputs]."""
    return nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh())


def text_head(hidden: int) -> nn.Sequential:
    """g_text, initialised as BERT initialises its own layers (SimCSE's released code does)."""
    layers = head(hidden, hidden)
    nn.init.normal_(layers[0].weight, std=0.02)  # pyright: ignore[reportArgumentType]
    nn.init.zeros_(layers[0].bias)  # pyright: ignore[reportArgumentType]
    return layers


_LOGGED = {"step", "loss", "dev", "learning_rate", "grad_norm", "sentences_per_second"}


def module_of(objective: Objective, hidden: int, dims: Mapping[str, int]) -> ObjectiveModule:
    """What its `build` makes; SightlineError if that is no module of an objective."""
    built = expect(objective.build(hidden, dims), ObjectiveModule, objective, "build")
    expect_seam(type(built), ObjectiveModule)
    return built


def terms_of(module: ObjectiveModule, batch: Batch, embeddings: Embeddings) -> dict[str, Tensor]:
    """Its terms of a batch; SightlineError if they are something else than scalars it weighs."""
    params = module.params
    try:
        terms = expect(module(batch, embeddings), dict, params, "terms")
    except KeyError as error:
        if package_of(params) in OURS:
            raise
        names = ", ".join([*module.heads, *embeddings, *batch.features])
        expected = f"a head, a block or features that there are ({names})"
        raise wrong(params, "terms", error.args[0], expected) from error
    weights = params.weights
    for name, term in terms.items():
        if name not in weights or getattr(term, "shape", None) != ():
            raise wrong(params, f"terms, {name}", term, f"scalars named {', '.join(weights)}")
    return terms


class AwaitedTerms:
    """What an objective declares and has not yet given: its terms, and a gradient in each stream.

    A term that reads features is due in the first batch that has what it reads; any other one when
    each stream of the run has had a batch. A 0 with a gradient is a term too.

    Args:
        streams: of the run.
    """

    def __init__(self, params: Objective, streams: Iterable[Stream]) -> None:
        self._params = params
        self._terms = set(params.on(params.weights))
        self._streams = set(streams)

    def take(self, batch: Batch, terms: Mapping[str, Tensor], total: Tensor) -> None:
        """The terms of a batch, and their weighted sum."""
        if not total.requires_grad:
            raise wrong(self._params, "terms", dict(terms), "a term with a gradient")
        self._streams.discard(batch.stream)
        for name in self._terms & terms.keys():
            if not terms[name].requires_grad and terms[name] != 0:
                raise wrong(self._params, f"terms, {name}", terms[name], "a scalar with a gradient")
        self._terms -= terms.keys()
        due = (name for name in self._params.on(sorted(self._terms)) if self._is_due(name, batch))
        if missing := [*due]:
            expected = f"{', '.join(missing)} as well, or a weight of 0"
            raise wrong(self._params, f"terms of a batch of {batch.stream}", [*terms], expected)

    def _is_due(self, term: str, batch: Batch) -> bool:
        kinds = {need.row_of for need in self._params.features if term in need.terms}
        if not kinds:
            return not self._streams
        if batch.stream != "pairs":
            return False
        return "object" not in kinds or bool((batch.phrases.counts >= 2).any())


def statistics_of(objective: Objective, batch: Batch) -> dict[str, Tensor]:
    """Its `statistics`; SightlineError if they are something else than scalars by name."""
    figures = expect(objective.statistics(batch), dict, objective, "statistics")
    for name, figure in figures.items():
        if not isinstance(name, str) or getattr(figure, "shape", None) != ():
            raise wrong(objective, f"statistics, {name}", figure, "a tensor of shape [] by name")
        if name in _LOGGED or name.startswith("loss_"):
            raise wrong(objective, "statistics", name, "a name that the log has for nothing else")
    return figures


def warnings_of(objective: Objective, batches: Iterable[Batch]) -> Sequence[str]:
    """Its `warnings`; SightlineError if they are something else than lines of text."""
    lines = objective.warnings(batches)
    expect_valid(lines, Sequence[str], objective, "warnings")
    return lines
