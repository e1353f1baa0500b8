"""Linear softmax classifiers on fixed features, trained as SentEval trains them, many at once.

SentEval (`senteval/tools/classifier.py`, no hidden layer) trains one classifier after another, each
from seed 1111 of NumPy and PyTorch. So every order of examples and the initial weights are known in
advance, and classifiers of many folds and values of l2 train together: a fold's batch is gathered
once for all its values of l2, and one step of all is one batched product forward and one backward.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# PyTorch's defaults for Adam.
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8

# Bytes of one gathered batch of all folds that train together. On a CPU it should fit in a core's
# cache; on a GPU larger is better.
_BATCH_BYTES_ON_CPU, _BATCH_BYTES = 1 << 21, 1 << 28


@dataclass(frozen=True, eq=False)
class Fold:
    """Rows to train on and rows to score, int64; without `dev` the classifier finds its own."""

    train: np.ndarray
    dev: np.ndarray | None = None


@dataclass(frozen=True)
class ClassifierSettings:
    """SentEval's training settings in SimCSE's evaluation (`--mode test`): nothing here is tuned.

    The dev set is scored every `epoch_size` passes. Training stops after `tenacity` + 1 scores no
    better than the best one (in total, not in a row), or at the first score past `max_epoch`
    passes; the best weights are kept. `l2` is Adam's weight decay, of weights and bias.
    """

    l2: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)
    batch_size: int = 64
    epoch_size: int = 4
    max_epoch: int = 200
    tenacity: int = 5
    learning_rate: float = 1e-3
    dev_share: float = 0.05
    seed: int = 1111


@dataclass(frozen=True)
class Classifiers:
    """One classifier for each fold and value of l2.

    weights: float32 [F, L, C, d + 1], on the CPU, the bias last; those with the best dev score.
    dev_accuracy: float64 [F, L], 0 to 1, of those weights.
    passes: int64 [F, L], over the training rows until training stopped.
    """

    weights: Tensor
    dev_accuracy: np.ndarray
    passes: np.ndarray


def fit_classifiers(
    features: Tensor,
    labels: Tensor,
    classes: int,
    folds: Sequence[Fold],
    recipe: ClassifierSettings,
    advance: Callable[[int], None] = lambda _: None,
) -> Classifiers:
    """Train a classifier for every fold and value of l2, on the device of `features`.

    Args:
        features: float32 [n, d].
        labels: int64 [n], 0 to `classes` - 1, on the same device.
        folds: their rows count from the first row of `features`.
        advance: called with how many more folds are done.
    """
    biased = _with_bias(features)
    fitted = Classifiers(
        torch.zeros(len(folds), len(recipe.l2), classes, biased.shape[1]),
        np.zeros((len(folds), len(recipe.l2))),
        np.zeros((len(folds), len(recipe.l2)), dtype=np.int64),
    )
    # Folds advance together where a pass has the same number of steps.
    together: dict[int, list[tuple[int, _Orders]]] = defaultdict(list)
    for number, fold in enumerate(folds):
        orders = _Orders(fold, recipe)
        together[math.ceil(len(orders.train) / recipe.batch_size)].append((number, orders))
    row_bytes = biased.shape[1] * biased.element_size()
    limit = _BATCH_BYTES_ON_CPU if biased.device.type == "cpu" else _BATCH_BYTES
    size = max(1, limit // (recipe.batch_size * row_bytes))
    for group in together.values():
        for start in range(0, len(group), size):
            numbers, orders = zip(*group[start : start + size], strict=True)
            _fit_together(biased, labels, classes, np.array(numbers), orders, recipe, fitted)
            advance(len(numbers))
    return fitted


def predict(weights: Tensor, features: Tensor) -> Tensor:
    """The class of each row by one classifier [C, d + 1]: [n, d] → int64 [n]."""
    return (_with_bias(features) @ weights.to(features.device).T).argmax(dim=1)


def _with_bias(features: Tensor) -> Tensor:
    """Features with a last column of ones, whose weight is the bias: [n, d] → [n, d + 1]."""
    return torch.nn.functional.pad(features, (0, 1), value=1.0)


class _Orders:
    """A fold's rows, and its random order of every pass, as NumPy draws them after its seed."""

    def __init__(self, fold: Fold, recipe: ClassifierSettings) -> None:
        self._random = np.random.RandomState(recipe.seed)
        self.train, self.dev = fold.train, fold.dev
        if fold.dev is None:
            order = self._random.permutation(len(fold.train))
            held_out = int(recipe.dev_share * len(fold.train))
            self.train, self.dev = fold.train[order[held_out:]], fold.train[order[:held_out]]

    def draw(self) -> np.ndarray:
        """The training rows in the order of the next pass."""
        return self.train[self._random.permutation(len(self.train))]


