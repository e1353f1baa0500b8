"""The seven transfer tasks: classifiers trained in batches and one by one, in one run.

    python bench/transfer.py [--dim 768] [--tasks CR TREC ...] [--threads 1] [--full]

Random embeddings with the tasks' real sizes, classes and protocols. The plain loop is that of the
tests (`tests/one_by_one.py`): PyTorch's own Linear and Adam, as in SentEval. Both sides train for
the same passes, so without --full the loop trains a few classifiers of each task and extrapolates
their time per step to all steps. Target: at most a tenth of the loop's time over all tasks
together. Processor time, less sensitive to other work on the machine, is printed too.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np
import torch

from train.evaluate.softmax_classifiers import Recipe, fit_classifiers
from train.evaluate.transfer import (
    EXPECTED_EXAMPLES,
    TASKS,
    Examples,
    Fold,
    Selection,
    TransferTask,
    selections,
)

sys.path.append(str(Path(__file__).parents[1] / "tests"))
import one_by_one

TARGET = 0.10
# Shares of the classes in SentEval's training sets.
CLASSES = {
    "MR": (0.500, 0.500),
    "CR": (0.362, 0.638),
    "SUBJ": (0.500, 0.500),
    "MPQA": (0.688, 0.312),
    "SST-2": (0.442, 0.558),
    "TREC": (0.016, 0.213, 0.229, 0.224, 0.153, 0.165),
    "MRPC": (0.325, 0.675),
}
SINGLE_STEPS = 12_000  # at least, per task, in whole classifiers; --full trains all


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


def steps_of(fold: Fold, passes: float, recipe: Recipe) -> float:
    """Number of steps for one classifier of this fold."""
    rows = len(fold.train)
    if fold.dev is None:
        rows -= int(recipe.dev_share * rows)
    return passes * -(-rows // recipe.batch_size)


def loop_plan(
    planned: list[Selection], passes: np.ndarray, folds: list[Fold], recipe: Recipe
) -> list[tuple[Fold, float, float]]:
    """Fold, l2 and steps of each classifier that SentEval trains, inner ones before the final one.

    The chosen l2 does not matter here: a final classifier counts with the mean of its passes.
    """
    row = {fold: number for number, fold in enumerate(folds)}
    plan = []
    for selection in planned:
        for fold in selection.inner:
            for column, l2 in enumerate(recipe.l2):
                plan.append((fold, l2, steps_of(fold, passes[row[fold], column], recipe)))
        final = selection.final
        plan.append((final, recipe.l2[0], steps_of(final, passes[row[final]].mean(), recipe)))
    return plan


def one_task(name: str, dim: int, full: bool) -> tuple[np.ndarray, np.ndarray, int, float]:
    """Seconds of both sides (wall, processor), batched first; number of classifiers and steps."""
    recipe = Recipe()
    task, features = make(name, dim)
    labels = task.labels
    planned = selections(task, 10, recipe.seed)
    folds = list({f: None for s in planned for f in (*s.inner, s.final)})
    start = np.array([time.perf_counter(), time.process_time()])
    fitted = fit_classifiers(features, torch.from_numpy(labels), task.classes, folds, recipe)
    batched = np.array([time.perf_counter(), time.process_time()]) - start
    plan = loop_plan(planned, fitted.passes, folds, recipe)
    steps = sum(each for _, _, each in plan)
    x = features.numpy()
    taken = 0
    start = np.array([time.perf_counter(), time.process_time()])
    for fold, l2, _ in plan:
        if taken >= SINGLE_STEPS and not full:
            break
        dev = None if fold.dev is None else (x[fold.dev], labels[fold.dev])
        alone = one_by_one.train_one(x[fold.train], labels[fold.train], task.classes, l2, dev)
        taken += alone.steps
    loop = np.array([time.perf_counter(), time.process_time()]) - start
    return batched, loop if full else loop * steps / taken, len(plan), steps


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--dim", type=int, default=768, help="embedding dimension")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--threads", type=int, default=1, help="PyTorch threads, on both sides")
    parser.add_argument("--full", action="store_true", help="train all one by one: takes an hour")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(
        f"embeddings of {options.dim}, {options.threads} threads; loop: "
        + ("all classifiers" if options.full else "a few of each task, extrapolated")
    )
    print("task    classifiers      steps   loop, s   batched, s   ratio (processor time)")
    sums = np.zeros((2, 2))
    for name in options.tasks:
        batched, loop, count, steps = one_task(name, options.dim, options.full)
        sums += np.stack([batched, loop])
        print(
            f"{name:<8}{count:>11}{steps:>11.0f}{loop[1]:>10.1f}{batched[1]:>13.1f}"
            f"{batched[1] / loop[1]:>8.3f}",
            flush=True,
        )
    wall, processor = sums[0] / sums[1]
    print(f"load                 {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    print(f"wall time            {wall:.3f} of the loop's (target: at most {TARGET:.2f})")
    print(f"processor time       {processor:.3f} of the loop's, {1 / processor:.1f} times as fast")
    return 0


if __name__ == "__main__":
    sys.exit(main())
