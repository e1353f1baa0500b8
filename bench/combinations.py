"""Does a combination of published terms beat every single system on the demo's scenes?

    make demo && python bench/combinations.py --demo demo --out combinations

Twelve combinations, written down before any run. Every part keeps the weights that it has in the
demo, except those given here; the first part brings the text term. All read all captions of an
image. The one with the best mean on the dev split, over seeds 10 to 14, is chosen; it is tested on
the test split, with seeds 0 to 4, against each single system: Student's t-test of two independent
samples, two-sided, Holm-corrected over the systems. A killed study resumes.
"""

from __future__ import annotations

import multiprocessing
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
import yaml
from harness import Report, options_of
from scipy.stats import ttest_ind

import sightline as sl

TEXTS_ALONE = {"image_weight": 0, "consistency_weight": 0, "cross_modal_weight": 0}
ACROSS_ALONE = {"image_weight": 0, "ranking_weight": 0, "intra_modal_weight": 0}
COMBINATIONS: dict[str, dict[str, dict[str, float]]] = {
    "MCSE (ResNet) + MCSE (CLIP)": {"mcse-resnet": {}, "mcse-clip": {}},
    "MCSE (ResNet) + KDMCSE": {"mcse-resnet": {}, "kdmcse": {}},
    "MCSE (ResNet) + KDMCSE's L_t": {"mcse-resnet": {}, "kdmcse": {"image_weight": 0}},
    "MCSE (ResNet) + DALR": {"mcse-resnet": {}, "dalr": {}},
    "MCSE (ResNet) + DALR's L_CML": {"mcse-resnet": {}, "dalr": ACROSS_ALONE},
    "MCSE (ResNet) + DALR's L_IML": {"mcse-resnet": {}, "dalr": TEXTS_ALONE},
    "MCSE (ResNet) + MCSEO": {"mcse-resnet": {}, "mcseo": {}},
    "MCSE (ResNet) + MCSEO's objects": {"mcse-resnet": {}, "mcseo": {"image_weight": 0}},
    "KDMCSE + DALR": {"kdmcse": {}, "dalr": {}},
    "DALR + MCSEO": {"dalr": {}, "mcseo": {}},
    "MCSE (ResNet) + DALR + MCSEO": {"mcse-resnet": {}, "dalr": {}, "mcseo": {}},
    "MCSE (ResNet) + KDMCSE + DALR + MCSEO": {
        "mcse-resnet": {},
        "kdmcse": {},
        "dalr": {},
        "mcseo": {},
    },
}
"""Name → system of the demo → its parameters that differ from the demo's."""

DATA = "scenes"


class Training(NamedTuple):
    """One run: its folder, objective, parameters and seed."""

    out: Path
    objective: str
    parameters: dict[str, Any]
    seed: int


class Scores(NamedTuple):
    """Spearman × 100 of one run on the two splits."""

    dev: float
    test: float


def combined(parts: Mapping[str, Mapping[str, float]], systems: Mapping[str, Any]) -> dict:
    """Parameters of the objective `combined`."""
    made = {}
    for number, (name, changes) in enumerate(parts.items()):
        own = {k: v for k, v in systems[name]["parameters"].items() if k != "caption"}
        text = {"text_weight": 0} if number else {}
        parameters = {**own, **text, **changes}
        made[name] = {"objective": systems[name]["objective"], "parameters": parameters}
    return {"caption": "all", "parts": made}


