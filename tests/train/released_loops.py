"""The training loops that MCSE and KDMCSE were released with, in plain torch (METHODS §§1–6).

Nothing here is shared with `train`. Data comes from two endless loaders, as it did there; losses
are torch's cross entropy over whole matrices of cosines; the optimiser is that of transformers 4 on
torch 1.7. The losses of SimCSE, DALR, MCSEO and of KDMCSE's paper are those of their equations, in
the same loop: DALR's released code does not run, MCSEO's grounding was never released, and a step
of SimCSE's Trainer is a step of this one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, log_softmax, one_hot
from transformers import BertConfig, BertModel

_FILTERED = -99999.99


@dataclass(frozen=True)
class TokenRows:
    """One batch of a loader.

    Attributes:
        input_ids: int64 [N, L].
        lengths: int64 [N].
        features: name → [N, D], and of objects one row for each phrase; empty for plain sentences.
        phrases: row, first token and last + 1 of each phrase.
        generator: for what a loss draws at this step.
    """

    input_ids: Tensor
    lengths: Tensor
    features: Mapping[str, Tensor]
    phrases: Sequence[tuple[int, int, int]]
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

    def views(self, batch: TokenRows) -> Views:
        """Both dropout views: one pass over the batch twice."""
        ids, lengths = (torch.cat([each, each]) for each in (batch.input_ids, batch.lengths))
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        return Views(self, batch, tuple(states.chunk(2)))

    def project(self, head: str, rows: Tensor) -> Tensor:
        return torch.tanh(self.heads[head](rows))


@dataclass(frozen=True)
class Views:
    """The two dropout views of a batch: hidden states [N, L, d] each."""

    model: ReleasedModel
    batch: TokenRows
    states: tuple[Tensor, ...]

    def projected(self, head: str) -> list[Tensor]:
        """[CLS] of both views behind a head, [N, D] each."""
        return [self.model.project(head, states[:, 0]) for states in self.states]

    def phrases(self, head: str) -> list[Tensor]:
        """The mean token of every phrase in both views behind a head, [P, D] each."""
        return [
            self.model.project(
                head, torch.stack([states[i, a:b].mean(dim=0) for i, a, b in self.batch.phrases])
            )
            for states in self.states
        ]

    def features(self, name: str, head: str) -> Tensor:
        """Cached features behind a head."""
        return self.model.project(head, self.batch.features[name])


# ---- losses -------------------------------------------------------------------------------------


@dataclass
class ReleasedLoss:
    """The terms of a system: a method for each, named as the term. The base class is SimCSE.

    Attributes:
        weights: term → weight, of the terms that are on.
        temperature: of the text term.
    """

    weights: Mapping[str, float] = field(default_factory=lambda: {"text": 1.0})
    temperature: float = 0.05

    def __call__(self, model: ReleasedModel, batch: TokenRows) -> dict[str, Tensor]:
        """The terms of a batch, unweighted; plain sentences have the text term alone."""
        views = model.views(batch)
        names = self.weights if batch.features else self.weights.keys() & {"text"}
        return {name: getattr(self, name)(views) for name in names}

    def text(self, views: Views) -> Tensor:
        """Both views of a sentence find each other."""
        return contrast(matrix(*views.projected("text")) / self.temperature)


def matrix(left: Tensor, right: Tensor) -> Tensor:
    """All cosines of [N, d] with [M, d]: [N, M]."""
    return cosine_similarity(left[:, None], right[None], dim=-1)


def contrast(logits: Tensor) -> Tensor:
    return cross_entropy(logits, torch.arange(len(logits)))


def average(terms: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(terms)).mean()


@dataclass
class MCSELoss(ReleasedLoss):
    """SimCSE, and the average over the views of finding the image; ``sums`` logs it twice."""

    image_name: str = "image-clip"
    image_temperature: float = 0.05
    sums: bool = False

    def image(self, views: Views) -> Tensor:
        images = views.features(self.image_name, "image")
        of_views = [
            contrast(matrix(view, images) / self.image_temperature)
            for view in views.projected("grounding")
        ]
        return average(of_views) * (2 if self.sums else 1)


@dataclass
class MCSEOLoss(MCSELoss):
    """MCSE, and eq. 7, caption by caption: the mean over those that have two phrases."""

    object_temperature: float = 0.05

    def object(self, views: Views) -> Tensor:
        objects = views.features("object-clip", "image")
        owners = [row for row, _, _ in views.batch.phrases]
        terms = []
        for view in views.phrases("grounding"):
            of_captions = []
            for caption in sorted({row for row in owners if owners.count(row) > 1}):
                own = [k for k, row in enumerate(owners) if row == caption]
                logits = matrix(view[own], objects[own]) / self.object_temperature
                of_captions.append(contrast(logits) * len(own))
            terms.append(average(of_captions))
        return average(terms)


@dataclass
class KDMCSELoss(ReleasedLoss):
    """The released arithmetic, in which negatives nearer than the margin stay where they are.

    Attributes:
        text_margin, margin: of the text term, and of the teachers' terms.
        thresholds: term → score above which negatives leave the denominator; None: none.
        paper: eqs. 7 to 14: margins for all, images and texts are compared with each other, and
            scores are cosines.
    """

    text_margin: float = 0.15
    margin: float = 0.15
    teacher_temperature: float = 0.05
    thresholds: Mapping[str, float] = field(default_factory=dict)
    paper: bool = False

    def text(self, views: Views) -> Tensor:
        cosines = matrix(*views.projected("text"))
        return contrast(self._moved(cosines, self.text_margin) / self.temperature)

    def image(self, views: Views) -> Tensor:
        images, texts = (views.batch.features[name] for name in ("image-clip", "text-clip"))
        if self.paper:
            alike = scores = matrix(texts, images)
        else:
            alike, scores = matrix(images, images), texts @ images.T
        return self._teacher(views, "image", images, alike, scores)

    def teacher_text(self, views: Views) -> Tensor:
        images, texts = (views.batch.features[name] for name in ("image-clip", "text-clip"))
        alike = matrix(texts, texts)
        scores = alike if self.paper else images @ texts.T
        return self._teacher(views, "teacher_text", texts, alike, scores)

    def _teacher(
        self, views: Views, name: str, rows: Tensor, alike: Tensor, scores: Tensor
    ) -> Tensor:
        teacher, threshold = views.model.project(name, rows), self.thresholds.get(name)
        of_views = []
        for view in views.projected("grounding"):
            moved = self._moved(matrix(view, teacher), self.margin, alike)
            logits = moved / self.teacher_temperature
            if threshold is not None:
                above = (scores > threshold) & ~torch.eye(len(rows), dtype=torch.bool)
                logits = logits + above * _FILTERED
            of_views.append(contrast(logits))
        return average(of_views)

    def _moved(self, cosines: Tensor, margin: float, alike: Tensor | None = None) -> Tensor:
        """Negatives beyond the margin move nearer by it, times 1 − the teacher's similarity."""
        if margin == 0:
            return cosines
        moved = ~one_hot(torch.arange(len(cosines))).bool()
        if not self.paper:
            moved = moved & (torch.acos(cosines.detach().clamp(-1, 1)) > margin)
        shift = margin if alike is None else margin * (1 - alike).abs()
        # cos(acos(x)) is x, but at x = 1, as of two equal views, its gradient is not a number
        angles = torch.acos(torch.where(moved, cosines, 0.0))
        return torch.where(moved, torch.cos((angles - shift).clamp(min=0)), cosines)


