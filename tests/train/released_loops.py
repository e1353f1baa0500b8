"""The training loops that MCSE and KDMCSE were released with, in plain torch (METHODS §§1–4, 6).

Nothing here is shared with `train`. Data comes from two endless loaders, as it did there; losses
are torch's cross entropy over whole matrices of cosines; the optimiser is that of transformers 4 on
torch 1.7. SimCSE's and DALR's losses are those of their papers, in the same loop: DALR's released
code does not run, and a step of SimCSE's Trainer is a step of this one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, log_softmax, one_hot
from transformers import BertConfig, BertModel

TEMPERATURE = 0.05
_FILTERED = -99999.99


@dataclass(frozen=True)
class Sentences:
    """One batch of a loader.

    Attributes:
        input_ids: int64 [N, L].
        lengths: int64 [N].
        features: name → [N, D]; empty for plain sentences.
        generator: for what a loss draws at this step.
    """

    input_ids: Tensor
    lengths: Tensor
    features: Mapping[str, Tensor]
    generator: torch.Generator


class ReleasedModel(nn.Module):
    """BERT, and heads of one linear layer and tanh.

    Args:
        folder: of the student, for its configuration.
        weights: what to begin with: ``encoder.*`` and ``heads.NAME.0.weight`` and ``.bias``.
    """

    def __init__(self, folder: Path, weights: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        super().__init__()
        self.encoder = BertModel(BertConfig.from_pretrained(folder), add_pooling_layer=False)
        self.heads = nn.ModuleDict()
        for name, weight in weights.items():
            if name.startswith("heads.") and name.endswith("weight"):
                outputs, inputs = weight.shape
                self.heads[name.split(".")[1]] = nn.Sequential(nn.Linear(inputs, outputs))
        self.load_state_dict(dict(weights))
        self.to(dtype)

    def views(self, batch: Sentences) -> tuple[Tensor, Tensor]:
        """[CLS] of both dropout views, [N, d] each: one pass over the batch twice."""
        ids, lengths = (torch.cat([each, each]) for each in (batch.input_ids, batch.lengths))
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        first, second = states[:, 0].chunk(2)
        return first, second

    def project(self, head: str, rows: Tensor) -> Tensor:
        return torch.tanh(self.heads[head](rows))


# ---- losses -------------------------------------------------------------------------------------


class ReleasedLoss(ABC):
    """The loss of a system on a batch: on plain sentences only its text term."""

    @abstractmethod
    def __call__(self, model: ReleasedModel, batch: Sentences) -> Tensor: ...


def matrix(left: Tensor, right: Tensor) -> Tensor:
    """All cosines of [N, d] with [M, d]: [N, M]."""
    return cosine_similarity(left[:, None], right[None], dim=-1)


def contrast(logits: Tensor) -> Tensor:
    return cross_entropy(logits, torch.arange(len(logits)))


class SimCSELoss(ReleasedLoss):
    """Both views of a sentence find each other."""

    def __call__(self, model: ReleasedModel, batch: Sentences) -> Tensor:
        first, second = (model.project("text", view) for view in model.views(batch))
        return contrast(matrix(first, second) / TEMPERATURE)


@dataclass
class MCSELoss(ReleasedLoss):
    """SimCSE, and λ × the average over the views of finding the image."""

    weight: float

    def __call__(self, model: ReleasedModel, batch: Sentences) -> Tensor:
        views = model.views(batch)
        first, second = (model.project("text", view) for view in views)
        loss = contrast(matrix(first, second) / TEMPERATURE)
        if not batch.features:
            return loss
        images = model.project("image", batch.features["image-cnn"])
        of_views = [
            contrast(matrix(model.project("grounding", view), images) / TEMPERATURE)
            for view in views
        ]
        return loss + self.weight * (of_views[0] + of_views[1]) / 2


@dataclass
class KDMCSELoss(ReleasedLoss):
    """The released arithmetic: margins where the angle exceeds them, the sum of both teachers.

    Attributes:
        weight: λ.
        text_margin, margin: of the text term, and of the teachers' terms.
        score_base: raw products of image and text above it leave the denominator; None: none.
        gated: negatives nearer than the margin stay where they are.
    """

    weight: float
    text_margin: float = 0.15
    margin: float = 0.15
    score_base: float | None = None
    gated: bool = True

    def __call__(self, model: ReleasedModel, batch: Sentences) -> Tensor:
        views = model.views(batch)
        first, second = (model.project("text", view) for view in views)
        loss = contrast(self._moved(matrix(first, second), self.text_margin) / TEMPERATURE)
        if not batch.features:
            return loss
        images, texts = batch.features["image-clip"], batch.features["text-clip"]
        sides = (
            ("image", images, matrix(images, images), texts @ images.T),
            ("teacher_text", texts, matrix(texts, texts), images @ texts.T),
        )
        for head, rows, alike, products in sides:
            teacher = model.project(head, rows)
            for view in views:
                cosines = matrix(model.project("grounding", view), teacher)
                logits = self._moved(cosines, self.margin, alike) / TEMPERATURE
                if self.score_base is not None:
                    above = (products > self.score_base) & ~torch.eye(len(rows), dtype=torch.bool)
                    logits = logits + above * _FILTERED
                loss = loss + self.weight * contrast(logits) / 2
        return loss

    def _moved(self, cosines: Tensor, margin: float, alike: Tensor | None = None) -> Tensor:
        """Negatives beyond the margin move nearer by it, times 1 − the teacher's similarity."""
        moved = ~one_hot(torch.arange(len(cosines))).bool()
        if self.gated:
            moved = moved & (torch.acos(cosines.detach().clamp(-1, 1)) > margin)
        shift = margin if alike is None else margin * (1 - alike)
        # cos(acos(x)) is x, but at x = 1, as of two equal views, its gradient is not a number
        angles = torch.acos(torch.where(moved, cosines, 0.0))
        return torch.where(moved, torch.cos(angles - shift), cosines)


