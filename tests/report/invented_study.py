"""Invented results of a study: seven runs with three seeds, as `make study` evaluates them."""

from __future__ import annotations

import math
import random

from invented_runs import UNTRAINED
from made_results import made_result

from train.evaluate.results import EvaluationSet, RunResult, TaskResult
from train.records import FeatureUse

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
_SET = EvaluationSet(examples=300, sha256="12" * 32)


def study(seeds: int = 3) -> list[RunResult]:
    """The results of every run and seed."""
    return [_result(run, seed) for run in STUDY for seed in range(seeds)]


def _result(run: str, seed: int) -> RunResult:
    noise = random.Random(f"{run} {seed}")
    similarity, alignment, uniformity, recall = STUDY[run]
    scores = {"similarity": similarity + noise.uniform(-1, 1)}
    space = {
        "alignment": alignment + noise.uniform(-0.01, 0.01),
        "uniformity": uniformity + noise.uniform(-0.05, 0.05),
    }
    recalls: dict[str, float | None] = {}
    for number, metric in enumerate(RETRIEVAL):
        wider = 1 + number % 3
        recalls[metric] = None if recall is None else recall * wider + noise.uniform(-0.3, 0.3)
    why = "its objective, simcse, projects no image features"
    log = []
    for step in range(20, 201, 20):
        log.append({"loss": 0.3 + 3 * math.exp(-step / 60) + noise.uniform(0, 0.1), "step": step})
        log.append({"dev": similarity * (1 - math.exp(-step / 50)), "step": step})
    grounded = run != "SimCSE"
    tasks = {
        "similarity": TaskResult(
            task="similarity", scores=scores, evaluated_on=dict.fromkeys(scores, _SET)
        ),
        "geometry": TaskResult(
            task="geometry",
            scores=space,
            evaluated_on=dict.fromkeys(space, _SET),
            lower_is_better=tuple(space),
        ),
        "retrieval": TaskResult(
            task="retrieval",
            title="Image–text retrieval",
            scores=recalls,
            reasons={metric: why for metric in RETRIEVAL if recalls[metric] is None},
            references={"chance": dict.fromkeys(RETRIEVAL, 0.33)},
            evaluated_on=dict.fromkeys(RETRIEVAL, _SET),
        ),
    }
    return made_result(
        run,
        seed,
        tasks=tasks,
        parameters={
            "objective": {"margin": 0.1, "weight": 1.0} if grounded else {},
            "train": {"batch_size": 64, "learning_rate": 3e-4, "seed": seed},
            "student": {"pooling": "cls", "hidden": 128},
        },
        features=(_feature(run),) if grounded else (),
        training={
            "objective": run.split()[0].lower(),
            "steps": 200,
            "best_step": 200,
            "seconds": 31.0 + noise.uniform(0, 4),
            "sentences_per_second": 410.0 + noise.uniform(0, 40),
            "device": "cpu",
            "processor": "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
            "precision": "fp32",
            "dev": "Spearman × 100",
            "log": log,
        },
    )


def _feature(run: str) -> FeatureUse:
    trained = {"name": "scenes/image/clip", "encoder": "open_clip/ViT-B-32", "untrained": False}
    trained |= {"source": "file:clip.safetensors", "fingerprint": "e" * 64}
    return UNTRAINED if "ResNet" in run else UNTRAINED.model_copy(update=trained)
