"""SentEval's evaluation of one transfer task, one classifier after another: the oracle.

Written from what `senteval/tools/classifier.py` and `validation.py` do, with PyTorch's modules,
optimiser and global seeds, so that it shares only the data with the batched code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold

SEED = 1111
L2 = (1e-5, 1e-4, 1e-3, 1e-2)


@dataclass
class Trained:
    """The best model of one training, its accuracy on dev (0 to 1), and the steps it took."""

    model: torch.nn.Linear
    dev_accuracy: float
    steps: int

    def accuracy(self, features: np.ndarray, labels: np.ndarray) -> float:
        with torch.no_grad():
            predicted = self.model(torch.from_numpy(features)).max(1)[1].numpy()
        return float((predicted == labels).mean())


def train_one(features, labels, classes, l2, dev=None, max_epoch=200) -> Trained:
    """Train on float32 [n, d] and int64 [n]; without ``dev`` a twentieth is held out for it."""
    np.random.seed(SEED)
    torch.manual_seed(SEED)
    model = torch.nn.Linear(features.shape[1], classes)
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=l2)
    if dev is None:
        drawn = np.random.permutation(len(features))
        cut = int(0.05 * len(features))
        dev = features[drawn[:cut]], labels[drawn[:cut]]
        features, labels = features[drawn[cut:]], labels[drawn[cut:]]
    x, y = torch.from_numpy(features), torch.from_numpy(labels)
    best, best_state, misses, epoch, steps = -1.0, {}, 0, 0, 0
    while epoch <= max_epoch:
        for _ in range(4):
            order = np.random.permutation(len(x))
            for start in range(0, len(x), 64):
                rows = torch.from_numpy(order[start : start + 64])
                loss = torch.nn.functional.cross_entropy(model(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                steps += 1
        epoch += 4
        accuracy = Trained(model, best, steps).accuracy(*dev)
        if accuracy > best:
            best = accuracy
            best_state = {name: value.clone() for name, value in model.state_dict().items()}
        elif misses >= 5:
            break
        else:
            misses += 1
    model.load_state_dict(best_state)
    return Trained(model, best, steps)


def _folds(labels, count):
    splitter = StratifiedKFold(n_splits=count, shuffle=True, random_state=SEED)
    return list(splitter.split(np.zeros(len(labels)), labels))


def _best_l2(x, y, classes, folds, max_epoch) -> tuple[float, float]:
    """l2 and its accuracy ×100."""
    means = []
    for l2 in L2:
        accuracies = [
            train_one(x[a], y[a], classes, l2, (x[b], y[b]), max_epoch).dev_accuracy
            for a, b in folds
        ]
        means.append(round(100 * float(np.mean(accuracies)), 2))
    return L2[int(np.argmax(means))], max(means)


def nested(x, y, classes, count, max_epoch=200) -> tuple[float, float, list[float]]:
    """Test accuracy ×100, dev accuracy ×100, l2 of each outer fold."""
    tested, chosen = [], []
    for train, test in _folds(y, count):
        inner = _folds(y[train], count)
        l2, dev_accuracy = _best_l2(x[train], y[train], classes, inner, max_epoch)
        final = train_one(x[train], y[train], classes, l2, max_epoch=max_epoch)
        tested.append(round(100 * final.accuracy(x[test], y[test]), 2))
        chosen.append((l2, dev_accuracy))
    dev = round(float(np.mean([dev_accuracy for _, dev_accuracy in chosen])), 2)
    return round(float(np.mean(tested)), 2), dev, [l2 for l2, _ in chosen]


def k_fold(x, y, test, classes, count, max_epoch=200) -> tuple[float, float, list[float]]:
    """The same three, with folds of the training set."""
    l2, dev_accuracy = _best_l2(x, y, classes, _folds(y, count), max_epoch)
    final = train_one(x, y, classes, l2, max_epoch=max_epoch)
    return round(100 * final.accuracy(*test), 2), dev_accuracy, [l2]


def split(x, y, dev, test, classes, max_epoch=200) -> tuple[float, float, list[float]]:
    """The same three, with a dev set."""
    trained = [train_one(x, y, classes, l2, dev, max_epoch) for l2 in L2]
    scores = [round(100 * each.dev_accuracy, 2) for each in trained]
    best = int(np.argmax(scores))
    return round(100 * trained[best].accuracy(*test), 2), scores[best], [L2[best]]
