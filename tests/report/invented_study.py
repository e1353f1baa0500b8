"""Invented results of a study: seven runs with three seeds, as `make study` evaluates them."""

from __future__ import annotations

import math
import random

from train.evaluate.evaluation_set import EvaluationSet
from train.records import FeatureUse
from train.report.results import RunResult, TaskRecord, TrainingSummary

RETRIEVAL = ("I2T R@1", "I2T R@5", "I2T R@10", "T2I R@1", "T2I R@5", "T2I R@10")
# run → similarity, alignment, uniformity, image retrieval at rank 1
STUDY = {
    "SimCSE": (8.7, 0.93, -1.68, None),
    "MCSE (ResNet)": (68.1, 0.21, -2.27, 11.0),
    "MCSE (CLIP)": (79.6, 0.23, -2.84, 24.0),
    "MCSE with shuffled images": (0.8, 0.20, -0.63, 0.4),
    "KDMCSE": (78.0, 0.19, -2.83, 22.0),
    "DALR": (62.4, 0.40, -1.77, 9.0),
    "MCSEO": (75.2, 0.38, -2.82, 18.0),
}
BASELINE, GAIN, CONTROL = "SimCSE", "MCSE (CLIP)", "MCSE with shuffled images"
_TASKS = {
    "similarity": TaskRecord(task="similarity", metrics=("similarity",)),
    "geometry": TaskRecord(
        task="geometry",
        metrics=("alignment", "uniformity"),
        lower_is_better=("alignment", "uniformity"),
    ),
    "retrieval": TaskRecord(task="retrieval", title="Image–text retrieval", metrics=RETRIEVAL),
}


def study(seeds: int = 3) -> list[RunResult]:
    """The results of every run and seed."""
    return [_result(run, seed) for run in STUDY for seed in range(seeds)]


def _result(run: str, seed: int) -> RunResult:
    noise = random.Random(f"{run} {seed}")
    similarity, alignment, uniformity, recall = STUDY[run]
    scores: dict[str, float | None] = {
        "similarity": similarity + noise.uniform(-1, 1),
        "alignment": alignment + noise.uniform(-0.01, 0.01),
        "uniformity": uniformity + noise.uniform(-0.05, 0.05),
    }
    for number, metric in enumerate(RETRIEVAL):
        wider = 1 + number % 3
        scores[metric] = None if recall is None else recall * wider + noise.uniform(-0.3, 0.3)
    why = "its objective, simcse, projects no image features"
    log = []
    for step in range(20, 201, 20):
        log.append({"loss": 0.3 + 3 * math.exp(-step / 60) + noise.uniform(0, 0.1), "step": step})
        log.append({"dev": similarity * (1 - math.exp(-step / 50)), "step": step})
    grounded = run != "SimCSE"
    return RunResult(
        run=run,
        objective=run.split()[0].lower(),
        seed=seed,
        parameters={
            "objective": {"margin": 0.1, "weight": 1.0} if grounded else {},
            "train": {"batch_size": 64, "learning_rate": 3e-4, "seed": seed},
            "student": {"pooling": "cls", "hidden": 128},
        },
        scores=scores,
        reasons={metric: why for metric in RETRIEVAL if scores[metric] is None},
        evaluated_on=dict.fromkeys(scores, EvaluationSet(examples=300, sha256="12" * 32)),
        references={"chance": dict.fromkeys(RETRIEVAL, 0.33)},
        tasks=_TASKS,
        features=(_feature(run),) if grounded else (),
        training=TrainingSummary(
            steps=200,
            best_step=200,
            best_dev=log[-1]["dev"],
            seconds=31.0 + noise.uniform(0, 4),
            sentences_per_second=410.0 + noise.uniform(0, 40),
            device="cpu",
            processor="Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
            precision="fp32",
            dev_metric="Spearman × 100",
            log=tuple(log),
        ),
    )


def _feature(run: str) -> FeatureUse:
    resnet = "ResNet" in run
    return FeatureUse(
        name="scenes/image/resnet50" if resnet else "scenes/image/clip",
        encoder="torchvision/resnet50" if resnet else "open_clip/ViT-B-32",
        source="random:0" if resnet else "file:clip.safetensors",
        weights_sha256=("a" if resnet else "b") * 64,
        fingerprint=("e" if resnet else "f") * 64,
        content_digest="c" * 64,
        dim=512,
        rows=3000,
        untrained=resnet,
    )