@dataclass
class DALRLoss(ReleasedLoss):
    """The paper's equations 4 to 14, with the temperatures that METHODS §4 gives every KL.

    Attributes:
        mix: name of a teacher's features → its share.
    """

    mix: Mapping[str, float]
    image_weight: float = 1.0
    cross_modal_learning: float = 0.1
    intra_modal_learning: float = 0.2
    margin: float = 0.2
    target_temperature: float = 0.5
    student_temperature: float = 0.05 * 0.45

    def __call__(self, model: ReleasedModel, batch: Sentences) -> Tensor:
        views = model.views(batch)
        first, second = (model.project("text", view) for view in views)
        student = matrix(first, second)
        loss = contrast(student / TEMPERATURE)
        if not batch.features:
            return loss
        images = model.project("image", batch.features["image-cnn"])
        grounded = [matrix(model.project("grounding", view), images) for view in views]
        info = sum(contrast(cosines / TEMPERATURE) for cosines in grounded) / 2
        mixed = torch.stack([share * batch.features[name] for name, share in self.mix.items()])
        texts = matrix(mixed.sum(dim=0), mixed.sum(dim=0))
        pictures = matrix(batch.features["image-cnn"], batch.features["image-cnn"])
        aligned = self._divergence(texts, grounded[0]) + self._divergence(pictures, grounded[0].T)
        cross = self._consistency(grounded[0], batch.generator) + aligned / 2
        teachers = [share * matrix(rows, rows) for rows, share in self._teachers(batch)]
        ranked = self._ranking(student / TEMPERATURE, torch.stack(teachers).sum(dim=0))
        intra = ranked + self._divergence(texts, student)
        return (
            loss
            + self.image_weight * info
            + self.cross_modal_learning * cross
            + self.intra_modal_learning * intra
        )

    def _teachers(self, batch: Sentences) -> Iterator[tuple[Tensor, float]]:
        return ((batch.features[name], share) for name, share in self.mix.items())

    def _divergence(self, target: Tensor, student: Tensor) -> Tensor:
        log_target = log_softmax(target / self.target_temperature, dim=1)
        log_student = log_softmax(student / self.student_temperature, dim=1)
        return (log_target.exp() * (log_target - log_student)).sum(dim=1).mean()

    def _consistency(self, cosines: Tensor, generator: torch.Generator) -> Tensor:
        """Equation 5; orders are drawn until no image keeps its place."""
        places = torch.arange(len(cosines))
        order = places
        while bool((order == places).any()):
            order = torch.randperm(len(cosines), generator=generator)
        wrong = (cosines[places, order] - self.margin).clamp(min=0)
        return torch.cat([1 - cosines.diagonal(), wrong]).mean()

    def _ranking(self, student: Tensor, teacher: Tensor) -> Tensor:
        """Equation 10, ListMLE over whole rows."""
        ranked = student.gather(1, teacher.argsort(dim=1, descending=True))
        rest = ranked.exp().flip(1).cumsum(dim=1).flip(1)
        return (rest.log() - ranked).sum(dim=1).mean()


