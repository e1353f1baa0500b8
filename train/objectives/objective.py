"""The objective interface: parameters, the features it needs, heads, and named loss terms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from pydantic import ConfigDict, Field, model_validator

from sightline.cache.caption_choice import CaptionPolicy
from sightline.cache.feature_kind import RowOf, feature_kind
from sightline.cache.record import Kind
from sightline.plugins import expect, expect_all, expect_valid, wrong
from sightline.settings import Settings
from train.batch import Batch, feature_name

if TYPE_CHECKING:
    from torch import Tensor, nn

PROJECTION_DIM = 256
"""Width of the space that sentences share with images and teachers (METHODS, table of heads)."""


@dataclass(frozen=True)
class FeatureNeed:
    """A feature set that an objective reads on paired batches.

    Attributes:
        kind: one of `sightline.cache.feature_kind.KINDS`. Rows of an image are looked up by its
            key, those of a caption by the caption's; `object` rows, one for each phrase of the
            caption, by the cut-out's.
        encoder: name of the encoder, as in the parameters.
        terms: the terms that read it.
        head: the head that projects it, if one does. Several needs may share a head if they are
            of one encoder.
    """

    kind: Kind
    encoder: str
    terms: tuple[str, ...] = ()
    head: str | None = None

    @property
    def row_of(self) -> RowOf:
        """Which key of a pair its rows have."""
        return feature_kind(self.kind).row_of

    @property
    def name(self) -> str:
        """As users, batches and records call it, such as `image-clip`."""
        return feature_name(self.kind, self.encoder)

    @property
    def command(self) -> str:
        """The command that makes such a feature set."""
        return f"sightline extract {self.kind}"

    def __str__(self) -> str:
        of_terms = f" for term {', '.join(self.terms)}" if self.terms else ""
        return f"{self.kind} features of {self.encoder}{of_terms}"


class ObjectiveParams(Settings):
    """Parameters that every objective has.

    Attributes:
        caption: which captions of an image are trained on.
        data_seed: draws the caption and shuffles the images. It is not the seed of the run, so
            that all runs of a comparison see the same pairs.
        pairs: train on this many pairs, drawn by `data_seed`, in as many steps as with all of them;
            None uses all.
        shuffle_images: give every image's captions another image, by one fixed permutation. Objects
            stay with their captions.
        random_images: give every caption an image drawn at random, once.
        shuffle_teachers: give every caption the text and teacher features of another, by one fixed
            permutation.
        shuffle_objects: give every phrase the object of the next phrase of its caption.
        temperature: τ of the text term.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    caption: CaptionPolicy = "random"
    data_seed: int = Field(default=0, ge=0)
    pairs: int | None = Field(default=None, ge=2)
    shuffle_images: bool = False
    random_images: bool = False
    shuffle_teachers: bool = False
    shuffle_objects: bool = False
    temperature: float = Field(default=0.05, gt=0)

    @model_validator(mode="after")
    def _one_control_of_images(self) -> ObjectiveParams:
        if self.shuffle_images and self.random_images:
            raise ValueError("shuffle_images and random_images are both on; choose one")
        return self


Embeddings: TypeAlias = "Mapping[str, Tensor]"
"""Name of a block of the batch → float [2, n, d], two dropout views of its rows, before any head.
Those of sentences are pooled, those of phrases are means over their tokens."""


class Heads(Protocol):
    """Heads by name: an `nn.ModuleDict`, or what a part of a combination sees of one."""

    def __getitem__(self, name: str, /) -> nn.Module: ...


P = TypeVar("P", bound=ObjectiveParams)


