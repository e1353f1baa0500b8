"""The objective interface: parameters, the features it needs, heads, and named loss terms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import ConfigDict, Field, model_validator

from sightline.cache.caption_choice import CaptionPolicy
from sightline.cache.record import Kind
from sightline.settings import Settings
from train.batch import Batch

if TYPE_CHECKING:
    from torch import Tensor, nn

PROJECTION_DIM = 256
"""Width of the space that sentences share with images and teachers (METHODS, table of heads)."""


@dataclass(frozen=True)
class FeatureNeed:
    """A feature set that an objective reads on paired batches.

    Attributes:
        kind: `image` rows are looked up by the image's key; `text` and `teacher` rows by the
            caption's; `object` rows, one for each phrase of the caption, by the cut-out's.
        encoder: name of the encoder, as in the parameters.
        terms: the terms that read it.
    """

    kind: Kind
    encoder: str
    terms: tuple[str, ...] = ()

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


@dataclass(frozen=True)
class Views:
    """Two dropout views of the sentences of a batch.

    Attributes:
        first, second: float [N, d], pooled sentence embeddings, before any head.
        phrases: float [2, P, d], the mean token embedding of each phrase of the batch in both
            views; only for an objective with `needs_phrases`, on a batch with phrases.
    """

    first: Tensor
    second: Tensor
    phrases: Tensor | None = None


class Heads(Protocol):
    """Heads by name: an `nn.ModuleDict`, or a dictionary of some of another's heads."""

    def __getitem__(self, name: str, /) -> nn.Module: ...


P = TypeVar("P", bound=ObjectiveParams)


class Objective(ABC, Generic[P]):
    """A loss over batches of the two streams, made of named terms and their weights.

    A new objective is one file with one subclass, and one line in `train/objective_registry.py`.

    Attributes:
        name: its name in parameters and folders.
        Params: its parameters.
        source: where it comes from, for the model card.
    """

    name: ClassVar[str]
    Params: ClassVar[type[ObjectiveParams]]
    source: str

    def __init__(self, params: P) -> None:
        self.params = params

    @classmethod
    @abstractmethod
    def features(cls, params: P) -> dict[str, FeatureNeed]:
        """Slot → feature set; a slot is the name under which a batch holds the rows."""

    def check_widths(self, dims: Mapping[str, int]) -> None:
        """Refuse feature sets with incompatible widths, before anything is loaded.

        Args:
            dims: slot → width of its feature set.

        Raises:
            SightlineError: features that a term compares, mixes or projects with one head differ
                in width.
        """

    @abstractmethod
    def heads(self, hidden: int, dims: Mapping[str, int]) -> nn.ModuleDict:
        """The heads that this objective trains, and no others.

        Args:
            hidden: width of the student's embedding.
            dims: slot → width of its feature set.
        """

    @property
    def projected_slots(self) -> dict[str, tuple[str, ...]]:
        """Head → the slots whose features it projects, all from one encoder; {} by default.

        Heads not listed here project sentences. A combination shares a head between its parts if
        name, shape and encoder are the same.
        """
        return {}

    def sentence_head(self, head: str) -> str:
        """The head that projects sentences into the space of ``head``, one of `projected_slots`.

        Retrieval compares sentences and images there; g_s, called "grounding", by default.
        """
        return "grounding"

    @property
    @abstractmethod
    def weights(self) -> dict[str, float]:
        """Term → weight in the total."""

    @abstractmethod
    def terms(self, batch: Batch, views: Views, heads: Heads) -> dict[str, Tensor]:
        """Unweighted terms of one batch, each a scalar; `batch.stream` says which ones exist."""

    @property
    def needs_phrases(self) -> bool:
        """Whether `terms` reads `Views.phrases`."""
        return False

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


_ZERO: Any = 0.0


def head(inputs: int, outputs: int = PROJECTION_DIM) -> nn.Sequential:
    """Linear + Tanh, the "single-layer MLP with Tanh" of the papers: [N, inputs] → [N, outputs]."""
    from torch import nn

    return nn.Sequential(nn.Linear(inputs, outputs), nn.Tanh())


def text_head(hidden: int, initializer_range: float = 0.02) -> nn.Sequential:
    """g_text, initialised as BERT initialises its own layers (SimCSE's released code does)."""
    from torch import nn

    layers = head(hidden, hidden)
    nn.init.normal_(layers[0].weight, std=initializer_range)  # pyright: ignore[reportArgumentType]
    nn.init.zeros_(layers[0].bias)  # pyright: ignore[reportArgumentType]
    return layers
