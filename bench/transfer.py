"""The seven transfer tasks: classifiers trained in batches and one by one.

    python bench/transfer.py [--dim 768] [--tasks CR TREC ...] [--threads 1] [--full]

Random embeddings with the tasks' real sizes, classes and protocols. The plain loop is that of the
tests (`tests/helpers/one_by_one.py`): PyTorch's own Linear and Adam, as in SentEval. Both sides
train for the same passes, so without --full the loop trains a few classifiers of each task and
extrapolates their time per step to all steps. Processor time counts; target: a tenth of the loop's
over all tasks together.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from harness import Report, options_of, timed

from train.evaluate.softmax_classifiers import (
    Classifiers,
    ClassifierSettings,
    Fold,
    fit_classifiers,
)
from train.evaluate.transfer import (
    EXPECTED_EXAMPLES,
    TRANSFER_TASKS,
    Examples,
    Selection,
    TransferTask,
    selections,
)

sys.path.append(str(Path(__file__).parents[1] / "tests/helpers"))
import one_by_one

TARGET = 0.10
CLASSES = {
    "MR": (0.500, 0.500),
    "CR": (0.362, 0.638),
    "SUBJ": (0.500, 0.500),
    "MPQA": (0.688, 0.312),
    "SST-2": (0.442, 0.558),
    "TREC": (0.016, 0.213, 0.229, 0.224, 0.153, 0.165),
    "MRPC": (0.325, 0.675),
}
"""Shares of the classes in SentEval's training sets."""


def make(name: str, dim: int) -> tuple[TransferTask, torch.Tensor]:
    """A task of real size and its features, float32 [n, d], or [n, 2 d] for pairs."""
    rng = np.random.default_rng(0)
    shares = np.array(CLASSES[name]) / sum(CLASSES[name])
    splits = {
        split: Examples(rng.choice(len(shares), size, p=shares), ("",) * size)
        for split, size in EXPECTED_EXAMPLES[name].items()
    }
    protocol = {"SST-2": "split", "TREC": "k-fold", "MRPC": "k-fold"}.get(name, "nested")
    task = TransferTask(name, protocol, len(shares), splits)  # pyright: ignore[reportArgumentType]
    labels = task.labels
    width = 2 * dim if name == "MRPC" else dim
    centres = rng.standard_normal((len(shares), width)) * 0.8 / np.sqrt(width)
    features = (rng.standard_normal((len(labels), width)) * 0.35 + centres[labels]) * 0.5
    return task, torch.from_numpy(features.astype(np.float32))


def loop_plan(
    planned: list[Selection], passes: np.ndarray, folds: list[Fold], recipe: ClassifierSettings
) -> list[tuple[Fold, float, float]]:
    """Fold, l2 and steps of each classifier that SentEval trains, inner ones before the final one.

    The chosen l2 does not matter here: a final classifier counts with the mean of its passes.
    """
    row = {fold: number for number, fold in enumerate(folds)}

    def steps(fold: Fold, count: float) -> float:
        rows = len(fold.train) - (fold.dev is None) * int(recipe.dev_share * len(fold.train))
        return count * -(-rows // recipe.batch_size)

    plan = []
    for selection in planned:
        for fold in selection.inner:
            of_fold = zip(recipe.l2, passes[row[fold]], strict=True)
            plan += [(fold, l2, steps(fold, count)) for l2, count in of_fold]
        final = selection.final
        plan.append((final, recipe.l2[0], steps(final, passes[row[final]].mean())))
    return plan


def measure(name: str, options: Namespace, report: Report) -> tuple[float, float]:
    """Processor seconds of one task in batches and one by one."""
    recipe = ClassifierSettings()
    task, features = make(name, options.dim)
    labels, rows = task.labels, features.numpy()
    planned = selections(task, 10, recipe.seed)
    folds = list({fold: None for each in planned for fold in (*each.inner, each.final)})
    fitted: list[Classifiers] = []

    def in_batches() -> None:
        of_classes = torch.from_numpy(labels)
        fitted.append(fit_classifiers(features, of_classes, task.classes, folds, recipe))

    batched = timed(in_batches).cpu
    plan = loop_plan(planned, fitted[0].passes, folds, recipe)
    total, taken = sum(steps for _, _, steps in plan), 0

    def one_by_one_loop() -> None:
        nonlocal taken
        for fold, l2, _ in plan:
            if taken >= options.steps and not options.full:
                break
            dev = None if fold.dev is None else (rows[fold.dev], labels[fold.dev])
            train = rows[fold.train], labels[fold.train]
            taken += one_by_one.train_one(*train, task.classes, l2, dev).steps

    loop = timed(one_by_one_loop).cpu * (1 if options.full else total / taken)
    counts = {"classifiers": len(plan), "loop_s": loop, "batched_s": batched}
    report.ratio(f"{name} / the loop", batched / loop, **counts)
    return batched, loop


def main() -> None:
    """Measure the tasks and print their ratios."""
    parser = options_of(__doc__)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch, on both sides")
    parser.add_argument("--dim", type=int, default=768, help="embedding dimension")
    parser.add_argument("--tasks", nargs="+", default=list(TRANSFER_TASKS), choices=TRANSFER_TASKS)
    parser.add_argument(
        "--steps", type=int, default=12_000, help="of the loop per task, in whole classifiers"
    )
    parser.add_argument("--full", action="store_true", help="train all one by one: takes an hour")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    report = Report(options, f"embeddings of {options.dim}")
    costs = [measure(name, options, report) for name in options.tasks]
    batched, loop = (sum(side) for side in zip(*costs, strict=True))
    report.ratio("all tasks / the loop", batched / loop, at_most=TARGET)


if __name__ == "__main__":
    main()
