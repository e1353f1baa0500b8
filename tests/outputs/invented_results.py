"""Result files of two runs with two seeds, and a params.yaml whose report compares them."""

from __future__ import annotations

from pathlib import Path

import yaml
from made_results import made_result

from train.evaluate.results import save_result

RUNS = ("simcse", "mcse")


def write_results(folder: Path) -> None:
    """``results/<run>/seed-<n>.json``, ``params.yaml`` and an empty ``.dvc`` in ``folder``."""
    for number, run in enumerate(RUNS):
        for seed in (0, 1):
            score = 60.0 + 10 * number + seed
            result = made_result(
                run,
                seed,
                scores={"STS12": score, "Avg": score},
                subsets={"STS12": {"MSRpar": score - 1, "MSRvid": score + 1}},
            )
            save_result(result, folder / f"results/{run}/seed-{seed}.json")
    params = yaml.safe_load(Path(__file__).parents[2].joinpath("params.yaml").read_text())
    params["systems"] = {"simcse": {"objective": "simcse", "runs": {run: {} for run in RUNS}}}
    params["graph"]["seeds"] = [0, 1]
    params["report"] = {"title": "Two runs", "baseline": "simcse"}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    (folder / ".dvc").mkdir(parents=True)
