"""Invented result files of three runs with three seeds, for tests and for docs/evaluation.md."""

from __future__ import annotations

from made_results import made_result

from train.evaluate.results import EvaluationSet, save_result
from train.records import FeatureUse

SUBSETS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),
}
# run → (STS12, STS13) of seeds 0, 1, 2
SCORES = {
    "simcse": ((67.0, 79.0), (68.0, 80.0), (69.0, 81.0)),
    "mcse": ((71.0, 80.5), (72.0, 81.0), (73.0, 82.5)),
    "mcse-untrained": ((67.5, 78.0), (68.5, 80.5), (68.0, 81.0)),
}
# run → how much better each subset is than the one before it
SLOPES = {"simcse": 2.0, "mcse": 3.5, "mcse-untrained": 1.75}
# run → minutes of seeds 0, 1, 2
MINUTES = {
    "simcse": (12.0, 12.5, 13.0),
    "mcse": (20.0, 20.4, 20.8),
    "mcse-untrained": (19.9, 20.1, 20.3),
}
UNTRAINED = FeatureUse(
    name="flickr30k/image/resnet50",
    encoder="torchvision/resnet50",
    source="random:0",
    weights_sha256="a" * 64,
    fingerprint="f" * 64,
    dim=2048,
    rows=31783,
    untrained=True,
)


def training(seconds, /, **changes):
    """Fields of a training of 64 sentences a step; `changes` replace them."""
    return {
        "steps": 3000,
        "seconds": seconds,
        "sentences_per_second": 3000 * 64 / seconds,
        "peak_memory": {"host": 900_000_000, "device": 5_100_000_000},
        "device": "NVIDIA A100-SXM4-80GB",
        "precision": "bf16",
        "trained_parameters": 109_482_240,
        "processes": (1,),
        **changes,
    }


def invented(run, seed, scores, /, **changes):
    """A result whose subsets are around the score of their task; `changes` as of `made_result`."""
    slope = SLOPES.get(run, 2.0)
    tasks = dict(zip(SUBSETS, scores, strict=True))
    values = {
        "scores": {**tasks, "Avg": sum(scores) / len(scores)},
        "subsets": {
            task: {name: score + slope * (i - 1) for i, name in enumerate(SUBSETS[task])}
            for task, score in tasks.items()
        },
        "evaluated_on": {
            "STS12": EvaluationSet(examples=3108, sha256="12" * 32),
            "STS13": EvaluationSet(examples=1500, sha256="13" * 32),
        },
        "features": (UNTRAINED,) if "untrained" in run else (),
    }
    return made_result(run, seed, **{**values, **changes})


def write_invented(root):
    """Every run below ``root``, in the folders and files that the graph makes."""
    for run, seeds in SCORES.items():
        for seed, scores in enumerate(seeds):
            result = invented(run, seed, scores, training=training(60 * MINUTES[run][seed]))
            save_result(result, root / run / f"seed-{seed}.json")