# ---- optimiser and loop -------------------------------------------------------------------------


@dataclass(frozen=True)
class Released:
    """The settings of the loops; a test changes one to see that it matters.

    Attributes:
        learning_rate: falls linearly to 0.
        epsilon: 1e-6; SimCSE's Trainer had 1e-8.
        epsilon_at: added to √v before the bias correction, or after it.
        cleared: gradients are filled with zeros (torch 1.7), or set to None.
        max_norm: of the gradient over all weights.
        paired: when a mixed step is paired: when k % (text batches // pair batches) is 0, or as
            evenly as the two numbers of batches have it.
    """

    learning_rate: float
    epsilon: float = 1e-6
    epsilon_at: Literal["before", "after"] = "before"
    cleared: Literal["zeros", "none"] = "zeros"
    max_norm: float = 1.0
    paired: Literal["k % r == 0", "evenly"] = "k % r == 0"


class TransformersAdamW:
    """AdamW of transformers 4 without weight decay, number by number."""

    def __init__(self, weights: Sequence[nn.Parameter], told: Released) -> None:
        self._weights, self._told = list(weights), told
        self._state: dict[int, tuple[int, Tensor, Tensor]] = {}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for number, weight in enumerate(self._weights):
            if weight.grad is None:
                continue
            zeros = torch.zeros_like(weight)
            count, mean, square = self._state.get(number, (0, zeros, zeros))
            count += 1
            mean = mean * 0.9 + weight.grad * (1 - 0.9)
            square = square * 0.999 + weight.grad**2 * (1 - 0.999)
            self._state[number] = (count, mean, square)
            unbiased = math.sqrt(1 - 0.999**count)
            after = self._told.epsilon_at == "after"
            epsilon = self._told.epsilon * unbiased if after else self._told.epsilon
            weight -= rate * unbiased / (1 - 0.9**count) * mean / (square.sqrt() + epsilon)

    def zero_grad(self) -> None:
        for weight in self._weights:
            if self._told.cleared == "none":
                weight.grad = None
            elif weight.grad is not None:
                weight.grad.zero_()


class Loader:
    """An endless loader.

    Args:
        batch: number of a batch within the stream, and the step that takes it → the batch.
        batches: of one pass.
    """

    def __init__(self, batch: Callable[[int, int], Sentences], batches: int) -> None:
        self._batch, self.batches = batch, batches
        self._taken = 0

    def next(self, step: int) -> Sentences:
        self._taken += 1
        return self._batch(self._taken - 1, step)


def stream_of(step: int, pairs: Loader, text: Loader, rule: str) -> Loader:
    """The loader that a mixed step takes its batch from; steps are counted from 0 in each epoch."""
    step %= pairs.batches + text.batches
    if rule == "evenly":
        share = pairs.batches / (pairs.batches + text.batches)
        return pairs if math.floor((step + 1) * share) > math.floor(step * share) else text
    return pairs if step % (text.batches // pairs.batches) == 0 else text


def released_run(
    model: ReleasedModel,
    loss_of: ReleasedLoss,
    pairs: Loader | None,
    text: Loader | None,
    told: Released,
    steps: int,
) -> list[float]:
    """Train ``model`` on one loader or both; returns the loss of each step."""
    optimizer = TransformersAdamW(list(model.parameters()), told)
    losses = []
    model.train()
    for step in range(steps):
        loader = stream_of(step, pairs, text, told.paired) if pairs and text else pairs or text
        assert loader is not None
        loss = loss_of(model, loader.next(step))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), told.max_norm)
        optimizer.step(told.learning_rate * (steps - step) / steps)
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses
