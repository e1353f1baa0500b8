"""What an objective is: its parameters, the features it needs, its terms. Imports no torch.

Heads and state are in `train.objectives.module`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, model_validator

from sightline.cache.caption_choice import CaptionPolicy
from sightline.identity import identity, paths_in
from sightline.plugins import expect_valid
from sightline.settings import Settings
from train.objectives.needs import PROJECTION_DIM, FeatureNeed
from train.rows import ExtraTexts, StreamRows

if TYPE_CHECKING:
    from torch import Tensor, nn

    from train.batch import Batch, Embeddings
    from train.objectives.module import ObjectiveModule


class Objective(Settings, ABC):
    """An objective: its parameters, the features that it needs, and the terms of a batch.

    A new objective is one subclass, whose fields are its further parameters, and one line in
    `OBJECTIVES`. One with state, such as a momentum encoder, builds a module of its own (`build`).

    Attributes:
        name: of the objective in parameters and folders.
        source: where it comes from, for the model card.
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
        temperature: temperature τ of the text term.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    name: ClassVar[str]
    source: ClassVar[str]
    terms_of_text_head: ClassVar[tuple[str, ...]] = ("text",)
    """The terms that read g_text."""

    caption: CaptionPolicy = "random"
    data_seed: int = Field(default=0, ge=0)
    pairs: int | None = Field(default=None, ge=2)
    shuffle_images: bool = False
    random_images: bool = False
    shuffle_teachers: bool = False
    shuffle_objects: bool = False
    temperature: float = Field(default=0.05, gt=0)

    @model_validator(mode="after")
    def _one_control_of_images(self) -> Objective:
        if self.shuffle_images and self.random_images:
            raise ValueError("shuffle_images and random_images are both on; choose one")
        return self

    @property
    def features(self) -> Sequence[FeatureNeed]:
        """The feature sets that it reads; a batch holds their rows by `FeatureNeed.name`."""
        return []

    @property
    @abstractmethod
    def weights(self) -> dict[str, float]:
        """Term → weight in the total; 0 switches a term off."""

    def terms(
        self, heads: nn.ModuleDict, batch: Batch, embeddings: Embeddings
    ) -> dict[str, Tensor]:
        """Unweighted terms of one batch, each a scalar: L_text, unless an objective has others.

        Args:
            heads: those of the module. `text` is there if a term reads it (`terms_of_text_head`);
                with projected features `grounding` and each `FeatureNeed.head`.
            batch: its `stream` says which terms exist.
            embeddings: of the batch's blocks.
        """
        return self.text_term(heads, embeddings)

    def text_term(self, heads: nn.ModuleDict, embeddings: Embeddings) -> dict[str, Tensor]:
        """L_text, if it is on: two views of a sentence attract (Gao et al. 2021, eq. 4)."""
        from train.losses import info_nce

        if not self.trains_on_text:
            return {}
        first, second = map(heads["text"], embeddings["sentences"])  # (N, d)
        return {"text": info_nce(first, second, self.temperature)}

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

    def build(self, hidden: int, dims: Mapping[str, int]) -> ObjectiveModule:
        """The module that is trained, with new heads.

        Args:
            hidden: width of the student's embedding.
            dims: name of a need → width of its feature set.
        """
        from train.objectives.module import ObjectiveModule

        return ObjectiveModule(self, hidden, dims)

    def check_widths(self, dims: Mapping[str, int]) -> None:
        """Refuse feature sets with incompatible widths, before anything is loaded.

        Args:
            dims: name of a need → width of its feature set.

        Raises:
            SightlineError: features that a term compares, mixes or projects with one head differ
                in width.
        """

    @property
    def files(self) -> list[Path]:
        """Files and folders among its parameters, those of type `Path`."""
        return paths_in(self)

    def identity(self) -> dict[str, Any]:
        """What its runs are named by: its parameters, and the content of its `files`."""
        return identity(self)

    def extra_texts(self, rows: StreamRows) -> Mapping[str, ExtraTexts]:
        """Second texts of the rows of a stream, once before a run; none by default.

        They must be the same on every machine: round similarities before you rank them.

        Returns:
            Name of a block of the batch, such as ``hard_negatives`` → a text for each row.
        """
        return {}

    def order(self, rows: StreamRows, pass_number: int, seed: int) -> NDArray[np.int64] | None:
        """The order of one pass over a stream, a function of these arguments.

        Args:
            seed: of the run.

        Returns:
            A permutation of the rows' numbers; None: shuffled by the seed and the pass.
        """
        return None

    def on(self, terms: Iterable[str]) -> list[str]:
        """Those of ``terms`` that are switched on."""
        weights = self.weights
        return [term for term in terms if weights.get(term, 0) > 0]

    @property
    def trains_on_text(self) -> bool:
        """Whether a batch of plain sentences has a term."""
        return bool(self.on(["text"]))

    def describe(self) -> dict[str, Any]:
        """The parameters in full, defaults included, as JSON-ready values.

        They make the same objective again (`make_objective`).
        """
        return self.model_dump(mode="json")


class GroundedObjective(Objective):
    """Of objectives with images or teachers. Weight 0 switches a term off, with all it needs.

    Attributes:
        text_weight: weight of the text term; at 0 the run cannot have a stream of plain sentences.
        projection_dim: output width of the grounding head and of those that project features.
    """

    text_weight: float = Field(default=1.0, ge=0)
    projection_dim: int = Field(default=PROJECTION_DIM, ge=1)

    @model_validator(mode="after")
    def _trains_something(self) -> GroundedObjective:
        expect_valid(self.weights, dict[str, float], self, "weights")
        if not self.on(self.weights):
            raise ValueError("every weight is 0, so there is nothing to train")
        return self