def _fit_together(
    features: Tensor,
    labels: Tensor,
    classes: int,
    numbers: np.ndarray,
    orders: Sequence[_Orders],
    recipe: ClassifierSettings,
    fitted: Classifiers,
) -> None:
    """Train the folds `numbers` and write the outcome into `fitted`."""
    values = np.arange(len(recipe.l2))
    weights = _initial_weights(features, classes, recipe.seed).repeat(len(orders), len(values), 1)
    state = _Adam(weights, torch.tensor(recipe.l2).repeat_interleave(classes), recipe)
    dev = _Dev(features, labels, orders)
    best = np.full((len(orders), len(values)), -1.0)
    misses = np.zeros(best.shape, dtype=np.int64)
    training = np.ones(best.shape, dtype=bool)
    for _ in range(0, recipe.max_epoch + 1, recipe.epoch_size):
        for _ in range(recipe.epoch_size):
            _one_pass(features, labels, classes, state, orders, recipe)
        accuracy = dev.accuracy(state.weights, classes)
        improved = training & (accuracy > best)
        best[improved] = accuracy[improved]
        slots = numbers[np.nonzero(improved)[0]], values[np.nonzero(improved)[1]]
        shaped = state.weights.unflatten(1, (len(values), classes))
        fitted.weights[slots] = shaped[torch.from_numpy(improved)].cpu()
        fitted.dev_accuracy[slots] = accuracy[improved]
        missed = training & ~improved
        fitted.passes[np.ix_(numbers, values)] += recipe.epoch_size * training
        training &= ~(missed & (misses >= recipe.tenacity))
        misses += missed
        if not training.any():
            return
        # Drop what has stopped, as far as a block of folds × values can shrink.
        alive, used = training.any(axis=1), training.any(axis=0)
        if not (alive.all() and used.all()):
            state.keep(torch.from_numpy(alive), torch.from_numpy(used).repeat_interleave(classes))
            dev.keep(torch.from_numpy(alive))
            orders = [orders[fold] for fold in np.flatnonzero(alive).tolist()]
            numbers, values = numbers[alive], values[used]
            kept = np.ix_(alive, used)
            best, misses, training = best[kept], misses[kept], training[kept]


def _one_pass(
    features: Tensor,
    labels: Tensor,
    classes: int,
    state: _Adam,
    orders: Sequence[_Orders],
    recipe: ClassifierSettings,
) -> None:
    """One pass over the training rows of each fold, all with the same number of steps."""
    orders_of = [order.draw() for order in orders]
    size = recipe.batch_size
    steps = math.ceil(len(orders_of[0]) / size)
    # Lengths may differ by a few rows: the last batch is padded with row 0 at weight 0.
    rows = np.zeros((len(orders_of), steps * size), dtype=np.int64)
    share = np.zeros(rows.shape, dtype=np.float32)
    for fold, order in enumerate(orders_of):
        rows[fold, : len(order)] = order
        share[fold, : len(order)] = 1 / size
        share[fold, (steps - 1) * size : len(order)] = 1 / (len(order) - (steps - 1) * size)
    device = features.device
    by_step = torch.from_numpy(rows).to(device).view(len(orders_of), steps, size).transpose(0, 1)
    by_step = by_step.contiguous()  # [S, F, B]
    shares = torch.from_numpy(share).to(device).view(len(orders_of), steps, 1, 1, size)
    shares = shares.transpose(0, 1).contiguous()  # [S, F, 1, 1, B]
    is_class = labels[by_step][:, :, None, None] == torch.arange(classes, device=device)[:, None]
    targets = is_class * shares  # [S, F, 1, C, B]
    batch = torch.empty(len(orders_of) * size, features.shape[1], device=device)
    stacked = batch.view(len(orders_of), size, -1)  # [F, B, d + 1]
    for step in range(steps):
        torch.index_select(features, 0, by_step[step].view(-1), out=batch)
        logits = torch.bmm(state.weights, stacked.mT).unflatten(1, (-1, classes))  # [F, L, C, B]
        # Of the mean cross-entropy with respect to the logits.
        gradient = torch.softmax(logits, dim=2).mul_(shares[step]).sub_(targets[step])
        torch.bmm(gradient.flatten(1, 2), stacked, out=state.gradient)
        state.step()


