"""What the training of each run took, in `sightline compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from invented_runs import SCORES, invented, training

from train.evaluate.results import NOT_TRAINED, RunResult, TrainingSummary
from train.report.compare import RunComparison, compare_runs
from train.report.find_runs import FoundRun
from train.report.grids import Grid, grids_of
from train.report.side_by_side import to_text
from train.report.training_cost import training_costs

CPU = {"device": "cpu", "precision": "fp32", "peak_memory_bytes": 900_000_000}


def run(name: str, *trainings: TrainingSummary | None, **changes: object) -> FoundRun:
    """A run with a seed for each of ``trainings``."""
    scores = SCORES["simcse"]
    results = tuple(
        invented(name, seed, scores[seed], training=took, **changes)
        for seed, took in enumerate(trainings)
    )
    files = tuple(Path(f"{name}/seed-{result.seed}.json") for result in results)
    return FoundRun(name, name, files, results)


def compared(*runs: FoundRun) -> RunComparison:
    return compare_runs(runs, runs[0].name)


def grid(comparison: RunComparison) -> Grid:
    (found,) = [each for each in grids_of(comparison) if each.title.startswith("Training")]
    return found


def texts(found: Grid) -> list[list[str]]:
    return [[row.label, *(" ".join(cell.parts) for cell in row.cells)] for row in found.rows]


def test_a_row_has_the_means_over_the_seeds_and_the_largest_memory():
    seeds = (training(60.0), training(120.0, peak_memory_bytes=7_000_000_000), training(180.0))
    found = grid(compared(run("simcse", *seeds)))
    assert found.title == "Training (NVIDIA A100-SXM4-80GB, bf16, 1 process)"
    assert found.header == (
        *("run", "minutes", "sentences/s"),
        *("peak memory", "parameters", "steps"),
    )
    # 192,000 sentences in 1, 2 and 3 minutes: 3200, 1600 and 1066.7 a second
    row = ["simcse", "2.00 ± 1.00", "1,956 ± 1,110", "7.0 GB (GPU)", "109.48 M", "3,000"]
    assert texts(found) == [row]


def test_steps_differ_after_an_early_stop_and_a_slow_rate_has_a_decimal():
    seeds = (training(60.0, steps=100), training(60.0, steps=300))
    slow = run("slow", *(each.model_copy(update={"sentences_per_second": 12.34}) for each in seeds))
    (row,) = texts(grid(compared(slow)))
    assert row[2] == "12.3 ± 0.0"
    assert row[5] == "200 ± 141"


def test_other_devices_are_a_column_and_a_note():
    several = training(30.0, processes=(1, 2))
    comparison = compared(
        run("simcse", training(60.0)), run("mcse", several), run("old", training(9000.0, **CPU))
    )
    found = grid(comparison)
    assert found.title == "Training"
    assert [row[-1] for row in texts(found)] == [
        "NVIDIA A100-SXM4-80GB, bf16, 1 process",
        "NVIDIA A100-SXM4-80GB, bf16, 1, then 2 processes",
        "cpu, fp32, 1 process",
    ]
    assert texts(found)[2][3] == "900.0 MB (process)"
    (note,) = [note for note in comparison.notes if "devices" in note]
    assert note == (
        "the runs were trained on different devices (NVIDIA A100-SXM4-80GB: simcse, mcse; cpu: "
        "old): minutes, sentences per second and memory are not comparable"
    )
    alike = compared(run("simcse", training(60.0)), run("mcse", several))
    assert not [note for note in alike.notes if "devices" in note]


def test_seeds_on_different_devices_are_one_note_of_one_run():
    comparison = compared(run("simcse", training(60.0), training(9000.0, **CPU)))
    assert texts(grid(comparison))[0][3] == "5.1 GB (GPU / process)"
    assert grid(comparison).title == (
        "Training (NVIDIA A100-SXM4-80GB / cpu, bf16 / fp32, 1 process)"
    )
    assert sum("different devices" in note for note in comparison.notes) == 1


def test_processors_have_names_and_runs_that_lack_the_same_share_a_note():
    named = training(60.0, **CPU, processor="AMD EPYC 9B14")
    assert grid(compared(run("simcse", named))).title == "Training (AMD EPYC 9B14, fp32, 1 process)"
    assert texts(grid(compared(run("simcse", named))))[0][3] == "900.0 MB (process)"
    older = training(60.0, trained_parameters=None)
    comparison = compared(run("mcse", older), run("dalr", older))
    (note,) = [note for note in comparison.notes if "do not hold" in note]
    assert note.startswith("the results of mcse, dalr do not hold the number of parameters of ")


def test_what_older_results_do_not_hold_is_a_dash_and_a_note():
    older = training(60.0, trained_parameters=None, processes=())
    comparison = compared(run("simcse", training(60.0)), run("mcse", older), run("bare", None))
    rows = {row[0]: row[1:] for row in texts(grid(comparison))}
    assert rows["mcse"][3] == "–"
    assert rows["mcse"][0] == "1.00"
    assert set(rows["bare"]) == {"–"}
    notes = [note for note in comparison.notes if "do not hold" in note]
    assert notes[0] == (
        "the results of mcse do not hold the number of parameters, the number of processes of the "
        "training; evaluate them again"
    )
    assert notes[1].startswith("the results of bare do not hold the minutes, ")


def test_a_seed_without_a_time_makes_no_mean_over_the_others():
    comparison = compared(run("simcse", training(60.0), training(60.0, seconds=None)))
    assert texts(grid(comparison))[0][1] == "–"
    assert comparison.training[0].minutes.mean is None
    assert comparison.training[0].missing == ("the minutes",)


def test_models_that_were_not_trained_have_no_row():
    model = run("minilm", None, objective=NOT_TRAINED)
    assert [row[0] for row in texts(grid(compared(run("simcse", training(60.0)), model)))] == [
        "simcse"
    ]
    nothing = compared(run("simcse", None), model)
    assert nothing.training == ()
    assert not [each for each in grids_of(nothing) if each.title.startswith("Training")]
    assert not [note for note in nothing.notes if "training" in note]


@pytest.mark.parametrize("format_", ["terminal", "markdown", "latex"])
def test_every_format_has_the_section(format_):
    comparison = compared(run("simcse", training(90.0)), run("mcse", training(9000.0, **CPU)))
    text = to_text(comparison, format_)
    assert "Training" in text
    for figure in ("1.50", "150.00", "5.1 GB", "900.0 MB", "109.48", "NVIDIA A100-SXM4-80GB"):
        assert figure in text


def test_the_json_has_the_figures_unrounded():
    found = json.loads(to_text(compared(run("simcse", training(100.0), training(101.0))), "json"))
    (cost,) = found["training"]
    assert cost["minutes"]["seeds"] == [100 / 60, 101 / 60]
    assert cost["peak_memory"] == 5_100_000_000
    assert cost["parameters"] == [109_482_240]
    assert (cost["devices"], cost["precisions"]) == (["NVIDIA A100-SXM4-80GB"], ["bf16"])


def test_a_device_cannot_control_the_terminal():
    result: RunResult = invented("simcse", 0, (1.0, 2.0), training=training(1.0, device="a\x1b[2J"))
    (cost,) = training_costs([result])
    assert cost.devices == ("a\x1b[2J",)
    found = grid(compared(FoundRun("simcse", "simcse", (Path("r.json"),), (result,))))
    assert "\x1b" not in found.title