@dataclass
class DALRLoss(MCSELoss):
    """The paper's equations 4 to 14, with the temperatures that METHODS §4 gives every KL.

    Attributes:
        mix: name of a teacher's features → its share.
    """

    mix: Mapping[str, float] = field(default_factory=dict)
    margin: float = 0.2
    ranking_temperature: float = 0.05
    target_temperature: float = 0.5
    student_temperature: float = 0.05 * 0.45

    def consistency(self, views: Views) -> Tensor:
        """Equation 5; orders are drawn until no image keeps its place."""
        cosines, generator = self._grounded(views), views.batch.generator
        places = torch.arange(len(cosines))
        order = places
        while bool((order == places).any()):
            order = torch.randperm(len(cosines), generator=generator)
        wrong = (cosines[places, order] - self.margin).clamp(min=0)
        return torch.cat([1 - cosines.diagonal(), wrong]).mean()

    def cross_modal(self, views: Views) -> Tensor:
        cosines, pictures = self._grounded(views), views.batch.features[self.image_name]
        texts = self._mixed(views)
        from_texts = self._divergence(matrix(texts, texts), cosines)
        return average([from_texts, self._divergence(matrix(pictures, pictures), cosines.T)])

    def ranking(self, views: Views) -> Tensor:
        """Equation 10, ListMLE over whole rows."""
        student = matrix(*views.projected("text")) / self.ranking_temperature
        rows = views.batch.features
        shares = [share * matrix(rows[name], rows[name]) for name, share in self.mix.items()]
        teacher = torch.stack(shares).sum(dim=0)
        ranked = student.gather(1, teacher.argsort(dim=1, descending=True))
        rest = ranked.exp().flip(1).cumsum(dim=1).flip(1)
        return (rest.log() - ranked).sum(dim=1).mean()

    def intra_modal(self, views: Views) -> Tensor:
        texts = self._mixed(views)
        return self._divergence(matrix(texts, texts), matrix(*views.projected("text")))

    def _grounded(self, views: Views) -> Tensor:
        """Cosines of the first view with the images."""
        images = views.features(self.image_name, "image")
        return matrix(views.projected("grounding")[0], images)

    def _mixed(self, views: Views) -> Tensor:
        shares = [share * views.batch.features[name] for name, share in self.mix.items()]
        return torch.stack(shares).sum(dim=0)

    def _divergence(self, target: Tensor, student: Tensor) -> Tensor:
        log_target = log_softmax(target / self.target_temperature, dim=1)
        log_student = log_softmax(student / self.student_temperature, dim=1)
        return (log_target.exp() * (log_target - log_student)).sum(dim=1).mean()


