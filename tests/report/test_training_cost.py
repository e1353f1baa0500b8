"""What the training of each run took, in `sightline compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from invented_runs import SCORES, invented, training
from made_results import untrained_result

from train.report.comparison import FoundRun, RunComparison, compare_runs
from train.report.grid import Grid
from train.report.render import to_text
from train.report.sections import document_of
from train.report.table import training_table

CPU = {"device": "cpu", "precision": "fp32", "peak_memory": {"host": 900_000_000}}


def run(name: str, *trainings: dict[str, object]) -> FoundRun:
    """A run with a seed for each of ``trainings``."""
    scores = SCORES["simcse"]
    results = tuple(
        invented(name, seed, scores[seed], training=took) for seed, took in enumerate(trainings)
    )
    files = tuple(Path(f"{name}/seed-{result.seed}.json") for result in results)
    return FoundRun(name, name, files, results)


def compared(*runs: FoundRun) -> RunComparison:
    return compare_runs(runs, runs[0].name)


def grid(comparison: RunComparison) -> Grid:
    (found,) = [each for each in document_of(comparison).grids if each.title.startswith("Training")]
    return found


def texts(found: Grid) -> list[list[str]]:
    return [[row.label, *(" ".join(cell.parts) for cell in row.cells)] for row in found.rows]


def test_a_row_has_the_means_over_the_seeds_and_the_largest_memory():
    seeds = (
        training(60.0),
        training(120.0, peak_memory={"device": 7_000_000_000}),
        training(180.0),
    )
    found = grid(compared(run("simcse", *seeds)))
    assert found.title == "Training (NVIDIA A100-SXM4-80GB, bf16, 1 process)"
    assert found.header == (
        *("run", "seeds", "minutes", "sentences/s"),
        *("GPU memory", "parameters", "steps"),
    )
    # 192,000 sentences in 1, 2 and 3 minutes: 3200, 1600 and 1066.7 a second
    row = ["simcse", "0, 1, 2", "2.00 ± 1.00", "1,956 ± 1,110", "7.0 GB", "109.48 M", "3,000"]
    assert texts(found) == [row]
    seeds = [[cell.parts[0] for cell in each.cells[1:4]] for each in found.rows[0].details]
    assert seeds == [
        ["1.00", "3,200", "5.1 GB"],
        ["2.00", "1,600", "7.0 GB"],
        ["3.00", "1,067", "5.1 GB"],
    ]


def test_steps_differ_after_an_early_stop_and_a_slow_rate_has_a_decimal():
    seeds = (training(60.0, steps=100), training(60.0, steps=300))
    slow = run("slow", *({**each, "sentences_per_second": 12.34} for each in seeds))
    (row,) = texts(grid(compared(slow)))
    assert row[3] == "12.3"
    assert row[6] == "200 ± 141"


def test_other_devices_are_marks_and_a_note():
    several = training(30.0, processes=(1, 2))
    comparison = compared(
        run("simcse", training(60.0)), run("mcse", several), run("old", training(9000.0, **CPU))
    )
    found = grid(comparison)
    assert found.title == "Training"
    assert [row.text for row in found.rows] == [
        "simcse (NVIDIA A100-SXM4-80GB, bf16, 1 process)",
        "mcse (NVIDIA A100-SXM4-80GB, bf16, 1, then 2 processes)",
        "old (cpu, fp32, 1 process)",
    ]
    assert found.header[4:6] == ("GPU memory", "process memory")
    assert [row[4:6] for row in texts(found)[1:]] == [["5.1 GB", "–"], ["–", "900.0 MB"]]
    (note,) = [note for note in comparison.notes if "devices" in note]
    assert note == (
        "the runs were trained on different devices (NVIDIA A100-SXM4-80GB: simcse, mcse; cpu: "
        "old): minutes, sentences per second and memory are not comparable"
    )
    alike = compared(run("simcse", training(60.0)), run("mcse", several))
    assert not [note for note in alike.notes if "devices" in note]


def test_seeds_on_different_devices_are_one_note_of_one_run():
    comparison = compared(run("simcse", training(60.0), training(9000.0, **CPU)))
    assert "GPU memory" not in grid(comparison).header  # never of some of the seeds
    assert grid(comparison).title == (
        "Training (NVIDIA A100-SXM4-80GB / cpu, bf16 / fp32, 1 process)"
    )
    assert sum("different devices" in note for note in comparison.notes) == 1


def test_processors_have_names():
    named = training(60.0, **CPU, processor="AMD EPYC 9B14")
    assert grid(compared(run("simcse", named))).title == "Training (AMD EPYC 9B14, fp32, 1 process)"
    assert texts(grid(compared(run("simcse", named))))[0][4] == "900.0 MB"


def test_a_seed_without_a_best_step_makes_no_mean_over_the_others():
    log = [{"dev": 60.0, "step": 2}]
    best = training(60.0, best_step=2, dev="STS-B dev", log=log)
    assert "best step" in grid(compared(run("simcse", best, best))).header
    assert "best step" not in grid(compared(run("simcse", best, training(60.0)))).header


def test_models_that_were_not_trained_have_no_row():
    scores = SCORES["simcse"][0]
    result = untrained_result("minilm", **invented("minilm", 0, scores).tasks["own"].model_dump())
    model = FoundRun("minilm", "minilm", (Path("minilm.json"),), (result,))
    assert [row[0] for row in texts(grid(compared(run("simcse", training(60.0)), model)))] == [
        "simcse"
    ]
    nothing = compared(model)
    assert nothing.training is None
    assert not [each for each in document_of(nothing).grids if each.title.startswith("Training")]
    assert not [note for note in nothing.notes if "training" in note]


@pytest.mark.parametrize("format_", ["terminal", "markdown", "latex"])
def test_every_format_has_the_section(format_):
    comparison = compared(run("simcse", training(90.0)), run("mcse", training(9000.0, **CPU)))
    text = to_text(document_of(comparison), format_)
    assert "Training" in text
    for figure in ("1.50", "150.00", "5.1 GB", "900.0 MB", "109.48", "NVIDIA A100-SXM4-80GB"):
        assert figure in text


def test_the_json_has_the_figures_unrounded():
    document = document_of(compared(run("simcse", training(100.0), training(101.0))))
    (row,) = json.loads(to_text(document, "json"))["training"]["rows"]
    assert row["cells"]["minutes"]["seeds"] == [100 / 60, 101 / 60]
    assert row["cells"]["GPU memory"]["mean"] == 5_100_000_000
    assert row["cells"]["parameters"]["mean"] == 109_482_240


def test_a_device_cannot_control_the_terminal():
    result = invented("simcse", 0, (1.0, 2.0), training=training(1.0, device="a\x1b[2J"))
    table = training_table([result])
    assert table is not None
    assert "a\x1b[2J" in table.titles["minutes"]
    found = grid(compared(FoundRun("simcse", "simcse", (Path("r.json"),), (result,))))
    assert "\x1b" not in found.title