def _initial_weights(features: Tensor, classes: int, seed: int) -> Tensor:
    """Weights and bias of a `torch.nn.Linear` made right after the seed: [C, d + 1]."""
    width = features.shape[1] - 1
    generator = torch.Generator().manual_seed(seed)
    weight = torch.empty(classes, width)
    torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
    bound = 1 / math.sqrt(width)
    bias = torch.empty(classes, 1).uniform_(-bound, bound, generator=generator)
    return torch.cat([weight, bias], dim=1).to(features.device)


class _Adam:
    """Adam on weights [F, L·C, d + 1], with an l2 for each of the L·C; `gradient` is its input."""

    def __init__(self, weights: Tensor, l2: Tensor, recipe: ClassifierSettings) -> None:
        self.weights = weights
        self.gradient = torch.zeros_like(weights)
        self._l2 = l2.to(weights.device)[:, None]
        self._mean = torch.zeros_like(weights)
        self._square = torch.zeros_like(weights)
        self._learning_rate = recipe.learning_rate
        self._steps = 0

    def step(self) -> None:
        """One update; overwrites `gradient`."""
        self._steps += 1
        gradient = self.gradient.addcmul_(self.weights, self._l2)
        self._mean.lerp_(gradient, 1 - _BETA1)
        self._square.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
        correction = math.sqrt(1 - _BETA2**self._steps)
        denominator = torch.sqrt(self._square, out=gradient).div_(correction).add_(_EPSILON)
        size = self._learning_rate / (1 - _BETA1**self._steps)
        self.weights.addcdiv_(self._mean, denominator, value=-size)

    def keep(self, folds: Tensor, columns: Tensor) -> None:
        """Drop all but these folds and rows of the L·C; bool [F] and [L·C]."""
        self._l2 = self._l2[columns.to(self._l2.device)]
        for name in ("weights", "gradient", "_mean", "_square"):
            kept = getattr(self, name)[folds][:, columns]
            setattr(self, name, kept.contiguous())


class _Dev:
    """The dev rows of folds, padded to one length."""

    def __init__(self, features: Tensor, labels: Tensor, orders: Sequence[_Orders]) -> None:
        sets = [torch.from_numpy(order.dev).to(features.device) for order in orders]
        self._features = features
        self._rows = torch.nn.utils.rnn.pad_sequence(sets, batch_first=True)  # [F, D]
        self._lengths = torch.tensor([len(rows) for rows in sets])
        self._labels = torch.nn.utils.rnn.pad_sequence(
            [labels[rows] for rows in sets], batch_first=True, padding_value=-1
        )

    def accuracy(self, weights: Tensor, classes: int) -> np.ndarray:
        """Share of rows right for every fold and value of l2: float64 [F, L]."""
        logits = torch.bmm(weights, self._features[self._rows].mT).unflatten(1, (-1, classes))
        right = (logits.argmax(dim=2) == self._labels[:, None]).sum(dim=2).cpu()  # [F, L]
        return right.double().numpy() / self._lengths[:, None].numpy()

    def keep(self, folds: Tensor) -> None:
        """Drop all but these folds; bool [F]."""
        self._rows, self._labels = self._rows[folds], self._labels[folds]
        self._lengths = self._lengths[folds]