class Objective(ABC, Generic[P]):
    """A loss over batches of the two streams, made of named terms and their weights.

    A new objective is one file with one subclass, and one line in `OBJECTIVES`.

    Attributes:
        name: its name in parameters and folders.
        Params: its parameters.
        source: where it comes from, for the model card.
        sentence_head: the head that projects sentences into the space of projected features, where
            retrieval compares them.
    """

    name: ClassVar[str]
    Params: ClassVar[type[ObjectiveParams]]
    source: str
    sentence_head: ClassVar[str] = "grounding"

    def __init__(self, params: P) -> None:
        self.params = params

    @property
    @abstractmethod
    def features(self) -> Sequence[FeatureNeed]:
        """The feature sets that it reads; a batch holds their rows by `FeatureNeed.name`."""

    def check_widths(self, dims: Mapping[str, int]) -> None:
        """Refuse feature sets with incompatible widths, before anything is loaded.

        Args:
            dims: name of a need → width of its feature set.

        Raises:
            SightlineError: features that a term compares, mixes or projects with one head differ
                in width.
        """

    @abstractmethod
    def heads(self, hidden: int, dims: Mapping[str, int]) -> nn.ModuleDict:
        """The heads that this objective trains, and no others.

        Args:
            hidden: width of the student's embedding.
            dims: name of a need → width of its feature set.
        """

    def parts(self, heads: Heads) -> Sequence[tuple[Objective[Any], Heads]]:
        """The objectives that it consists of, with what each sees of ``heads``; default: itself."""
        return [(self, heads)]

    @property
    @abstractmethod
    def weights(self) -> dict[str, float]:
        """Term → weight in the total."""

    @abstractmethod
    def terms(self, batch: Batch, embeddings: Embeddings, heads: Heads) -> dict[str, Tensor]:
        """Unweighted terms of one batch, each a scalar; `batch.stream` says which ones exist."""

    @property
    def trains_on_text(self) -> bool:
        """Whether a batch of plain sentences has a term."""
        return "text" in self.weights

    def total(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Σ weight × term."""
        weights = self.weights
        return sum((weights[name] * term for name, term in terms.items()), start=_ZERO)

    def statistics(self, batch: Batch) -> dict[str, Tensor]:
        """Figures that are logged beside the terms of a batch: name → scalar; none by default."""
        return {}

    def warnings(self, batches: Iterable[Batch]) -> list[str]:
        """What looks wrong in the first paired batches of a run; nothing by default.

        The batches are on the CPU, exactly as the run will see them. Each line is printed before
        the first step, after the name of the run.
        """
        return []

    def describe(self) -> dict[str, Any]:
        """The parameters in full, defaults included, as JSON-ready values.

        They make the same objective again (`make_objective`).
        """
        return self.params.model_dump(mode="json")


def statistics_of(objective: Objective[Any], batch: Batch) -> dict[str, Tensor]:
    """Its `statistics`; SightlineError if they are something else than scalars by name."""
    figures = expect(objective.statistics(batch), dict, objective, "statistics")
    for name, figure in figures.items():
        if not isinstance(name, str) or getattr(figure, "shape", None) != ():
            raise wrong(objective, f"statistics, {name}", figure, "a tensor of shape [] by name")
    return figures


def warnings_of(objective: Objective[Any], batches: Iterable[Batch]) -> Sequence[str]:
    """Its `warnings`; SightlineError if they are something else than lines of text."""
    return expect_all(objective.warnings(batches), str, objective, "warnings")


_ZERO: Any = 0.0


class GroundedParams(ObjectiveParams):
    """Of objectives with images or teachers. Weight 0 switches a term off, with all it needs.

    Attributes:
        text_weight: of the text term; at 0 the run cannot have a stream of plain sentences.
        projection_dim: output width of the grounding head and of those that project features.
    """

    text_weight: float = Field(default=1.0, ge=0)
    projection_dim: int = Field(default=PROJECTION_DIM, ge=1)

    @model_validator(mode="after")
    def _trains_something(self) -> GroundedParams:
        expect_valid(self.every_weight, dict[str, float], self, "every_weight")
        if not self.term_weights:
            raise ValueError("every weight is 0, so there is nothing to train")
        return self

    @property
    @abstractmethod
    def every_weight(self) -> dict[str, float]:
        """Term → weight in the total, those of weight 0 included."""

    @property
    def term_weights(self) -> dict[str, float]:
        """Term → weight in the total, of the terms that are on."""
        return {term: weight for term, weight in self.every_weight.items() if weight > 0}


G = TypeVar("G", bound=GroundedParams)


class GroundedObjective(Objective[G]):
    """An objective whose parameters are `GroundedParams`, and whose heads follow from its needs.

    Attributes:
        terms_of_text_head: the terms that read g_text.
    """

    terms_of_text_head: ClassVar[tuple[str, ...]] = ("text",)

    @property
    def weights(self) -> dict[str, float]:
        return self.params.term_weights

    def heads(self, hidden: int, dims: Mapping[str, int]) -> nn.ModuleDict:
        """g_text if a term reads it; if features are projected, g_s and the heads that do it."""
        from torch import nn

        width, heads = self.params.projection_dim, nn.ModuleDict()
        if any(term in self.weights for term in self.terms_of_text_head):
            heads["text"] = text_head(hidden)
        projected = {need.head: dims[need.name] for need in self.features if need.head is not None}
        if projected:
            heads["grounding"] = head(hidden, width)
        for name, inputs in projected.items():
            heads[name] = head(inputs, width)
        return heads


def head(inputs: int, outputs: int = PROJECTION_DIM) -> nn.Sequential:
    """Linear + Tanh, the "single-layer MLP with Tanh" of the papers: [N, inputs] → [N, outputs]."""
    from torch import nn

    return nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh())


def text_head(hidden: int) -> nn.Sequential:
    """g_text, initialised as BERT initialises its own layers (SimCSE's released code does)."""
    from torch import nn

    layers = head(hidden, hidden)
    nn.init.normal_(layers[0].weight, std=0.02)  # pyright: ignore[reportArgumentType]
    nn.init.zeros_(layers[0].bias)  # pyright: ignore[reportArgumentType]
    return layers


def text_term(views: Tensor, head: nn.Module, temperature: float) -> Tensor:
    """L_text: both dropout views of a sentence attract (Gao et al. 2021, eq. 4).

    Args:
        views: of the sentences, [2, N, d].
    """
    from train.losses import info_nce

    first, second = map(head, views)
    return info_nce(first, second, temperature)


def image_term(first: Tensor, second: Tensor, images: Tensor, temperature: float) -> Tensor:
    """L_img: each view finds its image; the average over the views (Zhang et al. 2022, eq. 3).

    Args:
        first, second: both views in the grounded space, [N, d].
        images: [N, d], row i is sentence i's.
    """
    from train.losses import info_nce

    return (info_nce(first, images, temperature) + info_nce(second, images, temperature)) / 2
