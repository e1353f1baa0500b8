"""The seven STS scores: Sightline, a plain loop over both sides of every pair, and the library.

    python bench/evaluate_sts.py --data senteval/downstream --model PATH [--tasks STS-B ...]

The plain loop encodes the first and the second sentences of each subset in file order, in batches
of 64 padded to their longest sentence. Sightline encodes each distinct sentence of all tasks once,
sorted by length. Model, weights, precision and threads are the same; the scores must agree.
`encode` of sentence-transformers gets the distinct sentences, and so does ours beside it.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from harness import Cost, Report, options_of, take_turns

from sightline.models.pooling import pool
from train.embed import Embedder
from train.evaluate.ranking import cosine
from train.evaluate.similarity import correlate
from train.evaluate.sts import STS_TASKS, TestSets, evaluate_sts, load_sts

BATCH, TARGET = 64, 0.7
THEIRS = 1 / 1.3  # seconds of ours / sentence-transformers'


def plain_loop(embedder: Embedder, data: TestSets) -> dict[str, float | None]:
    """Scores computed as published evaluation scripts do: every pair, file order, padded."""
    scores = {}
    for task, subsets in data.items():
        cosines = [
            cosine(in_order(embedder, pairs.first), in_order(embedder, pairs.second))
            for pairs in subsets
        ]
        gold = np.concatenate([pairs.gold for pairs in subsets])
        scores[task] = correlate(np.concatenate(cosines), gold).spearman
    return scores


@torch.inference_mode()
def in_order(embedder: Embedder, sentences: tuple[str, ...]) -> np.ndarray:
    """Embeddings [n, d]."""
    rows = []
    for start in range(0, len(sentences), BATCH):
        batch = embedder.tokenizer(
            list(sentences[start : start + BATCH]),
            padding=True,
            truncation=True,
            max_length=embedder.max_length,
            return_tensors="pt",
        ).to(embedder.model.device)
        output = embedder.model(**batch)
        rows.append(pool(output, batch["attention_mask"], embedder.pooling).cpu().numpy())
    return np.concatenate(rows)


def main() -> None:
    """Measure, and compare the scores."""
    parser = options_of(__doc__, rounds=1)
    parser.add_argument("--data", type=Path, required=True, help="SentEval's downstream folder")
    parser.add_argument("--model", required=True, help="encoder folder")
    parser.add_argument("--pooling", default="mean", choices=("cls", "mean"))
    parser.add_argument("--tasks", nargs="+", default=list(STS_TASKS), help="a subset of the seven")
    options = parser.parse_args()
    data = load_sts(options.data, options.tasks)
    embedder = Embedder.load(options.model, options.pooling)
    scores: dict[str, dict[str, float | None]] = {}

    def ours() -> None:
        every = evaluate_sts(embedder.encode, data).scores
        scores["Sightline"] = {task: every[task] for task in data}

    def plain() -> None:
        scores["plain loop"] = plain_loop(embedder, data)

    report = Report(options)
    costs = take_turns({"plain": plain, "ours": ours}, options.rounds)
    for side, found in scores.items():
        report.add(side=side, **{task: "none" if s is None else s for task, s in found.items()})
    pairs = [[np.nan if s is None else s for s in found.values()] for found in scores.values()]
    np.testing.assert_allclose(*pairs, rtol=0, atol=0.01)
    both_clocks(report, "all tasks / the plain loop", costs, "plain", TARGET)
    beside_the_library(options, data, report)


def both_clocks(
    report: Report, what: str, costs: Mapping[str, Cost], other: str, at_most: float
) -> None:
    """Report a ratio of each clock, ours to the ``other`` side's."""
    for clock, ours_s, theirs in zip(Cost._fields, costs["ours"], costs[other], strict=True):
        seconds = {"ours_s": ours_s, f"{other}_s": theirs}
        report.ratio(f"{what}, {clock}", ours_s / theirs, at_most=at_most, **seconds)


def beside_the_library(options: argparse.Namespace, data: TestSets, report: Report) -> None:
    """Time `encode` of both on the same sentences, and compare the rows."""
    from sentence_transformers import SentenceTransformer

    pairs = [each for subsets in data.values() for each in subsets]
    sentences = list(dict.fromkeys(s for each in pairs for s in (*each.first, *each.second)))
    ours = Embedder.load(options.model)
    theirs = SentenceTransformer(options.model, device=ours.model.device.type)
    rows: dict[str, np.ndarray] = {}
    costs = take_turns(
        {
            "theirs": lambda: rows.update(theirs=theirs.encode(sentences, batch_size=BATCH)),
            "ours": lambda: rows.update(ours=ours.encode(sentences)),
        },
        options.rounds,
    )
    np.testing.assert_allclose(rows["ours"], rows["theirs"], rtol=0, atol=1e-4)
    what = f"{len(sentences):,} sentences / sentence-transformers"
    both_clocks(report, what, costs, "theirs", THEIRS)


if __name__ == "__main__":
    main()