# ---- optimiser and loop -------------------------------------------------------------------------


@dataclass(frozen=True)
class Released:
    """What runs differ in.

    Attributes:
        learning_rate: falls linearly to 0.
        epsilon: 1e-6; SimCSE's Trainer had 1e-8.
    """

    learning_rate: float
    epsilon: float = 1e-6


class TransformersAdamW:
    """AdamW of transformers 4 without weight decay, number by number; gradients become zeros."""

    def __init__(self, weights: Sequence[nn.Parameter], told: Released) -> None:
        self._weights, self._epsilon = list(weights), told.epsilon
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
            weight -= rate * unbiased / (1 - 0.9**count) * mean / (square.sqrt() + self._epsilon)

    def zero_grad(self) -> None:
        for weight in self._weights:
            if weight.grad is not None:
                weight.grad.zero_()


class Loader:
    """An endless loader.

    Args:
        batch: number of a batch within the stream, and the step that takes it → the batch.
        batches: of one pass.
    """

    def __init__(self, batch: Callable[[int, int], TokenRows], batches: int) -> None:
        self._batch, self.batches = batch, batches
        self._taken = 0

    def next(self, step: int) -> TokenRows:
        self._taken += 1
        return self._batch(self._taken - 1, step)


def loader_of(step: int, pairs: Loader | None, text: Loader | None) -> Loader:
    """Where a step takes its batch from; mixed steps are counted from 0 in each epoch."""
    if pairs is None or text is None:
        alone = pairs or text
        assert alone is not None
        return alone
    step %= pairs.batches + text.batches
    return pairs if step % (text.batches // pairs.batches) == 0 else text


def released_run(
    model: ReleasedModel,
    loss_of: ReleasedLoss,
    pairs: Loader | None,
    text: Loader | None,
    told: Released,
    steps: int,
) -> list[dict[str, float]]:
    """Train ``model`` on one loader or both; returns the terms of each step, and their sum."""
    optimizer = TransformersAdamW(list(model.parameters()), told)
    losses = []
    model.train()
    for step in range(steps):
        terms = loss_of(model, loader_of(step, pairs, text).next(step))
        loss = torch.stack([loss_of.weights[name] * term for name, term in terms.items()]).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step(told.learning_rate * (steps - step) / steps)
        optimizer.zero_grad()
        losses.append({"loss": loss.item()} | {f"loss_{n}": t.item() for n, t in terms.items()})
    return losses