def run(training: Training, demo: Path) -> Scores:
    """Train, unless it is done, and score the best weights; in the folder of the demo's cache."""
    torch.set_num_threads(1)
    params = yaml.safe_load((demo / "params.yaml").read_text())
    data, objective = demo / "data", sl.make_objective(training.objective, training.parameters)
    student, prepared = params["student"], data / "datasets" / DATA
    features = {
        need.name: sl.FeatureSet.open(data / "features" / DATA / need.kind / need.encoder)
        for need in objective.features
    }
    summary = sl.train_model(
        objective,
        demo / student["model"],
        training.out,
        tokens=data / "tokens" / student["name"],
        pairs=prepared,
        sentences=prepared,
        features=features,
        phrases=data / "phrase-tokens" / DATA / student["name"]
        if any(need.row_of == "object" for need in objective.features)
        else None,
        dev=demo / params["evaluation"]["dev"],
        seed=training.seed,
        pooling=student["pooling"],
        max_length=student["max_length"],
        say=lambda line: None,
        **params["train"],
    )
    similarity = demo / params["evaluation"]["tasks"]["similarity"]["data"]
    tasks = sl.Evaluation.load({"similarity": {"data": similarity}})
    result = sl.evaluate_model(sl.EvaluatedModel.load(training.out), tasks)
    return Scores(max(score for _, score in summary.dev_history), result.scores["similarity"])


def run_all(
    names: Sequence[str], seeds: Sequence[int], options: Namespace
) -> dict[str, list[Scores]]:
    """Name → the scores of its seeds."""
    systems = yaml.safe_load((options.demo / "params.yaml").read_text())["systems"]
    trainings = {}
    for name in names:
        if name in COMBINATIONS:
            objective, parameters = "combined", combined(COMBINATIONS[name], systems)
        else:
            objective, parameters = systems[name]["objective"], systems[name]["parameters"]
        for seed in seeds:
            out = options.out / name.replace(" ", "-") / f"seed-{seed}"
            trainings[name, seed] = Training(out, objective, parameters, seed)
    with ProcessPoolExecutor(
        options.jobs, mp_context=multiprocessing.get_context("spawn")
    ) as workers:
        futures = {key: workers.submit(run, each, options.demo) for key, each in trainings.items()}
        scores: dict[str, list[Scores]] = {}
        for (name, seed), future in futures.items():
            scores.setdefault(name, []).append(future.result())
            print(f"{name}, seed {seed}: dev {future.result().dev:.2f}", flush=True)
    return scores


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values (Holm 1979): the smallest times their number, the next times one less, …"""
    adjusted, largest = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        largest = max(largest, min(1.0, p_values[name] * (len(p_values) - rank)))
        adjusted[name] = largest
    return adjusted


def spread(scores: Sequence[float]) -> str:
    """Mean ± sample standard deviation."""
    return f"{mean(scores):.2f} ± {stdev(scores):.2f}"


def main() -> None:
    """Train, choose, test."""
    parser = options_of(__doc__)
    parser.add_argument("--demo", type=Path, default=Path("demo"), help="folder of `make demo`")
    parser.add_argument("--out", type=Path, default=Path("combinations"), help="folder of runs")
    parser.add_argument("--seeds", type=int, default=5, help="of each side (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs side by side")
    options = parser.parse_args()
    systems = yaml.safe_load((options.demo / "params.yaml").read_text())["systems"]
    choosing, testing = range(10, 10 + options.seeds), range(options.seeds)
    report = Report(options)

    dev = {
        name: [each.dev for each in scores]
        for name, scores in run_all([*COMBINATIONS, *systems], choosing, options).items()
    }
    chosen = max(COMBINATIONS, key=lambda name: mean(dev[name]))
    tested = run_all([chosen, *systems], testing, options)
    test = {name: [each.test for each in scores] for name, scores in tested.items()}
    p_values = {name: float(ttest_ind(test[chosen], test[name]).pvalue) for name in systems}
    adjusted = holm(p_values)
    gains = {name: mean(test[chosen]) - mean(test[name]) for name in systems}
    for name in sorted(dev, key=lambda name: -mean(dev[name])):
        against = name in adjusted
        report.add(
            **{
                "terms": name,
                f"dev, seeds 10 to {choosing[-1]}": spread(dev[name]),
                f"test, seeds 0 to {testing[-1]}": spread(test[name]) if name in test else "",
                "chosen − system": f"{gains[name]:+.2f}" if against else "",
                "p, Holm": f"{adjusted[name]:.2g}" if against else "",
            }
        )


if __name__ == "__main__":
    main()
