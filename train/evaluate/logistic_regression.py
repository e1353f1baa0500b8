"""SentEval's other classifier: scikit-learn's logistic regression, at the optimum.

Published figures do not use it; they use `softmax_classifiers`. SentEval passes scikit-learn's
defaults, which stop after 100 iterations; here L-BFGS runs until it has converged, so the figure
depends only on the embeddings.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from sightline.errors import SightlineError
from train.evaluate.transfer_data import Protocol
from train.evaluate.transfer_folds import Choice, Selection, choose, percent

# Inverse strengths of l2 as in SentEval, whose k-fold classifier differs from the other two.
PENALTIES: dict[Protocol, tuple[float, ...]] = {
    "nested": tuple(2.0**power for power in range(-2, 4)),
    "split": tuple(2.0**power for power in range(-2, 4)),
    "k-fold": tuple(2.0**power for power in range(-1, 6)),
}
_TOLERANCE = 1e-5
_ITERATIONS = 10_000

DESCRIPTION = f"scikit-learn's LogisticRegression, L-BFGS to a gradient of {_TOLERANCE:g}"


def choose_by_logistic_regression(
    features: np.ndarray, labels: np.ndarray, selections: Sequence[Selection], protocol: Protocol
) -> list[Choice]:
    """The outcome of every selection, one fit after another.

    Args:
        features: float32 [n, d].
        labels: int64 [n].

    Raises:
        SightlineError: a fit did not converge.
    """
    # In float32, L-BFGS may fail before it is that close.
    features = features.astype(np.float64)
    penalties = PENALTIES[protocol]
    choices = []
    for selection in selections:
        accuracies = np.zeros((len(selection.inner), len(penalties)))
        for number, fold in enumerate(selection.inner):
            # One model for all penalties: each fit starts where the last one ended.
            model = _model(penalties[0])
            for column, penalty in enumerate(penalties):
                _fit(model.set_params(C=penalty), features, labels, fold.train)
                accuracies[number, column] = model.score(features[fold.dev], labels[fold.dev])
        best, dev_accuracy = choose(penalties, accuracies)
        final = _model(penalties[best])
        _fit(final, features, labels, selection.final.train)
        accuracy = float(final.score(features[selection.test], labels[selection.test]))
        choices.append(Choice(penalties[best], dev_accuracy, percent(accuracy)))
    return choices


def _model(penalty: float) -> LogisticRegression:
    return LogisticRegression(C=penalty, tol=_TOLERANCE, max_iter=_ITERATIONS, warm_start=True)


def _fit(
    model: LogisticRegression, features: np.ndarray, labels: np.ndarray, rows: np.ndarray
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            model.fit(features[rows], labels[rows])
        except ConvergenceWarning as warning:
            raise SightlineError(
                f"logistic regression with C = {model.C:g} did not converge "
                f"({str(warning).splitlines()[0]}); embeddings of very unequal scale cause this; "
                "use the classifier senteval"
            ) from warning
